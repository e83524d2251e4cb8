"""From a stage's arrays to a loop: merging axes, and choosing their order.

A loop is fast if it has few axes, and if the innermost one is long and contiguous. So axes are
sorted by the strides of all arrays, the smallest innermost, and two neighbours become one axis if
they are contiguous in every array. For y = x + b over (4, 6, 8), with strides in elements:

* x, y and b with strides (48, 8, 1): one axis of 192;
* b a row, with strides (0, 0, 1): two axes, 24 and 8;
* x and y transposed, with strides (1, 4, 24), and b a single number: one axis of 192.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from brainstorm.optree.shapes import Shape


class Axes(NamedTuple):
    """The axes of a loop nest, from the outermost to the innermost.

    Attributes:
        sizes: Their lengths.
        reduced: Whether they are reduced.
        strides: For each array the strides on them.
    """

    sizes: tuple[int, ...]
    reduced: tuple[bool, ...]
    strides: tuple[tuple[int, ...], ...]

    def inner(self, array: int) -> str:
        """Return an array's stride on the innermost axis: 'unit', 'fixed' or 'any'.

        A fixed element is read in front of the loop over this axis, so an empty one has none.
        """
        if self.sizes[-1] == 0:
            return "unit"
        return {0: "fixed", 1: "unit"}.get(self.strides[array][-1], "any")


def collapse(
    domain: Shape,
    reduced: Sequence[bool],
    strides: Sequence[Sequence[int]],
    keep_order: bool = False,
    reduces: bool = False,
) -> Axes:
    """Order the axes, and merge those that are contiguous in every array.

    Args:
        domain: The lengths of the axes.
        reduced: Whether they are reduced.
        strides: For each array its strides; 0 on axes along which it is repeated or reduced.
        keep_order: Whether reduced axes, and kept ones, must stay in their order.
        reduces: Whether the result has a reduced axis even if none is longer than 1.
    """
    # (size, reduced, strides of all arrays)
    axes = [
        (n, bool(r), tuple(s[i] for s in strides))
        for i, (n, r) in enumerate(zip(domain, reduced, strict=True))
        if n != 1
    ]
    if not keep_order:
        axes.sort(key=lambda axis: -sum(map(abs, axis[2])))
    zeros = (0,) * len(strides)
    if reduces and not any(r for _, r, _ in axes):
        axes.insert(0, (1, True, zeros))
    kept = [axis for axis in axes if not axis[1]]
    gone = [axis for axis in axes if axis[1]]
    if not axes or axes[-1][1] or not gone:
        ordered = kept + gone
    else:  # kept axes are innermost
        ordered = kept[:-1] + gone + kept[-1:]
    joined: list[tuple[int, bool, tuple[int, ...]]] = []
    for size, is_reduced, steps in ordered:
        if joined:
            outer, was_reduced, above = joined[-1]
            if was_reduced == is_reduced and all(
                a == b * size for a, b in zip(above, steps, strict=True)
            ):
                joined[-1] = (outer * size, is_reduced, steps)
                continue
        joined.append((size, is_reduced, steps))
    joined = joined or [(1, False, zeros)]
    by_array = tuple(tuple(axis[2][k] for axis in joined) for k in range(len(strides)))
    return Axes(tuple(a[0] for a in joined), tuple(a[1] for a in joined), by_array)
