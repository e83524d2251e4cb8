"""Random numbers and one-hot vectors without a shape, which get it from the context.

Both trees have the shape of y, which in the second has a row per class::

    y[:] = be.rand() < 0.5
    error = be.onehot(t, axis=0) - y
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from brainstorm.errors import ValidationError
from brainstorm.optree import Expression, Variable
from brainstorm.optree.nodes import build
from brainstorm.optree.shapes import Shape, broadcast_shapes
from brainstorm.optree.syntax import Operators

REMEDY = "Give it a shape: be.rand(shape), be.onehot(indices, axis, size)."
#: A shape that only element-wise functions keep.
PROBE = (2, 3)


class Shapeless(Operators):
    """An object that becomes a tree when a shape is known; operators work element by element.

    For one shape it is one tree, the result of `make`: random numbers that occur twice are the same
    numbers.
    """

    def __init__(self, make: Callable[[Shape], Expression], what: str) -> None:
        self._make, self._what = make, what
        self._made: dict[Shape, Expression] = {}

    def __repr__(self) -> str:
        return f"<{self._what}, of no shape yet>"

    def __getattr__(self, name: str) -> Any:
        is_private = name.startswith("_")  # requested by incomplete copies
        raise AttributeError(name if is_private else f"{self!r} has no {name!r}. {REMEDY}")

    @staticmethod
    def _build(op: str, operands: tuple[Any, ...], options: Any = None) -> Any:
        def node(*operands: Any) -> Any:
            return build(op, operands)

        node.__name__ = op
        return combined(node, *operands)

    def of(self, shape: Shape) -> Expression:
        """Return the tree for a shape."""
        if shape not in self._made:
            self._made[shape] = self._make(shape)
        return self._made[shape]


def combined(function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    """Apply an element-wise function to operands of which some have no shape.

    The result has none either unless another operand has one; then it is a tree.
    """
    first = next(x for x in operands if isinstance(x, Shapeless))
    _require_elementwise(function, first, operands, options)

    def make(shape: Shape) -> Any:
        return function(*(x.of(shape) if isinstance(x, Shapeless) else x for x in operands),
                        **options)  # fmt: skip

    shapes = [x.shape for x in operands if isinstance(x, Expression)]
    if not shapes:
        return Shapeless(make, first._what)
    try:
        shape = broadcast_shapes(*shapes)
    except ValidationError as error:
        raise ValidationError(f"op-tree, {first!r} with shapes {shapes}: {error}.") from None
    return make(shape)


def _require_elementwise(function: Any, first: Shapeless, operands: Any, options: Any) -> None:
    probe = Variable(PROBE)
    given = [probe if isinstance(x, (Shapeless, Expression)) else x for x in operands]
    with contextlib.suppress(ValidationError):
        if function(*given, **options).shape == PROBE:
            return
    raise ValidationError(
        f"op-tree: expected a shape for {first!r} before {getattr(function, '__name__', 'it')} "
        f"changes it. {REMEDY}"
    )
