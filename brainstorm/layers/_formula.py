"""Layers that are formulas: the deltas follow from the derivative."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Layer
from brainstorm.optree import Expression, Formula, formula, gradients
from brainstorm.optree import functions as fn
from brainstorm.optree.shapes import Shape
from brainstorm.structure import BufferView

__all__ = ["FormulaLayer", "derived", "in_shape", "summed_features"]


class FormulaLayer(Layer):
    """Base of layers whose outputs are a formula of their inputs; the deltas are derived.

    A subclass implements `setup` and `formula`.
    """

    accepts_null_deltas = True
    needs_in_backward: Collection[str] = ("inputs",)
    can_overwrite = ("input_deltas",)

    def formula(self) -> Formula:
        """Return the formula from the inputs to the outputs, in the order of the buffers.

        It must be the same object whenever the options are the same, because it caches programs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define formula")

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self.handler.compute(self.formula(), list(buffers.inputs), list(buffers.outputs))

    def backward_pass(self, buffers: BufferView) -> None:
        ports, names = list(self.in_shapes), list(self.out_shapes)
        without = self.computes_no_input_deltas_for
        wanted = [p for p in ports if self.needs_delta(p) and p not in without]
        if wanted:
            roots = [name for name in names if name not in self.takes_no_output_deltas_from]
            compute_into(
                self,
                derived(self.formula(), tuple(map(names.index, roots)),
                        tuple(map(ports.index, wanted))),
                [*buffers.inputs, *(buffers.output_deltas[name] for name in roots)],
                {f"input_deltas.{port}": buffers.input_deltas[port] for port in wanted},
            )  # fmt: skip


@functools.cache
def derived(value: Formula, roots: tuple[int, ...], wanted: tuple[int, ...]) -> Formula:
    """Return the formula of the gradients of another formula.

    Args:
        value: Any formula.
        roots: Indices of the values that count.
        wanted: Indices of the operands whose gradients are computed.

    Returns:
        A formula of all operands and the deltas of the roots.
    """

    @formula
    def deltas(*operands: Any) -> list[Any]:
        count = len(operands) - len(roots)
        values = value(*operands[:count])
        trees = [values] if isinstance(values, Expression) else values
        variables = [operands[place] for place in wanted]
        return gradients([trees[place] for place in roots], variables, operands[count:])

    return deltas


def in_shape(tree: Any, shape: Shape) -> Any:
    """Return the tree reshaped, if its shape differs."""
    return tree if tree.shape == shape else fn.reshape(tree, shape)


def summed_features(tree: Any, scaling_dims: int = 2) -> Any:
    """Return the sum over all axes after the first ones, e.g. as (T, B, 1)."""
    total = fn.sum(tree, tuple(range(scaling_dims, tree.ndim)))
    return in_shape(total, (*tree.shape[:scaling_dims], 1))
