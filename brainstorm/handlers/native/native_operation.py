"""How an operation of the handler is built from its arguments, and the method that does it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.elementwise import Computation
from brainstorm.handlers.native.products import ACTIVATIONS

__all__ = ["NATIVES", "NativeOperation", "native"]

#: All native operations, by name.
NATIVES: dict[str, NativeOperation] = {}


class NativeOperation:
    """How an operation is built from its arguments.

    Args:
        function: The operation on NumPy, whose signature it has.
        build: Called with primitives, arrays and options, returns calls.
        arrays: Names of its arrays, in the order of `build`.
        options: Likewise of all other arguments. If ``activation`` is among them, it is applied to
            the last array, by a kernel of its own where the library does not have it.
        instead: Called with arrays and options, returns the `Computation` that does the same
            faster, or None for the calls of `build`.
    """

    def __init__(
        self, function: Callable[..., None], build: Callable[..., list[Call]], arrays: str,
        options: str, instead: Callable[..., Computation | None],
    ) -> None:  # fmt: skip
        self.name, self.function = function.__name__, function
        self.build, self.instead = build, instead
        _, *parameters = inspect.signature(function).parameters.values()
        self.signature = inspect.Signature(parameters)
        self.rest = [(p.name, p.default) for p in parameters]
        names = [p.name for p in parameters]
        self._arrays = [names.index(name) for name in arrays.split()]
        self._options = [names.index(name) for name in options.split()]
        self._activation = (*options.split(), "activation").index("activation")

    def complete(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in their order."""
        rest = self.rest[len(args) :]
        values = args + tuple([kwargs.get(name, default) for name, default in rest])
        missing = any(value is inspect.Parameter.empty for value in values)
        too_many = len(values) > len(self.rest)
        if missing or too_many or not kwargs.keys() <= dict(rest).keys():
            self.signature.bind(*args, **kwargs)  # says what is wrong
        return values

    def arrays(self, values: tuple[Any, ...]) -> list[Any]:
        """Return all arrays."""
        return [values[i] for i in self._arrays]

    def without_activation(self, options: tuple[Any, ...]) -> tuple[tuple[Any, ...], str]:
        """Return options that the library knows, and the activation that is to follow."""
        at = self._activation
        if at == len(options) or options[at] in ACTIVATIONS:
            return options, "linear"
        return (*options[:at], "linear", *options[at + 1 :]), options[at]

    def options(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return all arguments that are not arrays."""
        options = [values[i] for i in self._options]
        return tuple(tuple(x) if type(x) is list else x for x in options)


def native(
    build: Callable[..., list[Call]],
    arrays: str,
    options: str = "",
    instead: Callable[..., Computation | None] = lambda *arguments: None,
) -> Callable[[Callable[..., None]], Any]:
    """Make an operation native where it can be built, for arguments see `NativeOperation`."""

    def decorate(function: Callable[..., None]) -> Any:
        operation = NativeOperation(function, build, arrays, options, instead)
        name = operation.name
        NATIVES[name] = operation

        @functools.wraps(function)
        def run(self: Any, *args: Any, **kwargs: Any) -> None:
            # Nearly always this has happened before, with the same objects.
            identities = (name, *map(id, args), *kwargs, *map(id, kwargs.values()))
            memory, library = self._memory, self._library
            try:
                calls = memory.calls.known[identities]
            except KeyError:
                calls = self._find(operation, args, kwargs, identities)
            if calls is None:
                function(self, *args, **kwargs)
                return
            for call in calls:
                if library is not None and call.threads:
                    library.use_threads(call.threads)
                if status := call.run():
                    raise call.failure(status)

        return run

    return decorate
