"""A handler under test: which operations to check, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from brainstorm.handlers import Handler
from brainstorm.handlers.base_handler import check_is_handler
from brainstorm.testing.gradients import PropertyError, check_close
from brainstorm.testing.handler_arguments import Arguments, Invocation
from brainstorm.testing.properties import chosen

#: Number of calls of each operation per property.
EXAMPLES = 12


class HandlerHarness:
    """A handler, the operations to check (all if `None`), and how results are compared.

    Raises:
        ValidationError: There is no such operation.

    Attributes:
        checking: Name of the property that is being checked.
        is_host: Whether arrays are NumPy arrays.
    """

    checking = ""

    def __init__(self, handler: Handler, operations: Iterable[str] | None, seed: int) -> None:
        check_is_handler(handler)
        self.handler, self.seed = handler, seed
        self.contracts = Handler.operations()
        self.is_complete = operations is None
        self.operations = chosen("operation", operations, self.contracts)
        self.is_host = issubclass(handler.array_type, np.ndarray)
        self.epsilon = float(np.finfo(handler.dtype).eps)

    def chosen(self, *names: str) -> list[str]:
        """Return the names that are operations to check."""
        return [name for name in names if name in self.operations]

    def examples(self) -> Iterator[Arguments]:
        """Yield random arguments of all operations that compute something from their arguments.

        Each gets `EXAMPLES`, with all combinations of its flags.
        """
        for name in self.operations:
            contract = self.contracts[name]
            draws = any(a.kind == "stream" for a in contract.arguments)
            for example in range(0 if draws or contract.result else EXAMPLES):
                yield Arguments(name, self.seed, self.handler.dtype, example)

    def where(self, what: Any) -> str:
        """Return the start of a message: the property, the handler and the operation."""
        name = f"{type(self.handler).__name__} {np.dtype(self.handler.dtype).name}"
        return f"property {self.checking!r}: {name}, {what}"

    def fail(self, what: Any, message: str) -> PropertyError:
        """Return the error that `what` (an operation) violates the property."""
        return PropertyError(f"{self.where(what)}: {message}")

    def attempt(self, what: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function; any exception is a violation."""
        try:
            return function(*arguments)
        except Exception as error:
            raise self.fail(what, f"raises {type(error).__name__}: {error}") from error

    def compare(self, what: Any, argument: str, got: Any, expected: Any) -> None:
        """Compare an array with the expected one, up to the rounding of the handler's dtype."""
        rtol, atol = 1000 * self.epsilon, 200 * self.epsilon
        check_close(f"{self.where(what)}, {argument}", got, np.asarray(expected), rtol, atol)

    def compare_exactly(self, what: Any, argument: str, got: Any, expected: Any) -> None:
        """Compare an array with the expected one, bit for bit."""
        check_close(f"{self.where(what)}, {argument}", got, np.asarray(expected), 0.0, 0.0)

    def check_results(self, call: Invocation, arguments: Arguments, expected: Any) -> None:
        """Run a call, and compare all that it writes."""
        self.attempt(arguments, call.run)
        for name, values in expected.items():
            self.compare(arguments, name, call.get(name), values)

    def array(self, values: Any) -> Any:
        """Return an array of the handler with the given content."""
        return self.handler.create_from_numpy(np.asarray(values, self.handler.dtype))
