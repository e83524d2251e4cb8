"""Op-trees on a GPU: a program as launches of rendered kernels."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.program_specializer import ProgramSpecializer
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.indexing import build_step
from brainstorm.handlers.pycuda.launches import MANY, Launch, packed_launch
from brainstorm.handlers.pycuda.modules import loop_kernel
from brainstorm.handlers.pycuda.rows import Walk, grouped, walks_of
from brainstorm.handlers.specialized_program import Loops
from brainstorm.optree.program import Program
from brainstorm.optree.render_cuda import blocks_of, row_blocks, shares
from brainstorm.utils import Arrays

__all__ = ["DeviceProgram"]


class DeviceProgram(ProgramSpecializer):
    """Turns a program and arrays into launches.

    Args:
        program: The program.
        device: The GPU.

    """

    def __init__(self, program: Program, device: Device) -> None:
        super().__init__(program, 1, lambda *form: DeviceArray.new(device, *form).shadow)
        self._device = device

    def collect(
        self, build: Any, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        """Add the launches that compute the outputs to a `Building`.

        Raises:
            HandlerValidationError: An array has another shape than the program.
        """
        read, written = ([array.shadow for array in arrays] for arrays in (inputs, outputs))
        given = [array.address for array in (*inputs, *outputs)]
        special = self.specialize(read, written, tuple(map(bool, accumulate)), given)
        addresses = special.addresses(given)
        for part in special.parts:
            if isinstance(part, Loops):
                for group in grouped(list(walks_of(part, part.pointers(addresses)))):
                    build.launches.append(self._launch(group, special))
            else:
                views = part.views(addresses)
                build.kept.append(special.buffers)
                arrays = (DeviceArray(self._device, None, view) for view in views)
                build_step(build, part.step, *arrays)

    def _launch(self, walks: list[Walk], keep: Any) -> Launch:
        loops = tuple(walk.loop for walk in walks)
        index = "int" if max(map(_reach, walks)) < MANY else "ptrdiff_t"
        addresses = [address for walk in walks for address in walk.pointers]
        if len(walks) > 1:
            blocks = row_blocks(walks[0].sizes[0], max(walk.terms for walk in walks))
        else:
            blocks = blocks_of(loops[0], walks[0].sizes)
            if shares(loops[0]):
                size = 8 * len(loops[0].writes) * blocks.results * blocks.chunks
                parts, tickets = self._device.scratch("parts", size), self._device.tickets
                addresses += [parts.address, tickets.address]
                keep = [keep, parts, tickets]
        numbers = [n for walk in walks for row in (walk.sizes, *walk.strides) for n in row]
        types = [np.dtype(type_[0]) for loop in loops for type_ in loop.constants]
        with np.errstate(over="ignore"):
            given = [x for walk in walks for x in walk.constants]
            values = [t.type(x) for t, x in zip(types, given, strict=True)]
        integers = f"{len(numbers)}{'i' if index == 'int' else 'q'}"
        format_ = f"{len(addresses)}P{integers}{''.join(t.char for t in types)}0P"
        return packed_launch(
            self._device,
            loop_kernel(loops, index),
            (blocks.grid, blocks.chunks),
            (blocks.x, blocks.y, 1),
            struct.pack(format_, *addresses, *numbers, *values),
            keep,
        )


def _reach(walk: Walk) -> int:
    """Return the maximum value of an index of a loop."""
    distances = (
        sum(abs(s) * n for s, n in zip(row, walk.sizes, strict=True)) for row in walk.strides
    )
    return max(math.prod(walk.sizes), *distances)
