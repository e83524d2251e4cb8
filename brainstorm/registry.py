"""Classes that can be found by name, because they registered themselves."""

from __future__ import annotations

from typing import Generic, TypeVar

from brainstorm.errors import UnknownTypeError, unknown

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes by their names.

    Args:
        kind: What the classes are, for messages, e.g. ``'layer type'``.
        advice: The last sentence of the message about an unknown name.
    """

    def __init__(self, kind: str, advice: str) -> None:
        self.kind = kind
        self.advice = advice
        self._classes: dict[str, list[type[T]]] = {}

    def add(self, name: str, cls: type[T]) -> None:
        """Register `cls`; a class redefined under the same full name replaces the old one."""
        self._classes.setdefault(name, []).append(cls)

    def get(self, name: str) -> type[T]:
        """Return the class called `name`.

        Raises:
            UnknownTypeError: There is none, or several modules define one.
        """
        # Their full names may change after they are registered, as in dataclasses with slots.
        homes = {f"{c.__module__}.{c.__qualname__}": c for c in self._classes.get(name, ())}
        if len(homes) > 1:
            raise UnknownTypeError(
                f"several classes stand for {self.kind} {name!r}: {', '.join(sorted(homes))}. "
                f"Rename all but one."
            )
        if not homes:
            what = unknown(self.kind, name, sorted(self._classes))
            raise UnknownTypeError(f"{what} {self.advice}")
        return next(iter(homes.values()))
