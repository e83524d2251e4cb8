"""The interface to arrays: how operations run and are traced, and common parts of all handlers.

An operation is declared once, in the modules whose names begin with ``base_``: its signature, its
formula and its contract (see `brainstorm.handlers.contracts`). It writes into given arrays and
returns nothing, unless stated otherwise.

A new handler is a subclass that implements the abstract operations, and is tested with
`brainstorm.testing`.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.describable import Describable, create_from_description
from brainstorm.errors import HandlerValidationError, NetworkValidationError, shown
from brainstorm.handlers.base_activations import ActivationOperations
from brainstorm.handlers.base_arrays import ArrayOperations
from brainstorm.handlers.base_images import ImageOperations
from brainstorm.handlers.base_sequences import SequenceOperations
from brainstorm.handlers.contracts import Contract
from brainstorm.handlers.numpy_memory import raise_out_of_memory
from brainstorm.handlers.traces import State, Trace
from brainstorm.interrupts import uninterrupted
from brainstorm.optree import Formula, Program
from brainstorm.optree import functions as fn
from brainstorm.optree.program import signed
from brainstorm.utils import Array, Arrays, flatten

#: Maximum number of constants that a handler caches, and of arrays that one operation clears.
MOST_CONSTANTS, MOST_CLEARED = 1000, 16


@functools.lru_cache(1024)
def _zeros(form: tuple[tuple[tuple[int, ...], str], ...]) -> Formula:
    return Formula(lambda: [fn.full(shape, 0.0, dtype) for shape, dtype in form], "clear")


class Handler(
    ArrayOperations, ActivationOperations, ImageOperations, SequenceOperations, Describable
):
    """Base class of all handlers; the other base classes declare operations.

    Attributes:
        dtype: `numpy.dtype` of the arrays.
        context: Identifies the device.
        EMPTY: An array of size 0.
        rnd: `RandomState` that seeded the handler's own random stream.
        stream: That stream; random operations use it unless they are given another.
        array_type: Class of the arrays.
    """

    #: Whether networks and steppers replay traces, instead of calling the layers.
    replays: bool = True
    #: Rows of a product with a triangular matrix that are worth a call of their own, which leaves
    #: out what is zero (measured).
    causal_rows: int = 256
    #: The state of each thread that uses the handler.
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
        """Create a handler with a fresh state, so that constructors may use it."""
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
            if getattr(function, "executes", False) or not callable(function):
                continue
            if name in contracts and contracts[name].result is not None:
                setattr(cls, name, _reading(name, function))
            elif name in contracts or name == "run_program":
                setattr(cls, name, _recorded(name, function))

    @classmethod
    def __new_from_description__(cls, description: Mapping[str, Any]) -> Handler:
        """Call the constructor with what `__describe__` returned."""
        return cls(
            **{n: create_from_description(v) for n, v in description.items() if n != "@type"}
        )

    @staticmethod
    @functools.cache
    def operations() -> Mapping[str, Contract]:
        """Return the contract of every operation, by name, in the order of declaration."""
        groups = (ArrayOperations, ActivationOperations, ImageOperations, SequenceOperations)
        declared = {name: member for group in groups for name, member in vars(group).items()}
        return {n: f.contract for n, f in declared.items() if hasattr(f, "contract")}

    @abc.abstractmethod
    def info(self) -> dict[str, str]:
        """Return the libraries, versions and device that the handler uses."""

    @abc.abstractmethod
    def run_program(
        self, program: Program, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        """Compute op-trees: write or add the value of each tree to its output.

        The results are as if every value were computed before any output is written; outputs
        that share memory are written in their order. Everything derived from the program is cached
        as long as the program exists: linearise once, run often. Then nothing is allocated.

        Args:
            program: The result of `brainstorm.optree.linearise`.
            inputs: One array per ``program.inputs``, of its shape and type.
            outputs: One array per ``program.outputs``, of its shape; values are converted to its
                type. They may overlap the inputs.
            accumulate: For each output, whether to add to its content instead of overwriting it.
        """

    # -- calls and traces ----------------------------------------------------------------------

    def execute(
        self, calls: Iterable[Callable[[], Any]], operation: str, arguments: Iterable[Any] = ()
    ) -> None:
        """Execute the calls of an operation; record them if it is traced.

        Args:
            calls: Functions without arguments.
            operation: Its name.
            arguments: Its arguments; arrays are kept with recorded calls.

        Raises:
            OutOfMemoryError: There is no memory for scratch arrays.
        """
        state = self.running
        trace = state.trace
        if trace is None:
            _do(calls, operation)
            return
        state.trace = None  # operations within a Python call are part of it
        try:
            if trace.runs:
                _do(calls, operation)
        finally:
            state.trace = trace
        trace.keep(calls, operation, arguments)

    def call(self, function: Callable[[], Any], is_queued: bool = False) -> None:
        """Call a function that does other things than operations; a replay calls it again.

        Args:
            function: A function without arguments.
            is_queued: Whether it only puts work into the stream of the handler, so that it can be
                part of a CUDA graph.
        """
        self.execute((function,), "queued" if is_queued else "python")

    def loop(self, steps: Sequence[int], body: Callable[[int], None]) -> None:
        """Call ``body(t)`` for each of the steps, e.g. to loop over time.

        Args:
            steps: A range; other sequences are processed one by one.
            body: Does only operations, on rows of arrays whose numbers grow by one with t, so that
                a trace need not record every step.
        """

        def walk() -> None:
            for t in steps:
                body(t)

        self.execute((walk,), "loop")

    @contextlib.contextmanager
    def tracing(self, runs: bool = True) -> Iterator[Trace]:
        """Record the calls of this thread until the ``with`` block ends.

        Args:
            runs: Whether operations are executed, too; if not, their calls are only recorded, and
                functions passed to `call` are not called.
        """
        trace = Trace(self, runs)
        with uninterrupted(most=2), self._traced_by(trace):  # what is traced may hang
            yield trace

    def trace(self, function: Callable[[], None]) -> Trace:
        """Call a function, and return its trace."""
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
        """Return functions that execute the calls repeatedly, in order."""
        return calls

    def new_lane(self) -> Any:
        """Return memory for the calls of one network, such as scratch memory, or None.

        It is used while it is the `lane` of the thread's state. Its method `clear` is called when
        the network's memory moves, and `trim` when its T, B or S changes.
        """
        return None

    def reserve(self, shape: tuple[int, ...]) -> Array | None:
        """Return an array without memory, which is never written.

        With such arrays operations can be traced without running, to find how much memory a lane
        would hold: it then has `only_measure` and `nbytes`. None: not supported.
        """
        return None

    def compute(
        self,
        formula: Formula,
        inputs: Arrays,
        outputs: Arrays,
        accumulate: bool | Sequence[bool] = False,
    ) -> None:
        """Compute a formula: write or add each of its values to the corresponding output.

        Args:
            formula: The formula.
            inputs: One array per argument; their shapes broadcast as in NumPy.
            outputs: One array per value, of its shape. They may overlap the inputs.
            accumulate: Whether to add to the outputs: for all, or for each.

        Raises:
            ValidationError: The number or the shapes of the inputs do not fit the formula.
            HandlerValidationError: It is a function without ``@formula``, inputs or outputs are
                not lists, or `accumulate` is neither a bool nor a list.
        """
        is_one = isinstance(accumulate, (bool, np.bool_))
        lists = (inputs, outputs, () if is_one else accumulate)
        if not isinstance(formula, Formula) or not all(isinstance(x, (list, tuple)) for x in lists):
            got = [type(given).__name__ for given in (formula, inputs, outputs, accumulate)]
            raise HandlerValidationError(
                f"compute(formula, inputs, outputs, accumulate): expected a function with "
                f"@formula, two lists of arrays, and a bool or a list of them, got "
                f"{', '.join(got)}."
            )
        flags: Any = [bool(accumulate)] * len(outputs) if is_one else accumulate
        self.run_program(formula.program(*inputs), inputs, outputs, flags)

    def clear(self, arrays: Arrays) -> None:
        """Fill arrays with zeros, by as few operations as possible."""
        for start in range(0, len(arrays), MOST_CLEARED):
            part = arrays[start : start + MOST_CLEARED]
            form = tuple((tuple(array.shape), np.dtype(array.dtype).name) for array in part)
            self.compute(_zeros(form), [], part)

    def repeated_dot_add(self, b: Array, transb: bool = False) -> Callable[[Array, Array], None]:
        """Return ``product(a, out)``, which adds a @ b to out, for many products with the same b.

        A handler may convert b to the form that is fastest for its products; so b must not change
        as long as the function is used.

        Args:
            b: The common matrix (K, N).
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
        """Return a constant array, created when first used and cached by name."""
        array = self._constants.get(name)
        if array is None:
            if len(self._constants) >= MOST_CONSTANTS:
                self._constants.clear()  # users keep them
            with self._traced_by(None):
                array = self._constants[name] = self.create_from_numpy(make())
        return array


