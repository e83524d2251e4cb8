"""Products of small matrices as a handwritten C kernel: oneDNN takes a microsecond to start.

    out (+)= a @ b

The rows of b and of out are contiguous; a has any strides. Four rows by four vectors of the result
(two with sixteen registers) stay in registers during the sum; columns that do not fill a vector are
computed one by one.
"""

from __future__ import annotations

from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.kernels import kernel_call
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.utils import Array

#: Maximum number of multiplications and additions for which this is faster than oneDNN (measured):
#: of all columns, and of those that do not fill a vector.
MOST_FLOP, MOST_SINGLE_FLOP = 300_000, 10_000
#: The longest vector: AVX-512's.
VECTOR_BYTES = 64

_SOURCE = """
#ifdef __AVX512F__
enum { BYTES = 64, WIDE = 4 };
#define CASES(r) CASE(r, 1) CASE(r, 2) CASE(r, 3) CASE(r, 4)
#else
enum { BYTES = 32, WIDE = 2 };
#define CASES(r) CASE(r, 1) CASE(r, 2)
#endif
typedef real vector __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));
enum { M, N, K, A_ROW, A_COLUMN, B_ROW, OUT_ROW, ADD, LANES = BYTES / sizeof(real) };

static inline __attribute__((always_inline)) void block(
    const int rows, const int vectors, const real *restrict a, const real *restrict b,
    real *restrict out, const int64_t *n) {
  vector sum[4][4];
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; i++)
    _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)
      sum[i][j] = n[ADD] ? *(const vector *)(out + i * n[OUT_ROW] + j * LANES) : (vector){0};
  for (int64_t k = 0; k < n[K]; k++)
    _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) {
      const vector y = *(const vector *)(b + k * n[B_ROW] + j * LANES);
      _Pragma("GCC unroll 4") for (int i = 0; i < rows; i++)
        sum[i][j] += a[i * n[A_ROW] + k * n[A_COLUMN]] * y;
    }
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; i++)
    _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)
      *(vector *)(out + i * n[OUT_ROW] + j * LANES) = sum[i][j];
}

#define CASE(r, v) case 4 * r + v: block(r, v, left, right, at, n); break;

void product(void *const *pointers, const int64_t *n) {
  const real *a = pointers[0], *b = pointers[1];
  real *out = pointers[2];
  const int64_t filled = n[N] / LANES * LANES;
  for (int64_t c = 0; c < filled; c += WIDE * LANES)
    for (int64_t p = 0; p < n[M]; p += 4) {
      const int64_t rows = n[M] - p < 4 ? n[M] - p : 4, wide = (filled - c) / LANES;
      const int64_t vectors = wide < WIDE ? wide : WIDE;
      const real *left = a + p * n[A_ROW], *right = b + c;
      real *at = out + p * n[OUT_ROW] + c;
      switch (4 * rows + vectors) { CASES(1) CASES(2) CASES(3) CASES(4) }
    }
  for (int64_t p = 0; p < n[M]; p++)
    for (int64_t c = filled; c < n[N]; c++) {
      real sum = n[ADD] ? out[p * n[OUT_ROW] + c] : 0;
      for (int64_t k = 0; k < n[K]; k++)
        sum += a[p * n[A_ROW] + k * n[A_COLUMN]] * b[k * n[B_ROW] + c];
      out[p * n[OUT_ROW] + c] = sum;
    }
}
"""


def is_small(m: int, k: int, n: int, itemsize: int) -> bool:
    """Return whether `build_small` is the fastest for an (m, k) and a (k, n) matrix."""
    single = n % (VECTOR_BYTES // itemsize)
    return 2 * m * k * n <= MOST_FLOP and 2 * m * k * single <= MOST_SINGLE_FLOP


def build_small(a: Array, b: Array, out: Array, add: bool) -> list[Call]:
    """Return the call for ``out (+)= a @ b``; the arrays have one type and do not overlap.

    Raises:
        UnsupportedError: There is no compiler, or rows of b or out are not contiguous.
    """
    size = a.itemsize
    if b.strides[1] != size or out.strides[1] != size:
        raise UnsupportedError("rows are not contiguous")
    strides = [stride // size for stride in (*a.strides, b.strides[0], out.strides[0])]
    numbers = [*out.shape, a.shape[1], *strides, add]
    return [kernel_call("product", _SOURCE, [a, b, out], numbers)]
