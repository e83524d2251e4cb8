"""Pooling over time: each sequence becomes one vector."""

from __future__ import annotations

import math
from typing import Any

from brainstorm.layers._formula import in_shape
from brainstorm.layers._masked import MaskedLayer
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import one_of
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import Array


def TimePooling(type: str = "last", name: str | None = None) -> ConstructionWrapper:
    """Add pooling over time: each sequence becomes its last step, or the mean, maximum or sum.

    With a mask only steps where it is not 0 count; if there are none, the output is 0.

    In the parts of a longer sequence (see `SequenceChunks`) all steps from its beginning count;
    gradients reach the steps of the present part.

    Args:
        type: 'last', 'avg', 'max' or 'sum'. If several steps are the maximum, as those in which a
            recurrent layer holds its state, each gets an equal part of the gradient.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), optional mask ('T', 'B', 1)
    Outputs: default ('B', ...)
    Parameters: none
    Internals: state ('T', 'B', ...) and, for 'avg' and 'max', counted ('T', 'B', 1): in their last
        row the last step, sum or maximum, and the number of steps that count, since the beginning
        of the sequence; 'last' without a mask has none
    """
    return ConstructionWrapper.create(TimePoolingLayerImpl, name=name, type=type)


@formula
def pooled(x: Any, *others: Any, kind: str, is_masked: bool) -> list[Any]:
    """Return the output and the internals, given input, mask if any, and previous internals."""
    counts, before, *counted = _split(x, others, is_masked)
    values = x if counts is None else fn.where(counts, x, _LEAST[kind])
    by_sequence = (1, x.shape[1], *(1,) * (x.ndim - 2))
    number = fn.full(by_sequence, x.shape[0], x.dtype)
    if counts is not None:
        number = fn.sum(fn.where(counts, 1.0, 0.0), 0)
    if kind == "last":
        last = fn.sum(fn.where(_last(counts), x, 0), 0)
        return 2 * [fn.where(number > 0, last, before)]
    if kind == "sum":
        return 2 * [before + fn.sum(values, 0)]
    counted_before = in_shape(counted[0], by_sequence)
    total = counted_before + number
    if kind == "avg":
        state = before + fn.sum(values, 0)
        pooled = state / fn.maximum(total, 1)
    else:
        largest = fn.max(values, 0)
        state = fn.where(counted_before > 0, fn.maximum(largest, before), largest)
        state = pooled = fn.where(total > 0, state, 0)
    return [pooled, state, in_shape(total, counted[0].shape)]


@formula
def pooled_deltas(x: Any, *others: Any, kind: str, is_masked: bool) -> Any:
    """Return the input deltas.

    The operands are the input, the mask if there is one, the count for 'avg', the output for 'max',
    and the output deltas.
    """
    counts, *known, dy = _split(x, others, is_masked)
    if kind == "avg":
        total = in_shape(known[0], (1, x.shape[1], *(1,) * (x.ndim - 2)))
        dy = dy / fn.maximum(total, 1)
    if kind == "last":
        counts = _last(counts)
    if kind == "max":
        largest = fn.where(x == known[0], 1.0, 0.0)
        counts = largest if counts is None else fn.where(counts, largest, 0)
        dy = dy / fn.maximum(fn.sum(counts, 0), 1)
    dy = dy if counts is None else fn.where(counts, dy, 0)
    return fn.broadcast_to(dy, x.shape)


#: The values in place of steps that do not count.
_LEAST = {"last": 0.0, "avg": 0.0, "sum": 0.0, "max": -math.inf}


def _split(x: Any, others: Any, is_masked: bool) -> list[Any]:
    """Return which steps count (`None`: all), as a tree like x, and the other operands."""
    if not is_masked:
        return [None, *others]
    mask, *rest = others
    return [in_shape(mask, (*mask.shape[:2], *(1,) * (x.ndim - 2))) != 0, *rest]


def _last(counts: Any) -> Any:
    """Return the tree that is true at the last step that counts, if any."""
    steps = counts.shape[0]
    from_end = fn.argmax(fn.where(counts[::-1], 1.0, 0.0), 0)
    return fn.where(counts, fn.onehot(steps - 1 - from_end, 0, steps), 0) != 0


class TimePoolingLayerImpl(MaskedLayer):
    """Implements `TimePooling`; no delta for the mask."""

    is_traceable = True
    expected_kwargs = {"type": one_of("last", "avg", "max", "sum")}
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.type = kwargs.get("type", "last")
        self.is_masked = "mask" in in_shapes
        shape = in_shapes["default"].shape
        internals = {}
        if self.type != "last" or self.is_masked:
            internals["state"] = BufferStructure(*shape, context_size=1)
        if self.type in ("avg", "max"):
            internals["counted"] = BufferStructure("T", "B", 1, context_size=1)
        own = {"avg": ("internals",), "max": ("outputs",)}
        self.needs_in_backward = ("inputs", *own.get(self.type, ()))
        return {"default": BufferStructure(*shape[1:])}, {}, internals

    @property
    def is_continued(self) -> bool:
        return True  # if earlier steps count, the internals have a context

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = buffers.inputs.default, _as_step(buffers.outputs.default)
        steps, internals = x.shape[0], list(buffers.internals)
        if not internals:
            self.handler.copy_to(x[steps - 1 : steps], y)
            return
        before = [internal[steps : steps + 1] for internal in internals]
        now = [internal[steps - 1 : steps] for internal in internals]
        program = pooled.given(kind=self.type, is_masked=self.is_masked)
        self.handler.compute(program, [*buffers.inputs, *before], [y, *now])

    def backward_pass(self, buffers: BufferView) -> None:
        dx, dy = buffers.input_deltas.default, _as_step(buffers.output_deltas.default)
        steps = dx.shape[0]
        if not buffers.internals:
            if self.overwrites("input_deltas.default"):
                self.handler.fill(dx, 0.0)
            self.handler.add_tt(dx[steps - 1 : steps], dy, dx[steps - 1 : steps])
            return
        known = []
        if self.type == "avg":
            known = [buffers.internals.counted[steps - 1 : steps]]
        if self.type == "max":
            known = [_as_step(buffers.outputs.default)]
        compute_into(
            self,
            pooled_deltas.given(kind=self.type, is_masked=self.is_masked),
            [*buffers.inputs, *known, dy],
            {"input_deltas.default": dx},
        )


def _as_step(array: Array) -> Array:
    """Return (B, ...) as (1, B, ...)."""
    return array.reshape((1, *array.shape))
