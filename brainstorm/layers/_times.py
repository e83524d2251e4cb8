"""The time axes of a layer's inputs: T, S in place of T, or none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from brainstorm.structure.buffer_structure import BATCH, BufferStructure, StructureTemplate

Structures = Mapping[str, BufferStructure]
Templates = Mapping[str, StructureTemplate]

#: Remedies for inputs without T.
LOOKS_AT_TIME = (
    " It computes over time, but this input has no time axis. Connect it before TimePooling, which "
    "makes one vector of each sequence, or after RepeatOverTime, which makes a sequence of it."
)
_TWO_TIMES = (
    " T and S are different lengths. MultiHeadAttention attends from one sequence to the other, "
    "and TimePooling makes one vector of each."
)
_NOT_ALL = (
    " Either all inputs have a time axis, or none. Remove that of the others with TimePooling, or "
    "repeat this one for every step with RepeatOverTime."
)
_FIXED = (
    " It has a constant size: only L1Decay, L2Decay and Loss take parameters. Any other penalty of "
    "them is a gradient modifier."
)
_HAS_TIME = " Make one vector of each sequence with TimePooling."
_NO_CHANNELS = (
    " The channel axis is missing: for one channel, use array[..., None]. (It does not move along "
    "time: give a signal as (1, B, steps, channels).)"
)


def gets_source(expected: Templates, given: Structures) -> bool:
    """Return whether the first input that should have T has S."""
    ports = [p for p, s in expected.items() if p in given and s.scaling_shape == ("T", "B")]
    return bool(ports) and given[ports[0]].time == "S"


def gets_no_time(expected: Templates, given: Structures) -> bool:
    """Return whether all inputs lack T that should have it."""
    ports = [port for port in given if port in expected]
    return bool(ports) and all(
        expected[port].scales_with_time and given[port].buffer_type == BATCH for port in ports
    )


def remedy_for(template: StructureTemplate, given: BufferStructure) -> str:
    """Return the remedy for an input that does not match, if time or channels are the reason."""
    missing = len(template.feature_shape) - len(given.feature_shape)
    if template.shape[-1] == "C" and missing == 1:
        return _NO_CHANNELS
    if not template.scales_with_time:
        return _HAS_TIME * (template.buffer_type == BATCH and given.scales_with_time)
    if not given.scales_with_time:
        return _NOT_ALL if given.buffer_type == BATCH else _FIXED
    return _TWO_TIMES * (given.time != template.time)


def exchanged(structures: Structures) -> OrderedDict[str, BufferStructure]:
    """Return the structures with T and S exchanged."""
    return OrderedDict((name, s.with_times_exchanged()) for name, s in structures.items())


def couples_time(inputs: Structures, outputs: Structures, internals: Structures) -> bool:
    """Return whether the declarations other than `Layer.time_coupled` imply it."""
    inner = (*outputs.values(), *internals.values())
    return any(structure.context_size or structure.is_square for structure in inner) or (
        any(structure.scales_with_time for structure in inputs.values())
        and any(structure.buffer_type == BATCH for structure in outputs.values())
    )


def couples_by_context(outputs: Structures, internals: Structures) -> bool:
    """Return whether all dependence on earlier steps goes through the context."""
    inner = (*outputs.values(), *internals.values())
    has_context = any(structure.context_size for structure in inner)
    return has_context and not any(structure.is_square for structure in inner)
