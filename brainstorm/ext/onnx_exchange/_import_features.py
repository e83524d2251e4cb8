"""ONNX operators over features: normalizations, softmax and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._tables import NORMALIZATIONS, POOLINGS, REDUCTIONS
from brainstorm.ext.onnx_exchange._values import Value

# -- normalizations -------------------------------------------------------------------------------


def _of_channels(imp: Importer, kind: str, **given: Any) -> Value:
    """Add a normalization of (N, C, ...), some of whose options are given."""
    value = imp.node.value()
    if value.lead != (0,):
        raise imp.fail(f"expected (N, C, ...), got {imp.shown(value.shape)}.")
    _, names, options = NORMALIZATIONS[kind]
    order = value.order(1)
    arrays = {name: imp.node.constant(1 + place) for place, name in enumerate(names)}
    found = {key: imp.node.number(name) for key, name in options.items() if key not in given}
    made = imp.add(kind, imp.arrange(value, order), arrays, **found, **given)
    return imp.like(value, order, made)


@reads("BatchNormalization")
def _batch_norm(imp: Importer, node: Node) -> Value:
    imp.check_inference(bool(node.options.get("training_mode", len(node.outputs) > 1)))
    return _of_channels(imp, "BatchNorm")


@reads("GroupNormalization", "InstanceNormalization")
def _group_norm(imp: Importer, node: Node) -> Value:
    channels = node.value().shape[1]
    is_instance = node.kind == "InstanceNormalization"
    if not is_instance and len(node.constant(1)) != channels:
        raise node.fail("expected one scale per channel (opset 21), got one per group.")
    groups = channels if is_instance else node.options["num_groups"]
    return _of_channels(imp, "GroupNorm", num_groups=groups)


@reads("LRN")
def _local_response_normalization(imp: Importer, node: Node) -> Value:
    if node.options["size"] % 2 == 0:
        raise node.fail("expected an odd size; in even windows the layer's centre is another.")
    return _of_channels(imp, "LocalResponseNormalization")


@reads("LayerNormalization")
def _layer_norm(imp: Importer, node: Node) -> Value:
    value, rank = node.value(), node.value().ndim
    first = node.axis(node.options["axis"], rank)
    axes = list(range(first, rank))
    if set(axes) & set(value.lead):
        raise node.fail("no layer normalizes over time steps or sequences.")
    shape = [value.shape[i] for i in axes]
    gamma, beta = (np.broadcast_to(node.constant(place, np.zeros(1)), shape) for place in (1, 2))
    epsilon = node.number("epsilon")
    rest = [i for i in value.memory_order(value.features) if i not in axes]
    if any(value.shape[i] != 1 for i in rest):
        order = [*rest, *axes]
        along = f"axis={tuple(range(-len(axes), 0))}"
        text = f"(x - mean(x, {along})) / sqrt(var(x, {along}) + {epsilon!r}) * gamma + beta"
        made = imp.formula(text, x=imp.arrange(value, order), gamma=gamma, beta=beta)
        return imp.like(value, order, made)
    order = value.memory_order(axes)
    arrays = {
        name: array.transpose([axes.index(i) for i in order])
        for name, array in (("gamma", gamma), ("beta", beta))
    }
    single = value.without(rest)
    shift = rank - single.ndim
    rows = imp.arrange(single, [i - shift for i in order])
    return imp.like(value, order, imp.add("LayerNorm", rows, arrays, epsilon=epsilon))


# -- softmax and reductions -----------------------------------------------------------------------


@reads("Softmax", "LogSoftmax")
def _softmax(imp: Importer, node: Node) -> Value:
    value, axes = node.value(), node.options["axes"]
    if any(value.is_mixed(i) for i in axes):
        raise node.fail("no layer has a softmax over time steps or sequences.")
    axes = [i for i in axes if value.shape[i] > 1] or axes[:1]
    order = value.order(*axes)
    x = imp.arrange(value, order, mixed=True)
    if node.kind == "Softmax" and node.is_last and len(axes) == 1:
        made = imp.add_classifier(x)
    else:
        name = "softmax" if node.kind == "Softmax" else "log_softmax"
        along = tuple(range(-len(axes), 0))
        made = imp.formula(f"{name}(x, axis={along})", x=x)
    return imp.like(value, order, made)


#: Operator to a formula of x; the braces stand for the axes.
_REDUCTIONS = {
    **{kind: f"{name}(x, {{}})" for name, kind in REDUCTIONS.items()},
    "ReduceL1": "sum(abs(x), {})",
    "ReduceL2": "sqrt(sum(x * x, {}))",
    "ReduceLogSum": "log(sum(x, {}))",
    "ReduceMean": "mean(x, {})",
    "ReduceSumSquare": "sum(x * x, {})",
}

#: Pooling of whole images to the operator that reduces all of their axes.
_GLOBAL = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}

_POOLINGS = {kind: name for name, kind in POOLINGS.items()}


@reads(*_REDUCTIONS, *_GLOBAL)
def _reduction(imp: Importer, node: Node) -> Value:
    value, kind = node.value(), _GLOBAL.get(node.kind, node.kind)
    axes = range(2, value.ndim) if node.kind in _GLOBAL else node.axes()
    if not axes and node.options.get("noop_with_empty_axes"):
        if not _REDUCTIONS[kind].endswith("(x, {})"):
            raise node.fail("expected axes: over none of them no layer computes it.")
        return value
    if kind == "ReduceMean" and imp.integer_type(node.names[0]) is not None:
        raise node.fail("no layer rounds means of integers. Cast to float32 in front of it.")
    axes = sorted({node.axis(i, value.ndim) for i in axes or range(value.ndim)})
    removed = () if node.options.get("keepdims", 1) else axes
    if [value.axes[i] for i in axes] == [(0,)] and kind in _POOLINGS:
        return imp.add_same(value, "TimePooling", type=_POOLINGS[kind]).without(removed)
    if not set(axes) <= set(value.features):
        raise node.fail("no layer reduces sequences, or time steps so, or with other axes.")
    order = value.order()
    if len(order) == 3 and len(axes) == 2 and kind in _GLOBAL.values():
        order = [i for i in order if i not in axes]
        images = imp.arrange(value, [*axes, *order])
        made = imp.add("GlobalPooling2D", images, type=_POOLINGS[kind])
    else:
        reduced = tuple(2 + order.index(i) for i in axes)
        text = _REDUCTIONS[kind].format(f"axis={reduced}, keepdims=True")
        made = imp.formula(text, x=imp.arrange(value, order))
    return imp.like(value, order, made).without(removed)


@reads("LpNormalization", "MeanVarianceNormalization", "CumSum")
def _along_axes(imp: Importer, node: Node) -> Value:
    """Compute a formula along axes, which are kept."""
    value, options, rank = node.value(), node.options, node.value().ndim
    if node.kind == "CumSum":
        axes = [int(node.constant(1))]
        if options["exclusive"] or options["reverse"]:
            raise node.fail("no layer sums so: expected exclusive=0 and reverse=0.")
    else:
        axes = options["axes"] if "axes" in options else [options["axis"]]
    axes = sorted({node.axis(i, rank) for i in axes})
    if not set(axes) <= set(value.features):
        raise node.fail("no layer computes it over time steps or sequences.")
    order = value.order(*axes)
    along = tuple(range(-len(axes), 0))
    text = {
        "CumSum": "cumsum(x, axis=-1)",
        "LpNormalization": "x / sqrt(maximum(sum(x * x, axis=-1), 1e-37))",
        "MeanVarianceNormalization": f"(x - mean(x, axis={along})) / (std(x, axis={along}) + 1e-9)",
    }[node.kind]
    if options.get("p") == 1:
        text = "x / maximum(sum(abs(x), axis=-1), 1e-37)"
    return imp.like(value, order, imp.formula(text, x=imp.arrange(value, order)))


@reads("ArgMax")
def _argmax(imp: Importer, node: Node) -> Value:
    value = node.value()
    axis = node.axis(node.options["axis"], value.ndim)
    if axis not in value.features or node.options.get("select_last_index"):
        raise node.fail("no layer has an argmax over time steps or sequences, or the last one.")
    order = value.order(axis)
    made = imp.like(value, order, imp.add("Argmax", imp.arrange(value, order)))
    imp.whole.add(made.path)
    return made if node.options["keepdims"] else made.without([axis])
