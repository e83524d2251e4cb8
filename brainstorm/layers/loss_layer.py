"""Loss layer: sums up the loss to be minimized."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import number
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array


def Loss(importance: float = 1.0, name: str | None = None) -> ConstructionWrapper:
    """Add a loss, where the backward pass starts.

    outputs.loss = importance * sum(inputs.default) / B, i.e. summed over time and divided by the
    batch size only. B counts as 1 for an input of constant size.

    Args:
        importance: Factor of this loss within the total loss of the network.
        name: Layer name; made unique within the network.

    Inputs: default, of any shape            Outputs: loss (1,)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(LossLayerImpl, name=name, importance=importance)


class LossLayerImpl(Layer):
    """Implements `Loss`; the delta of its output is ignored (it is 1)."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("...")}
    expected_kwargs = {"importance": number()}
    changeable_kwargs = ("importance",)
    takes_no_output_deltas_from = ("loss",)
    has_loss = True
    needs_in_backward = ()
    can_overwrite = ("input_deltas",)

    #: Factor of the deltas, in memory; set by ``Network.loss_scale``.
    loss_scale: Array = None

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.importance = kwargs.get("importance", 1.0)
        # (T, B, ...), (B, ...) or (...): the batch size is the last of the scaling dimensions.
        self.batch_dim = in_shapes["default"].buffer_type - 1
        return {"loss": BufferStructure(1)}, {}, {}

    def _factor(self, x: Array) -> float:
        return self.importance / (x.shape[self.batch_dim] if self.batch_dim >= 0 else 1)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, loss = buffers.inputs.default, buffers.outputs.loss
        self.handler.compute(_loss.given(factor=self._factor(x)), [x], [loss.reshape(())])

    def backward_pass(self, buffers: BufferView) -> None:
        dx = buffers.input_deltas.default
        factor = self._factor(buffers.inputs.default)
        if self.loss_scale is not None:
            adds = not self.overwrites("input_deltas.default")
            program = _scaled.given(factor=factor, shape=tuple(dx.shape))
            self.handler.compute(program, [self.loss_scale], [dx], accumulate=adds)
        elif self.overwrites("input_deltas.default"):
            self.handler.fill(dx, factor)
        else:
            self.handler.add_st(factor, dx, dx)


@formula
def _loss(x: Any, *, factor: float) -> Any:
    return fn.sum(x * factor, None, False)


@formula
def _scaled(scale: Any, *, factor: float, shape: tuple[int, ...]) -> Any:
    """Return deltas that are all ``scale * factor``."""
    return fn.broadcast_to(fn.reshape(scale * factor, (1,) * len(shape)), shape)
