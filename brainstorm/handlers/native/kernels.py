"""Handwritten C kernels, compiled once per type of the arrays."""

from __future__ import annotations

from collections.abc import Sequence

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers import compiler
from brainstorm.handlers.native.calls import Kernel
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.utils import Array

#: The types that a source may use: that of the arrays, and an integer type of the same width for
#: indices, so that loops over both are vectorised.
_TYPES = {
    "float32": "typedef float real; typedef int32_t whole;",
    "float64": "typedef double real; typedef int64_t whole;",
}


def kernel_call(name: str, body: str, arrays: Sequence[Array], numbers: Sequence[int]) -> Kernel:
    """Return the call of ``void name(void *const *pointers, const int64_t *n)`` in C.

    Args:
        name: Name of the function.
        body: Its text, and the text before it; it may use the types ``real`` and ``whole``.
        arrays: The arrays that the pointers point to, all of one type.
        numbers: The content of n.

    Raises:
        UnsupportedError: There is no compiler.
    """
    source = f"#include <stdint.h>\n{_TYPES[arrays[0].dtype.name]}\n{body}"
    try:
        function = compiler.load_once(source, lambda: source, name)
    except MissingDependencyError as error:
        raise UnsupportedError(str(error)) from None
    return Kernel(function, [address_of(array) for array in arrays], numbers)
