"""A program, specialized for given arrays."""

from brainstorm.handlers.numpy_memory import address_of
from brainstorm.handlers.program_specializer import ProgramSpecializer


def specialized(program, inputs, outputs, accumulate=None, threads=1):
    """Return it, with the addresses of the arrays."""
    given = [address_of(array) for array in (*inputs, *outputs)]
    flags = tuple(accumulate or [False] * len(outputs))
    return ProgramSpecializer(program, threads).specialize(inputs, outputs, flags, given), given
