"""DLPack: capsules by which arrays are passed to other libraries.

The structures are those of dlpack.h, version 0.8, which every consumer supports.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any

from brainstorm.errors import HandlerValidationError

KDL_CUDA = 2
#: NumPy's kind of dtype -> DLPack's type code.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _ManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter)]


#: Structures in use, by address, until their deleters are called.
_handed_out: dict[int, tuple[Any, ...]] = {}


@_Deleter
def _delete(address: int) -> None:
    _handed_out.pop(address, None)


# Addresses instead of objects: the reference count of a dying capsule must not change.
_is_valid = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, c_char_p, c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop(unused: int) -> None:
    """Free a capsule that was not consumed; a consumer renames it."""
    if _is_valid(unused, _NAME):
        _delete(_pointer(unused, _NAME))


def capsule(array: Any) -> Any:
    """Return a capsule with a `DeviceArray`, which is kept alive until the consumer releases it.

    Raises:
        HandlerValidationError: Its strides are not whole elements, or DLPack lacks the dtype.
    """
    if array.dtype.kind not in _CODES or any(s % array.itemsize for s in array.strides):
        raise HandlerValidationError(f"{array!r}: DLPack has no such arrays. Copy it first.")
    shape = (c_int64 * max(array.ndim, 1))(*array.shape)
    strides = (c_int64 * max(array.ndim, 1))(*(s // array.itemsize for s in array.strides))
    place, type_ = (KDL_CUDA, array.device.index), (_CODES[array.dtype.kind], array.itemsize * 8, 1)
    address = array.address if array.size else None
    tensor = _Tensor(address, *place, array.ndim, *type_, shape, strides, 0)
    managed = _ManagedTensor(tensor, None, _delete)
    address = ctypes.addressof(managed)
    _handed_out[address] = managed, shape, strides, array.memory
    return _new(address, _NAME, ctypes.cast(_drop, c_void_p))
