"""Classes that can be found by name, because they registered themselves."""

from __future__ import annotations

from typing import Generic, TypeVar

from brainstorm.errors import UnknownTypeError, did_you_mean

__all__ = ["Registry"]

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes by their names.

    Args:
        kind: What the classes are, for messages, e.g. ``'layer type'``.
        advice: A sentence of the message about an unknown name.
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
            near = did_you_mean(name, (n for n in self._classes if not n.startswith("_")))
            raise UnknownTypeError(f"unknown {self.kind} {name!r}. {self.advice}{near}")
        return next(iter(homes.values()))
