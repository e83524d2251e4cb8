"""Activation functions: values, derivatives by central differences, extreme inputs."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from brainstorm.handlers import DebugHandler, Handler, NumpyHandler

NAMES = Handler.activations
FORMULAS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "rel": lambda x: np.where(x > 0, x, 0),
    "el": lambda x: np.where(x >= 0, x, np.exp(np.minimum(x, 0)) - 1),
    "linear": lambda x: x,
}
FORMULAS["relu"], FORMULAS["elu"] = FORMULAS["rel"], FORMULAS["el"]


def make(handler, values):
    array = handler.allocate(np.shape(values))
    handler.set_from_numpy(array, np.array(values))
    return array


def test_names():
    assert NAMES == ("sigmoid", "rel", "relu", "tanh", "linear", "el", "elu")
    handler = NumpyHandler(np.float64)
    for table in (handler.act_func, handler.act_func_deriv):
        assert tuple(table) == NAMES
    assert set(handler.inplace_act_func) == set(handler.inplace_act_func_deriv) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_values(handler, rng, name):
    values = rng.normal(size=(4, 5))
    x, y = make(handler, values), handler.zeros((4, 5))
    handler.act_func[name](x, y)
    np.testing.assert_allclose(handler.get_numpy_copy(y), FORMULAS[name](values), atol=1e-6)
    handler.inplace_act_func[name](x)
    np.testing.assert_array_equal(handler.get_numpy_copy(x), handler.get_numpy_copy(y))
    assert handler.get_numpy_copy(y).dtype == handler.dtype


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_the_formulas(rng, name):
    handler = DebugHandler(NumpyHandler(np.float64))
    values = rng.normal(size=(4, 5))
    values[np.abs(values) < 1e-3] = 1.0  # rel has no derivative at 0
    deltas = rng.normal(size=(4, 5))
    step = 1e-6
    slope = (FORMULAS[name](values + step) - FORMULAS[name](values - step)) / (2 * step)
    x, dy, dx = make(handler, values), make(handler, deltas), handler.ones((4, 5))
    y = handler.zeros((4, 5))
    handler.act_func[name](x, y)
    for given in (x, None):
        handler.act_func_deriv[name](given, y, dy, dx)
        np.testing.assert_allclose(handler.get_numpy_copy(dx), deltas * slope, atol=1e-8)
    handler.inplace_act_func_deriv[name](y, dy)
    np.testing.assert_array_equal(handler.get_numpy_copy(dy), handler.get_numpy_copy(dx))


@pytest.mark.parametrize("name", NAMES)
def test_extremes_give_no_warnings_and_nothing_infinite(handler, name):
    largest = float(np.finfo(handler.dtype).max)
    values = np.array([[-largest, -1e4, -750.0, -100.0, 0.0, 100.0, 750.0, 1e4, largest]])
    x, y, ones = make(handler, values), handler.zeros(values.shape), handler.ones(values.shape)
    handler.act_func[name](x, y)
    handler.inplace_act_func_deriv[name](y, ones)
    result, slope = handler.get_numpy_copy(y), handler.get_numpy_copy(ones)
    assert np.isfinite(result).all()
    assert np.isfinite(slope).all()
    assert np.all(np.diff(result) >= 0)
    if name in ("sigmoid", "tanh"):
        assert result.min() >= (0 if name == "sigmoid" else -1)
        assert result.max() == 1
        assert np.all(slope >= 0)


def test_derivatives_at_zero(handler):
    zero, one = handler.zeros((1, 1)), handler.ones((1, 1))
    for name, expected in {"rel": 0.0, "el": 1.0, "tanh": 1.0}.items():
        dx = handler.zeros((1, 1))
        handler.act_func_deriv[name](zero, zero, one, dx)
        assert handler.get_numpy_copy(dx).item() == expected


def test_softmax_of_extremes(handler):
    m = make(handler, [[1e4, 0.0, -1e4], [-1e4, -1e4, -1e4]])
    handler.softmax_m(m, m)
    np.testing.assert_allclose(handler.get_numpy_copy(m), [[1, 0, 0], [1 / 3] * 3], rtol=1e-6)


def test_the_tables_of_a_copied_handler_belong_to_the_copy():
    handler = NumpyHandler(np.float32)
    copied = copy.deepcopy(handler)
    assert copied.act_func["rel"].__self__ is copied
    assert copied.inplace_act_func["el"].args[0].__self__ is copied
