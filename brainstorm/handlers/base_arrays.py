"""The operations on arrays of any kind that every handler has: memory, arithmetic, products, sums.

The last letters of a name describe the operands: ``s`` a scalar (a number, or an array of one
element), ``v`` a row or column vector (2-D with a 1), ``m`` a matrix, ``t`` an array of any shape.
"""
# ruff: noqa: B027, D403 (`operation` makes methods abstract; docstrings start with formulas)

from __future__ import annotations

import abc
import functools
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.contracts import operation
from brainstorm.optree import Formula
from brainstorm.optree import functions as fn
from brainstorm.utils import Array

#: A vector that is broadcast over a matrix (M, N).
_V = "v(1,N)|(M,1)|(M,N)"

_copied = Formula(lambda source: source, "copy_to")
_classes = Formula(lambda row, column: fn.equal(row, column), "binarize_v")
_picked = Formula(
    lambda m, row, column: fn.sum(fn.where(fn.equal(row, column), m, 0.0), axis=1), "index_m_by_v"
)
_parts = Formula(
    lambda x, left: (x[..., : left.shape[-1]], x[..., left.shape[-1] :]), "split_add_tt"
)


@functools.cache
def _summed(axis: int | None, keepdims: bool) -> Formula:
    return Formula(lambda a: fn.sum(a, axis, keepdims), "sum_t")


class ArrayOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    array_type: type

    # -- memory ------------------------------------------------------------------------------

    @operation("shape:shape => array")
    def allocate(self, shape: int | tuple[int, ...]) -> Array:
        """Return a new array, aligned to 64 bytes. Its content is undefined."""

    @operation("shape:shape => array", derived=True)
    def zeros(self, shape: int | tuple[int, ...]) -> Array:
        """Return a new array of zeros."""
        return self._filled(shape, 0.0)

    @operation("shape:shape => array", derived=True)
    def ones(self, shape: int | tuple[int, ...]) -> Array:
        """Return a new array of ones."""
        return self._filled(shape, 1.0)

    def _filled(self: Any, shape: int | tuple[int, ...], value: float) -> Array:
        array = self.allocate(shape)
        with self._traced_by(None):  # no more part of a trace than its memory
            self.fill(array, value)
        return array

    # -- copy and fill -----------------------------------------------------------------------

    @operation("src(*S):any ~> dest(*S):any", derived=True)
    def copy_to(self: Any, src: Array, dest: Array) -> None:
        """dest = src; between dtypes of the same kind."""
        self._check_copy(src, dest)
        self.compute(_copied, (src,), (dest,))

    @operation(
        "src(*S) cond(*S) ~> dest(*S)+", formula=lambda src, dest, cond: fn.where(cond, src, dest)
    )
    def copy_to_if(self, src: Array, dest: Array, cond: Array) -> None:
        """dest = src where cond != 0."""

    @operation("arr(*S):host => array")
    def create_from_numpy(self, arr: Any) -> Array:
        """Return a new array with the content of a NumPy array, and its dtype in native order."""

    @operation("val:scalar -> mem(*S)", formula=lambda mem, val: fn.broadcast_to(val, mem.shape))
    def fill(self, mem: Array, val: Any) -> None:
        """mem = val."""

    @operation(
        "val:scalar cond(*S) ~> mem(*S)+", formula=lambda mem, val, cond: fn.where(cond, val, mem)
    )
    def fill_if(self, mem: Array, val: Any, cond: Array) -> None:
        """mem = val where cond != 0."""

    @operation("mem(*S):any => ndarray")
    def get_numpy_copy(self, mem: Array) -> Any:
        """Return a NumPy array with a copy of the content."""

    @operation("arr(*S):host -> mem(*S)")
    def set_from_numpy(self, mem: Array, arr: Any) -> None:
        """mem = arr, cast to the dtype of mem."""

    # -- check -------------------------------------------------------------------------------

    @operation("a(*S) => bool")
    def is_fully_finite(self, a: Array) -> bool:
        """Return whether no element is NaN or infinite."""
        raise NotImplementedError

    # -- element-wise ------------------------------------------------------------------------

    @operation("a(*S) ~> out(*S)", formula=lambda a: fn.absolute(a))
    def abs_t(self, a: Array, out: Array) -> None:
        """out = abs(a)."""

    @operation(
        "a(*S) cond(*S) ~> out(*S)+", formula=lambda a, out, cond: fn.where(cond, out + a, out)
    )
    def add_into_if(self, a: Array, out: Array, cond: Array) -> None:
        """out += a where cond != 0."""

    @operation("s:scalar t(*S) ~> out(*S)", formula=lambda s, t: s + t)
    def add_st(self, s: Any, t: Array, out: Array) -> None:
        """out = s + t."""

    @operation("a(*S) b(*S) ~> out(*S)", formula=lambda a, b: a + b)
    def add_tt(self, a: Array, b: Array, out: Array) -> None:
        """out = a + b."""

    @operation("a(*S) b(*S) ~> out(*S)", formula=lambda a, b: a - b)
    def subtract_tt(self, a: Array, b: Array, out: Array) -> None:
        """out = a - b."""

    @operation("s:scalar t(*S) ~> out(*S)", formula=lambda s, t: s * t)
    def mult_st(self, s: Any, t: Array, out: Array) -> None:
        """out = s * t."""

    @operation("a(*S) b(*S) ~> out(*S)", formula=lambda a, b: a * b)
    def mult_tt(self, a: Array, b: Array, out: Array) -> None:
        """out = a * b."""

    @operation("s:scalar t(*S) ~> out(*S)+", formula=lambda s, t: s * t)
    def mult_add_st(self, s: Any, t: Array, out: Array) -> None:
        """out += s * t."""

    @operation("a(*S) b(*S) ~> out(*S)+", formula=lambda a, b: a * b)
    def mult_add_tt(self, a: Array, b: Array, out: Array) -> None:
        """out += a * b."""

    @operation("a(*S) b(*S) ~> out(*S)", formula=lambda a, b: a / b)
    def divide_tt(self, a: Array, b: Array, out: Array) -> None:
        """out = a / b."""

    @operation("a(*S) b(*S) ~> out(*S)", formula=lambda a, b: fn.fmod(a, b))
    def modulo_tt(self, a: Array, b: Array, out: Array) -> None:
        """out = a - trunc(a / b) * b, the remainder with the sign of a (C's fmod)."""

    @operation(
        "a(*S) a_min:scalar a_max:scalar ~> out(*S)",
        formula=lambda a, a_min, a_max: fn.clip(a, a_min, a_max),
    )
    def clip_t(self, a: Array, a_min: Any, a_max: Any, out: Array) -> None:
        """out = min(max(a, a_min), a_max)."""

    @operation("a(*S) ~> out(*S)", formula=lambda a: fn.log(a))
    def log_t(self, a: Array, out: Array) -> None:
        """out = natural logarithm of a."""

    @operation("a(*S) ~> out(*S)", formula=lambda a: fn.sqrt(a))
    def sqrt_t(self, a: Array, out: Array) -> None:
        """out = square root of a."""

    @operation(
        "a(*S) exponent:scalar ~> out(*S)", formula=lambda a, exponent: fn.power(a, exponent)
    )
    def power_t(self, a: Array, exponent: Any, out: Array) -> None:
        """out = a ** exponent; where a < 0 the exponent must be a whole number."""

    @operation("a(*S) ~> out(*S)", formula=lambda a: fn.sgn(a))
    def sign_t(self, a: Array, out: Array) -> None:
        """out = -1, 0 or 1: the sign of a."""

    # -- matrix and vector, with broadcasting ------------------------------------------------

    @operation(f"m(M,N) {_V} ~> out(M,N)", formula=lambda m, v: m + v)
    def add_mv(self, m: Array, v: Array, out: Array) -> None:
        """out = m + v; v is a row, a column, or as large as m."""

    @operation(f"m(M,N) {_V} ~> out(M,N)", formula=lambda m, v: m - v)
    def subtract_mv(self, m: Array, v: Array, out: Array) -> None:
        """out = m - v; v is a row, a column, or as large as m."""

    @operation(f"m(M,N) {_V} ~> out(M,N)", formula=lambda m, v: m * v)
    def mult_mv(self, m: Array, v: Array, out: Array) -> None:
        """out = m * v; v is a row, a column, or as large as m."""

    @operation(f"m(M,N) {_V} ~> out(M,N)+", formula=lambda m, v: m * v)
    def mult_add_mv(self, m: Array, v: Array, out: Array) -> None:
        """out += m * v; v is a row, a column, or as large as m."""

    @operation(f"m(M,N) {_V} ~> out(M,N)", formula=lambda m, v: m / v)
    def divide_mv(self, m: Array, v: Array, out: Array) -> None:
        """out = m / v; v is a row, a column, or as large as m."""

    # -- products ----------------------------------------------------------------------------

    @operation("a(M,K)^transa b(K,N)^transb -> out(M,N)")
    def dot_mm(
        self, a: Array, b: Array, out: Array, transa: bool = False, transb: bool = False
    ) -> None:
        """out = a @ b, with a and b transposed first if requested."""

    @operation("a(M,K)^transa b(K,N)^transb -> out(M,N)+")
    def dot_add_mm(
        self, a: Array, b: Array, out: Array, transa: bool = False, transb: bool = False
    ) -> None:
        """out += a @ b, with a and b transposed first if requested."""

    @operation("b(K,N)^transb", derived=True)
    def pack_m(self, b: Array, transb: bool = False) -> None:
        """Prepare b for many `dot_add_packed`, which use its present content."""

    @operation("a(M,K) b(K,N)^transb -> out(M,N)+", derived=True)
    def dot_add_packed(self, a: Array, b: Array, out: Array, transb: bool = False) -> None:
        """out += a @ b, for a b that has not changed since `pack_m` with the same transb."""
        self.dot_add_mm(a, b, out, transb=transb)

    @operation("a(M,K) b(N,K) bias(N) activation:activation -> out(M,N)", derived=True)
    def affine_mm(self: Any, a: Array, b: Array, bias: Array, out: Array, activation: str) -> None:
        """out = activation(a @ b.T + bias), the bias in every row."""
        self.dot_mm(a, b, out, transb=True)
        self.add_mv(out, bias.reshape((1, bias.shape[0])), out)
        self.inplace_act_func[activation](out)

    # -- reductions and indexing -------------------------------------------------------------

    @operation("a(*S) axis:axis -> out(*R)", where="reduces(S, axis, R)", derived=True)
    def sum_t(self, a: Array, axis: int | None, out: Array) -> None:
        """out = sum of a over `axis` (None: all), which out may keep with size 1 or lack."""
        self._sum(a, axis, out, False)

    @operation("a(*S) axis:axis -> out(*R)+", where="reduces(S, axis, R)", derived=True)
    def sum_add_t(self, a: Array, axis: int | None, out: Array) -> None:
        """out += sum of a over `axis` (None: all), which out may keep with size 1 or lack."""
        self._sum(a, axis, out, True)

    def _sum(self: Any, a: Array, axis: int | None, out: Array, add: bool) -> None:
        if axis is None:
            self.compute(_summed(None, False), (a,), (out.reshape(()),), add)
        else:
            self.compute(_summed(axis % a.ndim, out.ndim == a.ndim), (a,), (out,), add)

    @operation(
        "a(*S) axis:int -> out(*R)",
        where="-len(R) <= axis < len(R); S == kept(R, axis)",
        formula=lambda a, out: fn.broadcast_to(a, out.shape),
    )
    def broadcast_t(self, a: Array, axis: int, out: Array) -> None:
        """out = a repeated along `axis`, on which a has size 1."""

    @operation("v(M,1)<N -> out(M,N)", derived=True)
    def binarize_v(self: Any, v: Array, out: Array) -> None:
        """out[i, j] = 1 if j == v[i, 0] else 0."""
        self.compute(_classes, (self._counting(out.shape[1]), v), (out,))

    @operation("m(M,N) v(M,1)<N -> out(M,1)", derived=True)
    def index_m_by_v(self: Any, m: Array, v: Array, out: Array) -> None:
        """out[i, 0] = m[i, v[i, 0]]."""
        self.compute(_picked, (m, self._counting(m.shape[1]), v), (out,))

    @operation("m(M,N) -> out(M,1)", formula=lambda m: fn.argmax(m, axis=1))
    def argmax_m(self, m: Array, out: Array) -> None:
        """out[i, 0] = index of the largest element of m[i], the first one for ties."""

    # -- concatenation -----------------------------------------------------------------------

    @operation(
        "a(*S,M) b(*S,N) -> out(*S,M+N)", formula=lambda a, b: fn.concatenate([a, b], axis=-1)
    )
    def merge_tt(self, a: Array, b: Array, out: Array) -> None:
        """out = a and b side by side on the last axis."""

    @operation("x(*S,K) -> out_a(*S,M)+ out_b(*S,N)+", where="K == M + N", derived=True)
    def split_add_tt(self: Any, x: Array, out_a: Array, out_b: Array) -> None:
        """out_a += left part of x, out_b += right part of x, on the last axis."""
        self.compute(_parts, (x, out_a), (out_a, out_b), accumulate=True)

    # -- random numbers ----------------------------------------------------------------------

    @operation("seed:int => stream")
    def create_random_stream(self, seed: int) -> Any:
        """Return a source of random numbers with `get_state()` -> JSON-able dict, `set_state(d)`.

        Same seed, same handler, same machine: same numbers.
        """

    @operation("mean:scalar std:scalar stream:stream -> out(*S)")
    def fill_gaussian(self, mean: Any, std: Any, out: Array, stream: Any = None) -> None:
        """out = normally distributed numbers, from `stream` or the handler's own."""

    @operation("probability:scalar stream:stream -> mask(*S)")
    def generate_probability_mask(self, mask: Array, probability: Any, stream: Any = None) -> None:
        """mask = 1 with the given probability, else 0, from `stream` or the handler's own."""

    # -- invalid arguments -------------------------------------------------------------------

    def _check_own(self, mem: Any) -> None:
        """Raise an error unless `mem` is an array of this handler."""
        if type(mem) is not self.array_type:
            getattr(mem, "dtype", None)  # raises the error of a null buffer
            raise HandlerValidationError(
                f"get_numpy_copy(mem): argument 'mem': expected an array of this handler, got "
                f"{type(mem).__name__}"
            )

    @staticmethod
    def _check_host(arr: Any) -> None:
        if not isinstance(arr, np.ndarray):
            raise HandlerValidationError(
                f"create_from_numpy(arr): argument 'arr': expected a NumPy array, got "
                f"{type(arr).__name__}"
            )

    @staticmethod
    def _check_copy(src: Array, dest: Array) -> None:
        source, target = src.dtype, dest.dtype  # raises the error of a null buffer
        if src.shape != dest.shape:
            raise HandlerValidationError(
                f"copy_to(src, dest): argument 'dest': expected shape {src.shape}, that of src, "
                f"got {dest.shape}"
            )
        if source != target and not np.can_cast(source, target, "same_kind"):
            raise HandlerValidationError(
                f"copy_to(src, dest): argument 'src': expected a dtype that fits into {target}, "
                f"got {source}. Use set_from_numpy to cast."
            )

    @staticmethod
    def _fitting(mem: Array, arr: Any) -> np.ndarray:
        """Return a NumPy array with the data for `mem`, after checking the shape."""
        arr = np.asarray(arr)
        if mem.shape != arr.shape:
            getattr(mem, "dtype", None)  # as above
            raise HandlerValidationError(
                f"set_from_numpy(mem, arr): argument 'arr': expected shape {mem.shape}, that of "
                f"mem, got {arr.shape}"
            )
        if arr.dtype.kind not in "biufO":
            raise HandlerValidationError(
                f"set_from_numpy(mem, arr): argument 'arr': expected real numbers, got an array of "
                f"{arr.dtype}"
            )
        return arr
