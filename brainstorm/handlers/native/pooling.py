"""Pooling as handwritten C kernels, because oneDNN has no indices of the maxima.

Channels are adjacent in memory, so the innermost loops run over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from brainstorm.handlers.argument_kinds import Margin, sides
from brainstorm.handlers.binding import PARALLEL_WORK
from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.kernels import kernel_call
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.handlers.native.primitives import Primitives, check_arrays
from brainstorm.utils import Array

#: Maximum image size for indices in float32.
MOST_FLOAT32 = 2**24

_HEAD = """
enum { THREADS, CHUNKS, CLEARS, N, H, W, C, OH, OW, KH, KW, TOP, LEFT, SH, SW };
static inline int64_t lowest(int64_t corner) { return corner < 0 ? -corner : 0; }
static inline int64_t highest(int64_t corner, int64_t window, int64_t size) {
  return size - corner < window ? size - corner : window;
}
"""
#: A loop over the windows of image b; i0 to i1 and j0 to j1 are the inputs in a window, `first` is
#: the index of the first of these, `at` that of the window.
_ROW = """
      const int64_t top = p * n[SH] - n[TOP];
      const int64_t i0 = lowest(top), i1 = highest(top, n[KH], n[H]);
      for (int64_t q = 0; q < n[OW]; q++) {
        const int64_t left = q * n[SW] - n[LEFT];
        const int64_t j0 = lowest(left), j1 = highest(left, n[KW], n[W]);
        const int64_t first = ((top + i0) * n[W] + left + j0) * n[C];
        const int64_t at = ((b * n[OH] + p) * n[OW] + q) * n[C];
        const int empty = i0 >= i1 || j0 >= j1;
        const real share = empty ? 1 : (real)1 / (real)((i1 - i0) * (j1 - j0));
"""
#: Results are independent of each other ...
_FORWARD = """
#pragma omp parallel for collapse(2) num_threads(n[THREADS])
  for (int64_t b = 0; b < n[N]; b++)
    for (int64_t p = 0; p < n[OH]; p++) {
      const real *restrict image = (const real *)pointers[0] + b * n[H] * n[W] * n[C];
"""
#: ... but deltas are added up: a thread does some of the channels of an image.
_BACKWARD = """
#pragma omp parallel for collapse(2) num_threads(n[THREADS])
  for (int64_t b = 0; b < n[N]; b++)
    for (int64_t k = 0; k < n[CHUNKS]; k++) {
      real *restrict image = (real *)pointers[0] + b * n[H] * n[W] * n[C];
      const int64_t c0 = k * n[C] / n[CHUNKS], c1 = (k + 1) * n[C] / n[CHUNKS];
      for (int64_t i = 0; n[CLEARS] && i < n[H] * n[W]; i++)
        for (int64_t c = c0; c < c1; c++) image[i * n[C] + c] = 0;
      for (int64_t p = 0; p < n[OH]; p++) {
"""
_MAXIMUM = """
        real *restrict out = (real *)pointers[1] + at, *restrict where = (real *)pointers[2] + at;
        for (int64_t c = 0; c < n[C]; c++) {
          out[c] = empty ? 0 : image[first + c];
          where[c] = empty ? -1 : (real)(whole)(first + c);
        }
        for (int64_t i = i0; i < i1; i++)
          for (int64_t j = j0; j < j1; j++) {
            const whole index = ((top + i) * n[W] + left + j) * n[C];
            for (whole c = 0; c < (whole)n[C]; c++) {
              const real x = image[index + c], y = out[c];
              const int larger = (x > y) | ((x != x) & (y == y));
              out[c] = larger ? x : y;
              where[c] = larger ? (real)(index + c) : where[c];
            }
          }
"""
_MAXIMUM_DELTAS = """
        const real *restrict where = (const real *)pointers[1] + at;
        const real *restrict deltas = (const real *)pointers[2] + at;
        for (int64_t i = i0; i < i1; i++)
          for (int64_t j = j0; j < j1; j++) {
            const whole index = ((top + i) * n[W] + left + j) * n[C];
            for (whole c = c0; c < (whole)c1; c++)
              image[index + c] += where[c] == (real)(index + c) ? deltas[c] : 0;
          }
"""
_AVERAGE = """
        real *restrict out = (real *)pointers[1] + at;
        for (int64_t c = 0; c < n[C]; c++) out[c] = 0;
        for (int64_t i = i0; i < i1; i++)
          for (int64_t j = j0; j < j1; j++) {
            const real *restrict x = image + ((top + i) * n[W] + left + j) * n[C];
            for (int64_t c = 0; c < n[C]; c++) out[c] += x[c];
          }
        for (int64_t c = 0; c < n[C]; c++) out[c] *= share;
"""
_AVERAGE_DELTAS = """
        const real *restrict deltas = (const real *)pointers[1] + at;
        for (int64_t i = i0; i < i1; i++)
          for (int64_t j = j0; j < j1; j++) {
            real *restrict x = image + ((top + i) * n[W] + left + j) * n[C];
            for (int64_t c = c0; c < c1; c++) x[c] += deltas[c] * share;
          }
"""


def _pooling(loops: str, text: str, *names: str) -> Callable[..., list[Call]]:
    """Return the builder of an operation, which is one call of a kernel.

    Args:
        loops: `_FORWARD`: all arrays but the first are written; or `_BACKWARD`: the first one is.
        text: What is done in a window.
        names: The arrays by name: the images, and those with an element per window.
    """
    body = loops + _ROW + text
    ends = "}" * (body.count("{") - body.count("}"))
    source = f"{_HEAD}void pool(void *const *pointers, const int64_t *n) {{{body}{ends}}}\n"

    def build(
        primitives: Primitives, window: Any, padding: Margin, stride: Any,
        add_in_deltas: bool = True, **given: Array,
    ) -> list[Call]:  # fmt: skip
        images, *results = arrays = [given[name] for name in names]
        written, read = (results, [images]) if loops is _FORWARD else ([images], results)
        check_arrays((np.float32, np.float64), written, read)
        if not all(array.flags.c_contiguous for array in arrays):
            raise UnsupportedError("images are not contiguous")
        n, *image = images.shape
        is_float = images.dtype == np.float32
        if text is _MAXIMUM and is_float and math.prod(image) > MOST_FLOAT32:
            raise UnsupportedError("float32 cannot hold the indices")
        margins = sides(padding, 2)
        cells = [
            (size + sum(margin) - wide) // step + 1
            for size, margin, wide, step in zip(image[:2], margins, window, stride, strict=True)
        ]
        shape = (n, *cells, image[2])
        if any(array.shape != shape for array in results):
            raise UnsupportedError("the shapes do not fit")  # NumPy raises the error
        work = math.prod(shape) * window[0] * window[1]
        threads = primitives.threads if work >= PARALLEL_WORK else 1
        chunks = 1 if n >= threads else min(threads, image[2])
        corner = [before for before, _ in margins]
        numbers = [threads, chunks, not add_in_deltas, n, *image, *cells, *window, *corner, *stride]
        return [kernel_call("pool", source, arrays, numbers)]

    return build


build_maximum = _pooling(_FORWARD, _MAXIMUM, "inputs", "outputs", "argmax")
build_maximum_deltas = _pooling(_BACKWARD, _MAXIMUM_DELTAS, "in_deltas", "argmax", "out_deltas")
build_average = _pooling(_FORWARD, _AVERAGE, "inputs", "outputs")
build_average_deltas = _pooling(_BACKWARD, _AVERAGE_DELTAS, "in_deltas", "out_deltas")
