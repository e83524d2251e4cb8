"""The handler that needs only NumPy: the reference for all others, in float32 and float64."""
# ruff: noqa: D102 (operations are documented in base_handler)

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import argument_names
from brainstorm.describable import get_description
from brainstorm.errors import HandlerValidationError, shown
from brainstorm.handlers.numpy_images import NumpyImages
from brainstorm.handlers.numpy_memory import Scratch, aligned_zeros
from brainstorm.handlers.numpy_random import NumpyStream
from brainstorm.handlers.numpy_sequences import NumpySequences
from brainstorm.optree import Program
from brainstorm.optree.interpreter import Interpreter
from brainstorm.randomness import RandomState
from brainstorm.utils import Array, Arrays


class NumpyHandler(NumpyImages, NumpySequences):
    """Handler for plain NumPy arrays.

    After the first calls, operations allocate no memory: intermediate results are in scratch arrays
    for each thread. Operations do not check their arguments; `DebugHandler` does.

    Args:
        dtype: float32 or float64.
        seed: Seeds `rnd`; `None` draws a seed from `global_rnd`.
    """

    context = "numpy"
    array_type = np.ndarray

    def __init__(self, dtype: Any = np.float32, seed: int | None = None) -> None:
        with contextlib.suppress(TypeError):
            dtype = np.dtype(dtype)
        if dtype not in (np.float32, np.float64):
            got = dtype.name if isinstance(dtype, np.dtype) else shown(dtype)
            raise HandlerValidationError(
                f"{type(self).__name__}(dtype): expected float32 or float64, got {got}"
            )
        self.dtype = dtype
        self.rnd = RandomState(seed)
        self.stream = self.create_random_stream(self.rnd.generate_seed())
        self.EMPTY = np.zeros(0, self.dtype)
        self._scratch = Scratch(self.dtype)
        self._interpreter = Interpreter()

    def __describe__(self) -> dict[str, Any]:
        kept = vars(self)
        names = [name for name in argument_names(type(self).__init__) if name in kept]
        own = {name: get_description(kept[name]) for name in names if name != "dtype"}
        return {"@type": type(self).__name__, "dtype": self.dtype.name, **own}

    def info(self) -> dict[str, str]:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        return {
            "handler": type(self).__name__,
            "dtype": self.dtype.name,
            "numpy": np.__version__,
            "products": f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip(),
            "everything else": "numpy",
        }

    def run_program(
        self, program: Program, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        self._interpreter(program, inputs, outputs, accumulate)

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, shape: int | tuple[int, ...]) -> Array:
        return aligned_zeros(shape, self.dtype)

    def zeros(self, shape: int | tuple[int, ...]) -> Array:
        return aligned_zeros(shape, self.dtype)

    def create_from_numpy(self, arr: Any) -> Array:
        self._check_host(arr)
        array = aligned_zeros(arr.shape, arr.dtype.newbyteorder("="))
        array[...] = arr
        return array

    def get_numpy_copy(self, mem: Array) -> Any:
        self._check_own(mem)
        return mem.copy()

    def set_from_numpy(self, mem: Array, arr: Any) -> None:
        np.copyto(mem, self._fitting(mem, arr), casting="unsafe")

    def is_fully_finite(self, a: Array) -> bool:
        return bool(np.isfinite(a, out=self._scratch("mask", a.shape, bool)).all())

    # -- products ----------------------------------------------------------------------------

    def dot_mm(
        self, a: Array, b: Array, out: Array, transa: bool = False, transb: bool = False
    ) -> None:
        np.matmul(a.T if transa else a, b.T if transb else b, out=out)

    def dot_add_mm(
        self, a: Array, b: Array, out: Array, transa: bool = False, transb: bool = False
    ) -> None:
        self._product(a.T if transa else a, b.T if transb else b, out, True)

    # -- random numbers ----------------------------------------------------------------------

    def create_random_stream(self, seed: int) -> Any:
        return NumpyStream(seed)

    def fill_gaussian(self, mean: Any, std: Any, out: Array, stream: Any = None) -> None:
        noise = self._contiguous(out)
        (stream or self.stream).generator.standard_normal(out=noise, dtype=self.dtype)
        np.multiply(noise, self._as_number(std), out=noise)
        np.add(noise, self._as_number(mean), out=out)

    def generate_probability_mask(self, mask: Array, probability: Any, stream: Any = None) -> None:
        noise = self._contiguous(mask)
        (stream or self.stream).generator.random(out=noise, dtype=self.dtype)
        np.less(noise, self._as_number(probability), out=mask)

    def _contiguous(self, out: Array) -> Array:
        """Return an array, or another of its shape if generators cannot write to it."""
        return out if out.flags.c_contiguous else self._scratch("float", out.shape)
