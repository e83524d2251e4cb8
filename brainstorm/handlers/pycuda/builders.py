"""Products and remainders: arguments to launches."""

from __future__ import annotations

from typing import Any

from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.images import biased

__all__: list[str] = []  # found by the names of the operations


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
    build.program(biased(activation), [out, row], [out])
