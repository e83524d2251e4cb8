"""Layers that are formulas: of their outputs, and if it is not the derivative, of the delta."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.optree import Expression, Formula, formula, gradients, substitute
from brainstorm.optree import functions as fn
from brainstorm.optree.shapes import Shape
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import Array


class FormulaLayer(Layer):
    """Base of layers whose outputs and internals are a formula of their inputs.

    A subclass sets `formula`, in the class or in `setup`, and overrides `setup` unless there is one
    output of the shape of all inputs. The deltas are derived, or those of input ``default`` are
    another formula: `delta`. Both are the same objects whenever the options are the same, because
    formulas cache programs.

    Attributes:
        formula: From the inputs to outputs and internals, in the order of the buffers.
        delta: From the buffers `delta_operands`.
        constants: Arrays that are the last operands of both.
    """

    accepts_null_deltas = True
    needs_in_backward: Collection[str] = ("inputs",)
    can_overwrite = ("input_deltas",)
    formula: Formula
    constants: Sequence[Array] = ()
    delta: Formula | None = None
    delta_operands: Sequence[str] = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        """Return the structure of one output, of the shape that all inputs must have."""
        shape = in_shapes[next(iter(self.expected_inputs))].shape
        for port in in_shapes:
            require_shape(self, port, shape)
        return {"default": BufferStructure(*shape)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        results = [*buffers.outputs, *buffers.internals]
        self.handler.compute(self.formula, [*buffers.inputs, *self.constants], results)

    def backward_pass(self, buffers: BufferView) -> None:
        if self.delta is None:
            self._derive_deltas(buffers)
        elif self.needs_delta("default"):
            operands = [*(buffers[path] for path in self.delta_operands), *self.constants]
            outputs = {"input_deltas.default": buffers.input_deltas.default}
            compute_into(self, self.delta, operands, outputs)

    def _derive_deltas(self, buffers: BufferView) -> None:
        ports, names = list(self.in_shapes), list(self.out_shapes)
        without = self.computes_no_input_deltas_for
        wanted = [p for p in ports if self.needs_delta(p) and p not in without]
        if wanted:
            roots = [name for name in names if name not in self.takes_no_output_deltas_from]
            compute_into(
                self,
                derived(self.formula, tuple(map(names.index, roots)),
                        tuple(map(ports.index, wanted))),
                [*buffers.inputs, *(buffers.output_deltas[name] for name in roots)],
                {f"input_deltas.{port}": buffers.input_deltas[port] for port in wanted},
            )  # fmt: skip


@functools.cache
def derived(
    value: Formula, roots: tuple[int, ...], wanted: tuple[int, ...], stored: tuple[int, ...] = ()
) -> Formula:
    """Return the formula of the gradients of another one.

    The roots, whose deltas are given, and the stored values, which are not computed again, are
    indices of its values; `wanted` are those of the operands to differentiate by. The operands are
    its own, the stored values, and the deltas.
    """

    @formula
    def deltas(*operands: Any) -> list[Any]:
        own_count = len(operands) - len(stored) - len(roots)
        own, known, errors = split(operands, own_count, len(stored))
        values = value(*own)
        trees = [values] if isinstance(values, Expression) else values
        found = gradients([trees[i] for i in roots], [own[i] for i in wanted], errors)
        return substitute(found, zip((trees[i] for i in stored), known, strict=True))

    return deltas


def split(values: Sequence[Any], *counts: int) -> Iterator[Sequence[Any]]:
    """Yield slices of the given lengths, and then the rest."""
    for count in counts:
        yield values[:count]
        values = values[count:]
    yield values


def in_shape(tree: Any, shape: Shape) -> Any:
    """Return the tree reshaped, if its shape differs."""
    return tree if tree.shape == shape else fn.reshape(tree, shape)


def summed_features(tree: Any, scaling_dims: int = 2) -> Any:
    """Return the sum over all axes after the first ones, e.g. as (T, B, 1)."""
    total = fn.sum(tree, tuple(range(scaling_dims, tree.ndim)))
    return in_shape(total, (*tree.shape[:scaling_dims], 1))
