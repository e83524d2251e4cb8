"""How the NumPy interpreter of op-trees writes outputs that may overlap what it reads."""

from __future__ import annotations

from collections.abc import Sequence

from brainstorm.handlers.numpy_memory import overlap
from brainstorm.handlers.optree_schedule import Flat
from brainstorm.utils import Array

__all__ = ["BLOCKWISE", "DIRECT", "LATER", "SAVED", "output_modes"]

#: How an output is written: by the step that computes it, added or converted block by block, after
#: all steps, or after all steps from a copy that was made before them.
DIRECT, BLOCKWISE, LATER, SAVED = range(4)


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
        kind = overlap(out, array)
        if not kind:
            continue
        for reader, at, x, instruction in flat.reads.get(i, ()):
            if reader.time < segment.time:
                continue
            here = reader is segment and x == i and kind == "same" and instruction.elementwise
            if not here or at > place or (at == place and not instruction.in_place):
                return True
    return False
