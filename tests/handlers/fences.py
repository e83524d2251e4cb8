"""Memory between pages that nobody may touch: who goes beyond an array ends the process."""

import ctypes
import math
import mmap
from unittest import mock

import numpy as np

from brainstorm.handlers import NativeHandler, numpy_handler, numpy_memory
from brainstorm.handlers.native import primitives
from brainstorm.handlers.numpy_memory import ALIGNMENT
from brainstorm.testing import check_handler, handler_harness
from tests.handlers.test_base_handler import test_batches_may_be_empty as use_empty_batches

#: What begins the code of a new process.
HERE = f"from {__name__} import *; "
PAGE = mmap.PAGESIZE


def fenced(shape, dtype, at_end):
    """Return an array of zeros that ends, or begins, where a page begins, or ends."""
    sizes, dtype = np.broadcast_shapes(shape), np.dtype(dtype)
    size = math.prod(sizes) * dtype.itemsize
    inside = max(-(-size // PAGE), 1) * PAGE
    memory = mmap.mmap(-1, PAGE + inside + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (start, start + PAGE + inside):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(PAGE), 0) == 0
    step = ALIGNMENT if dtype == np.uint8 else 1  # oneDNN's
    before = (inside - size) // step * step if at_end else 0
    return np.ndarray(sizes, dtype, memory, PAGE + before)


def use_fences(at_end):
    """Do all operations of the native handler between fences."""

    def zeros(shape, dtype):
        return fenced(shape, dtype, at_end)

    for module in (numpy_handler, numpy_memory, primitives):
        mock.patch.object(module, "aligned_zeros", zeros).start()
    handler_harness.EXAMPLES = 3  # each takes a compiler's time
    names = "results equal the reference", "slices of wider arrays do as well"
    check_handler(NativeHandler(threads=2, seed=1), properties=names)
    use_empty_batches(NativeHandler)
