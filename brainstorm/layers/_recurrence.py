"""What recurrent layers share: held states, and the gradients of what is used at every step.

A state is held where a mask is 0, or where the clock of a unit is off.
"""

from __future__ import annotations

from typing import Any

from brainstorm.layers._writing import overwrites_all
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.utils import Array, flatten_time, flatten_time_and_features

__all__ = ["ClockedLayer", "RecurrentLayer"]


class RecurrentLayer(Layer):
    """Base of recurrent layers, with an optional input ``mask`` ('T', 'B', 1).

    Where the mask is 0, outputs and cells stay what they were at t - 1, and so do their deltas on
    the way back. A layer that `holds` computes the internal ``hold``, which is not 0 where it does,
    with `prepare_hold`; then it holds each state with ``copy_to_if`` and each delta with `pass_on`.
    """

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "mask": StructureTemplate("T", "B", 1),
    }
    optional_inputs = ("mask",)
    computes_no_input_deltas_for = ("mask",)

    @property
    def holds(self) -> bool:
        """Whether there is anything that can hold the state."""
        return "mask" in self.in_shapes

    def hold_structures(self, size: int) -> dict[str, BufferStructure]:
        """Return the internals that `prepare_hold` needs for a state of `size` units."""
        structures = {}
        if self.holds:
            structures["hold"] = BufferStructure("T", "B", size)
        if "mask" in self.in_shapes:
            structures["idle"] = BufferStructure("T", "B", 1)
        return structures

    def prepare_hold(self, buffers: BufferView) -> None:
        """Compute where the state is held."""
        _h, idle = self.handler, buffers.internals.idle
        _h.copy_to(buffers.inputs.mask, idle)
        _h.fill_if(idle, -1.0, idle)
        _h.add_st(1.0, idle, idle)
        _h.broadcast_t(idle, 2, buffers.internals.hold)

    def pass_on(self, deltas: Array, hold: Array, t: int) -> None:
        """Hand the deltas of what is held at t on to t - 1, where it comes from."""
        if t > 0:
            self.handler.add_into_if(deltas[t], deltas[t - 1], hold[t])
        self.handler.fill_if(deltas[t], 0.0, hold[t])

    def write_gradients(
        self,
        buffers: BufferView,
        from_input: tuple[Array, tuple[str, ...]],
        from_state: tuple[Array, tuple[str, ...]],
    ) -> None:
        """Write the input deltas, and the gradients of the weights of inputs and previous outputs.

        Args:
            buffers: The layer's views.
            from_input: Deltas (T, B, m) of the products of inputs with weights, and the names of
                these weights, of m rows together.
            from_state: The same for the products of previous outputs with recurrent weights.
        """
        (deltas, weights), y = from_input, buffers.outputs.default
        flat = flatten_time(deltas)
        if self.needs_delta("default"):
            dx = flatten_time_and_features(buffers.input_deltas.default)
            self.dot_op("input_deltas.default")(flat, _together(buffers.parameters, weights), dx)
        x = flatten_time_and_features(buffers.inputs.default)
        self._add_product(buffers.gradients, weights, flat, x)
        # The state before step 0 is row -1; those before the other steps are rows 0 to T - 2.
        deltas, weights = from_state
        self._add_product(buffers.gradients, weights, deltas[0], y[-1])
        steps = deltas.shape[0]
        if steps > 1:
            after, before = flatten_time(deltas[1:steps]), flatten_time(y[0 : steps - 1])
            dR = _together(buffers.gradients, weights)
            self.handler.dot_add_mm(after, before, dR, transa=True)

    def _add_product(
        self, gradients: BufferView, weights: tuple[str, ...], deltas: Array, factor: Array
    ) -> None:
        _h = self.handler
        dot = _h.dot_mm if overwrites_all(self, gradients, *weights) else _h.dot_add_mm
        dot(deltas, factor, _together(gradients, weights), transa=True)


def _together(views: BufferView, names: tuple[str, ...]) -> Array:
    return views.joint(*names) if len(names) > 1 else views[names[0]]


class ClockedLayer(RecurrentLayer):
    """Mixin for a recurrent layer whose unit k computes only at the multiples of ``timing[k]``."""

    computes_no_gradients_for = ("timing",)

    @property
    def holds(self) -> bool:
        """A clock can always hold the state."""
        return True

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        """Add to the recurrent layer's structures what the clocks need."""
        outputs, parameters, internals = super().setup(kwargs, in_shapes)
        size = kwargs["size"]
        timing, phase = BufferStructure(size), BufferStructure(1, size)
        return outputs, {**parameters, "timing": timing}, {**internals, "phase": phase}

    def prepare_hold(self, buffers: BufferView) -> None:
        """Compute where the state is held: by the mask, or because t is no multiple of timing."""
        _h, hold, phase = self.handler, buffers.internals.hold, buffers.internals.phase
        timing = buffers.parameters.timing.reshape(phase.shape)
        if "mask" in self.in_shapes:
            super().prepare_hold(buffers)
        else:
            _h.fill(hold, 0.0)
        for t in range(hold.shape[0]):
            _h.fill(phase, float(t))
            _h.modulo_tt(phase, timing, phase)
            _h.add_mv(hold[t], phase, hold[t])
