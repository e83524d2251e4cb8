"""The layout of a program for given arrays."""

from brainstorm.handlers.numpy_memory import address_of
from brainstorm.handlers.program_layouts import ProgramLayouts


def layout_of(program, inputs, outputs, accumulate=None, threads=1):
    """Return it, with the addresses of the arrays."""
    given = [address_of(array) for array in (*inputs, *outputs)]
    flags = tuple(accumulate or [False] * len(outputs))
    return ProgramLayouts(program, threads).layout(inputs, outputs, flags, given), given
