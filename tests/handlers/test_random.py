"""Random numbers: limits, numbers in memory, and views.

Streams, their states and distributions are properties of handlers: `check_handler`.
"""

import numpy as np
import pytest


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_certain_masks(handler, probability, expected):
    mask = handler.zeros((10, 10))
    handler.fill(mask, 0.5)
    handler.generate_probability_mask(mask, probability)
    assert np.all(handler.get_numpy_copy(mask) == expected)


def test_numbers_in_memory_are_parameters_too(handler):
    stream = handler.create_random_stream
    x, y = handler.zeros((5, 5)), handler.zeros((5, 5))
    two = handler.ones((1,))
    handler.fill(two, 2.0)
    handler.fill_gaussian(two, two, x, stream(1))
    handler.fill_gaussian(2.0, 2.0, y, stream(1))
    np.testing.assert_array_equal(handler.get_numpy_copy(x), handler.get_numpy_copy(y))


def test_a_view_gets_the_numbers_that_an_array_would_get(handler):
    wide, array = handler.zeros((4, 9)), handler.zeros((4, 3))
    handler.fill_gaussian(0.0, 1.0, wide[:, 2:5], handler.create_random_stream(1))
    handler.fill_gaussian(0.0, 1.0, array, handler.create_random_stream(1))
    result = handler.get_numpy_copy(wide)
    np.testing.assert_array_equal(result[:, 2:5], handler.get_numpy_copy(array))
    assert np.all(result[:, :2] == 0)
