"""Copies and matrix products: arguments to launches; and the table of all that is built so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.pycuda import images, sequences, streams
from brainstorm.handlers.pycuda.building import Building

__all__ = ["BUILDERS"]


def copy_to(build: Building, src: Any, dest: Any) -> None:
    if src.shape != dest.shape:
        raise HandlerValidationError(
            f"copy_to(src, dest): argument 'dest': expected shape {src.shape}, that of src, got "
            f"{dest.shape}"
        )
    if not np.can_cast(src.dtype, dest.dtype, "same_kind"):
        raise HandlerValidationError(
            f"copy_to(src, dest): argument 'src': expected a dtype that fits in {dest.dtype}, got "
            f"{src.dtype}. Use set_from_numpy to cast."
        )
    build.copy(src, dest)


def modulo_tt(build: Building, a: Any, b: Any, out: Any) -> None:
    target = build.target(out)
    build.kernel("modulo", out.size, build.dense(a), build.dense(b), target, out.size)


def dot_mm(
    build: Building, a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False
) -> None:
    build.product(a, b, out, transa, transb)


def dot_add_mm(
    build: Building, a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False
) -> None:
    build.product(a, b, out, transa, transb, add=True)


def pack_m(build: Building, b: Any, transb: bool = False) -> None:
    build.pack(b)


def dot_add_packed(build: Building, a: Any, b: Any, out: Any, transb: bool = False) -> None:
    is_packed = build.handler._compute == "bf16"
    build.product(a, b, out, transb=transb, add=True, is_packed=is_packed)


def batched_dot_mm(
    build: Building, a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False
) -> None:
    stacks = (a.T if transa else a, b.T if transb else b, out)
    build.product(*(stack.transpose((1, 0, 2)) for stack in stacks))


def affine_mm(build: Building, a: Any, b: Any, bias: Any, out: Any, activation: str) -> None:
    build.product(a, b, out, transb=True)
    row = bias.reshape((1, bias.shape[0]))
    build.program(images.biased(activation), [out, row], [out])


#: Operation to what collects its launches, called with the arguments by name.
BUILDERS: dict[str, Callable[..., None]] = {
    "copy_to": copy_to,
    "modulo_tt": modulo_tt,
    "dot_mm": dot_mm,
    "dot_add_mm": dot_add_mm,
    "pack_m": pack_m,
    "dot_add_packed": dot_add_packed,
    "batched_dot_mm": batched_dot_mm,
    "affine_mm": affine_mm,
    "fill_gaussian": streams.fill_gaussian,
    "generate_probability_mask": streams.generate_probability_mask,
    **images.IMAGES,
    **sequences.SEQUENCES,
}
