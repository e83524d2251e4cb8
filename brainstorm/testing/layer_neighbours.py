"""A layer by itself, and between neighbours as in a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.layers.base_layer import Layer
from brainstorm.layers.input_layer import InputLayerImpl
from brainstorm.layers.noop_layer import NoOpLayerImpl
from brainstorm.randomness import RandomState
from brainstorm.structure.architecture import Connection, layer_registry
from brainstorm.structure.buffer_structure import (
    CONSTANT,
    BufferStructure,
    combine_buffer_structures,
)
from brainstorm.structure.construction import ConstructionWrapper


def build_layer(
    construction: ConstructionWrapper, in_shapes: Mapping[str, BufferStructure | tuple[Any, ...]]
) -> Layer:
    """Return the layer for the result of a layer function, as if it were connected.

    Args:
        construction: The result of e.g. ``FullyConnected(5)``.
        in_shapes: Input name to its shape, e.g. ``{'default': ('T', 'B', 3)}``.
    """
    details = construction.layer
    shapes = {
        port: shape if isinstance(shape, BufferStructure) else BufferStructure(*shape)
        for port, shape in in_shapes.items()
    }
    layer_class = layer_registry.get(details.layer_type)
    layer: Layer = layer_class(
        details.name, shapes, set(), set(), rnd=RandomState(0), **details.layer_kwargs
    )
    return layer


def surround(layer: Layer) -> dict[str, Layer]:
    """Connect a layer with an Input and with neighbours that make its buffers strided."""
    out_shapes = {port: structure.shape for port, structure in layer.in_shapes.items()}
    layer.incoming = {Connection("Input", port, layer.name, port) for port in layer.in_shapes}
    layer.outgoing = set()
    neighbours: dict[str, Layer] = {}
    incoming = set(layer.incoming)
    for source, ports in (("Input", layer.in_shapes), (layer.name, layer.out_shapes)):
        for port, structure in ports.items():
            if structure.buffer_type == CONSTANT or len(structure.feature_shape) != 1:
                continue
            name = f"Beside_{source}_{port}"
            beside = BufferStructure(*structure.scaling_shape, 2)
            out_shapes[name] = beside.shape
            joined = {
                Connection(source, port, name, "default"),
                Connection("Input", name, name, "default"),
            }
            shape = combine_buffer_structures([structure, beside])
            neighbours[name] = NoOpLayerImpl(name, {"default": shape}, joined, set())
            incoming |= joined
    layer.outgoing = {c for c in incoming if c.start_layer == layer.name}
    start = {c for c in incoming if c.start_layer == "Input"}
    return {
        "Input": InputLayerImpl("Input", {}, set(), start, out_shapes=out_shapes),
        layer.name: layer,
        **neighbours,
    }
