"""States that are given before the start which uses them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any


class KeptState:
    """Base of objects whose state, given to `set_state`, waits for the next `start` that succeeds.

    A subclass implements `read_state`, checks a state before it passes it on to `set_state`, and
    begins with ``_waiting`` in its `start`. Only `started` ends the waiting, so a start that failed
    can be repeated, e.g. with the right network.
    """

    __undescribed__: Any = {"_waiting"}

    _waiting: Mapping[str, Any] | None = None

    def read_state(self) -> dict[str, Any]:
        """Return a copy of the present state; that of the beginning if there was no start."""
        raise NotImplementedError

    def get_state(self) -> dict[str, Any]:
        """Return the state with which another object continues as this one would."""
        return self.read_state() if self._waiting is None else dict(self._waiting)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Give the next start a state of `get_state`."""
        self._waiting = dict(state)

    def started(self) -> None:
        """End a start that has succeeded: from now on the state is the present one."""
        self._waiting = None


@contextlib.contextmanager
def unless_error(*objects: Any) -> Iterator[None]:
    """Keep the changes of attributes in a ``with`` block only if it raises no error."""
    before = [dict(vars(each)) for each in objects]
    try:
        yield
    except BaseException:
        for each, attributes in zip(objects, before, strict=True):
            for name in vars(each).keys() - attributes:
                del vars(each)[name]
            vars(each).update(attributes)
        raise
