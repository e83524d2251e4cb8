"""How the NumPy interpreter of op-trees writes outputs that may overlap what it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brainstorm.handlers.optree_schedule import Flat
from brainstorm.utils import Array

__all__ = ["BLOCKWISE", "DIRECT", "LATER", "SAVED", "output_modes", "overlap"]

#: How an output is written: by the step that computes it, added or converted block by block, after
#: all steps, or after all steps from a copy that was made before them.
DIRECT, BLOCKWISE, LATER, SAVED = range(4)
#: Work (see `numpy.shares_memory`) after which memory is taken to be shared.
MOST_WORK = 1000


def output_modes(
    flat: Flat, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: Sequence[bool]
) -> tuple[int, ...]:
    """Decide for each output how it is written, such that nothing is overwritten too early."""
    modes: list[int] = []
    direct: set[int] = set()
    for i, (value, out) in enumerate(zip(flat.outputs, outputs, strict=True)):
        of = flat.values[value]
        if of.root < flat.inputs:
            overwritten = any(overlap(inputs[of.root], other) for other in outputs)
            modes.append(SAVED if overwritten else LATER)
            continue
        shared = any(overlap(out, other) for j, other in enumerate(outputs) if j != i)
        if value not in flat.made or shared or _is_read_later(flat, value, out, inputs):
            modes.append(LATER)
            continue
        fits = out.dtype == of.dtype and (value not in flat.ordered or out.flags.c_contiguous)
        if fits and not accumulate[i] and value not in direct:
            direct.add(value)
            modes.append(DIRECT)
        else:
            modes.append(LATER if flat.made[value][0].shape is None else BLOCKWISE)
    return tuple(modes)


def _is_read_later(flat: Flat, value: int, out: Array, inputs: Sequence[Array]) -> bool:
    """Return whether writing a value when it is computed would change what is still read."""
    segment, place, _ = flat.made[value]
    for i, array in enumerate(inputs):
        if not overlap(out, array):
            continue
        same = _same_view(out, array)
        for reader, at, x, instruction in flat.reads.get(i, ()):
            if reader.time < segment.time:
                continue
            here = reader is segment and x == i and same and instruction.elementwise
            if not here or at > place or (at == place and not instruction.in_place):
                return True
    return False


def overlap(a: Array, b: Array) -> bool:
    """Return whether two arrays share an element; True where this is too hard to tell."""
    try:
        return np.shares_memory(a, b, max_work=MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _same_view(a: Array, b: Array) -> bool:
    return (
        a.__array_interface__["data"] == b.__array_interface__["data"]
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
    )  # fmt: skip
