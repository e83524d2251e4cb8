"""Activation functions: their tables, precision, extremes, and those that users register.

That values and slopes are right is a property of handlers: `check_handler`.
"""

import copy
import re

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import Handler, NumpyHandler, register_activation
from brainstorm.handlers.base_activations import ActivationOperations
from brainstorm.optree import functions as fn
from tests.handlers.running import on
from tests.handlers.test_against_reference import activated

NAMES = Handler.activations


def test_names():
    assert Handler.activations_needing_inputs == {"gelu", "silu", "swish", "mish", "hard_swish"}
    handler = NumpyHandler(np.float64)
    for table in (handler.act_func, handler.act_func_deriv):
        assert tuple(table) == NAMES
    assert set(handler.inplace_act_func) == set(handler.inplace_act_func_deriv) == set(NAMES)


def test_editors_know_the_operations():
    declared = {name for name, f in vars(ActivationOperations).items() if hasattr(f, "contract")}
    assert ActivationOperations.__annotations__.keys() & declared == declared - {"softmax_m"}


@pytest.mark.parametrize("name", NAMES)
def test_extremes_give_no_warnings_and_nothing_infinite(handler, name):
    largest = float(np.finfo(handler.dtype).max)
    values = np.array([[-largest, -1e4, -750.0, -100.0, 0.0, 100.0, 750.0, 1e4, largest]])
    x, y, ones = on(handler, values), handler.zeros(values.shape), handler.ones(values.shape)
    handler.act_func[name](x, y)
    handler.inplace_act_func_deriv[name](y, ones, x)
    result, slope = handler.get_numpy_copy(y), handler.get_numpy_copy(ones)
    assert np.isfinite(result).all()
    assert np.isfinite(slope).all()
    if name not in Handler.activations_needing_inputs:  # those fall before they rise
        assert np.all(np.diff(result) >= 0)
    if name in ("sigmoid", "tanh"):
        assert result.min() >= (0 if name == "sigmoid" else -1)
        assert result.max() == 1
        assert np.all(slope >= 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu_has_the_precision_of_the_dtype_in_both_tails(dtype):
    handler = NumpyHandler(dtype)
    values = np.concatenate([np.linspace(-9, 9, 1000), np.linspace(-1e-3, 1e-3, 100), [-0.0]])
    x, y = on(handler, values), handler.zeros(values.shape)
    exact = activated("gelu", x.astype(np.float64))
    handler.gelu(x, y)
    # exp(-z * z) in the tail magnifies the rounding error of z, here and in the formula.
    tolerance = np.finfo(dtype).eps * (4 + 2 * x.astype(np.float64) ** 2)
    assert np.all(np.abs(y - exact) <= tolerance * np.abs(exact))


def test_the_derivative_in_place_asks_for_the_input_that_it_needs(handler):
    for name in sorted(Handler.activations_needing_inputs):
        text = f"inplace_act_func_deriv[{name!r}](y, dy, x): expected x, the input of {name!r}, got"
        with pytest.raises(HandlerValidationError, match=f"{re.escape(text)} None"):
            handler.inplace_act_func_deriv[name](handler.ones((2, 3)), handler.ones((2, 3)))


def test_an_unknown_name(handler):
    for table in (handler.act_func, handler.inplace_act_func_deriv):
        with pytest.raises(HandlerValidationError, match="unknown activation 'gelo'.*mean 'gelu'"):
            table["gelo"]


def test_softmax_of_extremes(handler):
    m = on(handler, [[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]])
    handler.softmax_m(m, m)
    np.testing.assert_allclose(handler.get_numpy_copy(m), [[1, 0, 0], [1 / 3] * 3], rtol=1e-6)


# -- registered functions ------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_registry")
def test_registered_functions_are_found_everywhere(handler, rng):
    register_activation(
        "softsign", lambda x: x / (1 + fn.absolute(x)), lambda y: fn.square(1 - fn.absolute(y))
    )
    register_activation("square", lambda x: x * x)
    assert Handler.activations == (*NAMES, "softsign", "square")
    assert "square" in Handler.activations_needing_inputs
    assert "softsign" not in Handler.activations_needing_inputs
    values = rng.normal(size=(4, 5))
    slopes = {"softsign": 1 / (1 + np.abs(values)) ** 2, "square": 2 * values}
    results = {"softsign": values / (1 + np.abs(values)), "square": values**2}
    described = type(handler).__new_from_description__(handler.__describe__())
    for found in (handler, copy.deepcopy(handler), described):
        for name, expected in results.items():
            x, dy = on(found, values), found.ones((4, 5))
            y, dx = found.zeros((4, 5)), found.zeros((4, 5))
            found.act_func[name](x, y)
            np.testing.assert_allclose(found.get_numpy_copy(y), expected, rtol=1e-5)
            found.act_func_deriv[name](x, y, dy, dx)
            np.testing.assert_allclose(found.get_numpy_copy(dx), slopes[name], rtol=1e-5)
            found.inplace_act_func_deriv[name](y, dy, x)
            np.testing.assert_array_equal(found.get_numpy_copy(dy), found.get_numpy_copy(dx))
            found.inplace_act_func[name](x)
            np.testing.assert_array_equal(found.get_numpy_copy(x), found.get_numpy_copy(y))


@pytest.mark.usefixtures("fresh_registry")
def test_a_registered_name_may_be_that_of_another_operation():
    register_activation("sqrt_t", lambda x: fn.sqrt(fn.absolute(x)))
    y = np.zeros((1, 2))
    NumpyHandler(np.float64).act_func["sqrt_t"](np.array([[4.0, -9.0]]), y)
    np.testing.assert_array_equal(y, [[2.0, 3.0]])
