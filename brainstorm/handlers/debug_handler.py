"""A handler that checks every operation of another one against its contract.

It is slow, and helps to find mistakes in your own layer or a new handler, or the origin of a NaN.
All checks are generated from the contracts in `brainstorm.handlers.base_handler`.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NoReturn

import numpy as np

from brainstorm.describable import get_description
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.argument_kinds import KINDS
from brainstorm.handlers.base_handler import Handler, check_is_handler
from brainstorm.handlers.contracts import Argument, Contract
from brainstorm.handlers.numpy_memory import address_of, overlap
from brainstorm.handlers.traces import Trace
from brainstorm.optree import Program
from brainstorm.utils import Array, Arrays


class DebugArray:
    """An array with only those features that the arrays of every handler have.

    It has views (indices, slices without a step, reshapes), but neither arithmetic nor
    assignment: these are operations of the handler.

    Args:
        array: The array of the handler that is checked.
    """

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dimension."""
        return tuple(self.array.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.array.size)

    @property
    def dtype(self) -> Any:
        """NumPy dtype of the elements."""
        return self.array.dtype

    def __repr__(self) -> str:
        return f"DebugArray({np.dtype(self.dtype).name}{list(self.shape)})"

    def __getitem__(self, key: Any) -> DebugArray:
        """Return a view; a key is an integer, a slice without a step, or a tuple of these.

        Raises:
            HandlerValidationError: The key is anything else, or selects a single number.
        """
        for part in key if isinstance(key, tuple) else (key,):
            plain = isinstance(part, (int, np.integer)) and not isinstance(part, bool)
            if not (plain or (isinstance(part, slice) and part.step is None)):
                raise HandlerValidationError(
                    f"{self}: cannot be indexed by {part!r}. Use integers and slices without a "
                    f"step: not every handler has more."
                )
        view = self.array[key]
        if not isinstance(view, type(self.array)):
            raise HandlerValidationError(
                f"{self}: [{key}] is a number, not a view. Use slices, or get_numpy_copy to read."
            )
        return DebugArray(view)

    def reshape(self, *shape: Any) -> DebugArray:
        """Return a view of another shape.

        Raises:
            HandlerValidationError: A size is negative, the sizes do not fit, or the elements
                lie in memory such that only a copy could have this shape.
        """
        sizes = tuple(shape[0]) if isinstance(shape[0], (tuple, list)) else shape
        if any(size < 0 for size in sizes) or np.prod(sizes, dtype=int) != self.size:
            raise HandlerValidationError(
                f"{self}: cannot be reshaped to {sizes}. Give {self.size} elements, with no size "
                f"left open: not every handler has -1."
            )
        view = self.array.reshape(sizes)
        if isinstance(view, np.ndarray) and view.size and not np.may_share_memory(view, self.array):
            raise HandlerValidationError(
                f"{self}: reshaping to {sizes} would copy, and writes to the copy would be lost: "
                f"rows are {self.array.strides} bytes apart. Copy it to contiguous memory."
            )
        return DebugArray(view)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} is no array of NumPy, as on a GPU. Copy it with net.get(path) or the "
            f"handler's get_numpy_copy, or compute with the operations of the handler."
        )

    __array__ = __iter__ = __bool__ = _refuse


