"""What the base of all handlers derives from their operations."""

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import DebugHandler, NumpyHandler


@pytest.mark.parametrize("transb", [False, True])
def test_repeated_products_are_added(handler, rng, transb):
    b, out = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))
    factors = rng.normal(size=(3, 2, 3))

    def given(array):
        return handler.create_from_numpy(np.ascontiguousarray(array, dtype=handler.dtype))

    result, matrix = given(out), given(b.T if transb else b)
    product = handler.repeated_dot_add(matrix, transb=transb)
    for a in factors:
        product(given(a), result)
    expected = out + factors.sum(axis=0) @ b
    np.testing.assert_allclose(handler.get_numpy_copy(result), expected, rtol=1e-4, atol=1e-5)


def test_repeated_products_are_checked_like_others():
    handler = DebugHandler(NumpyHandler(np.float64))
    a, b, out = (handler.zeros(shape) for shape in ((2, 3), (4, 5), (2, 5)))
    with pytest.raises(HandlerValidationError, match=r"'b': expected shape \(K=3, N\), got"):
        handler.repeated_dot_add(b)(a, out)
