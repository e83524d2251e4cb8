"""Remembers calls by the arrays that they are for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from brainstorm.handlers.numpy_memory import address_of
from brainstorm.utils import Array

__all__ = ["CallCache"]

#: How many sets of arrays are remembered.
MOST_ENTRIES = 4096


class CallCache:
    """What was made for arrays: found by their identity or, for new views, by where they lie.

    It does not keep arrays alive; what is remembered for memory that was freed fits whatever array
    of the same form comes to lie there.

    Attributes:
        known: What was found for the identities of all arguments.
    """

    def __init__(self) -> None:
        self.known: dict[Hashable, Any] = {}
        self._alive: dict[Hashable, tuple[Any, ...]] = {}
        self._by_place: dict[Hashable, Any] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.known.clear()
        self._alive.clear()
        self._by_place.clear()

    def find(self, what: Hashable, arrays: Sequence[Array], make: Callable[[], Any]) -> Any:
        """Return what `make` returned when it was first called for this.

        Args:
            what: The operation and its arguments that are not arrays.
            arrays: Its arrays, or None.
            make: Makes what is to be remembered.
        """
        place = (what, *map(_place, arrays))
        try:
            return self._by_place[place]
        except KeyError:
            pass
        found = make()
        if len(self._by_place) >= MOST_ENTRIES:
            self.clear()
        self._by_place[place] = found
        return found

    def identify(
        self, identities: Hashable, arrays: Sequence[Array], others: Sequence[Any], found: Any
    ) -> None:
        """Remember what was found by the identities of the arguments, until an array goes.

        Args:
            identities: The key.
            arrays: The arrays among the arguments, or None.
            others: The other arguments, which are kept, so that nothing else has their identity.
            found: What is to be in `known`.
        """
        if len(self.known) >= MOST_ENTRIES:
            self.known.clear()
            self._alive.clear()
        known, alive = self.known, self._alive

        def gone(_: Any) -> None:
            known.pop(identities, None)
            alive.pop(identities, None)

        known[identities] = found
        there = [weakref.ref(array, gone) for array in arrays if array is not None]
        alive[identities] = there, others


def _place(array: Array) -> Any:
    if array is None:
        return None
    return address_of(array), array.shape, array.strides, array.dtype.num
