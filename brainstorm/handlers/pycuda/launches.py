"""Launches: the kernels of an operation for given arrays, with arguments packed once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.pycuda.driver import Device, load_driver
from brainstorm.handlers.pycuda.modules import Kernel, modules_of

#: Maximum number of blocks per multiprocessor; each processes several elements.
BLOCKS = 16
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

    def bind(self, functions: Mapping[str, Any]) -> None:
        """Look up the kernel's function."""
        if self.kernel is not None:
            self.run = self._call(functions[self.kernel.name])


def load(device: Device, launches: Collection[Launch]) -> None:
    """Load the kernels of launches: all new ones are one module."""
    kernels = [launch.kernel for launch in launches if launch.kernel]
    functions = modules_of(device.index).load(device, kernels)
    for launch in launches:
        launch.bind(functions)


def packed_launch(
    device: Device, kernel: Kernel, grid: tuple[int, int], block: tuple[int, int, int],
    arguments: bytes, keep: Any = (), shared: int = 0,
) -> Launch:  # fmt: skip
    """Return the launch of a kernel with packed arguments; see `Launch`.

    Args:
        device: The GPU.
        kernel: What it runs.
        grid: Blocks along x and y.
        block: Threads of a block.
        arguments: As the kernel takes them.
        keep: See `Launch`.
        shared: Bytes of memory that the threads of a block share, besides what the kernel names;
            the same for all launches of a kernel on a GPU.
    """
    stream = device.stream

    def call(function: Any) -> Callable[[], None]:
        if shared:
            limit = load_driver().function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            function.set_attribute(limit, shared)
        return functools.partial(function._launch_kernel, grid, block, arguments, shared, stream)

    return Launch(kernel, call, keep)


def looping_blocks(device: Device, blocks: int) -> int:
    """Return a number of blocks: that with one element per thread, or fewer, which loop."""
    return max(1, min(blocks, BLOCKS * device.multiprocessors))


def check_count(name: str, count: int) -> None:
    """Raise an error if there are more elements than what is written by hand can count."""
    if count >= MANY:
        raise HandlerValidationError(
            f"{name} on a GPU: expected fewer than {MANY:,} elements, got {count:,}. Use "
            f"parts of the arrays, or smaller batches."
        )
