"""The arrays of views, which change with T and B, and are used again when these come again.

Creating the arrays of a view takes longer than a small network takes to compute, and when T and B
vary from batch to batch, the same ones come again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from brainstorm.forks import renew_after_fork

#: For how many earlier sizes arrays are kept, and for how many views: a replay uses those of the
#: data and of a few results, a pass of the layers uses all.
MOST_SIZES, MOST_VIEWS = 256, 32


class ViewArrays:
    """Which views of a tree have arrays, and the arrays that they had for other sizes.

    A change of sizes is `leave`, then the change, then `enter`, all with the lock held. It may be
    interrupted anywhere and begun again.

    Attributes:
        lock: Held while a view gets its arrays, or all lose them: other threads may look at views.
        filled: The views that have arrays, by their identity.
        ready: Path of a view to its members for the present sizes, if it has had them before.
    """

    def __init__(self) -> None:
        self.renew()
        self.filled: dict[int, Any] = {}
        self.ready: dict[str, dict[str, Any]] = {}
        #: The present sizes; None during a change, and after one that was interrupted.
        self._sizes: Hashable = None
        self._left: OrderedDict[Hashable, dict[str, dict[str, Any]]] = OrderedDict()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock, held by a thread that does not exist in a forked process."""
        self.lock = threading.RLock()

    def leave(self) -> None:
        """Take the arrays from all views, which get others when needed."""
        sizes, self._sizes, self.ready = self._sizes, None, {}
        left = {}
        while self.filled:
            key, view = next(iter(self.filled.items()))
            if members := view.leave():
                left[view._origin.path] = members
            del self.filled[key]
        if sizes is not None and 0 < len(left) <= MOST_VIEWS:
            self._left[sizes] = left
            if len(self._left) > MOST_SIZES:
                self._left.popitem(last=False)

    def enter(self, sizes: Hashable) -> None:
        """Begin the time of some sizes, with the arrays that they had before."""
        self.ready, self._sizes = self._left.pop(sizes, {}), sizes

    def clear(self) -> None:
        """Drop all arrays, because memory moves."""
        with self.lock:
            self.leave()
            self._left.clear()
