"""The export of recurrent layers, attention and similar layers to ONNX."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError
from brainstorm.ext._gates import names_of_weights, stack
from brainstorm.ext.onnx_exchange._body import BOOL, FLOAT, INT64, Body, onnx
from brainstorm.ext.onnx_exchange._export import Exporter, composes, writes
from brainstorm.ext.onnx_exchange._tables import GATED_ACTIVATIONS, POOLINGS, RECURRENT
from brainstorm.optree.activations import activation


@writes(*RECURRENT)
def _recurrent(e: Exporter, layer: Any) -> None:
    if "mask" in layer.in_shapes:
        return e.function(functools.partial(_holding, layer))
    W, R, b, second = stack(layer.type_name, RECURRENT[layer.type_name][1], e.values)
    tensors = {"W": W, "R": R, "B": np.concatenate([b, second])}
    if layer.type_name == "Lstm":
        tensors["P"] = np.concatenate([e.values(f"p{gate}")[0] for gate in "iof"])
    inputs = [e.body.constant(a[None], f"{layer.name}.{key}") for key, a in tensors.items()]
    return e.put(_run(e.body, layer, e.flat(), inputs))


def _run(body: Body, layer: Any, x: str, weights: Sequence[str]) -> str:
    """Add the recurrent operator of a layer, given W, R, B and, of an LSTM, P."""
    kind, _, functions = RECURRENT[layer.type_name]
    name, known = activation(layer.activation).name, GATED_ACTIVATIONS
    if name not in known:
        raise NetworkValidationError(
            f"{body.where}: ONNX has no recurrence with {name}, only with {', '.join(known)}."
        )
    no_lengths_or_states = ["", "", ""] * (kind == "LSTM")
    inputs = [*weights[:3], *no_lengths_or_states, *weights[3:]]
    activations = [known[name if letter == "g" else "sigmoid"] for letter in functions]
    options: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    if "Affine" in activations:  # one for each, because the defaults of runtimes differ
        count = len(activations)
        options |= {"activation_alpha": [1.0] * count, "activation_beta": [0.0] * count}
    size = layer.get_shape("outputs.default").feature_size
    y = body.op(kind, x, *inputs, hidden_size=size, activations=activations, **options)
    return body.op("Squeeze", y, body.constant([1]))


def _holding(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    """Run over the steps that count alone, moved to the front; others hold what came before."""
    is_on = _counting(body, given["mask"])
    one, two, count = body.constant([1]), body.constant([2]), body.op("Shape", is_on, end=1)
    numbers = body.op("Unsqueeze", _steps(body, is_on), one)
    first_highest = body.op("Mul", is_on, body.op("Sub", count, numbers))
    _, order = body.op("TopK", first_highest, count, axis=0, outputs=2)
    x = body.reshape(given["default"], [0, 0, -1])
    order = body.op("Expand", body.op("Unsqueeze", order, two), body.op("Shape", x))
    y = _run(body, layer, body.op("GatherElements", x, order), _weights(layer, body, given))
    seen = body.op("CumSum", is_on, body.constant(0))  # how many steps, at each one
    seen = body.op("Expand", body.op("Unsqueeze", seen, two), body.op("Shape", y))
    y = body.op("Pad", y, body.constant([1, 0, 0, 0, 0, 0]))
    return [body.op("GatherElements", y, seen)]


def _weights(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    """Return what `_run` takes, of the parameters of a layer."""
    kind, gates, _ = RECURRENT[layer.type_name]
    W, R, b = (
        body.op("Concat", *(given[name] for name in names), axis=0)
        for names in names_of_weights(layer.type_name, gates)
    )
    apart = [given["bRh"]] if kind == "GRU" else []
    zeros = np.zeros(layer.kwargs["size"] * (len(gates) - len(apart)))
    B = body.op("Concat", b, body.constant(zeros), *apart, axis=0)
    first = body.constant([0])
    weights = [body.op("Unsqueeze", tensor, first) for tensor in (W, R, B)]
    peepholes = [given[f"p{gate}"] for gate in "iof" if kind == "LSTM"]
    return [*weights, *([body.op("Concat", *peepholes, axis=1)] if peepholes else [])]


@writes("Reverse")
def _reverse(e: Exporter, layer: Any) -> None:
    if "mask" in layer.in_shapes:
        e.function(_reversed_within)
    else:
        e.put_slice([-1], [np.iinfo(np.int64).min], [0], [-1])


def _reversed_within(body: Body, given: Mapping[str, str]) -> list[str]:
    """Reverse each sequence up to the last step at which its mask is not 0."""
    is_on, one = _counting(body, given["mask"]), body.constant([1])
    numbers = body.op("Unsqueeze", body.op("Add", _steps(body, is_on), one), one)
    lengths = body.op("ReduceMax", body.op("Mul", is_on, numbers), body.constant([0]), keepdims=0)
    lengths = body.op("Max", lengths, one)
    return [body.op("ReverseSequence", given["default"], lengths, time_axis=0, batch_axis=1)]


@writes("TimePooling")
def _time_pooling(e: Exporter, layer: Any) -> None:
    if layer.is_masked:
        e.function(lambda body, given: [_pooled(body, layer, given["default"], given["mask"])])
    elif layer.type == "last":
        e.put_slice([-1], [np.iinfo(np.int64).max], [0])
    else:
        e.put(e.body.op(POOLINGS[layer.type], e.x(), e.body.constant([0]), keepdims=1))


@writes("RepeatOverTime")
def _repeat_over_time(e: Exporter, layer: Any) -> None:
    steps = e.body.op("Slice", e.sizes("T"), e.body.constant([0]), e.body.constant([1]))
    ones = e.body.constant([1] * len(layer.in_shapes["default"].shape))
    e.put(e.body.op("Expand", e.x(), e.body.op("Concat", steps, ones, axis=0)))


def _pooled(body: Body, layer: Any, x: str, mask: str) -> str:
    """Pool the steps of each sequence where its mask is not 0."""
    ones = [1] * len(layer.in_shapes["default"].feature_shape)
    first, zero = body.constant([0]), body.constant(0.0)
    counts = body.op("Cast", body.reshape(mask, [0, 0, *ones]), to=BOOL)
    number = body.op("ReduceSum", body.op("Cast", counts, to=FLOAT), first, keepdims=1)
    if layer.type == "max":
        lowest = body.constant(float(np.finfo(np.float32).min))
        largest = body.op("ReduceMax", body.op("Where", counts, x, lowest), first, keepdims=1)
        return body.op("Where", body.op("Cast", number, to=BOOL), largest, zero)
    if layer.type == "last":
        counts = _last_of(body, counts, ones)
    total = body.op("ReduceSum", body.op("Where", counts, x, zero), first, keepdims=1)
    if layer.type != "avg":
        return total
    return body.op("Div", total, body.op("Max", number, body.constant(1.0)))


def _last_of(body: Body, counts: str, ones: list[int]) -> str:
    """Return the index of the last step of each sequence that counts."""
    one = body.constant(1.0)
    numbers = body.op("Add", body.op("Cast", _steps(body, counts), to=FLOAT), one)
    numbers = body.reshape(numbers, [-1, 1, *ones])
    numbers = body.op("Mul", numbers, body.op("Cast", counts, to=FLOAT))
    last = body.op("ReduceMax", numbers, body.constant([0]), keepdims=1)
    return body.op("Equal", numbers, body.op("Max", last, one))


def _counting(body: Body, mask: str) -> str:
    """Return the integers (T, B): 1 where a mask is not 0."""
    mask = body.op("Squeeze", mask, body.constant([2]))
    return body.op("Cast", body.op("Cast", mask, to=BOOL), to=INT64)


def _steps(body: Body, x: str) -> str:
    """Return the numbers of the steps of x, from 0 on."""
    count = body.op("Squeeze", body.op("Shape", x, start=0, end=1))
    return body.op("Range", body.constant(0), count, body.constant(1))


@composes("MultiHeadSelfAttention", "MultiHeadAttention")
def _attention(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    size = layer.get_shape("outputs.default").feature_size
    heads = layer.kwargs["num_heads"]

    def projected(x: str, kind: str) -> str:
        W = body.op("Transpose", given[f"W{kind}"], perm=[1, 0])
        return body.op("Add", body.op("MatMul", x, W), given[f"b{kind}"])

    def by_head(x: str, kind: str, perm: list[int]) -> str:
        split = body.reshape(projected(x, kind), [0, 0, heads, size // heads])
        if layer.rotary and kind != "v":
            split = _rotated(body, split, size // heads)
        return body.op("Transpose", split, perm=perm)

    x = body.reshape(given["default"], [0, 0, -1])
    memory = body.reshape(given[layer.memory], [0, 0, -1])
    scores = body.op("MatMul", by_head(x, "q", [1, 2, 0, 3]), by_head(memory, "k", [1, 2, 3, 0]))
    scores = body.op("Mul", scores, body.constant(float((size // heads) ** -0.5)))
    keep = _seen_keys(body, layer.causal, x, given.get("mask"))
    if keep is not None:
        is_kept = body.op("Cast", keep, to=BOOL)
        scores = body.op("Where", is_kept, scores, body.constant(-1e30))
    P = body.op("Softmax", scores, axis=-1)
    if keep is not None:  # without any key, everything is 0
        P = body.op("Mul", P, keep)
    found = body.op("Transpose", body.op("MatMul", P, by_head(memory, "v", [1, 2, 0, 3])),
                    perm=[2, 0, 1, 3])  # fmt: skip
    return [projected(body.reshape(found, [0, 0, -1]), "o")]


def _rotated(body: Body, x: str, size: int) -> str:
    """Return vectors (T, B, heads, size), rotated by the angles of their steps."""
    across = np.kron(np.eye(size // 2), [[0.0, 1.0], [-1.0, 0.0]])
    angles = _angles(body, x, np.repeat(10000.0 ** (-2.0 * np.arange(size // 2) / size), 2))
    angles = body.reshape(angles, [0, 1, 1, size])
    along = body.op("Mul", x, body.op("Cos", angles))
    turned = body.op("MatMul", x, body.constant(across))
    return body.op("Add", along, body.op("Mul", turned, body.op("Sin", angles)))


def _angles(body: Body, x: str, rates: np.ndarray) -> str:
    """Return the products of the step numbers of x with each rate."""
    steps = body.op("Cast", _steps(body, x), to=FLOAT)
    return body.op("Mul", body.op("Unsqueeze", steps, body.constant([1])), body.constant(rates))


def _seen_keys(body: Body, causal: bool, x: str, mask: str | None) -> str | None:
    """Return a tensor (B, 1, queries, keys), up to broadcasting: 1 for the keys that count."""
    keep = None
    if causal:
        count = body.op("Shape", x, start=0, end=1)
        ones = body.op("ConstantOfShape", body.op("Concat", count, count, axis=0),
                       value=onnx().numpy_helper.from_array(np.ones(1, np.float32)))  # fmt: skip
        keep = body.op("Trilu", ones, upper=0)
    if mask is not None:
        by_key = body.op(
            "Unsqueeze", body.op("Transpose", mask, perm=[1, 2, 0]), body.constant([1])
        )
        on = body.op("Cast", body.op("Cast", by_key, to=BOOL), to=FLOAT)
        keep = on if keep is None else body.op("Mul", keep, on)
    return keep


@composes("PositionalEncoding")
def _positional_encoding(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    features = layer.in_shapes["default"].feature_size
    rates = 10000.0 ** (-2.0 * np.arange((features + 1) // 2) / features)
    angles = _angles(body, given["default"], rates)
    waves = [body.op("Unsqueeze", body.op(kind, angles), body.constant([2]))
             for kind in ("Sin", "Cos")]  # fmt: skip
    rows = body.reshape(body.op("Concat", *waves, axis=2), [0, -1])
    ends = [body.constant([i]) for i in (0, features, 1)]
    return [_added_to_steps(body, given["default"], body.op("Slice", rows, *ends))]


@composes("LearnedPositionalEncoding")
def _learned_positional_encoding(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    count = body.op("Shape", given["default"], start=0, end=1)
    zero = body.constant([0])
    rows = body.op("Slice", given["W"], zero, count, zero)
    return [_added_to_steps(body, given["default"], rows)]


def _added_to_steps(body: Body, x: str, rows: str) -> str:
    return body.op("Add", x, body.op("Unsqueeze", rows, body.constant([1])))
