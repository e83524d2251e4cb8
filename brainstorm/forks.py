"""Forked processes, which have only one of the threads of their parent.

A lock that another thread held at that moment is never released in them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T_co = TypeVar("T_co", covariant=True)


_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_forks = 0


def renew_after_fork(owner: Any) -> None:
    """Have ``owner.renew()`` called in forked processes, to replace its locks, while it lives."""
    _owners.add(owner)


def free(lock: Any) -> None:
    """Free a lock that cannot be replaced, in a forked process."""
    lock._at_fork_reinit()


def count_forks() -> int:
    """Return how many forks there were between the first process and this one.

    The threads of the GNU OpenMP library exist only in the parent, and waiting for them never
    ends.
    """
    return _forks


class cached_property(functools.cached_property[T_co]):  # noqa: N801
    """A cached property; before Python 3.12 `functools` has one lock for that of all instances."""

    def __init__(self, function: Callable[[Any], T_co]) -> None:
        super().__init__(function)
        self.lock = contextlib.nullcontext()


def _after_fork() -> None:
    global _forks
    _forks += 1
    for owner in list(_owners):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
