"""Tables of properties: functions of a harness, by the words of their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from brainstorm.errors import ValidationError, unknown

Property = Callable[..., None]


class Properties(dict[str, Property]):
    """Name of each property to the function that checks it; a decorator of these functions.

    The words of a function's name are that of the property. Messages contain it: it is the
    attribute ``checking`` of the harness, the function's first argument, while it is checked.
    """

    def __call__(self, function: Property) -> Property:
        """Add a function."""
        name = function.__name__.replace("_", " ")

        @functools.wraps(function)
        def check(harness: Any, *arguments: Any) -> None:
            harness.checking = name
            function(harness, *arguments)

        self[name] = check
        return function


def chosen(kind: str, names: Iterable[str] | None, known: Mapping[str, Any]) -> list[str]:
    """Return names of a kind, all that are known for `None`.

    Raises:
        ValidationError: One is not known.
    """
    found = list(known if names is None else names)
    for name in found:
        if name not in known:
            raise ValidationError(unknown(kind, name, known))
    return found
