"""The interface to arrays: how operations run and are traced, and what every handler has.

An operation is declared once, in this file's neighbours whose names begin with ``base_``: its
signature, its formula and its contract (see `brainstorm.handlers.contracts`). It writes into the
arrays that it is given and returns nothing, unless it is said otherwise.

A new handler is a subclass that implements the abstract operations, and shows with
`brainstorm.testing` that they do what is written there.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.describable import Describable
from brainstorm.handlers.base_activations import ActivationOperations, activation_tables
from brainstorm.handlers.base_arrays import ArrayOperations
from brainstorm.handlers.base_images import ImageOperations
from brainstorm.handlers.base_sequences import SequenceOperations
from brainstorm.handlers.contracts import Contract
from brainstorm.handlers.numpy_memory import out_of_memory
from brainstorm.handlers.traces import State, Trace
from brainstorm.optree import Formula, Program
from brainstorm.optree import functions as fn
from brainstorm.optree.program import signed
from brainstorm.utils import Array, Arrays

__all__ = ["Handler"]

#: How many constants a handler keeps, and how many arrays one operation clears.
MOST_CONSTANTS, MOST_CLEARED = 1000, 16


@functools.lru_cache(1024)
def _zeros(form: tuple[tuple[tuple[int, ...], str], ...]) -> Formula:
    return Formula(lambda: [fn.full(shape, 0.0, dtype) for shape, dtype in form], "clear")


class Handler(
    ArrayOperations, ActivationOperations, ImageOperations, SequenceOperations, Describable
):
    """Base of all handlers; those in front of it in the list of bases declare operations.

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

    @staticmethod
    @functools.cache
    def operations() -> Mapping[str, Contract]:
        """Return the contract of every operation, by name, in the order of declaration."""
        groups = (ArrayOperations, ActivationOperations, ImageOperations, SequenceOperations)
        declared = {name: member for group in groups for name, member in vars(group).items()}
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
            steps: A range; others are done one by one.
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

    def clear(self, arrays: Arrays) -> None:
        """Fill arrays with zeros, by as few operations as that takes."""
        for start in range(0, len(arrays), MOST_CLEARED):
            part = arrays[start : start + MOST_CLEARED]
            form = tuple((tuple(array.shape), np.dtype(array.dtype).name) for array in part)
            self.compute(_zeros(form), [], part)

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
        return self._constant(signed(value), lambda: np.array(value, self.dtype))

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
        trace, called = self.running.trace, args[0].name if args and name == "run_program" else name
        if trace is None or returns:
            with out_of_memory(called):
                if trace is None:
                    return function(self, *args, **kwargs)
                trace.reads.append(called)
                with self._traced_by(None):  # what it allocates is no part of the trace
                    return function(self, *args, **kwargs)
        call = functools.partial(function, self, *map(_fixed, args), **kwargs)
        self.execute((call,), called, _flat((*args, *kwargs.values())))
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
