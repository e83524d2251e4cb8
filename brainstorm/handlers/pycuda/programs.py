"""Op-trees on a GPU: a program as pieces: loops, products, indexing and scans."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.bound_program import Loops
from brainstorm.handlers.executor import Executor
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.builders import add_picked, indices_for, take_picked
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.fusing import Piece
from brainstorm.handlers.pycuda.groups import walks_of
from brainstorm.optree import Program, Step, formula
from brainstorm.optree import functions as fn
from brainstorm.utils import Arrays

_classes = formula(lambda indices, classes: fn.equal(indices, classes))


class DeviceExecutor(Executor):
    """Turns a program and arrays into pieces of an operation."""

    def __init__(self, program: Program, device: Device) -> None:
        super().__init__(program, 1, lambda *form: DeviceArray.new(device, *form).shadow)
        self._device = device

    def collect(
        self, build: Building, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
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
                _build_step(build, part, *arrays)


def _build_step(build: Building, step: Step, *arrays: DeviceArray) -> None:
    """Add a step that is not a loop, given its operands and its result.

    Raises:
        HandlerValidationError: It is not in float32, or there is no kernel for its operator.
    """
    if step.operator.name not in _STEPS:
        raise HandlerValidationError(
            f"op-tree on a GPU: expected one of {', '.join(_STEPS)}, or an operator with a form in "
            f"C, got {step.operator.name!r}. Compute it on the CPU."
        )
    if step.dtype != np.float32:
        raise HandlerValidationError(
            f"op-tree on a GPU: expected float32 for the operator {step.operator.name!r}, "
            f"got {step.dtype}. Compute it on the CPU, or with float32 arrays."
        )
    *operands, out = arrays
    is_written_to = out.flags.c_contiguous or step.operator.name == "dot"
    target = out if is_written_to else build.temporary(out.shape)
    _STEPS[step.operator.name](build, *operands, target, **step.params)
    if target is not out:  # now, because the next steps may read it
        build.copy(target, out)


def _dot(build: Building, x: DeviceArray, y: DeviceArray, out: DeviceArray) -> None:
    ahead = out.shape[:-2]
    stacks = [a.broadcast_to((*ahead, *a.shape[-2:])) for a in (x, y)]
    for place in np.ndindex(*ahead[:-1]):
        build.product(stacks[0][place], stacks[1][place], out[place])


def _sizes(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """Return the number of elements before an axis, and after it."""
    return math.prod(shape[:axis]), math.prod(shape[axis + 1 :])


def _put(build: Building, values: Any, indices: Any, out: Any, axis: int, size: int) -> None:
    build.clear(out)
    add_picked(build, values, indices, out, axis, wraps=True)


def _scatter(build: Building, values: Any, indices: Any, out: Any, axis: int, size: int) -> None:
    outer, inner = _sizes(values.shape, axis)
    build.clear(out)
    places, is_float = indices_for(build, indices)
    sizes = (outer * inner, size, values.shape[axis], inner, is_float, size)
    build.kernel("scatter_each", outer * inner, build.dense(values), places, out, *sizes)


def _onehot(build: Building, indices: Any, out: Any, axis: int, size: int) -> None:
    counting = build.constant(build.handler._counting(size))
    classes = counting.reshape((size, *(1,) * (out.ndim - axis - 1)))
    build.program(_classes, [indices, classes], [out])


def _cumsum(build: Building, x: Any, out: Any, axis: int) -> None:
    outer, inner = _sizes(x.shape, axis)
    sizes = (outer * inner, x.shape[axis], inner)
    build.kernel("add_along", outer * inner, build.dense(x), out, *sizes)


_STEPS: dict[str, Any] = {
    "dot": _dot,
    "cumsum": _cumsum,
    "take": functools.partial(take_picked, wraps=True),
    "gather": functools.partial(take_picked, each=True, wraps=True),
    "put": _put,
    "scatter": _scatter,
    "onehot": _onehot,
}
