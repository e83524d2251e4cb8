"""Op-trees on a GPU: a program as launches of rendered kernels."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.compiled_layout import Loops
from brainstorm.handlers.program_layouts import ProgramLayouts
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.indexing import build_step
from brainstorm.handlers.pycuda.launches import MANY, Launch, packed_launch
from brainstorm.handlers.pycuda.modules import loop_kernel
from brainstorm.optree.loops import Loop
from brainstorm.optree.program import Program
from brainstorm.optree.render_cuda import blocks_of, shares
from brainstorm.utils import Arrays

__all__ = ["DeviceProgram"]


class DeviceProgram(ProgramLayouts):
    """Turns a program and arrays into launches.

    Args:
        program: The program.
        device: Where it runs.

    """

    def __init__(self, program: Program, device: Device) -> None:
        super().__init__(program, 1, lambda *form: DeviceArray.new(device, *form).shadow)
        self._device = device

    def collect(
        self, build: Any, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        """Add the launches that compute the outputs to what a `Building` collects.

        Raises:
            HandlerValidationError: An array has another shape than the program.
        """
        read, written = ([array.shadow for array in arrays] for arrays in (inputs, outputs))
        given = [array.address for array in (*inputs, *outputs)]
        layout = self.layout(read, written, tuple(map(bool, accumulate)), given)
        addresses = layout.addresses(given)
        for part in layout.parts:
            if isinstance(part, Loops):
                self._collect_loops(build, part, part.pointers(addresses), layout)
            else:
                views = part.views(addresses)
                build.kept.append(layout.buffers)
                arrays = (DeviceArray(self._device, None, view) for view in views)
                build_step(build, part.step, *arrays)

    def _collect_loops(self, build: Any, part: Loops, pointers: np.ndarray, keep: Any) -> None:
        p = n = 0
        for loop in part.loops:
            # Threads and chunks are for the CPU.
            n, end = n + 2, n + 2 + loop.extents
            stop = end + len(loop.constants)
            given = pointers[p : p + loop.arrays], part.numbers[n:end], part.numbers[end:stop]
            build.launches.append(self._launch(loop, *given, keep))
            p, n = p + loop.arrays, stop

    def _launch(
        self, loop: Loop, pointers: np.ndarray, numbers: np.ndarray, constants: np.ndarray,
        keep: Any,
    ) -> Launch:  # fmt: skip
        sizes = [int(size) for size in numbers[: loop.rank]]
        strides = numbers[loop.rank :].reshape(-1, loop.rank)
        reach = max([math.prod(sizes), *(np.abs(strides) @ np.array(sizes)).tolist()])
        index = "int" if reach < MANY else "ptrdiff_t"
        blocks = blocks_of(loop, sizes)
        addresses = pointers.tolist()
        if shares(loop):
            parts = self._device.scratch(
                "parts", 8 * len(loop.writes) * blocks.results * blocks.chunks
            )
            tickets = self._device.tickets
            addresses += [parts.address, tickets.address]
            keep = [keep, parts, tickets]
        types = [np.dtype(type_[0]) for type_ in loop.constants]
        with np.errstate(over="ignore"):
            values = [t.type(x) for t, x in zip(types, constants.view(np.float64), strict=True)]
        integers = f"{len(numbers)}{'i' if index == 'int' else 'q'}"
        format_ = f"{len(addresses)}P{integers}{''.join(t.char for t in types)}0P"
        return packed_launch(
            self._device,
            loop_kernel(loop, index),
            (blocks.grid, blocks.chunks),
            (blocks.x, blocks.y, 1),
            struct.pack(format_, *addresses, *numbers.tolist(), *values),
            keep,
        )
