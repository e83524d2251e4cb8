"""Nodes of all versions of the operators in one form, by the schemas that ONNX has of them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._body import onnx
from brainstorm.ext.onnx_exchange._node import Node
from brainstorm.ext.onnx_exchange._values import Value


@functools.cache
def _defaults(kind: str, opset: int) -> dict[str, Any]:
    """Return the attributes of an operator that have a default; none if it is unknown."""
    defs, get = onnx().defs, onnx().helper.get_attribute_value
    if not defs.has(kind):
        return {}
    schema = defs.get_schema(kind, opset) if defs.has(kind, opset) else defs.get_schema(kind)
    defaults = {name: known.default_value for name, known in schema.attributes.items()}
    return {name: get(default) for name, default in defaults.items() if default.type}


@functools.cache
def _inputs(kind: str) -> dict[str, int]:
    """Return the names of an operator's inputs, and their numbers."""
    defs = onnx().defs
    known = defs.get_schema(kind).inputs if defs.has(kind) else ()
    return {parameter.name: place for place, parameter in enumerate(known)}


def update(node: Node, opset: int) -> None:
    """Change a node of some version to the form of the newest one.

    Attributes that are left out have their defaults, and those that have become inputs, such as the
    axes of a Squeeze, are inputs. A softmax has ``axes``, which were all from one on.
    """
    given = dict(node.options)
    node.options = _defaults(node.kind, opset) | given
    for name in node.options.keys() & _inputs(node.kind).keys():
        del node.options[name]
        if name in given:
            place = _inputs(node.kind)[name]
            missing = place + 1 - len(node.inputs)
            node.names = [*node.names, *[""] * missing]
            node.inputs = [*node.inputs, *[None] * missing]
            node.inputs[place] = np.asarray(given[name])
    if node.kind == "PRelu" and opset < 7:  # one slope for each channel
        node.options |= {"broadcast": 1, "axis": 1}
    if node.options.get("broadcast") and "axis" in node.options:
        node.inputs = _broadcast(node.options["axis"], *node.inputs)
    if node.kind in ("Softmax", "LogSoftmax"):
        rank = node.inputs[0].ndim
        axis = node.axis(node.options["axis"], rank)
        node.options["axes"] = [axis] if opset >= 13 else list(range(axis, rank))


def _broadcast(axis: int, first: Any, second: Any) -> list[Any]:
    """Return two operands, of which the second began at an axis of the first before opset 7."""
    missing = (1,) * max(0, first.ndim - axis % first.ndim - second.ndim)
    if isinstance(second, Value):
        return [first, replace(second, axes=second.axes + ((),) * len(missing))]
    return [first, second.reshape(second.shape + missing)]
