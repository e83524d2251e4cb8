"""Loops for which there is no formula: functions written by hand of whole arrays, and bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.binding import copying_loop
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.groups import Walk
from brainstorm.handlers.pycuda.launches import check_count
from brainstorm.handlers.pycuda.modules import file_with
from brainstorm.optree.loops import C_TYPES, Line, Loop, Read, Write

#: A float to bfloat16: to the nearest, of equally near ones to the even one; NaN stays NaN.
_ROUNDING = (
    Line("v0", "uint32_t", "__float_as_uint({0})", (("r0", "uint32_t"),)),
    Line(
        "v1",
        "uint32_t",
        "({1} == {1} ? {0} + 0x7fff + ({0} >> 16 & 1) : {0} | 0x400000) >> 16",
        (("v0", "uint32_t"), ("r0", "uint32_t")),
    ),
)
#: And back.
_WIDENING = (Line("v0", "float", "__uint_as_float((uint32_t){0} << 16)", (("r0", "uint16_t"),)),)


def element_walk(
    function: str, sources: Sequence[DeviceArray | None], out: DeviceArray, numbers: Sequence[int],
    sizes: Sequence[int], axes: Sequence[int], add: bool,
) -> Walk:  # fmt: skip
    """Return the loop of `Building.elements`."""
    check_count(function, max([out.size, *numbers]))
    given = [source for source in sources if source is not None]
    pointers = iter(range(len(given)))
    names = [f"c{k}" for k in range(len(numbers))]
    arguments = ["nullptr" if source is None else f"p{next(pointers)}" for source in sources]
    arguments += ["at", *names, *map(str, sizes)]
    if axes:
        arguments.append(f"axes_of({', '.join(map(str, axes))})")
    loop = Loop(
        reduced=(False,),
        reads=tuple(Read(C_TYPES[source.dtype], "any") for source in given),
        body=(Line("v0", "float", f"{function}({', '.join(arguments)})", ()),),
        writes=(Write("float", "unit", ("v0", "float"), add),),
        constants=("int",) * len(names),
        file=file_with(f"float {function}"),
    )
    return Walk(
        loop,
        (out.size,),
        (*[(0,)] * len(given), (1,)),
        (*(source.address for source in given), out.address),
        tuple(numbers),
        tuple(source.nbytes for source in given),
    )


def copying_walk(source: Any, target: Any, add: bool = False, body: tuple[Line, ...] = ()) -> Walk:
    """Return the loop that copies an array to one of the same shape and any dtype, or adds it."""
    loop, axes = copying_loop(source, target, add, body)
    return Walk(loop, axes.sizes, axes.strides, (source.address, target.address), ())


def converting_walk(source: Any, target: Any, add: bool = False) -> Walk:
    """Return the loop that converts float32 to bfloat16, or bfloat16 to float32, or adds it.

    Both arrays have the same shape; bfloat16 is stored as uint16.
    """
    return copying_walk(source, target, add, _ROUNDING if source.dtype == np.float32 else _WIDENING)