class DebugHandler(Handler):
    """Handler that checks each call of an operation, then lets another handler compute.

    It checks types, dtypes, shapes, scalars, ranges of indices, overlapping memory and, in arrays
    that are read or written, NaN and infinity. Everything that is not an operation is forwarded.

    Args:
        handler: The handler that computes.

    Raises:
        HandlerValidationError: From any operation, naming it and the argument.
    """

    array_type = DebugArray
    replays = False  # errors name the calling layer

    def __init__(self, handler: Handler) -> None:
        check_is_handler(handler)
        self.handler, self.running = handler, handler.running
        self.EMPTY = DebugArray(handler.EMPTY)

    @contextlib.contextmanager
    def tracing(self, runs: bool = True) -> Iterator[Trace]:
        """Record the calls of the other handler, which always run, so that results are checked."""
        with self.handler.tracing() as trace:
            yield trace

    def loop(self, steps: Sequence[int], body: Callable[[int], None]) -> None:
        """Call ``body(t)`` for each of the steps, which must all do the same operations.

        Raises:
            HandlerValidationError: A step does other operations than the first, or on arrays that
                are not one step further.
        """
        outer, first = self.running.trace, None
        places: list[np.ndarray] = []
        for t in steps:
            with self.handler.tracing() as trace:
                body(t)
            if outer is not None:
                outer.steps += trace.steps
            done = [str(step) for step in trace.steps]
            first = done if first is None else first
            if done != first:
                raise HandlerValidationError(
                    f"loop(steps, body): expected the same operations at every step, got "
                    f"{', '.join(first) or 'none'} at step {steps[0]} and "
                    f"{', '.join(done) or 'none'} at step {t}. A handler may do all steps as it "
                    f"does the first ones: write a loop of Python."
                )
            places.append(_addresses(trace))
            if len(places) > 2 and isinstance(steps, range):
                ahead, before = places[-1] - places[-2], places[1] - places[0]
                if (ahead != before).any():
                    raise HandlerValidationError(
                        f"loop(steps, body): expected arrays that lie one step further at every "
                        f"step, and the same numbers, got others at step {t} of "
                        f"{', '.join(done)}. A handler may do all steps as it does the first ones: "
                        f"write a loop of Python."
                    )

    def new_lane(self) -> Any:
        """Return a lane of the other handler."""
        return self.handler.new_lane()

    def __getattr__(self, name: str) -> Any:
        if name == "handler" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.handler, name)

    def __describe__(self) -> dict[str, Any]:
        return {"@type": type(self).__name__, "handler": get_description(self.handler)}

    def info(self) -> dict[str, str]:
        """Return the info of the other handler, and that it is checked."""
        return {**self.handler.info(), "checks": type(self).__name__}

    def run_program(
        self, program: Program, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        """Check the arrays of a program, run it, and check for NaN and infinity.

        Raises:
            HandlerValidationError: Naming the input or output that is wrong, and the program.
        """
        for name, values, wanted in (
            ("inputs", inputs, program.inputs),
            ("outputs", outputs, program.outputs),
            ("accumulate", accumulate, program.outputs),
        ):
            if len(values) != len(wanted):
                raise _program_error(
                    f"{name!r}: expected {len(wanted)}, as many as the program has, got "
                    f"{len(values)}"
                )
        labels = [f"input {i} ({v!r})" for i, v in enumerate(program.inputs)]
        read = [
            self._program_array(label, array, v.shape, v.dtype)
            for label, v, array in zip(labels, program.inputs, inputs, strict=True)
        ]
        written = [
            self._program_array(f"output {i}", array, program.shape_of(value))
            for i, (value, array) in enumerate(zip(program.outputs, outputs, strict=True))
        ]
        labels += [f"output {i}, which is added to," for i, adds in enumerate(accumulate) if adds]
        for label, array in zip(labels, (*read, *compress(written, accumulate)), strict=True):
            if found := self._not_finite(array):
                raise _program_error(f"{label} holds {found} before the run", array)
        self.handler.run_program(program, read, written, accumulate)
        for i, array in enumerate(written):
            if found := self._not_finite(array):
                raise _program_error(
                    f"output {i} holds {found} after the run; inputs were finite. The program:"
                    f"\n{program}",
                    array,
                )

    def _program_array(self, label: str, array: Any, shape: Any, dtype: Any = None) -> Any:
        """Check an array of a program, and return it for the other handler."""
        if not isinstance(array, DebugArray):
            getattr(array, "dtype", None)  # raises the error of a null buffer
            raise _program_error(
                f"{label}: expected an array of this handler (create_from_numpy makes one), got "
                f"{type(array).__name__}"
            )
        if array.shape != shape:
            raise _program_error(f"{label}: expected shape {shape}, got {array.shape}", array.array)
        if dtype is not None and array.dtype != dtype:
            raise _program_error(f"{label}: expected dtype {dtype}, got {array.dtype}")
        return array.array

    def _run(self, contract: Contract, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            bound = contract.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{contract.call}: {error}") from None
        bound.apply_defaults()
        values = bound.arguments
        arrays: dict[Argument, Any] = {}
        for argument in contract.arguments:
            given = values[argument.name]
            values[argument.name] = self._unwrap(contract, argument, given)
            is_there = isinstance(given, (DebugArray, np.ndarray)) and not argument.is_absent(given)
            if is_there and argument.kind != "unread":
                arrays[argument] = values[argument.name]
        sizes = contract.bind(values)
        self._check_ranges(contract, arrays, sizes)
        _check_overlaps(contract, arrays)
        if contract.result:
            result = getattr(self.handler, contract.name)(**values)
            return DebugArray(result) if contract.result == "array" else result
        self._compute(contract, arrays, values)
        return None

    def _unwrap(self, contract: Contract, argument: Argument, value: Any) -> Any:
        """Check an argument, and return it for the other handler."""
        of_handler = argument.is_array and argument.kind != "host"
        if isinstance(value, DebugArray):
            if of_handler and argument.kind == "array" and value.dtype != self.dtype:
                raise contract.error(
                    argument.name,
                    f": expected dtype {self.dtype}, that of the handler, got {value.dtype}",
                )
            if of_handler or (argument.kind == "scalar" and value.size == 1):
                return value.array
        elif argument.is_absent(value) or (not of_handler and KINDS[argument.kind][1](value)):
            return value
        if of_handler:
            expected = "an array of this handler (create_from_numpy makes one)"
        else:
            expected = KINDS[argument.kind][0]
        foreign = hasattr(value, "dtype") and not isinstance(value, DebugArray)
        got = f"{type(value).__name__} of shape {value.shape}" if foreign else repr(value)
        raise contract.error(argument.name, f": expected {expected}, got {got}")

    def _check_ranges(
        self, contract: Contract, arrays: dict[Argument, Any], sizes: Mapping[str, Any]
    ) -> None:
        for argument, array in arrays.items():
            bounds = argument.bounds(sizes)
            if bounds is None:
                continue
            low, high = bounds
            found = self._host(array)
            bad = ~((found >= low) & (found < high) & (found == np.floor(found)))
            if bad.any():
                index = _first(bad)
                raise contract.error(
                    argument.name,
                    f": expected integral numbers in [{low}, {argument.high}={high}), got "
                    f"{found[index]} at index {index}",
                    array,
                )

    def _compute(
        self, contract: Contract, arrays: dict[Argument, Any], values: dict[str, Any]
    ) -> None:
        """Run the operation and check for NaN and infinity before and after it."""
        soiled = set()
        for argument, array in arrays.items():
            if not argument.written:
                if found := self._not_finite(array):
                    raise contract.error(
                        argument.name, f" holds {found} before the operation", array
                    )
            elif argument.keeps(values) and self._not_finite(array):
                soiled.add(argument)
        with np.errstate(all="ignore"):
            getattr(self.handler, contract.name)(**values)
        for argument, array in arrays.items():
            if argument.written and (found := self._not_finite(array)):
                before = "it was not finite before" if argument in soiled else "inputs were finite"
                raise contract.error(
                    argument.name, f" holds {found} after the operation; {before}", array
                )

    def _not_finite(self, array: Array) -> str:
        """Return the first value that is not finite, and its index; '' if all are finite."""
        found = self._host(array)
        bad = ~np.isfinite(found)
        if not bad.any():
            return ""
        index = _first(bad)
        return f"{'NaN' if np.isnan(found[index]) else found[index]} (first at index {index})"

    def _host(self, array: Array) -> np.ndarray:
        if isinstance(array, np.ndarray):
            return array
        with self._traced_by(None):
            return self.handler.get_numpy_copy(array)


def _addresses(trace: Trace) -> np.ndarray:
    """Return the addresses of the arrays of all operations."""
    arrays = [getattr(a, "array", a) for step in trace.steps for a in step.arrays]
    return np.array([getattr(a, "address", None) or address_of(a) for a in arrays], np.int64)


def _program_error(what: str, array: Any = None) -> HandlerValidationError:
    error = HandlerValidationError(f"run_program(program, inputs, outputs, accumulate): {what}")
    error.array = array
    return error


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])


def _check_overlaps(contract: Contract, arrays: dict[Argument, Any]) -> None:
    """Raise an error for written arrays that share memory with others (in host memory)."""
    for written, target in arrays.items():
        for other, array in arrays.items():
            are_here = isinstance(target, np.ndarray) and isinstance(array, np.ndarray)
            if not written.written or other is written or not are_here:
                continue
            shared = overlap(target, array, most_work=None)
            if not shared or (shared == "same" and written.in_place and not other.written):
                continue
            allowed = f" without being the same as {other.name!r}" if written.in_place else ""
            raise contract.error(
                written.name,
                f" overlaps argument {other.name!r}{allowed}: the result would be undefined. Give "
                f"it memory of its own.",
                target,
            )


def _checked(name: str, contract: Contract) -> Callable[..., Any]:
    """Return the method that runs an operation with checks."""

    @functools.wraps(getattr(Handler, name))
    def run(self: DebugHandler, *args: Any, **kwargs: Any) -> Any:
        return self._run(contract, args, kwargs)

    run.__isabstractmethod__ = False  # type: ignore[attr-defined]
    return run


for _name, _contract in Handler.operations().items():
    setattr(DebugHandler, _name, _checked(_name, _contract))
abc.update_abstractmethods(DebugHandler)
