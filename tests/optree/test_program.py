"""Programs and the reference executor."""

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.optree import Constant, Variable, evaluate, gradients, linearise
from brainstorm.optree import functions as fn
from tests.optree.helpers import value, variables


def names(program):
    return [step.operator.name for step in program.steps]


def test_equal_computations_become_one_step_and_equal_identities_one_input():
    x, y = variables([(2, 3)] * 2)
    program = linearise([fn.exp(x * y), fn.exp(x * y) + fn.sum(x * y, 1), fn.sum(x * y, 0)])
    assert names(program) == ["mul", "exp", "sum", "add", "sum"]
    twins = [Variable((2,), name=n, identity="same") for n in "ab"]
    program = linearise(twins[0] * 2 + twins[1] * 2)
    assert (len(program.inputs), names(program)) == (1, ["mul", "add"])


def test_steps_and_liveness():
    x, y = variables([(2, 3), (3,)], np.float32)
    program = linearise([fn.sum((x * y + 1) * (x * y), axis=0), x])
    mul, add, product, total = program.steps
    assert program.inputs == (x, y)
    assert (mul.operands, mul.result, mul.frees) == ((0, 1), 2, ())
    assert add.operands == (2, Constant(1.0))
    assert product.frees == (2, 3)
    assert total.params == {"axis": (0,), "keepdims": True}
    assert (total.frees, program.outputs) == ((4,), (5, 0))
    assert [program.shape_of(i) for i in range(6)] == [(2, 3), (3,), *[(2, 3)] * 3, (1, 3)]
    assert program.dtype_of(0) == program.dtype_of(5) == np.float32
    y = fn.exp(x)
    program = linearise([y, y * 2, y])
    assert all(step.frees == () for step in program.steps)  # outputs never are
    assert program.outputs == (1, 2, 1)


def test_ones_of_the_default_error_cost_nothing():
    x, y = variables([(2,)] * 2)
    program = linearise(gradients(x * y + x / y, [x]))
    assert names(program) == ["div", "add"]
    assert program.inputs[program.steps[0].operands[1]] is y


def test_constants_fold_and_become_arrays_where_needed():
    (x,) = variables([(2, 3)])
    ones = fn.full((2, 3), 2.0, np.float64)
    program = linearise([ones * 3 + x, ones * 3, fn.sum(ones)])
    assert names(program) == ["add", "full", "sum", "full"]
    assert program.steps[0].operands == (Constant(6.0), 0)
    a, b, c = evaluate(program, {x: np.zeros((2, 3))})
    assert (a.tolist(), b.tolist(), c.tolist()) == ([[6] * 3] * 2, [[6] * 3] * 2, [[12]])


def test_a_factor_of_one_that_widens_is_kept():
    (x,) = variables([(3,)], np.float32)
    assert linearise(fn.full((2, 3), 1.0) * x).shape_of(1) == (2, 3)
    assert value(fn.full((3,), 1.0, np.float64) * x, {x: np.ones(3)}).dtype == np.float64


def test_text():
    (x,) = variables([(2, 3)], np.float32)
    assert str(linearise(fn.sum(x * 2, axis=0))).splitlines() == [
        "v0 = input x0 (2, 3) float32",
        "v1 = mul(v0, 2.0) (2, 3) float32",
        "v2 = sum(v1, axis=(0,), keepdims=True) (1, 3) float32  frees v1",
        "return v2",
    ]


def test_programs_of_nested_composites_grow_linearly():
    (x,) = variables([(2, 3)])

    def size(depth):
        y = x
        for _ in range(depth):
            y = fn.softmax(y) + fn.logsumexp(y, 1)
        return len(linearise(y).steps)

    assert size(20) - size(10) == size(30) - size(20)


X, AT, SHARE = Variable((2, 3), name="x"), Variable((2,), np.int64), Variable((2,))
ZEROS = np.zeros((2, 3))


@pytest.mark.parametrize(
    ("tree", "bindings", "text"),
    [
        (1.0, {}, "expected op-trees or variables, got float"),
        (X * 2, [ZEROS], r"expected a dictionary from variables to arrays, got \[array"),
        (X * 2, {"x": ZEROS}, "expected a dictionary from variables to arrays, got {'x'"),
        (X * 2, {X: ZEROS * 1j}, "expected a dtype of x of real numbers, got complex128"),
        (X * 2, {}, r"array for the variable x of shape \(2, 3\), got no"),
        (X * 2, {X: np.zeros(3)}, r"array of shape \(2, 3\) for the variable x, got shape \(3,\)"),
        (fn.take(X, AT), {X: ZEROS, AT: np.array([-1, 2])}, "indices from -2 to 1, got -1 to 2"),
        *(
            (
                fn.take(X, SHARE),
                {X: ZEROS, SHARE: np.array([1, wrong])},
                rf"shape \(2,\) to be whole numbers from -2 to 1, got {wrong} at index \(1,\)",
            )
            for wrong in (0.5, np.nan, np.inf)
        ),
    ],
)
def test_trees_bindings_and_indices_are_checked(tree, bindings, text):
    with pytest.raises(ValidationError, match=text):
        evaluate(tree, bindings)


def test_results_are_new_arrays_and_strided_ones_may_be_bound():
    (x,) = variables([(2,)])
    array = np.zeros(2)
    results = evaluate([x, x * 2, x * 2, x], {x: array})
    for i, result in enumerate(results):
        result += i + 1
    assert [r[0] for r in results] == [1, 2, 3, 4]
    assert not array.any()
    strided = np.arange(12).reshape(3, 4).T[::2]
    x = Variable((2, 3), np.float64)
    np.testing.assert_array_equal(value(x * 2, {x: strided}), strided * 2)


def test_zeros_of_either_sign_are_two_numbers():
    x = Variable((2,))
    ones = {x: np.ones(2, np.float32)}
    assert [v[0] for v in evaluate([x / 0.0, x / -0.0], ones)] == [np.inf, -np.inf]
    signs = [np.signbit(v[0]) for v in evaluate([x * -0.0, x * 0.0, x * -0.0], ones)]
    assert signs == [True, False, True]
    full = [fn.full((2,), zero) for zero in (0.0, -0.0)]
    assert [np.signbit(v[0]) for v in evaluate(full, {})] == [False, True]
