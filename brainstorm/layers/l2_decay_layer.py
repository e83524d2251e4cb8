"""L2 decay: a penalty that makes numbers small, such as activations or weights."""

from __future__ import annotations

from brainstorm.layers._penalties import PenaltyLayer
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["L2Decay", "L2DecayLayerImpl"]


def L2Decay(name: str | None = None) -> ConstructionWrapper:
    """Add a penalty: loss = 0.5 * sum(x**2) over the features. Wire `loss` to a `Loss`.

    For weights: ``layer - '..parameters.W' >> L2Decay() - 'loss' >> Loss(importance=1e-4)``.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), ('B', ...) or of constant size
    Outputs: loss ('T', 'B', 1), ('B', 1) or (1,)
    Parameters: none                         Internals: tmp, of the input's shape
    """
    return ConstructionWrapper.create(L2DecayLayerImpl, name=name)


class L2DecayLayerImpl(PenaltyLayer):
    """Implements `L2Decay`."""

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, tmp, loss = buffers.inputs.default, buffers.internals.tmp, buffers.outputs.loss
        self.handler.mult_tt(x, x, tmp)
        self.handler.sum_t(self.rows(tmp), 1, self.rows(loss))
        self.handler.mult_st(0.5, loss, loss)

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            self.backward_from(buffers, buffers.inputs.default)
