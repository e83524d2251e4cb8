"""Conversion between blocks of pixels and channels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Layer
from brainstorm.layers.constraints import integer, one_of
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferView, StructureTemplate
from brainstorm.utils import flatten_time

#: Option to the order of (row in a block, column in a block, channel) in the channel axis.
_ORDERS = {"CRD": (4, 5, 3), "DCR": (3, 4, 5)}


@functools.cache
def to_pixels(block: int, order: str) -> Formula:
    """Return the formula of images (N, H, W, C) whose channels become blocks of pixels."""
    row, column, channel = _ORDERS[order]

    @formula
    def pixels(x: Any) -> Any:
        n, rows, columns, size = x.shape
        sizes = {row: block, column: block, channel: size // block**2}
        apart = fn.reshape(x, (n, rows, columns, *(sizes[axis] for axis in (3, 4, 5))))
        ordered = fn.transpose(apart, (0, 1, row, 2, column, channel))
        return fn.reshape(ordered, (n, rows * block, columns * block, sizes[channel]))

    return pixels


@functools.cache
def to_channels(block: int, order: str) -> Formula:
    """Return the inverse of `to_pixels`."""
    axes = 0, 1, *_ORDERS[order][:1], 2, *_ORDERS[order][1:]

    @formula
    def channels(x: Any) -> Any:
        n, rows, columns, size = x.shape
        shape = n, rows // block, block, columns // block, block, size
        ordered = fn.transpose(fn.reshape(x, shape), tuple(map(axes.index, range(6))))
        return fn.reshape(ordered, (n, rows // block, columns // block, size * block**2))

    return channels


class BlockLayer(Layer):
    """Base of the layers between blocks and channels."""

    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {"block": integer(minimum=1).required(), "order": one_of(*_ORDERS)}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)
    needs_in_backward = ()

    #: Formulas, by size and order of the blocks, of the output and of the input delta.
    formulas: tuple[Callable[[int, str], Formula], Callable[[int, str], Formula]]

    def _formula(self, place: int) -> Formula:
        return self.formulas[place](self.kwargs["block"], self.kwargs.get("order", "CRD"))

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        self.handler.compute(self._formula(0), [x], [y])

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            dx = flatten_time(buffers.input_deltas.default)
            dy = flatten_time(buffers.output_deltas.default)
            compute_into(self, self._formula(1), [dy], {"input_deltas.default": dx})
