"""Local response normalization: channels of high activity damp their neighbours."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._writing import write
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import integer, number
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last

__all__ = ["LocalResponseNormalization", "LocalResponseNormalizationLayerImpl"]


def LocalResponseNormalization(
    size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add local response normalization across channels (Krizhevsky et al. 2012).

    ``y[c] = x[c] / scale[c] ** beta`` with ``scale[c] = k + alpha / size * sum(x[i] ** 2)`` over
    the channels i from ``c - size // 2`` to ``c + (size - 1) // 2`` that exist.

    Args:
        size: Number of neighbouring channels.
        alpha: Strength, >= 0; divided by `size` as in PyTorch, neon and Caffe.
        beta: Exponent.
        k: What silent neighbours give, > 0.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)       Outputs: default, of the same shape
    Parameters: none
    Internals: scale, factor = scale ** -beta, squares (scratch), neighbours, of the same shape
    """
    return ConstructionWrapper.create(
        LocalResponseNormalizationLayerImpl,
        name=name,
        size=size,
        alpha=alpha,
        beta=beta,
        k=k,
    )


class LocalResponseNormalizationLayerImpl(Layer):
    """Implements `LocalResponseNormalization`."""

    expected_kwargs = {
        "size": integer(minimum=1),
        "alpha": number(0),
        "beta": number(),
        "k": number(0, low_open=True),
    }
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        size = kwargs.get("size", 5)
        self.before, self.behind = size // 2, (size - 1) // 2
        self.strength = kwargs.get("alpha", 1e-4) / size
        self.beta, self.k = kwargs.get("beta", 0.75), kwargs.get("k", 1.0)
        shape = in_shapes["default"].shape
        internals = {name: BufferStructure(*shape) for name in ("scale", "factor", "squares")}
        internals["neighbours"] = BufferStructure(*shape, is_backward_only=True)
        return {"default": BufferStructure(*shape)}, {}, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = map(flatten_all_but_last, (buffers.inputs.default, buffers.outputs.default))
        scale, factor, squares = (
            flatten_all_but_last(buffers.internals[name]) for name in ("scale", "factor", "squares")
        )
        self.handler.mult_tt(x, x, squares)
        self._sum_neighbours(squares, scale, self.before, self.behind)
        self.handler.mult_st(self.strength, scale, scale)
        self.handler.add_st(self.k, scale, scale)
        self.handler.power_t(scale, -self.beta, factor)
        self.handler.mult_tt(x, factor, y)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        x, y = map(flatten_all_but_last, (buffers.inputs.default, buffers.outputs.default))
        dy = flatten_all_but_last(buffers.output_deltas.default)
        scale, factor, scratch, neighbours = map(flatten_all_but_last, buffers.internals)
        # dx = dy * factor - 2 * beta * strength * x * sum(dy * y / scale), summed over the
        # channels that have this one as a neighbour.
        self.handler.mult_tt(dy, y, scratch)
        self.handler.divide_tt(scratch, scale, scratch)
        self._sum_neighbours(scratch, neighbours, self.behind, self.before)
        self.handler.mult_tt(neighbours, x, neighbours)
        self.handler.mult_tt(dy, factor, dy)
        self.handler.mult_add_st(-2.0 * self.beta * self.strength, neighbours, dy)
        dx = flatten_all_but_last(buffers.input_deltas.default)
        write(self, "input_deltas.default", dy, dx)

    def _sum_neighbours(self, values: Array, total: Array, before: int, behind: int) -> None:
        """total[:, c] = sum of values[:, c - before : c + behind + 1]."""
        channels = values.shape[1]
        self.handler.copy_to(values, total)
        for shift in range(1, min(before, channels - 1) + 1):
            target = total[:, shift:channels]
            self.handler.add_tt(target, values[:, 0 : channels - shift], target)
        for shift in range(1, min(behind, channels - 1) + 1):
            target = total[:, 0 : channels - shift]
            self.handler.add_tt(target, values[:, shift:channels], target)
