"""The table of activation functions: slopes, derivatives, names, and what users add."""

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.optree import Variable, evaluate, gradients
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS, activation, register_activation

#: Also the places where a derivative jumps: its value there is a convention.
X = np.array([*np.linspace(-30, 30, 2001), -3.0, -0.0, 0.0, 3.0, -1e-9, 1e-9, -100.0, 100.0])


@pytest.mark.parametrize("name", [n for n, row in ACTIVATIONS.items() if not row.needs_input])
def test_the_slope_from_the_output_is_the_derived_derivative(name):
    row, x = activation(name), Variable(X.shape, np.float64, "x")
    y = row(x)
    (derived,) = gradients(y, [x])
    from_output, expected = evaluate([row.slope(None, y), derived], {x: X})
    np.testing.assert_allclose(from_output, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", [n for n, row in ACTIVATIONS.items() if row.needs_input])
def test_other_slopes_are_derived_from_the_input_which_may_be_a_tree(name):
    row, x = activation(name), Variable(X.shape, np.float64, "x")
    z = 2.0 * x
    slope, y_above, y_below = evaluate(
        [row.slope(z, None), row(z + 1e-6), row(z - 1e-6)], {x: X}
    )  # fmt: skip
    smooth = np.abs(X) != 1.5  # at 3 and -3 hard_swish has kinks
    found, expected = slope[smooth], (y_above - y_below)[smooth] / 2e-6
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_synonyms_are_the_same_row():
    pairs = (("rel", "relu"), ("el", "elu"), ("leaky_rel", "leaky_relu"), ("silu", "swish"))
    assert all(activation(a) is activation(b) for a, b in pairs)
    assert activation("relu").name == "rel"


@pytest.mark.usefixtures("fresh_registry")
@pytest.mark.parametrize(
    ("name", "given", "match"),
    [
        ("swish", [lambda x: x], r"\('swish'\): the name is taken. Choose another than sigmoid, "),
        ("", [lambda x: x], "expected a name, got ''"),
        (3, [lambda x: x], "expected a name, got 3"),
        ("a", ["x**2"], r"\('a'\): formula: expected a function, got 'x\*\*2'"),
        ("a", [abs, "y"], r"slope_from_output: expected a function, got 'y'"),
        ("a", [lambda x: 1.0], "op-tree of its argument's shape, got 1.0 for .2, 3.. Write it"),
        ("a", [fn.sum], r"formula: .* got shape \(1, 1\) for \(2, 3\)"),
        ("a", [abs, fn.sum], r"slope_from_output: .* got shape \(1, 1\) for \(2, 3\)"),
    ],
)
def test_what_cannot_be_registered(name, given, match):
    known = dict(ACTIVATIONS)
    with pytest.raises(HandlerValidationError, match=match):
        register_activation(name, *given)
    assert dict(ACTIVATIONS) == known