def _do(calls: Iterable[Callable[[], Any]], operation: str) -> None:
    try:
        for call in calls:
            call()
    except MemoryError as error:
        raise_out_of_memory(operation, error)


def check_is_handler(handler: Any) -> None:
    """Raise an error if something is not a handler."""
    if not isinstance(handler, Handler):
        raise NetworkValidationError(
            f"expected a handler such as NumpyHandler(), got {shown(handler)}."
        )


def _reading(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation with a result, which a trace notes and does not repeat."""

    @functools.wraps(function)
    def run(self: Handler, *args: Any, **kwargs: Any) -> Any:
        trace = self.running.trace
        try:
            if trace is None:
                return function(self, *args, **kwargs)
            trace.reads.append(name)
            with self._traced_by(None):  # its allocations are not part of the trace
                return function(self, *args, **kwargs)
        except MemoryError as error:
            raise_out_of_memory(name, error)

    return _of_handler(name, run)


def _recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operation whose calls are recorded while tracing."""

    @functools.wraps(function)
    def run(self: Handler, *args: Any, **kwargs: Any) -> None:
        called = args[0].name if args and name == "run_program" else name
        if self.running.trace is None:
            try:
                function(self, *args, **kwargs)
            except MemoryError as error:
                raise_out_of_memory(called, error)
        else:
            call = functools.partial(function, self, *map(_fixed, args), **kwargs)
            self.execute((call,), called, flatten((*args, *kwargs.values())))

    return _of_handler(name, run)


def _of_handler(name: str, run: Any) -> Callable[..., Any]:
    run.executes = True
    run.__doc__ = run.__doc__ or getattr(Handler, name).__doc__
    return run


def _fixed(value: Any) -> Any:
    """Return an argument, with lists replaced by tuples."""
    return tuple(value) if type(value) is list else value
