"""Units with clocks: they compute at some time steps, and keep their state at the others."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._recurrence import RecurrentLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import Array


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
        clocks = {"time": BufferStructure("T", "B", 1), "active": BufferStructure("T", "B", size)}
        return outputs, {**parameters, "timing": BufferStructure(size)}, {**internals, **clocks}

    def active(self, buffers: BufferView) -> list[Array]:
        """Return an array that is 0 where a clock or the mask holds the state."""
        return [buffers.internals.active]

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        """Find the steps at which units compute, then do the recurrent layer's pass."""
        self.handler.fill(buffers.internals.time[0], 0.0)
        self._tick(buffers)
        super().forward_pass(buffers, training_pass)

    def forward_step(self, buffers: BufferView, past: BufferView) -> None:
        """Do a step, continuing the clocks."""
        self.handler.copy_to(past.position, buffers.internals.time[0])
        self._tick(buffers)
        super().forward_pass(buffers, training_pass=False)

    def _tick(self, buffers: BufferView) -> None:
        """Find the steps at which units compute, given the time of the first one."""
        time = buffers.internals.time
        count = range(1, time.shape[0])
        self.handler.loop(count, lambda t: self.handler.add_st(1.0, time[t - 1], time[t]))
        inputs = [time, buffers.parameters.timing, *self.mask(buffers)]
        self.handler.compute(_active, inputs, [buffers.internals.active])


@formula
def _active(time: Any, timing: Any, *mask: Any) -> Any:
    """Return 1 at multiples of timing where the mask, if there is one, is not 0; else 0."""
    is_multiple = fn.equal(fn.rint(time / timing) * timing, time)
    return fn.where(mask[0], is_multiple, 0) if mask else is_multiple
