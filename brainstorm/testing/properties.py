"""Tables of properties: functions of a harness, by the words of their names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
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

    def chosen(self, names: Iterable[str] | None) -> list[str]:
        """Return the names of the properties to check, all of them for `None`.

        Raises:
            ValidationError: There is no such property.
        """
        chosen = list(self if names is None else names)
        for name in chosen:
            if name not in self:
                raise ValidationError(unknown("property", name, self))
        return chosen
