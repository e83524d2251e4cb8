"""Programs on the NumPy handler, whatever the memory is like."""

import copy
import math
import pickle
import re

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError, ValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.optree import OPERATORS, Formula, Variable, evaluate, gradients, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import build
from tests.handlers.running import strided
from tests.optree.test_interpreter import OPTIONS
from tests.trainings import takes_less_than


@pytest.fixture
def handler():
    return NumpyHandler(np.float32, seed=1)


def check(handler, trees, bindings, accumulate=None, kind="plain", **tolerance):
    program = linearise(trees)
    expected = evaluate(program, bindings)
    arrays = {v.identity: strided(a, kind) for v, a in bindings.items()}
    inputs = [arrays[v.identity] for v in program.inputs]
    outputs = [strided(np.ones_like(a), kind) for a in expected]
    adds = [False] * len(outputs) if accumulate is None else accumulate
    for _ in range(2):
        for out in outputs:
            out[...] = 1
        handler.run_program(program, inputs, outputs, adds)
        for out, wanted, add in zip(outputs, expected, adds, strict=True):
            assert out.dtype == wanted.dtype
            np.testing.assert_allclose(out, wanted + add, **tolerance)


#: Shapes of operands that are others than (3, 3) or, element by element, those that are broadcast.
SHAPES = {"onehot": [(3, 1)], "put": [(3, 3), (3,)], "concatenate": [(3, 2), (3, 1), (3, 2)]}


@pytest.mark.parametrize("kind", ["plain", "slice", "fortran"])
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_operator(handler, name, kind):
    operator = OPERATORS[name]
    usual = [(2, 3), (2, 1), (3,)] if operator.is_elementwise else [(3, 3), (3, 3)]
    shapes, options = SHAPES.get(name, usual[: operator.arity]), OPTIONS.get(name, {})
    rnd = np.random.RandomState(3)
    operands = [Variable(shape, np.float64) for shape in shapes]
    bindings = {}
    for i, x in enumerate(operands):
        low, high = operator.domain[i] if operator.domain else (-3, 3)
        bindings[x] = rnd.uniform(low, high, x.shape)
        if i in operator.index_operands:
            bindings[x] = rnd.randint(3, size=x.shape) * 1.0
    tree = build(name, tuple(operands), options)
    check(handler, [tree, fn.exp(tree)], bindings, kind=kind, rtol=1e-12)
    check(handler, [tree, tree], bindings, [True, False], kind=kind, rtol=1e-12)


# -- what is kept ----------------------------------------------------------------------------


def big_program():
    x, w = Variable((600, 500), name="x"), Variable((500, 400), name="w")
    i = Variable((600, 1), np.int32)
    y = fn.tanh(x @ w + fn.mean(x, 1))
    loss = fn.logsumexp(y, 1) - fn.gather(y, i, 1) + fn.max(fn.where(y > 0, y, 0), 1)
    return linearise([loss, *gradients(loss, [x, w])])


def moving_program():
    x, i = Variable((600, 500), name="x"), Variable(400, np.float64)
    count = Variable((500,), np.int64)
    trees = [fn.reshape(x.T, (600, 500)) + fn.where(x > 1, x, count), fn.take(x, i),
             fn.concatenate([x[300:], -x[:300]], 0) * count]  # fmt: skip
    return linearise(trees)


@pytest.mark.parametrize("make", [big_program, moving_program])
def test_nothing_is_allocated_in_steady_state(handler, make):
    program = make()
    inputs = [np.ones(v.shape, v.dtype) for v in program.inputs]
    outputs = [np.zeros(program.shape_of(v), np.float32) for v in program.outputs]

    def run():
        for _ in range(3):
            handler.run_program(program, inputs, outputs, [False, True, False])

    run()
    # NumPy's own buffers for conversions, and Python's free lists; one array has 1.2 MB.
    with takes_less_than(300_000, left=20_000):
        run()


def test_memory_is_used_again_along_a_chain(handler):
    x = Variable((256, 256), np.float32)
    tree = x
    for _ in range(50):
        tree = fn.tanh(tree @ x)
    program = linearise(tree)
    a, out = np.zeros((256, 256), np.float32), np.zeros((256, 256), np.float32)
    with takes_less_than(5 * a.nbytes):
        handler.run_program(program, [a], [out], [False])


def test_many_shapes_do_not_make_memory_climb(handler):
    def run(t, b):
        program = linearise(fn.tanh(fn.exp(Variable((t, b, 50))) * 2) + 1)
        a = np.zeros((t, b, 50), np.float32)
        handler.run_program(program, [a], [a], [True])

    largest, sizes = 40 * 40 * 50 * 4, range(1, 41, 2)
    run(40, 40)
    with takes_less_than(math.inf, left=2 * largest):
        for t in sizes:
            for b in sizes:
                run(t, b)


def test_a_program_that_fails_does_not_spoil_the_next_ones(handler):
    x, i = Variable((4, 2)), Variable(3, np.int64)
    program = linearise(fn.sum(fn.take(fn.exp(x), i) * 2, 0))
    a, out = np.zeros((4, 2), np.float32), np.zeros((1, 2), np.float32)
    for _ in range(3):
        with pytest.raises(ValidationError, match="expected indices from -4 to 3"):
            handler.run_program(program, [a, np.array([0, 4, 1])], [out], [False])
        handler.run_program(program, [a, np.array([0, 3, 1])], [out], [False])
        np.testing.assert_array_equal(out, 6)


def test_copies_of_handlers_start_without_memory(handler):
    program = linearise(fn.tanh(fn.exp(Variable(100_000))) * 2)
    a = np.zeros(100_000, np.float32)
    handler.run_program(program, [a], [a], [False])
    assert len(pickle.dumps(handler)) < 100_000
    with takes_less_than(100_000):
        copy.deepcopy(handler)
    for twin in (copy.deepcopy(handler), pickle.loads(pickle.dumps(handler))):
        a.fill(0)
        twin.run_program(program, [a], [a], [False])
        np.testing.assert_allclose(a, 2 * np.tanh(1), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 4), (4, 3), (3, 1)])
@pytest.mark.parametrize("accumulate", [False, True])
def test_outputs_have_the_shape_of_their_value(shape, accumulate):
    handler, x = NumpyHandler(np.float32), np.ones((3, 4), np.float32)
    for function in (lambda x: x + x, lambda x: fn.transpose(fn.transpose(x))):
        text = rf"expected outputs of shapes \[\(3, 4\)\], got {re.escape(str([shape]))}"
        with pytest.raises(HandlerValidationError, match=text):
            handler.compute(Formula(function), [x], [np.zeros(shape, np.float32)], accumulate)


@pytest.mark.parametrize("make", [NumpyHandler, NativeHandler])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_formula_has_one_output_for_each_value(make, count):
    handler, x = make(np.float32), np.ones((3,), np.float32)
    both = Formula(lambda x: (x + 1, x * 2), "both")
    outputs = [np.zeros_like(x) for _ in range(count)]
    text = f"both: expected outputs of shapes [(3,), (3,)], got {[(3,)] * count} and "
    with pytest.raises(HandlerValidationError, match=re.escape(text)):
        handler.compute(both, [x], outputs)
    assert not np.any(outputs)  # nothing was written
