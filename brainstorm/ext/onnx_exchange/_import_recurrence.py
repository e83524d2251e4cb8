"""The recurrent ONNX operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.ext._gates import Stacked
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._tables import GATED_ACTIVATIONS, RECURRENT
from brainstorm.ext.onnx_exchange._values import Value

#: The converse of `RECURRENT` and of `GATED_ACTIVATIONS`.
_LAYERS = {operator: (kind, *others) for kind, (operator, *others) in RECURRENT.items()}
_ACTIVATIONS = {function: name for name, function in GATED_ACTIVATIONS.items()}


@reads(*_LAYERS)
def _recurrence(imp: Importer, node: Node) -> list[Any]:
    _check_recurrence(node)
    value = node.value()
    if value.ndim != 3 or value.axes[:2] != ((0,), (1,)):
        raise node.fail(
            f"expected (T, B, features), got {imp.shown(value.shape)}. A recurrence runs over "
            f"the time steps of the data: name the T axis of the input by axes."
        )
    if value.shape[2] != (inputs := node.constant(1).shape[-1]):  # before it needs memory
        raise node.fail(f"expected weights for {value.shape[2]} inputs, got them for {inputs}.")
    direction = node.options["direction"].decode()
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    permutation, size = value.permutation(2), node.constant(2).shape[-1]
    gives_all, gives_last, *_ = [*node.used, False]
    made, last = [], []
    for number, is_backward in enumerate(backwards):
        x = imp.add("Reverse", value) if is_backward else value
        options = {"size": size, "activation": _activation(node, number)}
        kind, gates, _ = _LAYERS[node.kind]
        arrays = _weights(node, number, permutation).parameters(kind, gates)
        arrays |= _peepholes(node, number, size) if kind == "Lstm" else {}
        one = imp.add(kind, x, arrays, **options)
        if gives_last:
            last.append(imp.add_same(one, "TimePooling", type="last"))
        if gives_all and is_backward:
            one = imp.add("Reverse", one)
        made.append(one)
    return [
        _directions(imp, made, ((0,), (2,), (1,), (3,))) if gives_all else None,
        _directions(imp, last, ((2,), (1,), (3,))) if gives_last else None,
        None,
    ]


def _directions(imp: Importer, made: Sequence[Value], axes: tuple[tuple[int, ...], ...]) -> Value:
    """Return the outputs of one or two directions, with `axes`, where number 2 is the direction."""
    size = made[0].sizes[-1]
    if len(made) == 1:
        single: dict[tuple[int, ...], tuple[int, ...]] = {(2,): (), (3,): (2,)}
        return replace(made[0], axes=tuple(single.get(axis, axis) for axis in axes))
    merged = imp.add("Merge", {f"inputs_{i + 1}": one for i, one in enumerate(made)})
    return replace(imp.reshape(merged, [2, size]), axes=axes)


def _check_recurrence(node: Node) -> None:
    options = node.options
    if any(node.used[2:]):
        raise node.fail("no layer gives its last cell (Y_c).")
    if node.get(4) is not None:
        raise node.fail("no layer takes the lengths of sequences; ours take masks.")
    for state in node.inputs[5:7]:
        # If one element of a broadcast array is zero, all are.
        if state is not None and (isinstance(state, Value) or _corner(state).any()):
            raise node.fail("no layer takes its first state as an input; it must be zero.")
    if any(options.get(name) for name in ("clip", "input_forget", "layout")):
        raise node.fail("no layer has clip, input_forget or layout=1.")
    is_affine = {*options.get("activations", [])} <= {b"Affine", b"Sigmoid"}
    alphas, betas = (options.get(f"activation_{name}", []) for name in ("alpha", "beta"))
    if (alphas or betas) and not (is_affine and {*alphas} <= {1.0} and {*betas} <= {0.0}):
        raise node.fail("no layer has activations with numbers of their own (activation_alpha).")
    if node.kind == "GRU" and not options.get("linear_before_reset"):
        raise node.fail(
            "its reset gate acts on the state, that of the layer Gru on the recurrent product "
            "(linear_before_reset=1, as in PyTorch and cuDNN)."
        )


def _corner(array: np.ndarray) -> np.ndarray:
    """Return the elements of an array without repetitions by broadcasting."""
    return array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]


def _activation(node: Node, number: int) -> str:
    """Return the activation of one direction."""
    usual = ["Sigmoid" if function == "f" else "Tanh" for function in _LAYERS[node.kind][2]]
    given = [name.decode() for name in node.options.get("activations", [])] or usual * (number + 1)
    first, *others = given[number * len(usual) : (number + 1) * len(usual)]
    gate, functions = ("Sigmoid", {first}) if not others else (first, set(others))
    name = next(iter(functions))
    if gate != "Sigmoid" or len(functions) > 1 or name not in _ACTIVATIONS:
        raise node.fail(f"no layer has the activations {given}.")
    return _ACTIVATIONS[name]


def _weights(node: Node, number: int, permutation: np.ndarray) -> Stacked:
    """Return the weights of one direction."""
    W, R = (node.constant(place)[number] for place in (1, 2))
    inputs = np.empty_like(W)
    inputs[:, permutation] = W
    biases = node.constant(3, np.zeros((number + 1, 2 * len(W))))[number]
    return Stacked(inputs, R, *np.split(biases, 2))


def _peepholes(node: Node, number: int, size: int) -> dict[str, np.ndarray]:
    """Return the peepholes of one direction."""
    whole = node.constant(7, np.zeros((number + 1, 3 * size)))[number]
    return {f"p{gate}": part[None] for gate, part in zip("iof", np.split(whole, 3), strict=True)}
