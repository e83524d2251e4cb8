"""Op-trees on a GPU: a program as pieces: loops, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brainstorm.handlers.bound_program import Loops
from brainstorm.handlers.executor import Executor
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.fusing import Piece
from brainstorm.handlers.pycuda.groups import walks_of
from brainstorm.handlers.pycuda.indexing import build_step
from brainstorm.optree.program import Program
from brainstorm.utils import Arrays


class DeviceExecutor(Executor):
    """Turns a program and arrays into pieces of an operation."""

    def __init__(self, program: Program, device: Device) -> None:
        super().__init__(program, 1, lambda *form: DeviceArray.new(device, *form).shadow)
        self._device = device

    def collect(
        self, build: Any, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        """Add the pieces that compute the outputs to a `Building`.

        Raises:
            HandlerValidationError: An array has another shape than the program.
        """
        read, written = ([array.shadow for array in arrays] for arrays in (inputs, outputs))
        bound = self.bound(read, written, tuple(map(bool, accumulate)))
        build.kept.append(bound)
        for part, places in bound.placed((*read, *written)):
            if isinstance(part, Loops):
                build.pieces += [Piece.of_loop(walk) for walk in walks_of(part, places)]
            else:
                arrays = (DeviceArray(self._device, None, view) for view in places)
                build_step(build, part, *arrays)
