"""Plans: the operations of a pass, taken down once and done again without the layers.

    recorder = Recorder(handler)
    recorder.dot_mm(x, w, y)           # is only taken down
    plan = Plan(handler, recorder.steps)
    plan.replay()

A pass is a fixed sequence of operations over fixed memory, so that nothing but the operations and
their arrays has to be kept. Whatever does anything else (reads a value, asks for memory, computes
with NumPy) cannot be recorded: it raises `NotRecordableError`, and the recorder takes down the
call of the whole function instead.
"""

from __future__ import annotations

import abc
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.contracts import Contract
from brainstorm.optree import Program
from brainstorm.utils import Array

__all__ = [
    "NotRecordableError",
    "Operation",
    "Plan",
    "Recorder",
    "StandIn",
    "Watched",
    "call",
    "plans_are_enabled",
    "recording",
]


def plans_are_enabled() -> bool:
    """Return whether steppers may use plans: not with BRAINSTORM_REPLAY=0 in the environment."""
    return os.environ.get("BRAINSTORM_REPLAY", "1") != "0"


class NotRecordableError(HandlerValidationError):
    """Something happened between handler operations that a plan could not repeat."""


@dataclass(frozen=True)
class Operation:
    """One step of a plan.

    Attributes:
        name: Of the handler's operation, ``'run_program'``, or ``'python'`` or ``'queued'`` for a
            function; see `call`.
        arguments: By name.
        place: Whose step it is, e.g. ``'Lstm, forward pass'``.
        function: What is called instead of the operation; `None` for operations of the handler.
    """

    name: str
    arguments: dict[str, Any]
    place: str = ""
    function: Callable[..., Any] | None = None

    def bound_to(self, handler: Handler) -> Callable[[], Any]:
        """Return the function that does it."""
        function = getattr(handler, self.name) if self.function is None else self.function
        return functools.partial(function, **self.arguments)

    def __str__(self) -> str:
        arrays: list[Any] = []
        for value in self.arguments.values():
            arrays.extend(value if isinstance(value, (list, tuple)) else [value])
        shapes = [f"{tuple(a.shape)}" for a in arrays if hasattr(a, "dtype")]
        return f"{self.name} {' '.join(shapes)}"


class Plan:
    """Operations that can be done again, in their order.

    Args:
        handler: Does them.
        operations: What `Recorder` took down.
    """

    def __init__(self, handler: Handler, operations: Sequence[Operation]) -> None:
        self.handler = handler
        self.operations = tuple(operations)
        self.calls = tuple(handler.compile_plan(self.operations))

    def replay(self) -> None:
        """Do all operations, on what is in their arrays now."""
        for call in self.calls:
            call()

    def profile(self, repeats: int = 20) -> list[tuple[Operation, float]]:
        """Return every operation with the shortest time that it took, in seconds.

        Args:
            repeats: How often all operations are done, in their order.
        """
        calls = [operation.bound_to(self.handler) for operation in self.operations]
        best = [float("inf")] * len(calls)
        for _ in range(repeats):
            for i, call in enumerate(calls):
                start = time.perf_counter()
                call()
                best[i] = min(best[i], time.perf_counter() - start)
        return list(zip(self.operations, best, strict=True))

    def report(self, repeats: int = 20) -> str:
        """Return a table of the operations: place, operation, shapes, microseconds, share."""
        timed = self.profile(repeats)
        total = sum(seconds for _, seconds in timed)
        rows = [
            f"{1e6 * seconds:>9.1f} us {100 * seconds / total:>5.1f} %  "
            f"{operation.place:<32} {operation}"
            for operation, seconds in timed
        ]
        return "\n".join([*rows, f"{1e6 * total:>9.1f} us         {len(rows)} operations"])

    def __repr__(self) -> str:
        lines = [f"{operation.place:<32} {operation}" for operation in self.operations]
        return "\n".join([f"<plan of {len(lines)} operations>", *lines])


class GuardedArray(np.ndarray):
    """A NumPy array that can be cut and reshaped, but neither read nor written."""

    _ALLOWED = frozenset({
        *("shape", "dtype", "size", "ndim", "strides", "itemsize", "nbytes", "flags", "T"),
        *("reshape", "transpose", "squeeze", "swapaxes", "view", "__class__"),
        *("__array_finalize__", "__array_priority__", "__array_interface__"),
    })  # fmt: skip

    def __getattribute__(self, name: str) -> Any:
        if name in GuardedArray._ALLOWED:
            return super().__getattribute__(name)
        return _refuse(f"the array method {name!r}")

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"numpy.{ufunc.__name__}")

    def __array_function__(self, function: Any, *args: Any) -> NoReturn:
        _refuse(f"numpy.{function.__name__}")

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return part if isinstance(part, GuardedArray) else _refuse("an element")

    def _refused(self, *args: Any) -> Any:
        _refuse("the values of an array")

    __setitem__ = __float__ = __int__ = __bool__ = __iter__ = __contains__ = _refused
    __index__ = __complex__ = __copy__ = __deepcopy__ = __reduce__ = _refused


def _refuse(what: str) -> NoReturn:
    raise NotRecordableError(f"a plan cannot repeat the use of {what}.")


@contextmanager
def recording() -> Iterator[None]:
    """Turn NumPy's refusal to write to guarded arrays into a `NotRecordableError`."""
    try:
        yield
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise NotRecordableError("a plan cannot repeat NumPy's writing to an array.") from error


