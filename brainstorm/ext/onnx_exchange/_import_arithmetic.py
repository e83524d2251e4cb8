"""Element-wise ONNX operators, on one tensor or on two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._body import BOOL, FLOATS, HALVES, INTEGERS
from brainstorm.ext.onnx_exchange._broadcasting import arranged, combine
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._tables import (
    ACTIVATIONS,
    ARITHMETIC,
    FUNCTIONS,
    formula_of,
)
from brainstorm.ext.onnx_exchange._values import Value

# -- element by element ---------------------------------------------------------------------------

#: Layers with an activation and a bias.
_ACTIVATED = (
    "FullyConnected", "Convolution1D", "Convolution2D", "Convolution3D", "ConvolutionTranspose2D",
)  # fmt: skip

#: Operator to activation, and the attributes that it must have.
_ACTIVATIONS = {kind: (name, wanted) for name, (kind, wanted) in ACTIVATIONS.items()}

#: Operator to a formula of x, with attributes in braces.
_FORMULAS = {
    **{kind: formula_of(name, "x") for name, kind in FUNCTIONS.items()},
    "Ceil": "-floor(-x)",
    "Celu": "relu(x) + {alpha} * expm1(minimum(x, 0) / {alpha})",
    "Elu": "relu(x) + {alpha} * expm1(minimum(x, 0))",
    "HardSigmoid": "clip({alpha} * x + {beta}, 0, 1)",
    "LeakyRelu": "relu(x) + {alpha} * minimum(x, 0)",
    "Reciprocal": "1 / x",
    "Selu": "{gamma} * (relu(x) + {alpha} * expm1(minimum(x, 0)))",
    "Shrink": "where(x < -{lambd}, x + {bias}, where(x > {lambd}, x - {bias}, 0))",
    "Softsign": "x / (1 + abs(x))",
    "Swish": "x * sig({alpha} * x)",
    "ThresholdedRelu": "where(x > {alpha}, x, 0)",
}

#: The other of the two forms of Gelu.
_GELU = "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x ** 3)))"


def _is_linear(entry: Any) -> bool:
    """Return whether a layer has an activation that has not been set yet."""
    return (
        entry is not None and entry.kind in _ACTIVATED and entry.options["activation"] == "linear"
    )


def _activated(imp: Importer, value: Value, name: str) -> Value:
    """Set the activation of a layer, or add a layer that is only an activation."""
    entry = imp.entry(value)
    if _is_linear(entry) and imp.is_alone(value):
        entry.options["activation"] = name
        return value
    return imp.add_same(value, "Elementwise", activation=name)


@reads(*_ACTIVATIONS, *_FORMULAS)
def _unary(imp: Importer, node: Node) -> Value:
    value = node.value()
    activation, wanted = _ACTIVATIONS.get(node.kind, ("", {}))
    text = _FORMULAS.get(node.kind, "")
    if node.options.get("approximate") == b"tanh":
        text = _GELU
    options = node.options
    if not all(math.isfinite(x) for x in options.values() if isinstance(x, float)):
        raise node.fail(f"expected finite attributes, got {options}.")
    if activation and all(_is_near(options[key], value) for key, value in wanted.items()):
        return _activated(imp, value, activation)
    if not text:
        raise node.fail(f"expected {wanted}, got {options}.")
    return combine(imp, text.format(**options), x=value)


def _is_near(given: Any, wanted: Any) -> bool:
    return given == wanted if isinstance(wanted, bytes) else abs(given - wanted) < 1e-6


@reads("Cast")
def _cast(imp: Importer, node: Node) -> Value:
    """Return the numbers unchanged, after checking that the cast does not change them.

    Models whose data are in half precision are computed entirely in float32.
    """
    value, to = node.value(), node.options["to"]
    if to in HALVES and not imp.has_halves:
        raise node.fail("no layer rounds to half precision. Convert the model to float32.")
    if to == BOOL:
        value = combine(imp, "x != 0", x=value)
        imp.whole.add(value.path)
    elif to not in FLOATS:
        _check_whole(imp, value, to)
    return value


def _check_whole(imp: Importer, value: Value, to: int) -> None:
    """Check that a cast to a type of integers does not change the numbers."""
    given, wanted = imp.integer_type(imp.node.names[0]), INTEGERS.get(to)
    if given is None:
        if value.path not in imp.whole and not _selects(imp, imp.node.outputs[0]):
            raise imp.fail("no layer makes whole numbers of others.")
    elif (
        wanted is not None
        and np.dtype(wanted).itemsize < 4
        and not np.can_cast(given, wanted)
        and getattr(imp.entry(value), "kind", "") != "Argmax"  # its numbers are small
    ):
        raise imp.fail(f"no layer wraps {given} around to {wanted}. Leave out the cast.")


def _selects(imp: Importer, name: str) -> bool:
    """Return whether a tensor is only used to index tables, so that its numbers are whole."""
    users = [node for node in imp.nodes if name in node.input]
    return bool(users) and all(
        node.op_type == "Gather"
        or (node.op_type in ("Squeeze", "Identity") and _selects(imp, node.output[0]))
        for node in users
    )


@reads("Clip")
def _clip(imp: Importer, node: Node) -> Value:
    text = "x"
    for place, function, unlimited in ((1, "maximum", -math.inf), (2, "minimum", math.inf)):
        end = float(node.constant(place, unlimited))
        if end != unlimited:
            text = f"{function}({text}, {end!r})"
    return combine(imp, text, x=node.value())


@reads("Dropout")
def _dropout(imp: Importer, node: Node) -> Value:
    value = node.value()
    imp.check_inference(bool(np.any(node.constant(2, False))))
    probability = float(node.constant(1, 0.5))
    return imp.add_same(value, "Dropout", drop_prob=round(probability, 6))


# -- quantization ---------------------------------------------------------------------------------


@reads("QuantizeLinear")
def _quantize(imp: Importer, node: Node) -> Value:
    """Return the numbers clipped to the type, but without rounding."""
    value, scale = node.value(), np.asarray(node.constant(1))
    zero = np.asarray(node.constant(2, np.uint8(0)))
    if scale.size > 1 or zero.dtype.kind not in "iu":
        raise node.fail("no layer has a scale for each channel, or quantizes to other types.")
    if not 0 < scale < np.inf:
        raise node.fail(f"expected a scale > 0, got {float(scale)}.")
    limits = np.iinfo(zero.dtype)
    low, high = (float((end - int(zero)) * float(scale)) for end in (limits.min, limits.max))
    return combine(imp, f"minimum(maximum(x, ({low!r})), ({high!r}))", x=value)


@reads("DequantizeLinear")
def _dequantize(imp: Importer, node: Node) -> Value:
    """Return the numbers before quantization, which were kept; only data are whole numbers."""
    value = node.value()
    if value.path not in imp.whole:
        return value
    scale, zero = (np.asarray(node.constant(i, 0)) for i in (1, 2))
    if scale.size > 1:
        raise node.fail("no layer has a scale for each channel.")
    return combine(imp, f"(x - ({float(zero)!r})) * {float(scale)!r}", x=value)


# -- two operands ---------------------------------------------------------------------------------

#: Operator to that of op-trees.
_BINARY = {kind: name for name, kind in ARITHMETIC.items()} | {"Mod": "mod", "Sum": "add"}


@reads(*_BINARY)
def _arithmetic(imp: Importer, node: Node) -> Any:
    result, *others = node.inputs
    if node.kind in ("Max", "Min", "Sum"):  # of any number of inputs: a computed one first
        result, *others = sorted(node.inputs, key=lambda x: isinstance(x, np.ndarray))
    if not others:
        return result
    if node.options.get("fmod"):
        return combine(imp, "fmod(x, y)", x=result, y=others[0])
    if (integer := imp.integer_type(node.names[0])) is not None:
        _check_integers(node, integer, others)
        if node.kind == "Div":  # the quotient is truncated
            return combine(imp, "(x - fmod(x, y)) / y", x=result, y=others[0])
    for other in others:
        result = _two(imp, node, result, other)
    return result


def _check_integers(node: Node, kind: str, others: Sequence[Any]) -> None:
    """Check that float32 gives the same results as a type of integers."""
    if np.dtype(kind).itemsize < 4 and node.kind in ("Add", "Sub", "Mul", "Sum", "Pow"):
        raise node.fail(f"no layer wraps around as {kind} does. Cast to float32 in front of it.")
    if node.kind == "Pow" and (isinstance(others[0], Value) or np.min(others[0]) < 0):
        raise node.fail("expected integers to the power of constants >= 0. Cast to float32.")


def _two(imp: Importer, node: Node, a: Any, b: Any) -> Any:
    if isinstance(a, Value) and isinstance(b, Value):
        special = node.kind == "Mul" and (_silu(imp, a, b) or _silu(imp, b, a))
    else:
        special = node.kind == "Add" and (_biased(imp, a, b) or _biased(imp, b, a))
    return special or combine(imp, formula_of(_BINARY[node.kind], "x", "y"), x=a, y=b)


def _biased(imp: Importer, value: Any, constant: Any) -> Value | None:
    """Add a constant to the bias of a layer that is not used otherwise; `None` if it is no bias."""
    if not isinstance(value, Value) or isinstance(constant, Value):
        return None
    entry = imp.entry(value)
    if not _is_linear(entry) or not imp.is_alone(value) or constant.ndim > value.ndim:
        return None
    array = arranged(imp.node, constant, value, value.order())
    bias = entry.arrays["parameters.bias"]
    if array.size != array.shape[-1] or array.size not in (1, bias.size):
        return None
    entry.arrays["parameters.bias"] = bias + array.ravel()
    return value


def _silu(imp: Importer, x: Value, gate: Value) -> Value | None:
    """Replace x times its sigmoid by one activation, in the layer if x is not used otherwise.

    `None` if the gate is not the sigmoid of x, or used otherwise.
    """
    entry, source = imp.entry(gate), imp.entry(x)
    if (
        entry is None
        or (entry.kind, entry.options.get("activation")) != ("Elementwise", "sigmoid")
        or (entry.inputs["default"], gate.axes) != (x.path, x.axes)
        or not imp.is_alone(gate)
    ):
        return None
    if _is_linear(source) and imp.is_alone(x, 2):
        del imp.entries[gate.path.partition(".")[0]]
        source.options["activation"] = "silu"
        return x
    entry.options["activation"] = "silu"
    return gate
