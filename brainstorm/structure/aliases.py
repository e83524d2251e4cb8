"""Aliases: shared parameters, and outputs that overwrite their input.

An alias is a path whose memory is that of another path. Layers declare two kinds: parameters that
are shared with another layer (then the gradients share memory too, so that those of all sharers add
up), and the output of an in-place layer (then its deltas are those of its input).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.errors import LayerValidationError, unknown
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_structure import format_shape

Layers = Mapping[str, Any]


def find_aliases(layers: Layers) -> dict[str, str]:
    """Return path to path for every alias.

    Raises:
        LayerValidationError: Parameters cannot be shared, or a layer cannot work in place.
    """
    aliases: dict[str, str] = {}
    for name, layer in layers.items():
        for parameter, path in layer.shared_parameters.items():
            owner, _, theirs = _check_sharing(layers, name, parameter, path).partition(".")
            for category in ("parameters", "gradients"):
                aliases[f"{name}.{category}.{parameter}"] = f"{owner}.{category}.{theirs}"
        if layer.is_inplace:
            source, output = _check_in_place(layers, layer)
            for category in ("outputs", "output_deltas"):
                aliases[f"{name}.{category}.default"] = f"{source}.{category}.{output}"
    return {path: _resolve(aliases, path) for path in aliases}


def _resolve(aliases: Mapping[str, str], path: str) -> str:
    while path in aliases:
        path = aliases[path]
    return path


def _check_sharing(layers: Layers, name: str, parameter: str, path: str) -> str:
    layer = layers[name]
    what = f"parameter {parameter!r} cannot be shared with {path!r}: "
    owner, _, theirs = path.partition(".")
    if parameter not in layer.parameter_shapes:
        raise layer.fail(what + unknown("parameter", parameter, layer.parameter_shapes))
    if theirs not in layers[owner].parameter_shapes:
        known = layers[owner].parameter_shapes
        has_fewer = set() < known.keys() < layer.parameter_shapes.keys()
        remedy = f" Let {owner!r} share those of {name!r}." * has_fewer
        raise layer.fail(what + unknown("parameter", theirs, known) + remedy)
    if owner == name or theirs in layers[owner].shared_parameters:
        raise layer.fail(what + "it is not the owner. Name the layer that owns the parameter.")
    ours, other = layer.parameter_shapes[parameter], layers[owner].parameter_shapes[theirs]
    if ours.shape != other.shape:
        raise layer.fail(
            f"{what}expected shape {format_shape(ours.shape)}, got {format_shape(other.shape)}."
        )
    return path


def _check_in_place(layers: Layers, layer: Any) -> tuple[str, str]:
    """Return the layer and output that an in-place layer overwrites; an error if that is unsafe."""
    (connection, *others) = [c for c in layer.incoming if c.input_name == "default"]
    source, output = connection.start_layer, connection.output_name
    producer = layers[source]
    consumers = [c for c in producer.outgoing if c.output_name == output]

    def refuse(reason: str) -> LayerValidationError:
        return layer.fail(f"cannot work in place on '{source}.{output}': {reason}", "default")

    if others:
        raise refuse("its input is joined from several outputs.")
    if source == INPUT:
        raise refuse("the data that was provided would be lost.")
    if output not in producer.out_shapes:
        raise refuse("only outputs can be overwritten.")
    if len(consumers) > 1:
        users = ", ".join(sorted(c.end_layer for c in consumers if c != connection))
        raise refuse(f"{users} would get the overwritten values.")
    if producer.out_shapes[output].context_size:
        raise refuse(f"layer {source!r} needs its output for the next time step.")
    if "outputs" in producer.needs_in_backward:
        raise refuse(f"layer {source!r} needs its outputs in the backward pass.")
    if "inputs" in layer.needs_in_backward:
        raise refuse("it needs its own inputs in the backward pass.")
    if "input_deltas" not in layer.can_overwrite:
        raise refuse(
            "its input deltas lie in the memory of its output deltas, so it cannot add to them. "
            "Let backward_pass overwrite them if self.overwrites('input_deltas.default'), and "
            "declare can_overwrite = ('input_deltas',)."
        )
    return source, output
