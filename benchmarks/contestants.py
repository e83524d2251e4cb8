"""Who takes part: our handlers, and the peers that are installed."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks import THREADS, ours
from benchmarks.workloads import Contestant, Numbers, Workload
from brainstorm.errors import BrainstormError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler

__all__ = ["BFLOAT16", "FLOAT32", "NATIVE", "PYTORCH", "Entry", "find_entries"]

FLOAT32, BFLOAT16 = "float32", "bfloat16"
NATIVE, PYTORCH = "NativeHandler", "PyTorch"


class Entry(NamedTuple):
    """One who takes part.

    Attributes:
        name: In the table.
        make: Gets ready for a workload, from our parameters.
        product: Returns the product of two matrices, whose rate may be the limit.
        precision: Of the factors of products: `FLOAT32` or `BFLOAT16`.
        trains: Whether it can train; else it takes part in predictions.
        is_ours: Whether it is this library.
        version: Of the library, for the headline.
    """

    name: str
    make: Callable[[Workload, Numbers], Contestant]
    product: Callable[[np.ndarray, np.ndarray], Callable[[], object]] | None = None
    precision: str = FLOAT32
    trains: bool = True
    is_ours: bool = False
    version: str = ""


def find_entries() -> list[Entry]:
    """Return all who can take part here, ours first; peers only in precisions that we have."""
    mine = list(_ours())
    precisions = {entry.precision for entry in mine}
    peers = (*_torch(), *_jax(), *_onnxruntime())
    return mine + [entry for entry in peers if entry.precision in precisions]


def _ours() -> Iterator[Entry]:
    yield _entry("NumpyHandler", NumpyHandler)
    native = partial(NativeHandler, threads=THREADS)
    yield _entry(NATIVE, native)
    half = partial(native, compute="bf16")
    try:
        half()
    except BrainstormError as refusal:
        print(f"no products in bfloat16: {refusal}")
    else:
        yield _entry(NATIVE, half, BFLOAT16)


def _entry(name: str, handler: Callable[[], Any], precision: str = FLOAT32) -> Entry:
    def make(workload: Workload, _: Numbers) -> Contestant:
        return ours.contestant(workload, handler())

    def product(a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
        return ours.product(handler(), a, b)

    return Entry(name, make, product, precision, is_ours=True)


def _torch() -> Iterator[Entry]:
    peer = _module("torch")
    if peer is None:
        return
    yield Entry(PYTORCH, peer.contestant, peer.product, version=peer.VERSION)
    if shutil.which(os.environ.get("CXX", "g++")):
        yield Entry("torch.compile", partial(peer.contestant, is_compiled=True))
    half = {"is_half": True}
    yield Entry(PYTORCH, partial(peer.contestant, **half), partial(peer.product, **half), BFLOAT16)


def _jax() -> Iterator[Entry]:
    peer = _module("jax")
    if peer is not None:
        yield Entry("JAX", peer.contestant, version=peer.VERSION)


def _onnxruntime() -> Iterator[Entry]:
    peer = _module("onnxruntime")
    if peer is not None:
        yield Entry("onnxruntime", peer.contestant, trains=False, version=peer.VERSION)


def _module(library: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"benchmarks.{library}_peer")
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        return None
