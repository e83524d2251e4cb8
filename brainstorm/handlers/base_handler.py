"""The interface to arrays: every operation that layers, steppers and tools may use.

An operation is declared here once: its signature, its formula and its contract (see
`brainstorm.handlers.contracts`). It writes into the arrays that it is given and returns
nothing, unless it is said otherwise. The last letters of a name say what the operands are:
``s`` a scalar (a number, or an array of one element), ``v`` a row or column vector (2-D with
a 1), ``m`` a matrix, ``t`` an array of any shape.

A new handler is a subclass that implements the abstract operations, and shows with
`brainstorm.testing` that they do what is written here.
"""
# ruff: noqa: D403 (a docstring may start with a formula)

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from brainstorm.describable import Describable
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.base_activations import ActivationOperations, activation_tables
from brainstorm.handlers.base_images import ImageOperations
from brainstorm.handlers.base_sequences import SequenceOperations
from brainstorm.handlers.contracts import Contract, operation
from brainstorm.handlers.numpy_memory import out_of_memory
from brainstorm.handlers.traces import State, Trace
from brainstorm.optree import Formula, Program, formula
from brainstorm.optree import functions as fn
from brainstorm.utils import Array, Arrays

__all__ = ["Handler"]

#: A vector that is stretched over a matrix (M, N).
_V = "v(1,N)|(M,1)|(M,N)"
#: How many constants a handler keeps.
MOST_CONSTANTS = 1000

_copied = formula(lambda source: source)
_classes = formula(lambda row, column: fn.equal(row, column))
_picked = formula(lambda m, row, column: fn.sum(fn.where(fn.equal(row, column), m, 0.0), axis=1))
_parts = formula(lambda x, left: (x[..., : left.shape[-1]], x[..., left.shape[-1] :]))


@functools.cache
def _summed(axis: int | None, keepdims: bool) -> Formula:
    return formula(lambda a: fn.sum(a, axis, keepdims))


