"""Predicting step by step: each pass computes one time step, from the state of earlier ones.

The state of recurrent layers is carried on as between chunks of sequences. Layers that look at
all steps before, such as causal attention, keep what they need of them: see `Layer.remembered`.
There is memory for all steps from the beginning on, and where the present one stands is a number in
memory, so that every step is the same operations on the same memory: it is traced once. What does
not depend on T, such as an encoder over S, is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from brainstorm.layers.base_layer import Layer
from brainstorm.network.prediction import Prediction
from brainstorm.network.tracing import Traces
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.utils import Array

if TYPE_CHECKING:
    from brainstorm.network.network import Network


def allocate_past(layer: Layer, steps: int, position: Array, source: int = 1) -> BufferView:
    """Return memory for the state that a layer keeps of `steps` steps; see `Layer.remember`.

    Layers share `position`, the number of steps so far, (B, 1).
    """
    remembered, batch = layer.remembered(steps), position.shape[0]
    shapes = [structure.get_shape(steps, batch, source) for structure in remembered.values()]
    arrays = [layer.handler.zeros(shape) for shape in shapes]
    return BufferView(["position", *remembered], [position, *arrays])


def _find_stepping(layers: Mapping[str, Layer], names: Sequence[str]) -> list[Layer]:
    """Return the layers that depend on data with T or have T, in topological order.

    Raises:
        LayerValidationError: A layer has T, and all of its inputs are vectors made of sequences.
    """
    data = layers[INPUT].out_shapes
    timed = {(INPUT, name) for name, s in data.items() if has_steps(s)}
    found: dict[str, Layer] = {}
    for name in names:
        layer = layers[name]
        sources = {(c.start_layer, c.output_name) for c in layer.incoming}
        is_dependent = any(s in timed or s[0] in found for s in sources)
        is_repeated = any(map(has_steps, layer.out_shapes.values())) and not (
            name == INPUT or any(map(has_steps, layer.in_shapes.values()))
        )
        if is_dependent and is_repeated:
            raise layer.looks_ahead("It repeats what depends on all steps.")
        if is_dependent or is_repeated:
            found[name] = layer
    return list(found.values())


def has_steps(structure: BufferStructure) -> bool:
    """Return whether there is something for each step over T."""
    return structure.scaling_shape == ("T", "B")


class StepByStep:
    """A prediction of a network, computed step by step.

    Other threads must not compute with the network meanwhile; see `Network.alone`.

    Args:
        net: The network.
        prediction: The output, and the inputs it is computed from.
        steps: Maximum number of steps.

    Raises:
        LayerValidationError: A layer that it depends on does not compute step by step, or not for
            as many steps.
    """

    def __init__(self, net: Network, prediction: Prediction, steps: int) -> None:
        self.net, self.prediction, self.steps = net, prediction, steps
        self._layers = _find_stepping(net.layers, prediction.needed)
        for layer in self._layers:
            if layer.is_over_source:
                raise layer.looks_ahead("Steps over S depend on all those over T.")
            layer.remembered(steps)
        #: The layers to run in each step: all, if the outputs of others do not stay in memory.
        self._names = prediction.needed if net.shares_memory else [a.name for a in self._layers]
        self._past: dict[str, BufferView] = {}
        self._position: Array = None
        self._context: list[Array | None] = []
        self._traces = Traces()

    def begin(self, data: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the output (B, ...) after the last of the first steps (T, B, ...)."""
        net, wanted = self.net, self.prediction
        net.provide_external_data(data, all_inputs=False)
        net.forward_layers(wanted.needed, missing=wanted.missing)
        self._position = net.handler.zeros((net.batch_size, 1))
        net.handler.fill(self._position, float(net.time_size))
        for layer in self._layers:
            past = allocate_past(layer, self.steps, self._position, net.source_size)
            layer.remember(layer.lifted(net.buffer[layer.name]), past)
            self._past[layer.name] = past
        self._context = net.get_context()
        return self._output()

    def go_on(self, data: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the output (B, ...) for one more step (1, B, ...)."""
        self.net.provide_external_data(data, all_inputs=False)
        self.net.do_traced(self._traces, self._step)
        return self._output()

    def _step(self) -> None:
        net, handler = self.net, self.net.handler
        net.forward_layers(self._names, self._context, self._past, self.prediction.missing)
        net.get_context(out=self._context)
        handler.add_st(1.0, self._position, self._position)

    def _output(self) -> np.ndarray:
        net, wanted = self.net, self.prediction
        values: np.ndarray = net.handler.get_numpy_copy(net.buffer[wanted.path])
        return values[net.time_size - 1] if wanted.structure.scales_with_time else values
