"""Arrays in the memory of a GPU: views without copies, but no computation."""

from __future__ import annotations

import ctypes
from copy import deepcopy
from ctypes import c_char_p, c_int32, c_void_p
from typing import Any, NoReturn

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.numpy_memory import array_at
from brainstorm.handlers.pycuda.driver import Device, Memory

_INDICES = (int, slice, type(None), type(Ellipsis))


class _TensorHead(ctypes.Structure):
    """The beginning of a DLPack tensor; see dlpack.h."""

    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32)]


_pointer_of = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class DeviceArray:
    """An array on a GPU.

    Indices (integers, slices, ``...``, None), `reshape`, `transpose` and `T` give views of the same
    memory. To compute, use the operations of a handler; to read, `get`. Other libraries can use
    the memory through ``__cuda_array_interface__`` and DLPack.

    Args:
        device: The GPU.
        memory: The memory that contains it, kept alive by it; None: kept alive otherwise.
        shadow: A NumPy array with its address, shape, strides and dtype. NumPy must not read it.

    Attributes:
        shape: Size of each dimension.
        dtype: NumPy dtype of the elements.
        size: Number of elements.
        ndim: Number of dimensions.
        strides: Bytes from one element to the next, for each dimension.
        address: Address of the first element.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "device",
        "dtype",
        "memory",
        "ndim",
        "shadow",
        "shape",
        "size",
        "strides",
    )

    def __init__(self, device: Device, memory: Memory | None, shadow: np.ndarray) -> None:
        self.device, self.shadow = device, shadow
        self.memory: Any = memory
        self.shape, self.dtype, self.strides = shadow.shape, shadow.dtype, shadow.strides
        self.size, self.ndim = shadow.size, shadow.ndim
        self.address: int = shadow.__array_interface__["data"][0]

    @classmethod
    def new(cls, device: Device, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return an array of zeros, in new memory.

        Raises:
            OutOfMemoryError: The GPU has no more memory.
        """
        memory = Memory(device, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)
        device.clear(memory)
        return cls.at(device, memory, shape, dtype)

    @classmethod
    def at(cls, device: Device, memory: Memory, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """Return an array at the beginning of some memory.

        Without any, it is at other memory of the device: kernels get addresses of empty arrays too.
        """
        address = memory.address or device.tickets.address
        return cls(device, memory, array_at(address, shape, dtype, owner=memory))

    # -- views -------------------------------------------------------------------------------

    def _view(self, shadow: np.ndarray) -> DeviceArray:
        return type(self)(self.device, self.memory, shadow)

    def __getitem__(self, key: Any) -> DeviceArray:
        """Return a view; an index of every dimension gives an array without dimensions.

        Raises:
            HandlerValidationError: The key contains other things than integers and slices.
        """
        parts = key if type(key) is tuple else (key,)
        for part in parts:
            if type(part) not in _INDICES and not isinstance(part, np.integer):
                raise HandlerValidationError(
                    f"{self!r}: cannot be indexed by {part!r}. Use integers, slices, ... and None; "
                    f"to select by values, read the array with get()."
                )
        return self._view(self.shadow[parts if Ellipsis in parts else (*parts, ...)])

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view of another shape; one size may be -1.

        Raises:
            HandlerValidationError: The sizes do not fit, or only a copy could have this shape.
        """
        sizes = tuple(shape[0]) if isinstance(shape[0], (tuple, list)) else shape
        try:
            return self._view(self.shadow.reshape(sizes, copy=False))
        except ValueError as error:
            if self.shadow.flags.c_contiguous and -1 not in sizes:
                raise HandlerValidationError(f"{self!r}: {error}") from None
            raise HandlerValidationError(
                f"{self!r}: cannot be reshaped to {sizes} without a copy ({error}); its rows are "
                f"{self.strides} bytes apart. Copy it to contiguous memory first."
            ) from None

    def transpose(self, *axes: Any) -> DeviceArray:
        """Return a view with the axes in another order; by default reversed."""
        return self._view(self.shadow.transpose(*axes))

    @property
    def T(self) -> DeviceArray:  # noqa: N802
        """The view with the axes reversed."""
        return self._view(self.shadow.T)

    def broadcast_to(self, shape: tuple[int, ...]) -> DeviceArray:
        """Return a view of a larger shape, with repeated elements."""
        return self._view(np.broadcast_to(self.shadow, shape))

    @property
    def flags(self) -> Any:
        """NumPy's flags: whether it is contiguous."""
        return self.shadow.flags

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.shadow.nbytes

    # -- content -----------------------------------------------------------------------------

    def get(self) -> np.ndarray:
        """Return a copy as a NumPy array, after waiting for earlier operations.

        Raises:
            DeviceError: The GPU failed.
        """
        return self.device.download(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy a number or an array from the host to the selected elements."""
        part = self[key]
        part.device.upload(np.broadcast_to(np.asarray(value), part.shape), part)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} is on a GPU. Copy it with get(), or compute with the operations of its "
            f"handler."
        )

    __array__ = __iter__ = __bool__ = __float__ = __int__ = __index__ = _refuse
    __copy__ = _refuse

    def __reduce__(self) -> Any:
        """Deep copies, and pickled ones, are uploaded to the GPU of the same number."""
        from brainstorm.handlers.pycuda.devices import uploaded  # which imports this module

        return uploaded, (self.device.index, self.get())

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)} on {self.device.name})"

    # -- sharing -----------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface by which other libraries use the memory; they wait for the stream."""
        return {
            "data": (self.address if self.size else 0, False),
            "shape": self.shape,
            "strides": None if self.flags.c_contiguous else self.strides,
            "typestr": self.dtype.str,
            "version": 3,
            "stream": self.device.stream.handle,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.index  # kDLCUDA

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """Return a capsule for ``from_dlpack``, after waiting for pending operations.

        NumPy creates it, with its deleter, as if the memory were the host's.

        Args:
            stream: Has no effect, since nothing is pending.
            max_version: Has no effect: the capsule has no version, which all consumers accept.
            dl_device: The GPU, or (1, 0) for a copy in the memory of the host.
            copy: Whether to copy; None: if it must be.

        Raises:
            BufferError: The device is another one, or cannot use the memory without a copy.
            HandlerValidationError: Its strides are not whole elements, or DLPack lacks the dtype.
        """
        if dl_device == (1, 0) and copy is not False:
            return self.get().__dlpack__()
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(
                f"{self!r}: device {dl_device} of DLPack cannot use its memory. Leave the device "
                f"out, or copy it with get()."
            )
        if copy:
            return deepcopy(self).__dlpack__()
        self.device.synchronize()
        array = array_at(self.address, self.shape, self.dtype, self.strides, self.memory)
        try:
            capsule = array.__dlpack__()
        except BufferError:
            raise HandlerValidationError(
                f"{self!r}: DLPack has no such arrays. Copy it first."
            ) from None
        head = _TensorHead.from_address(_pointer_of(capsule, b"dltensor"))
        head.data = self.address if self.size else None
        head.device_type, head.device_id = self.__dlpack_device__()
        return capsule
