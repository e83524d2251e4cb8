"""Write docs/layers.md: every layer with its ports, options, shapes, parameters and formula.

    python docs/make_layers_page.py

The words come from the construction functions, the ports, options and flags from the declarations
of the classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import brainstorm.layers
from brainstorm.layers.base_layer import Layer
from brainstorm.layers.constraints import any_value
from brainstorm.structure.architecture import layer_registry
from brainstorm.structure.buffer_structure import format_shape

PAGE = Path(__file__).with_name("layers.md")

HEADER = """# All layers

Generated from the declarations by `python docs/make_layers_page.py`.

Shapes: T time steps, B sequences, then features. F stands for one feature dimension of any size,
... for any number of them; D, H, W and L are depth, height (rows), width (columns) and length, C is
the number of channels. An input in brackets is optional. Buffers with context 1 have T + 1 rows, of
which the last is the state before the first step. Layers also accept inputs ('B', ...), except
those that are time coupled, have a context, or make ('B', ...) of ('T', 'B', ...): see [sequences
and data without time](about_layers.md#sequences-and-data-without-time).
"""


def layer_functions() -> Iterator[tuple[str, object]]:
    """Yield the names and the public construction functions, in alphabetical order."""
    for name in sorted(brainstorm.layers.__all__):
        member = getattr(brainstorm.layers, name)
        if inspect.isfunction(member):
            yield name, member


def describe(name: str, function: object) -> str:
    """Return the section of one layer."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    arguments = ", ".join(
        str(p.replace(annotation=inspect.Parameter.empty)) for p in signature.parameters.values()
    )
    lines = [f"## {name}", "", f"`{name}({arguments})`", ""]
    lines += ["```text", inspect.getdoc(function) or "", "```", ""]  # type: ignore[arg-type]
    try:
        cls = layer_registry.get(name)
    except TypeError:
        return "\n".join(lines)  # a function that wires several layers
    lines += list(declarations(cls))
    return "\n".join(lines)


def declarations(cls: type[Layer]) -> Iterator[str]:
    """Yield lines with what a class declares."""
    if expected := cls.inputs_for({}):
        ports = []
        for port, template in expected.items():
            text = f"{port} {format_shape(template.shape)}"
            ports.append(f"[{text}]" if port in cls.optional_inputs else text)
        yield f"* accepts: {', '.join(ports)}"
    if isinstance(cls.expected_kwargs, Mapping):
        for option, constraint in sorted(cls.expected_kwargs.items()):
            if constraint.expected == any_value().expected:
                continue  # `setup` checks it; what it may be, the words say
            required = ", required" if constraint.is_required else ""
            changeable = ", may be changed" if option in cls.changeable_kwargs else ""
            yield f"* option `{option}`: {constraint.expected}{required}{changeable}"
    for attribute, words in (
        ("computes_no_input_deltas_for", "no deltas for input"),
        ("computes_no_gradients_for", "no gradients for"),
        ("takes_no_output_deltas_from", "deltas are ignored of output"),
    ):
        names = getattr(cls, attribute)
        if isinstance(names, (tuple, list)) and names:
            yield f"* {words}: {', '.join(names)}"
    flags = [
        flag
        for flag in ("depends_on_mode", "time_coupled", "has_stats", "has_loss")
        if getattr(cls, flag) is True
    ]
    if flags:
        yield f"* {', '.join(flag.replace('_', ' ') for flag in flags)}"
    yield ""


def make_page() -> str:
    """Return the whole page."""
    sections = [describe(name, function) for name, function in layer_functions()]
    return "\n".join([HEADER, *sections]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
