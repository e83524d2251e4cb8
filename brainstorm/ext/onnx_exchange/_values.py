"""Tensors of a graph as views of layers' outputs: the correspondence of their axes.

A graph may hold images as (N, C, H, W), sequences as (B, T, F), and flatten, split and permute
their axes. None of this moves data in a network: a `Value` describes the tensor as a view of a
layer's output, (T, B, features...), and a rearranging layer is only added if a layer must have its
input in another form.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

import numpy as np

#: The axes of a layer's output that are T and B.
LEAD = (0, 1)


@dataclass(frozen=True)
class Value:
    """A tensor of the graph.

    Attributes:
        path: The output of a layer, such as ``'Hidden.default'``.
        sizes: Its shape (T, B, features...).
        axes: For each axis of the tensor the axes of the output that it consists of, outer ones
            first; none for an axis of size 1. Axes that do not occur have size 1.
    """

    path: str
    sizes: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(math.prod(self.sizes[i] for i in group) for group in self.axes)

    @property
    def ndim(self) -> int:
        """The number of axes of the tensor."""
        return len(self.axes)

    @property
    def flat(self) -> tuple[int, ...]:
        """The axes of the output in the order of the tensor."""
        return tuple(i for group in self.axes for i in group)

    @property
    def lead(self) -> tuple[int, ...]:
        """The axes of the tensor that consist of T and B."""
        return tuple(i for i, group in enumerate(self.axes) if group and set(group) <= set(LEAD))

    @property
    def features(self) -> tuple[int, ...]:
        """All other axes of the tensor."""
        return tuple(i for i in range(len(self.axes)) if i not in self.lead)

    def is_mixed(self, axis: int) -> bool:
        """Whether an axis contains T or B, perhaps with features."""
        return bool(set(self.axes[axis]) & set(LEAD))

    def memory_order(self, axes: Sequence[int]) -> list[int]:
        """Return axes of the tensor in the order of memory."""
        return sorted(axes, key=lambda i: self.axes[i] or (len(self.sizes),))

    def order(self, *last: int) -> list[int]:
        """Return the axes of features in the order of memory, except that some come last."""
        return [*self.memory_order([i for i in self.features if i not in last]), *last]

    def without(self, axes: Container[int]) -> Value:
        """Return the tensor without some axes, which have size 1."""
        return replace(self, axes=tuple(g for i, g in enumerate(self.axes) if i not in axes))

    def permutation(self, axis: int) -> np.ndarray:
        """Return, for each index of an axis, the index among the features of the output."""
        group = self.axes[axis]
        numbers = np.arange(math.prod(self.sizes[2:])).reshape(self.sizes[2:])
        kept = [i for i in range(2, len(self.sizes)) if i in group]
        numbers = numbers.reshape([self.sizes[i] for i in kept])
        return numbers.transpose([kept.index(i) for i in group]).ravel()


def whole(path: str, sizes: Sequence[int]) -> Value:
    """Return an output of a layer as a tensor with the same axes."""
    return Value(path, tuple(sizes), tuple((i,) for i in range(len(sizes))))


def parts(group: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Return T and B before the features of an axis, these, and T and B after them.

    `None` if features are on both sides of T or B.
    """
    places = [i for i, axis in enumerate(group) if axis not in LEAD]
    start, stop = (places[0], places[-1] + 1) if places else (len(group), len(group))
    if len(places) != stop - start:
        return None
    return tuple(group[:start]), tuple(group[start:stop]), tuple(group[stop:])


def regroup(
    sizes: Sequence[int], flat: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """Return which axes, in the order `flat`, form each axis of a new shape of as many elements.

    Those of size 1 only form axes of size 1. `None` if one of them would be divided.
    """
    groups, left = [], list(flat)
    for size in shape:
        group: list[int] = []
        found = 1
        while left and (found < size or (size == 1 and not group and sizes[left[0]] == 1)):
            group.append(left.pop(0))
            found *= sizes[group[-1]]
        if found != size:
            return None
        groups.append(tuple(i for i in group if sizes[i] != 1 or size == 1))
    return None if any(sizes[i] != 1 for i in left) else tuple(groups)