class Handler(ActivationOperations, ImageOperations, SequenceOperations, Describable):
    """Base of all handlers; those in front of it in the list of bases declare more operations.

    Attributes:
        dtype: `numpy.dtype` of the arrays.
        context: Whatever identifies the device.
        EMPTY: An array of size 0.
        rnd: `RandomState` that seeded the handler's own random stream.
        stream: That stream; random operations use it unless they are given another.
        array_type: Class of the arrays.
        act_func: activation name -> ``f(x, y)``, which writes y, other memory than x.
        act_func_deriv: activation name -> ``f(x, y, dy, dx)``, which writes dx, other memory than
            the rest; x may be None unless the name is in `activations_needing_inputs`.
        inplace_act_func: activation name -> ``f(x)``, which overwrites x by y.
        inplace_act_func_deriv: activation name -> ``f(y, dy, x)``, which overwrites dy by dx; x may
            be left out unless the name is in `activations_needing_inputs`.
    """

    #: Whether networks and steppers replay traces, instead of calling the layers.
    replays: bool = True
    #: What each thread does with the handler at the moment.
    running: State
    #: Arrays that many operations use, by name.
    _constants: dict[Hashable, Array]
    __undescribed__ = {"running": State()}

    dtype: Any
    context: Any
    EMPTY: Array
    rnd: Any
    stream: Any
    array_type: type

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a handler with which nothing is done yet, so that constructors may use it."""
        handler = super().__new__(cls)
        handler.running, handler._constants = State(), {}
        return handler

    def __copy__(self) -> Any:
        copied = type(self).__new__(type(self))
        vars(copied).update({**vars(self), "running": copied.running, "_constants": {}})
        return copied

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        contracts = Handler.operations()
        for name, function in list(vars(cls).items()):
            if callable(function) and (name in contracts or name == "run_program"):
                contract = contracts.get(name)
                returns = contract is not None and contract.result is not None
                setattr(cls, name, _traced(name, function, returns))

    def __init__(self) -> None:
        (
            self.act_func,
            self.act_func_deriv,
            self.inplace_act_func,
            self.inplace_act_func_deriv,
        ) = activation_tables(self)

    @classmethod
    def operations(cls) -> dict[str, Contract]:
        """Return the contract of every operation, by name, in the order of declaration."""
        rooms = (Handler, ActivationOperations, ImageOperations, SequenceOperations)
        declared = {name: member for room in rooms for name, member in vars(room).items()}
        return {n: f.contract for n, f in declared.items() if hasattr(f, "contract")}

    @abc.abstractmethod
    def info(self) -> dict[str, str]:
        """Return what the handler computes with: libraries, versions, device."""

    @abc.abstractmethod
    def run_program(
        self, program: Program, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        """Compute op-trees: write or add the value of each tree to its output.

        The results are as if every value were computed before any output is written; outputs
        that share memory with each other are written in their order. What is derived from the
        program is kept as long as the program is: linearise once, run often. From then on
        nothing is allocated.

        Args:
            program: What `brainstorm.optree.linearise` returned.
            inputs: One array per ``program.inputs``, of its shape and type.
            outputs: One array per ``program.outputs``, of its shape; values are converted to its
                type. They may overlap the inputs.
            accumulate: Per output whether to add to its content instead of overwriting it.
        """

    # -- calls and traces ----------------------------------------------------------------------

    def execute(
        self, calls: Iterable[Callable[[], Any]], operation: str, arguments: Iterable[Any] = ()
    ) -> None:
        """Do the calls that an operation comes down to; while it is traced, keep them.

        Args:
            calls: Functions that take nothing.
            operation: Its name.
            arguments: Its arguments, of which arrays are kept with the calls.

        Raises:
            OutOfMemoryError: There is no memory for what they need beside their arguments.
        """
        state = self.running
        trace = state.trace
        if trace is None:
            _do(calls, operation)
            return
        state.trace = None  # what a function of Python does is a part of its call
        try:
            if trace.runs:
                _do(calls, operation)
        finally:
            state.trace = trace
        trace.keep(calls, operation, arguments)

    def call(self, function: Callable[[], Any], is_queued: bool = False) -> None:
        """Call a function that does something else than operations; a replay calls it again.

        Args:
            function: Takes nothing.
            is_queued: Whether it does nothing but put work into the stream of the handler, so that
                it can be a part of a CUDA graph.
        """
        self.execute((function,), "queued" if is_queued else "python")

    def loop(self, steps: Sequence[int], body: Callable[[int], None]) -> None:
        """Call ``body(t)`` for each of the steps, as a walk through time does.

        Args:
            steps: A range.
            body: Does nothing but operations on rows of arrays whose numbers grow by one with t, so
                that a trace need not keep every step.
        """

        def walk() -> None:
            for t in steps:
                body(t)

        self.execute((walk,), "loop")

    @contextlib.contextmanager
    def tracing(self, runs: bool = True) -> Iterator[Trace]:
        """Keep the calls that this thread does until the ``with`` block ends.

        Args:
            runs: Whether operations run meanwhile; else their calls are only kept, and what
                `call` is given is not called.
        """
        trace = Trace(self, runs)
        with self._traced_by(trace):
            yield trace

    def trace(self, function: Callable[[], None]) -> Trace:
        """Call a function, and return the trace of what it did."""
        with self.tracing() as trace:
            function()
        return trace

    @contextlib.contextmanager
    def _traced_by(self, trace: Trace | None) -> Iterator[None]:
        state = self.running
        before, state.trace = state.trace, trace
        try:
            yield
        finally:
            state.trace = before

    def compile(self, calls: Sequence[Callable[[], Any]]) -> Sequence[Callable[[], Any]]:
        """Return functions that do calls again and again, in their order."""
        return calls

    def new_lane(self) -> Any:
        """Return what a network's calls are to have to themselves, as scratch memory, if anything.

        It is in use while it is the `lane` of the thread's state. It may be cleared, by its
        method `clear`, when the network's memory moves.
        """
        return None

    def reserve(self, shape: tuple[int, ...]) -> Array | None:
        """Return an array that takes no memory, and that nobody writes to.

        On such arrays operations can be traced without running, to see how much memory a lane would
        hold: it has `only_measure` and `nbytes` then. None: it does not tell that.
        """
        return None

    def _check_own(self, mem: Any) -> None:
        """Refuse to read what is no array of this handler."""
        if type(mem) is not self.array_type:
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
        if src.shape != dest.shape:
            raise HandlerValidationError(
                f"copy_to(src, dest): argument 'dest': expected shape {src.shape}, that of src, "
                f"got {dest.shape}"
            )
        if src.dtype != dest.dtype and not np.can_cast(src.dtype, dest.dtype, "same_kind"):
            raise HandlerValidationError(
                f"copy_to(src, dest): argument 'src': expected a dtype that fits into {dest.dtype}"
                f", got {src.dtype}. Use set_from_numpy to cast."
            )

    @staticmethod
    def _fitting(mem: Array, arr: Any) -> np.ndarray:
        """Return what is to be written into `mem` as an array of NumPy, if it has its shape."""
        arr = np.asarray(arr)
        if mem.shape != arr.shape:
            raise HandlerValidationError(
                f"set_from_numpy(mem, arr): argument 'arr': expected shape {mem.shape}, that of "
                f"mem, got {arr.shape}"
            )
        return arr

    def compute(
        self,
        formula: Formula,
        inputs: Arrays,
        outputs: Arrays,
        accumulate: bool | Sequence[bool] = False,
    ) -> None:
        """Compute a formula: write or add each of its values to the output at its place.

        Args:
            formula: What to compute.
            inputs: One array per argument; their shapes broadcast as in NumPy.
            outputs: One array per value, of its shape. They may overlap the inputs.
            accumulate: Whether to add to what is in the outputs: for all, or for each.

        Raises:
            ValidationError: The number or the shapes of the inputs do not fit the formula.
        """
        flags = [accumulate] * len(outputs) if isinstance(accumulate, bool) else accumulate
        self.run_program(formula.program(*inputs), inputs, outputs, flags)

    def repeated_dot_add(self, b: Array, transb: bool = False) -> Callable[[Array, Array], None]:
        """Return ``product(a, out)``, which adds a @ b to out, for many products with the same b.

        A handler may bring b into the form that its products are fastest with; so b must not change
        as long as the function is used.

        Args:
            b: The matrix (K, N) that they have in common.
            transb: Whether to transpose it first.
        """
        self.pack_m(b, transb)
        return lambda a, out: self.dot_add_packed(a, b, out, transb)

    # -- constants -----------------------------------------------------------------------------

    def _as_number(self, value: Any) -> Array:
        """Return a number, or an array of one element, as an array without dimensions."""
        if isinstance(value, self.array_type):
            array: Any = value
            return array.reshape(())
        return self._constant(value, lambda: np.array(value, self.dtype))

    def _counting(self, length: int) -> Array:
        """Return the row 0, 1, 2, ..."""
        return self._constant(
            ("counting", length), lambda: np.arange(length, dtype=self.dtype).reshape(1, -1)
        )

    def _constant(self, name: Hashable, make: Callable[[], np.ndarray]) -> Array:
        """Return an array that many operations use, made when it is first asked for."""
        array = self._constants.get(name)
        if array is None:
            if len(self._constants) >= MOST_CONSTANTS:
                self._constants.clear()  # who uses them keeps them
            with self._traced_by(None):
                array = self._constants[name] = self.create_from_numpy(make())
        return array

    # -- memory ------------------------------------------------------------------------------

    @operation("shape:shape => array")
    def allocate(self, shape: int | tuple[int, ...]) -> Array:
        """Return a new array, aligned to 64 bytes. Do not rely on its content."""

    @operation("shape:shape => array", derived=True)
    def zeros(self, shape: int | tuple[int, ...]) -> Array:
        """Return a new array of zeros."""
        array = self.allocate(shape)
        self.fill(array, 0.0)
        return array

    @operation("shape:shape => array", derived=True)
    def ones(self, shape: int | tuple[int, ...]) -> Array:
        """Return a new array of ones."""
        array = self.allocate(shape)
        self.fill(array, 1.0)
        return array

    # -- copy and fill -----------------------------------------------------------------------

    @operation("src(*S):any ~> dest(*S):any", derived=True)
    def copy_to(self, src: Array, dest: Array) -> None:
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
        """Return a new array with the content and the dtype of a NumPy array."""

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

    @operation("a(*S) b(*S) ~> out(*S)")
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
        """out = a @ b, with a and b transposed first if asked for."""

    @operation("a(M,K)^transa b(K,N)^transb -> out(M,N)+")
    def dot_add_mm(
        self, a: Array, b: Array, out: Array, transa: bool = False, transb: bool = False
    ) -> None:
        """out += a @ b, with a and b transposed first if asked for."""

    @operation("b(K,N)^transb", derived=True)
    def pack_m(self, b: Array, transb: bool = False) -> None:
        """Get b ready for many `dot_add_packed`, which see it as it is now."""

    @operation("a(M,K) b(K,N)^transb -> out(M,N)+", derived=True)
    def dot_add_packed(self, a: Array, b: Array, out: Array, transb: bool = False) -> None:
        """out += a @ b, for a b that has not changed since `pack_m` got it with the same transb."""
        self.dot_add_mm(a, b, out, transb=transb)

    @operation("a(M,K) b(N,K) bias(N) activation:activation -> out(M,N)", derived=True)
    def affine_mm(self, a: Array, b: Array, bias: Array, out: Array, activation: str) -> None:
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

    def _sum(self, a: Array, axis: int | None, out: Array, add: bool) -> None:
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
    def binarize_v(self, v: Array, out: Array) -> None:
        """out[i, j] = 1 if j == v[i, 0] else 0."""
        self.compute(_classes, (self._counting(out.shape[1]), v), (out,))

    @operation("m(M,N) v(M,1)<N -> out(M,1)", derived=True)
    def index_m_by_v(self, m: Array, v: Array, out: Array) -> None:
        """out[i, 0] = m[i, v[i, 0]]."""
        self.compute(_picked, (m, self._counting(m.shape[1]), v), (out,))

    @operation("m(M,N) -> out(M,1)", formula=lambda m: fn.argmax(m, axis=1))
    def argmax_m(self, m: Array, out: Array) -> None:
        """out[i, 0] = index of the largest element of m[i], the first of equal ones."""

    # -- concatenation -----------------------------------------------------------------------

    @operation(
        "a(*S,M) b(*S,N) -> out(*S,M+N)", formula=lambda a, b: fn.concatenate([a, b], axis=-1)
    )
    def merge_tt(self, a: Array, b: Array, out: Array) -> None:
        """out = a and b side by side on the last axis."""

    @operation("x(*S,K) -> out_a(*S,M)+ out_b(*S,N)+", where="K == M + N", derived=True)
    def split_add_tt(self, x: Array, out_a: Array, out_b: Array) -> None:
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


def _do(calls: Iterable[Callable[[], Any]], operation: str) -> None:
    with out_of_memory(operation):
        for call in calls:
            call()


def _traced(name: str, function: Callable[..., Any], returns: bool) -> Callable[..., Any]:
    """Return an operation that is kept while it is traced, unless it sees to that by itself."""
    if getattr(function, "executes", False):
        return function

    @functools.wraps(function)
    def run(self: Handler, *args: Any, **kwargs: Any) -> Any:
        trace = self.running.trace
        if trace is None or returns:
            with out_of_memory(name):
                if trace is None:
                    return function(self, *args, **kwargs)
                trace.reads.append(name)
                with self._traced_by(None):  # what it allocates is no part of the trace
                    return function(self, *args, **kwargs)
        call = functools.partial(function, self, *map(_fixed, args), **kwargs)
        self.execute((call,), name, _flat((*args, *kwargs.values())))
        return None

    run.executes = True  # type: ignore[attr-defined]
    run.__doc__ = run.__doc__ or getattr(Handler, name).__doc__
    return run


def _fixed(value: Any) -> Any:
    """Return an argument that does not change, if it is a list."""
    return tuple(value) if type(value) is list else value


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value
