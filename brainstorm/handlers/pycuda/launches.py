"""Launches: the kernels of an operation for given arrays, with arguments packed once."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.modules import Kernel, Modules

#: Maximum number of blocks per multiprocessor; each processes several elements.
BLOCKS = 16
#: Threads per block of handwritten kernels.
THREADS = 256
#: Number of elements for which 32-bit indices are too small: they reach beyond the last element by
#: what all threads do at a time, of up to 16 elements each.
MANY = 2**31 - 2**24


class Launch:
    """A kernel with its arguments, or a call of a library.

    Args:
        kernel: The kernel to launch; None: a call.
        call: The call, or its creation from the kernel's function: ``call(function)()``.
        keep: Objects to keep alive for it, except the arrays of an operation, which the owner of
            a launch keeps.

    Attributes:
        run: Puts it into the stream.
    """

    __slots__ = ("_call", "keep", "kernel", "run")

    def __init__(self, kernel: Kernel | None, call: Callable[..., Any], keep: Any = ()) -> None:
        self.kernel, self._call, self.keep = kernel, call, keep
        self.run: Callable[[], Any] = call

    def bind(self, modules: Modules) -> None:
        """Look up the kernel's function, which must be loaded."""
        if self.kernel is not None:
            self.run = self._call(modules.function(self.kernel))


def _packed_call(
    grid: tuple[int, ...], block: tuple[int, ...], arguments: bytes, stream: Any, function: Any
) -> Callable[[], None]:
    return functools.partial(function._launch_kernel, grid, block, arguments, 0, stream)


def packed_launch(
    device: Device, kernel: Kernel, blocks: tuple[int, int], block: tuple[int, int, int],
    arguments: bytes, keep: Any = (),
) -> Launch:  # fmt: skip
    """Return the launch of a kernel with packed arguments.

    Args:
        device: The GPU.
        kernel: The kernel.
        blocks: Number of blocks along x with one element per thread; fewer are used if that is
            many, unless there are several along y.
        block: Threads per block.
        arguments: The arguments, packed.
        keep: See `Launch`.
    """
    count, chunks = blocks
    most = BLOCKS * device.multiprocessors if chunks == 1 else count
    grid = (max(1, min(count, most)), chunks)
    call = functools.partial(_packed_call, grid, block, arguments, device.stream)
    return Launch(kernel, call, keep)


def check_count(name: str, count: int) -> None:
    """Check that what is written by hand can count elements.

    Raises:
        HandlerValidationError: There are more.
    """
    if count >= MANY:
        raise HandlerValidationError(
            f"{name} on a GPU: expected fewer than {MANY:,} elements, got {count:,}. Use "
            f"parts of the arrays, or smaller batches."
        )


def kernel_launch(
    device: Device, kernel: Kernel, count: int, *arguments: Any, blocks: int | None = None
) -> Launch:
    """Return the launch of a handwritten kernel.

    Args:
        device: The GPU.
        kernel: The kernel.
        count: Elements that the threads share, in a loop over the whole grid.
        *arguments: Arrays and None become addresses, integers ``int``.
        blocks: The exact number of blocks, where the kernel depends on it.

    Raises:
        HandlerValidationError: There are more elements than the kernel can count.
    """
    check_count(kernel.name, count)
    types, values = "", []
    for argument in arguments:
        if argument is None or isinstance(argument, DeviceArray):
            types += "P"
            values.append(0 if argument is None else argument.address)
        else:
            types += "i"
            values.append(argument)
    data = struct.pack(types, *values)
    if blocks is None:
        return packed_launch(device, kernel, (-(-count // THREADS), 1), (THREADS, 1, 1), data)
    call = functools.partial(_packed_call, (blocks, 1), (THREADS, 1, 1), data, device.stream)
    return Launch(kernel, call)
