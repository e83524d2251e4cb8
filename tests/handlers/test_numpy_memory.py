"""Where arrays lie."""

import numpy as np
import pytest

from brainstorm.handlers import numpy_memory
from brainstorm.handlers.numpy_memory import address_of


class Subclass(np.ndarray):
    pass


A = np.arange(24.0).reshape(4, 6)
READ_ONLY = A.copy()
READ_ONLY.flags.writeable = False
ARRAYS = {
    "contiguous": A,
    "part": A[1:, 2::3],
    "backwards": A[::-1, ::-1],
    "transposed": A.T,
    "broadcast": np.broadcast_to(A[0], (3, 6)),
    "of no elements": A[:, 3:3],
    "of no axes": np.array(3),
    "read-only": READ_ONLY,
    "of a subclass": A.view(Subclass)[2:],
    "of bytes": np.frombuffer(b"12345678", np.int16)[1:],
    "of records": np.zeros(3, [("a", "f4"), ("b", "i8")])["b"],
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_address_is_that_which_numpy_documents(array):
    assert address_of(array) == numpy_memory._documented_address(array)
    assert address_of(array) == array.ctypes.data


def test_this_interpreter_needs_no_dictionaries():
    """Else every operation would take longer."""
    assert address_of is numpy_memory._address
