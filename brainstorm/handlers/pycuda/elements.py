"""Loops whose elements functions compute that are written by hand, out of whole arrays."""

from __future__ import annotations

from collections.abc import Sequence

from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.groups import Walk
from brainstorm.handlers.pycuda.modules import FILES, file_source
from brainstorm.optree.loops import C_TYPES, Line, Loop, Read, Write

__all__ = ["element_walk"]


def element_walk(
    function: str, sources: Sequence[DeviceArray | None], out: DeviceArray, numbers: Sequence[int],
    axes: Sequence[int], add: bool,
) -> Walk:  # fmt: skip
    """Return the loop of `Building.elements`."""
    given = [source for source in sources if source is not None]
    pointers = iter(range(len(given)))
    names = [f"c{k}" for k in range(len(numbers) + len(axes))]
    arguments = ["nullptr" if source is None else f"p{next(pointers)}" for source in sources]
    arguments += ["at", *names[: len(numbers)]]
    if axes:
        arguments.append(f"axes_of({', '.join(names[len(numbers) :])})")
    loop = Loop(
        reduced=(False,),
        reads=tuple(Read(C_TYPES[source.dtype], "any") for source in given),
        body=(Line("v0", "float", f"{function}({', '.join(arguments)})", ()),),
        writes=(Write("float", "unit", ("v0", "float"), add),),
        constants=("int",) * len(names),
        file=next(file for file in FILES if f" float {function}(" in file_source(file)),
    )
    return Walk(
        loop,
        (out.size,),
        (*[(0,)] * len(given), (1,)),
        (*(source.address for source in given), out.address),
        (*numbers, *axes),
        tuple(source.nbytes for source in given),
    )
