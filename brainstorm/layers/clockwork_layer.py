"""Clockwork layer: a recurrent layer whose units compute at different rates."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._recurrence import RecurrentLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.recurrent_layer import RecurrentLayerImpl
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import Array


def Clockwork(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add a clockwork recurrent layer (Koutník et al. 2014, with a full recurrent matrix).

    Where t is a multiple of timing: Ha_t = W x_t + R y_(t-1) + bias and y_t = act(Ha_t). Elsewhere
    y_t = y_(t-1). All units compute at t = 0, the first step of a sequence; a pass that starts from
    the context of another one continues its clocks.

    Args:
        size: Number of units.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1), where 0 holds y_(t-1)
    Outputs: default ('T', 'B', size), context 1
    Parameters: W (size, n), R (size, size), bias (size,); timing (size,), positive and without a
        gradient: the number of steps between computations of a unit
    Internals: those of `Recurrent` with a mask; time ('T', 'B', 1), context 1, the number of steps
        so far; active ('T', 'B', size), which is 0 where units hold their state
    """
    return ConstructionWrapper.create(
        ClockworkLayerImpl, name=name, size=size, activation=activation
    )


class ClockedLayer(RecurrentLayer):
    """Mixin for a recurrent layer whose unit k computes only at the multiples of ``timing[k]``."""

    computes_no_gradients_for = ("timing",)

    @property
    def holds(self) -> bool:
        """True: clocks may hold the state."""
        return True

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        """Add the structures for the clocks to those of the recurrent layer."""
        outputs, parameters, internals = super().setup(kwargs, in_shapes)
        size = kwargs["size"]
        time = BufferStructure("T", "B", 1, context_size=1)
        clocks = {"time": time, "active": BufferStructure("T", "B", size)}
        return outputs, {**parameters, "timing": BufferStructure(size)}, {**internals, **clocks}

    def active(self, buffers: BufferView) -> list[Array]:
        """Return an array that is 0 where a clock or the mask holds the state."""
        return [buffers.internals.active]

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        """Find the steps at which units compute, then do the recurrent layer's pass."""
        _h, time, steps = self.handler, buffers.internals.time, buffers.inputs.default.shape[0]

        def tick(t: int) -> None:
            _h.add_st(1.0, time[t - 1], time[t])

        tick(0)  # the row before the first one is the context: the last row
        _h.loop(range(1, steps), tick)
        inputs = [time[0:steps], buffers.parameters.timing, *self.mask(buffers)]
        _h.compute(_active, inputs, [buffers.internals.active])
        super().forward_pass(buffers, training_pass)


@formula
def _active(time: Any, timing: Any, *mask: Any) -> Any:
    """Return 1 at multiples of timing where the mask, if there is one, is not 0; else 0."""
    t = time - 1
    is_multiple = fn.equal(fn.rint(t / timing) * timing, t)
    return fn.where(mask[0], is_multiple, 0) if mask else is_multiple


class ClockworkLayerImpl(ClockedLayer, RecurrentLayerImpl):
    """Implements `Clockwork`; row -1 of the output is the state before the first step."""

    is_traceable = True