def _plain(value: Any) -> Any:
    """Return an argument with ordinary arrays in place of guarded ones."""
    if isinstance(value, GuardedArray):
        root: Any = value
        while isinstance(root, GuardedArray):
            root = np.ndarray.base.__get__(root)
        if root is None:  # memory of its own
            _refuse("a reshaped copy")
        array = np.ndarray.view(value, np.ndarray)
        array.flags.writeable = True
        return array
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, _Hidden):
        _refuse(value._name)
    return [_plain(item) for item in value] if type(value) in (list, tuple) else value


class Recorder(Handler):
    """Takes down operations instead of doing them.

    Args:
        handler: The handler that is to do them.

    Attributes:
        steps: What was taken down.
        place: Goes into every operation.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.steps: list[Operation] = []
        self.place = ""
        self.dtype, self.EMPTY = handler.dtype, handler.EMPTY
        self.context, self.array_type = handler.context, handler.array_type
        self.rnd, self.stream = handler.rnd, handler.stream
        super().__init__()

    def guard(self, array: Array) -> Array:
        """Return an array of the same memory that cannot be used but through operations."""
        if hasattr(array, "guarded"):  # of a GPU
            return array.guarded()
        if type(array) is not np.ndarray:
            return array
        guarded = array.view(GuardedArray)
        np.ndarray.setflags(guarded, write=False)
        return guarded

    def add(self, name: str, arguments: dict[str, Any], function: Any = None) -> None:
        """Take down one operation."""
        plain = {key: _plain(value) for key, value in arguments.items()}
        self.steps.append(Operation(name, plain, self.place, function))

    def attempt(
        self,
        place: str,
        original: Any,
        record: Callable[[Any], Any],
        call: Callable[[], Any],
        **replaced: Any,
    ) -> None:
        """Record what an object does; where that cannot be done, record the call.

        Args:
            place: Whose function it is.
            original: The object.
            record: Called with a stand-in for it, which has this recorder as its handler.
            call: Does the same with the object itself.
            **replaced: Further attributes that the stand-in has instead.
        """
        stand_in = StandIn(original, handler=self, **replaced)
        count, self.place = len(self.steps), place
        try:
            with recording():
                record(stand_in.copy)
                stand_in.check()
        except NotRecordableError:
            del self.steps[count:]
            self.add("python", {}, call)
        finally:
            self.place = ""

    def info(self) -> dict[str, str]:
        """Return what the other handler computes with."""
        return self.handler.info()

    def run_program(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
    ) -> None:
        """Take down an op-tree."""
        self.add(
            "run_program",
            {
                "program": program,
                "inputs": list(inputs),
                "outputs": list(outputs),
                "accumulate": list(accumulate),
            },
        )


def call(handler: Handler, function: Callable[[], Any], is_queued: bool = False) -> None:
    """Call a function between operations; while recording, let it be a step of the plan.

    Args:
        handler: A handler, or a `Recorder`.
        function: Takes nothing.
        is_queued: Whether it does nothing but put work into the stream of the handler, so that it
            can be a part of a CUDA graph.
    """
    if isinstance(handler, Recorder):
        handler.add("queued" if is_queued else "python", {}, function)
    else:
        function()


def _recording(name: str, contract: Contract) -> Callable[..., Any]:
    declared = getattr(Handler, name)

    @functools.wraps(declared)
    def record(self: Recorder, *args: Any, **kwargs: Any) -> Any:
        if contract.result:
            _refuse(f"the result of {name}")
        if getattr(type(self.handler), name) is declared:  # it consists of other operations
            return declared(self, *args, **kwargs)
        bound = contract.signature.bind(*args, **kwargs)
        return self.add(name, bound.arguments)

    record.__isabstractmethod__ = False  # type: ignore[attr-defined]
    return record


for _name, _contract in Handler.operations().items():
    setattr(Recorder, _name, _recording(_name, _contract))
abc.update_abstractmethods(Recorder)


class StandIn:
    """A copy of an object to record with; what changes from step to step must not be used.

    Args:
        original: A layer, a stepper or a modifier.
        hidden: Attributes that change from step to step.
        **replaced: Attributes that the copy has instead, e.g. the handler.
    """

    def __init__(self, original: Any, hidden: Sequence[str] = (), **replaced: Any) -> None:
        self._name = type(original).__name__
        self.copy = object.__new__(type(original))
        self._before = {**vars(original), **replaced}
        self._before.update((name, _Hidden(f"{self._name}.{name}")) for name in hidden)
        vars(self.copy).update(self._before)

    def check(self) -> None:
        """Refuse what has set attributes: a replay would not set them."""
        for name, value in vars(self.copy).items():
            if name not in self._before or self._before[name] is not value:
                _refuse(f"an assignment to {self._name}.{name}")


class _Hidden:
    """Stands for a value that must not be used while recording."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refused(self, *args: Any) -> Any:
        _refuse(self._name)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refused
    __rtruediv__ = __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = _refused
    __rfloordiv__ = __neg__ = __pos__ = __abs__ = __float__ = __int__ = __index__ = _refused
    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __round__ = _refused
    __array__ = _refused
    __hash__ = None  # type: ignore[assignment]


class Watched:
    """Base of objects that recorded passes depend on: changes of their attributes are counted."""

    #: How many public attributes of all watched objects were changed.
    changes: ClassVar[int] = 0

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and self.__dict__.get(name, Watched) is not value:
            Watched.changes += 1
        super().__setattr__(name, value)
