"""Op-trees on a GPU, against the interpreter: products, indexing, overlaps, random trees."""

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.pycuda import launches
from brainstorm.optree import (
    Variable,
    formula,
    linearise,
    register_operator,
)
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import build
from tests.handlers.running import on
from tests.optree.operation_cases import variables


def run(handler, trees, bindings):
    """Return the values of trees, computed on the GPU."""
    program = linearise(trees)
    inputs = [handler.create_from_numpy(bindings[variable]) for variable in program.inputs]
    outputs = [handler.zeros(program.shape_of(v)) for v in program.outputs]
    handler.run_program(program, inputs, outputs, [False] * len(outputs))
    return [output.get() for output in outputs]


def test_sums_in_chunks_depend_neither_on_the_grid_nor_on_which_block_is_the_last(
    handler, rng, monkeypatch, shim
):
    values = rng.normal(size=(3000, 50)).astype(np.float32)
    found = set()
    for order, blocks in (("forward", 16), ("forward", 1), ("reversed", 16), ("shuffled", 16)):
        shim.set_option("order", order)
        monkeypatch.setattr(launches, "BLOCKS", blocks)
        (x,), _ = variables(rng, values.shape)
        trees = [fn.sum(x, 0), fn.sum(x, 1), fn.sum(x), fn.max(x, 0)]
        found.add(b"".join(array.tobytes() for array in run(handler, trees, {x: values})))
    assert len(found) == 1


@pytest.mark.usefixtures("own_table")
def test_products_in_double_precision_and_steps_without_a_kernel_are_refused(handler):
    x = Variable((2, 2), np.float64)
    with pytest.raises(HandlerValidationError, match="expected float32 for the operator 'dot'"):
        run(handler, [fn.dot(x, x)], {x: np.eye(2)})
    register_operator("cumprod_test", 1, lambda x, out: np.cumprod(x, 0, out=out), kind="scan")
    tree = build("cumprod_test", (Variable((3,)),))
    text = "expected one of dot, cumsum, .* got 'cumprod_test'. Comp"
    with pytest.raises(HandlerValidationError, match=text):
        run(handler, [tree], {tree.operands[0]: np.ones(3, np.float32)})


def test_outputs_may_overlap_inputs(handler, rng):
    values = rng.normal(size=(6, 6)).astype(np.float32)
    x = on(handler, values)
    handler.compute(formula(lambda a: fn.transpose(a)), [x], [x])
    np.testing.assert_array_equal(x.get(), values.T)
    x = on(handler, values)
    handler.compute(formula(lambda a: a + 1.0), [x[:5]], [x[1:]])
    np.testing.assert_array_equal(x[1:].get(), values[:5] + 1)


def test_wrong_shapes(handler):
    program = linearise(fn.tanh(Variable((2, 3), np.float32)))
    with pytest.raises(HandlerValidationError, match=r"expected outputs of shapes \[\(2, 3\)\]"):
        handler.run_program(program, [handler.ones((2, 3))], [handler.ones((3, 2))], [False])
