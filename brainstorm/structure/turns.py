"""Turns: only one thread at a time computes with the memory of a network."""

from __future__ import annotations

import _thread
import operator
import threading
import weakref
from collections.abc import Callable
from typing import Any

from brainstorm.errors import shown
from brainstorm.forks import renew_after_fork
from brainstorm.handlers.traces import State
from brainstorm.utils import warn_once

#: Seconds for which a thread waits for a network before a warning.
PATIENCE = 60.0


class Turn(_thread.RLock):  # type: ignore[misc]  # which is not final
    """The lock of a thread that computes with the memory of a network; others wait.

    Its calls use the network's own lane of the handler. Waiting threads come first when a thread
    leaves and returns at once, as in a training. It is left by a method in C, before which no
    signal is handled: an error there would keep the lock for ever.
    """

    #: Acquires the lock: True. A property, because after calls signals are handled.
    _acquires = property(operator.methodcaller("acquire"))
    #: Likewise, or False after a long time.
    _acquires_soon = property(operator.methodcaller("acquire", True, PATIENCE))
    _is_owned: Callable[[], bool]
    _at_fork_reinit: Callable[[], None]

    def __init__(self, manager: Any) -> None:
        self._manager = weakref.proxy(manager)  # whose memory is freed with its last reference
        self._gate = threading.Lock()
        renew_after_fork(self)

    def __repr__(self) -> str:
        is_held = super().__repr__().startswith("<locked")
        return f"<lock of a network, {'held' if is_held else 'free'}>"

    @property
    def lane(self) -> Any:
        """The lane of the network."""
        return self._manager.lane

    def renew(self) -> None:
        """Free the locks held by threads that do not exist in a forked process."""
        self._gate = threading.Lock()
        if not self._is_owned():
            self._at_fork_reinit()

    def __enter__(self) -> None:  # type: ignore[override]  # it is not to be asked
        running: State = self._manager.handler.running
        # Before the lock is taken: from 3.12 on, Python catches no signal at the end of a round.
        others = [turn for turn in running.turns if turn is not self and turn._is_owned()]
        is_taken = False
        try:
            if self._is_owned():
                is_taken = self._acquires
            else:
                with self._gate:
                    is_taken = self._acquires_soon
                    if not is_taken:
                        self._warn()
                        is_taken = self._acquires
            running.turns = [*others, self]
        except BaseException:
            if is_taken:
                self.release()
            raise

    def _warn(self) -> None:
        paths = [path.partition(".") for path in self._manager.nodes]
        layers = list(dict.fromkeys(layer for layer, _, port in paths if port))
        warn_once(
            self,
            f"thread {threading.current_thread().name!r} has waited {PATIENCE:g} s for the network "
            f"of the layers {shown(layers)}, with which another thread computes, and goes on "
            f"waiting. Does that one wait for this thread? A hook of timescale 'update' runs while "
            f"its training has the network: let threads wait for each other in one of timescale "
            f"'epoch', or read values of networks before they wait.",
        )
