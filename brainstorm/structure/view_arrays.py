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

    Attributes:
        filled: The views that have arrays.
        ready: Path of a view to its members for the present sizes, if it has had them before.
    """

    def __init__(self) -> None:
        self.filled: list[Any] = []
        self.ready: dict[str, dict[str, Any]] = {}
        self._sizes: Hashable = None
        self._left: OrderedDict[Hashable, dict[str, dict[str, Any]]] = OrderedDict()

    def change(self, sizes: Hashable) -> None:
        """Take the arrays from all views, for other sizes; they get others when needed."""
        left = self._take()
        if 0 < len(left) <= MOST_VIEWS:
            self._left[self._sizes] = left
            if len(self._left) > MOST_SIZES:
                self._left.popitem(last=False)
        self._sizes, self.ready = sizes, self._left.pop(sizes, {})

    def clear(self) -> None:
        """Drop all arrays, because memory has moved."""
        self._take()
        self.ready = {}
        self._left.clear()

    def _take(self) -> dict[str, dict[str, Any]]:
        left = {view._origin.path: view.leave() for view in self.filled}
        self.filled.clear()
        return left
