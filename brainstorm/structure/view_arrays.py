"""The arrays of views, which change with T and B, and are used again when these come again.

Creating the arrays of a view takes longer than a small network takes to compute, and when T and B
vary from batch to batch, the same ones come again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

#: For how many earlier sizes arrays are kept, and for how many views: a replay uses those of the
#: data and of a few results, a pass of the layers uses all.
MOST_SIZES, MOST_VIEWS = 256, 32


class ViewArrays:
    """Which views of a tree have arrays, and the arrays that they had for other sizes.

    A change of sizes is `leave`, then the change, then `enter`. It may be interrupted anywhere and
    begun again, and other threads may look at views meanwhile: arrays are kept only if they were
    made at the moment that is left.

    Attributes:
        filled: The views that have arrays, by their identity.
        moment: How often memory has moved, and the present sizes; another one, without sizes, in
            each part of a change.
        ready: Path of a view to its members for the present sizes, if it has had them before.
    """

    def __init__(self) -> None:
        self.filled: dict[int, Any] = {}
        self.moment: tuple[int, Hashable] = 0, None
        self.ready: dict[str, dict[str, Any]] = {}
        self._moves = self._changes = 0
        self._left: OrderedDict[Hashable, dict[str, dict[str, Any]]] = OrderedDict()

    def leave(self) -> None:
        """Take the arrays from all views, which get others when needed."""
        self._changes += 1
        moment, self.moment, self.ready = self.moment, (self._changes, None), {}
        left = {}
        while self.filled:
            for key, view in list(self.filled.items()):
                members = view.leave()
                if moment[1] is not None and members.get("_moment") == moment:
                    left[view._origin.path] = members
                self.filled.pop(key, None)
                if view.is_filled:  # by another thread, just now
                    self.filled[key] = view
        if 0 < len(left) <= MOST_VIEWS:
            self._left[moment] = left
            if len(self._left) > MOST_SIZES:
                self._left.popitem(last=False)

    def enter(self, sizes: Hashable) -> None:
        """Begin the time of some sizes, with the arrays that they had before."""
        if self.filled:  # other threads looked at them during the change
            self.leave()
        moment = self._moves, sizes
        self.ready, self.moment = self._left.pop(moment, {}), moment

    def clear(self) -> None:
        """Drop all arrays, because memory moves."""
        self._moves += 1
        self.leave()
        self._left.clear()
