"""Checks of a new layer against the declarations of its class, and of what it declares itself.

All of them raise a `LayerValidationError`, which names the layer.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping
from typing import Any

from brainstorm.constraints import Constraint
from brainstorm.errors import LayerValidationError, StructureValidationError, unknown
from brainstorm.layers._times import remedy_for
from brainstorm.structure.buffer_structure import (
    CONSTANT,
    BufferStructure,
    StructureTemplate,
    format_shape,
)


def check_options(layer: Any) -> None:
    """Check that all options are declared, and that their values are accepted; convert them."""
    _check_names_of(layer, "expected_kwargs")
    for option in layer.kwargs:
        if option not in layer.expected_kwargs:
            raise layer.fail(unknown("option", option, sorted(layer.expected_kwargs)))
    if not isinstance(layer.expected_kwargs, Mapping):
        return
    for option, constraint in layer.expected_kwargs.items():
        if not isinstance(constraint, Constraint):
            raise layer.fail(
                f"expected_kwargs: expected a constraint of brainstorm.layers.constraints for "
                f"{option!r}, such as number(0, 1), got {constraint!r}."
            )
        if option in layer.kwargs:
            _set_option(layer, option, layer.kwargs[option])
        elif constraint.is_required:
            raise layer.fail(f"expected {constraint.expected}, got nothing.", option=option)


def check_attribute(layer: Any, name: str, value: Any) -> Any:
    """Return the new value of an attribute of a layer, as it is kept.

    Of an existing layer, options are set if they may be changed. Layers of the library have no
    other public attributes than those they were made with. Your own may keep something else under
    the name of an option, but nothing under that of a method.
    """
    is_method = inspect.isfunction(getattr(type(layer), name, None))
    if is_method and not callable(value) and name not in layer.expected_kwargs:
        raise LayerValidationError(
            f"{type(layer).__name__}: {name} is a method: give the attribute another name."
        )
    if not layer._is_built:
        return value
    is_built_in = type(layer).__module__.startswith("brainstorm.")
    is_known = name.startswith("_") or name in vars(layer) or hasattr(type(layer), name)
    is_option = name in layer.expected_kwargs and (is_built_in or not is_known)
    if name in layer.changeable_kwargs:
        return _set_option(layer, name, value)
    if is_option:
        raise layer.fail(
            f"it is fixed when the network is built, got {value!r}. Build another network, and "
            f"copy the parameters.",
            option=name,
        )
    if is_built_in and not is_known:
        raise layer.fail(unknown("option that can be changed", name, layer.changeable_kwargs))
    return value


def _set_option(layer: Any, option: str, value: Any) -> Any:
    if isinstance(layer.expected_kwargs, Mapping):
        constraint = layer.expected_kwargs[option]
        if value not in constraint:
            raise layer.fail(f"expected {constraint.expected}, got {value!r}.", option=option)
        value = constraint.convert(value)
    layer.kwargs[option] = value
    return value


def _check_names_of(layer: Any, declaration: str) -> None:
    """Check that a declaration consists of names."""
    declared = getattr(layer, declaration)
    if isinstance(declared, str) or not isinstance(declared, Collection):
        raise layer.fail(f"{declaration}: expected names such as ('default',), got {declared!r}.")


def check_templates(layer: Any) -> None:
    """Check the declaration of the inputs."""
    if not isinstance(layer.expected_inputs, Mapping):
        raise layer.fail(
            f"expected_inputs: expected a dict of templates, such as {{'default': "
            f"StructureTemplate('T', 'B', 'F')}}, got {layer.expected_inputs!r}."
        )
    for port, template in layer.expected_inputs.items():
        if not isinstance(template, StructureTemplate):
            raise layer.fail(
                f"expected_inputs: expected a StructureTemplate for {port!r}, such as "
                f"StructureTemplate('T', 'B', 'F'), got {template!r}."
            )


def check_names(layer: Any) -> None:
    """Check that what the class declares by name exists."""
    choices = {
        "changeable_kwargs": layer.expected_kwargs,
        "optional_inputs": layer.expected_inputs,
        "computes_no_input_deltas_for": layer.expected_inputs,
        "computes_no_gradients_for": layer.parameter_shapes,
        "takes_no_output_deltas_from": layer.out_shapes,
        "can_overwrite": ("input_deltas", "gradients", "internals"),
        "needs_in_backward": ("inputs", "outputs", "internals"),
    }
    for declaration, names in choices.items():
        _check_names_of(layer, declaration)
        for name in getattr(layer, declaration):
            if name not in names:
                raise layer.fail(unknown(f"name in {declaration}", name, sorted(names)))


def check_inputs(layer: Any) -> None:
    """Check that all inputs are connected, and that their shapes are accepted."""
    for port in layer.in_shapes:
        if port not in layer.expected_inputs:
            raise layer.fail(unknown("input", port, layer.expected_inputs))
    for port, template in layer.expected_inputs.items():
        expected = format_shape(template.shape)
        if port not in layer.in_shapes:
            if port in layer.optional_inputs:
                continue
            declared = ", or declare a parameter. Constants are written as numbers (3.14159)"
            declared *= "parameters" in layer.expected_kwargs
            raise layer.fail(
                f"expected {expected}, but nothing is connected. "
                f"Connect something: ... >> {port!r} - {layer.name}{declared}.",
                port,
            )
        if not template.matches(layer.in_shapes[port]):
            raise layer.misfit(port, expected, remedy_for(template, layer.in_shapes[port]))


def checked_structures(layer: Any) -> Any:
    """Return the result of `Layer.setup`, after checking it."""
    try:
        # Copies: what setup changes would be saved, or be expected of the connections.
        structures = layer.setup(copy.deepcopy(layer.kwargs), layer.in_shapes.copy())
    except StructureValidationError as error:
        raise layer.fail(f"setup: {error}") from error
    kinds = ("outputs", "parameters", "internals")
    groups = structures if isinstance(structures, tuple | list) else ()
    if len(groups) != len(kinds) or not all(isinstance(group, Mapping) for group in groups):
        raise layer.fail(
            f"setup: expected mappings from names to BufferStructure, for {', '.join(kinds)}; "
            f"got {structures!r}. Use an empty mapping for a kind that it does not have."
        )
    for kind, group in zip(kinds, groups, strict=True):
        for name, structure in group.items():
            if not isinstance(name, str) or not name or "." in name or name.startswith("@"):
                raise layer.fail(
                    f"{kind}: expected names without '.' and without '@' at the start, got "
                    f"{name!r}. Both have a meaning in paths and layouts."
                )
            if not isinstance(structure, BufferStructure):
                raise layer.fail(
                    f"setup, {kind}, {name!r}: expected a BufferStructure such as "
                    f"BufferStructure('T', 'B', 3), got {structure!r}."
                )
            if kind == "parameters" and structure.buffer_type != CONSTANT:
                raise layer.fail(
                    f"setup, {kind}, {name!r}: expected a shape without T and B, got "
                    f"{format_shape(structure.shape)}."
                )
            if kind == "outputs" and structure.is_square:
                raise layer.fail(f"output {name!r}: only an internal can grow with T squared.")
    return structures


def check_connections(layer: Any) -> None:
    """Check that all outputs that are connected exist."""
    special = {"parameters": layer.parameter_shapes, "internals": layer.internal_shapes}
    for connection in layer.outgoing:
        name = connection.output_name
        if name.startswith(".."):
            category, _, buffer = name[2:].partition(".")
            if category not in special:
                raise layer.fail(unknown("special output", name, (f"..{c}" for c in special)))
            if buffer not in special[category]:
                raise layer.fail(unknown(category[:-1], buffer, special[category]))
        elif name not in layer.out_shapes:
            problem = unknown("output", name, layer.out_shapes)
            if name == "default" and layer.out_shapes:
                wire = f"{layer.name} - {list(layer.out_shapes)[-1]!r} >> {connection.end_layer}"
                problem += f" Name it in the connection: {wire}."
            raise layer.fail(problem)
