"""One row per layer and combination of options: adding a layer means adding rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from brainstorm import layers as bl
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import SIZES

#: Of (T, B): a single value has no variance.
MORE_THAN_ONE = [size for size in SIZES if size != (1, 1)]
SEVERAL_SEQUENCES = [size for size in SIZES if size[1] > 1]

Source = Callable[[tuple[int, ...], np.random.RandomState], np.ndarray]


class Case(NamedTuple):
    """A layer to check, with the shapes of its inputs and the data that is not just any number."""

    name: str
    create: Callable[[], ConstructionWrapper]
    in_shapes: Mapping[str, tuple[Any, ...]]
    inputs: Mapping[str, Source] = {}
    sizes: Sequence[tuple[int, int]] = SIZES


def classes(count: int) -> Source:
    """Class indices in [0, count)."""
    return lambda shape, rnd: rnd.randint(0, count, size=shape).astype(float)


def probabilities(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """Numbers in [0, 1)."""
    return rnd.uniform(size=shape)


def inside(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """Numbers in (0, 1), not too near to its ends."""
    return rnd.uniform(0.1, 0.9, size=shape)


def periods(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """The timing of clockwork units, and how many steps they have done."""
    return rnd.randint(1, 4, size=shape).astype(float)


zeros_and_ones = classes(2)


def some_ones(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """A mask with at least one step for every sequence."""
    mask = zeros_and_ones(shape, rnd)
    mask[rnd.randint(shape[0], size=shape[1]), np.arange(shape[1])] = 1
    return mask


def label_sequences(count: int, most: int) -> Source:
    """Padded sequences of labels from 1 to count - 1, at most `most` and as many as fit into T."""

    def draw(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
        lengths = rnd.randint(0, min(most, (shape[0] + 1) // 2) + 1, size=shape[1])
        labels = rnd.randint(1, count, size=shape).astype(float)
        return np.where(np.arange(shape[0])[:, None, None] < lengths[:, None], labels, 0)

    return draw


def distinct(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """Numbers with gaps between them, so that no maximum changes hands."""
    return rnd.permutation(np.prod(shape, dtype=int)).reshape(shape) / 10.0


UNTIED = {"default": distinct}
#: Whatever is not 0 counts.
A_MASK = {"mask": classes(3)}


#: What is in front of the features, as it is said in names; T and B if nothing is said.
TIMES = {"B": ", B", "SB": ", S", "": ", constant"}


def case(
    call: str,
    default: int | tuple[int, ...] | None = None,
    inputs: Mapping[str, Source] | None = None,
    sizes: Sequence[tuple[int, int]] = SIZES,
    lead: str = "TB",
    **others: int | tuple[int, ...],
) -> Case:
    """Return the case of the layer that a call creates, by the features of its inputs.

    Targets with a single feature are classes.
    """
    given = others if default is None else {"default": default, **others}
    shapes = {port: (n,) if isinstance(n, int) else n for port, n in given.items()}
    draws = dict(inputs or {})
    if shapes.get("targets", ())[-1:] == (1,):
        draws["targets"] = classes(shapes["default"][-1])
    text = ", ".join(f"{port} {'x'.join(map(str, shape))}" for port, shape in shapes.items())
    return Case(
        f"{call} of {text.removeprefix('default ')}{TIMES.get(lead, '')}",
        partial(eval, call, dict(vars(bl))),
        {port: (*lead, *shape) for port, shape in shapes.items()},
        draws,
        sizes,
    )


def numbers_for(
    case: Case,
    shapes: Mapping[str, tuple[Any, ...]],
    rnd: np.random.RandomState,
    sizes: Mapping[Any, int],
) -> dict[str, np.ndarray]:
    """Return data of these shapes for a case, with these sizes for T, B and S."""
    data = {}
    for port, shape in shapes.items():
        draw = case.inputs.get(port, lambda shape, rnd: rnd.normal(size=shape))
        data[port] = draw(tuple(sizes.get(n, n) for n in shape), rnd)
    return data


ACTIVATIONS = (
    *("sigmoid", "rel", "tanh", "linear", "el"),
    *("softplus", "leaky_rel", "gelu", "silu", "hard_sigmoid", "exp"),
    *("selu", "mish", "hard_swish"),
)
KINDS, FILLINGS = ("max", "avg"), ("nearest", "bilinear")
PADS = "(1, 0, (0, 1))"

#: The call that creates a layer to the features of its input.
ANY_NUMBERS: dict[str, list[Any]] = {
    "NoOp()": [3, (2, 3, 2)],
    # Without a derivative, with one from the output, and with one from the input.
    **{f"FullyConnected(4, {a!r})": [3] for a in ("linear", "rel", "gelu")},
    "FullyConnected((2, 2), 'tanh')": [(2, 1, 2)],
    "FullyConnected(None, 'tanh')": [(2, 3)],
    **{f"Elementwise({a!r})": [3] for a in ACTIVATIONS},
    "Dropout(0.3)": [5],
    "Dropout(0.3, shared_over_time=True)": [5],
    "Dropout(0.0)": [3],
    "Loss(2.5)": [3],
    "BatchNorm(None, 0.5, 0.1)": [(2, 3, 2)],
    "Convolution2D(2, (2, 3), (1, 1), 0, 'rel')": [(4, 5, 2)],
    "Convolution2D(2, (2, 3), (2, 1), 1, 'tanh')": [(4, 5, 2)],
    "Convolution2D(2, (2, 3), (1, 2), 2, 'linear')": [(4, 5, 2)],
    "Convolution2D(2, (2, 3), (3, 3), 0, 'el')": [(4, 5, 2)],
    "Convolution2D(2, (2, 3), (1, 1), 1, 'gelu')": [(4, 5, 2)],
    "Convolution2D(2, (2, 3), (2, 2), 0, 'silu')": [(4, 5, 2)],
    "Convolution2D(3, (1, 1), activation='sigmoid')": [(2, 2, 2)],
    "Convolution2D(4, (2, 3), (2, 1), 1, 'tanh', dilation=(2, 1))": [(4, 5, 4)],
    "Convolution2D(4, (2, 3), (2, 1), 1, 'tanh', dilation=(1, 2), groups=2)": [(4, 5, 4)],
    "Convolution2D(4, (2, 3), (2, 1), 1, 'tanh', groups=4)": [(4, 5, 4)],
    "Convolution2D(2, (2, 3), (2, 1), ((0, 2), (1, 0)), 'tanh')": [(3, 3, 2)],
    "Convolution2D(2, (2, 3), (2, 1), (1, (2, 1)), 'tanh')": [(3, 3, 2)],
    "Convolution2D(2, 2, 2, dilation=2)": [(6, 5, 1)],
    "Convolution1D(2, 3, 1, 0, 'tanh')": [(6, 2)],
    "Convolution1D(2, 3, 2, 1, 'tanh', dilation=2)": [(6, 2)],
    "Convolution1D(2, 3, 3, 2, 'tanh', groups=2)": [(6, 2)],
    "Convolution1D(2, 3, 2, (2, 0), 'tanh')": [(4, 2)],
    "Convolution3D(2, (2, 1, 2), (1, 1, 1), 0, 'tanh')": [(3, 2, 3, 2)],
    "Convolution3D(2, (2, 1, 2), (2, 1, 3), 1, 'tanh', dilation=(2, 1, 1), groups=2)": [
        (3, 2, 3, 2)
    ],
    "Convolution3D(2, 2, 2, ((0, 1), (1, 0), 1), 'tanh')": [(2, 3, 2, 1)],
    "Convolution3D(1, 2, 2)": [(2, 3, 2, 1)],
    "ConvolutionTranspose2D(2, (2, 3), (1, 1), 0, 0, 'rel')": [(3, 2, 2)],
    "ConvolutionTranspose2D(2, (2, 3), (2, 3), 1, 1, 'tanh')": [(3, 2, 2)],
    "ConvolutionTranspose2D(2, (2, 3), (3, 2), 0, 0, 'linear')": [(3, 2, 2)],
    "ConvolutionTranspose2D(2, (2, 3), (1, 2), 1, 0, 'gelu')": [(3, 2, 2)],
    "ConvolutionTranspose2D(2, 3, 2, ((2, 0), (0, 1)), activation='tanh')": [(3, 2, 2)],
    "ConvolutionTranspose2D(2, 2, 2)": [(2, 3, 1)],
    **{f"Recurrent(3, {a!r})": [2] for a in ("tanh", "sigmoid", "rel", "gelu", "silu")},
    **{f"Lstm(3, {a!r})": [2] for a in ("tanh", "linear")},
    **{f"Gru(3, {a!r})": [2] for a in ("tanh", "gelu")},
    **{f"{kind}(2)": [(2, 1, 2)] for kind in ("Recurrent", "Lstm", "Gru")},
    "MultiHeadSelfAttention(1)": [(1, 2, 2)],
    "PositionalEncoding()": [5, 1],
    "LearnedPositionalEncoding(5)": [2],
    "Reverse()": [3, (2, 1, 2)],
    "Upsampling2D(2)": [(2, 3, 2)],
    **{f"Upsampling2D((2, 3), type={kind!r})": [(2, 3, 2)] for kind in FILLINGS},
    **{f"Upsampling2D(size=(5, 2), type={kind!r})": [(3, 4, 1)] for kind in FILLINGS},
    **{f"Upsampling2D(size=(1, 3), type={kind!r})": [(2, 1, 2)] for kind in FILLINGS},
    # Each input counts for many outputs.
    **{f"Upsampling2D(size=(2, 9), type={kind!r})": [(1, 1, 2)] for kind in FILLINGS},
    **{f"DepthToSpace(2, {order!r})": [(2, 3, 8)] for order in ("CRD", "DCR")},
    **{f"SpaceToDepth(2, {order!r})": [(4, 2, 3)] for order in ("CRD", "DCR")},
    "Crop((2, 1))": [(5, 4, 2)],
    "Crop((2, 3), (2, 0))": [(4, 3, 2)],
    "Crop(2, 1)": [(4, 3, 2)],
    "Padding(2, 0.5)": [(2, 1, 2)],
    "Padding((0, 2), 1.5)": [(3, 2)],
    "Padding(((0, 2), 1), -1)": [(2, 1, 2)],
    "Padding((1, (0, 2), (1, 0)))": [(1, 2, 2, 2)],
    "LocalResponseNormalization(1, 0.5, 0.6, 2.0)": [3],
    "LocalResponseNormalization(4, 0.5, 0.6, 2.0)": [(2, 1, 6)],
    "LocalResponseNormalization(5, 0.5, 0.6, 2.0)": [3],
    **{f"{kind}()": [4] for kind in ("LayerNorm", "RMSNorm")},
    **{f"{kind}(0.1)": [(2, 3, 2)] for kind in ("LayerNorm", "RMSNorm")},
    "GroupNorm(2)": [6],
    **{f"GroupNorm({count}, 0.1)": [(2, 3, 4)] for count in (1, 2, 4)},
    "Reshape((2, 3))": [6],
    "Reshape(8)": [(2, 1, 4)],
    "Slice(1, 3)": [4],
    "Slice(0, 1)": [(2, 3, 2)],
    "Slice(1, 2, 0)": [(3, 2, 2)],
    "Slice(1, 3, axis=-2)": [(2, 3, 2)],
    "Split((1, 3, 2))": [6],
    "Split((2, 1))": [(2, 2, 3)],
    "Argmax()": [4, (2, 3, 2)],
    "PReLU(False)": [3, (2, 1, 3)],
    "PReLU(True)": [(2, 2)],
    # With another factor, its deltas are not the derivatives, on purpose.
    "DeltasScaling(1)": [3],
    **{f"Power({options})": [3] for options in ("1, 0, 1", "-2.0, 0.5, 3", "1.0, 0, 0", "0, 2, 2")},
    **{f"GLU({a!r})": [6] for a in ("sigmoid", "linear", "gelu")},
    "GLU('tanh')": [(2, 1, 4)],
    "SwiGLU()": [(2, 6)],
    "TiedFullyConnected(FullyConnected(3), 'rel', size=4)": [3],
    "TiedFullyConnected(FullyConnected(3), 'linear', size=(2, 2))": [3],
    "TiedFullyConnected(FullyConnected(3), 'gelu', size=4)": [(3, 1)],
    "Expression('x')": [3],
    "Expression('tanh(x) * (1 + sig(x)) + 0.5 * sig(x)')": [3],
    "Expression('scale * (x - mean(x, axis=-1)) / sqrt(var(x, -1) + 0.1)', {'scale': ('F',)})": [
        (2, 4)
    ],
    "Expression('tanh(x @ W)', {'W': (3, 2)})": [3],
}

#: The same for layers that choose among numbers.
DISTINCT_NUMBERS: dict[str, list[Any]] = {
    **{f"Pooling2D((2, 2), {kind!r}, (2, 2), 0)": [(4, 5, 2)] for kind in KINDS},
    **{f"Pooling2D((3, 2), {kind!r}, (1, 2), 1)": [(4, 5, 2)] for kind in KINDS},
    **{f"Pooling2D((1, 2), {kind!r}, (2, 1), 2)": [(4, 5, 2)] for kind in KINDS},
    **{f"Pooling2D((3, 2), {kind!r}, (2, 1), ((2, 0), (0, 1)))": [(3, 3, 2)] for kind in KINDS},
    **{f"Pooling2D((2, 3), {kind!r}, (3, 2), ceil_mode=True)": [(4, 5, 2)] for kind in KINDS},
    **{f"Pooling1D(3, {kind!r}, 2)": [(6, 2)] for kind in KINDS},
    **{f"Pooling1D(3, {kind!r}, 2, (2, 0), ceil_mode=True)": [(6, 2)] for kind in KINDS},
    **{f"Pooling3D((2, 3, 2), {kind!r}, (1, 2, 2), {PADS})": [(3, 4, 3, 2)] for kind in KINDS},
    **{f"Pooling3D(2, {kind!r}, 2, ceil_mode=True)": [(3, 4, 2, 1)] for kind in KINDS},
    "Pooling2D(2, stride=2)": [(5, 4, 2)],
    "Pooling3D(2, stride=2)": [(3, 2, 4, 1)],
    **{f"GlobalPooling2D({kind!r})": [(3, 2, 2)] for kind in KINDS},
    **{f"ChannelPooling(2, {kind!r})": [6] for kind in KINDS},
    **{f"ChannelPooling(3, {kind!r})": [(2, 2, 6)] for kind in KINDS},
    **{f"ChannelPooling(1, {kind!r})": [2] for kind in KINDS},
    "Expression('max(x, axis=(2, 3)) + min(x, axis=2)')": [(2, 3)],
}

WORDS, BETWEEN, BINARY = {"default": classes(4)}, {"default": inside}, {"targets": zeros_and_ones}
CLOCKS = {"parameters.timing": periods, "context.internals.time": periods}
LEADS = ("TB", 3), ("TB", (2, 1, 2)), ("B", 3), ("B", (2, 2)), ("", 4), ("", (3, 2))
GATED = "Expression('tanh(scale * x + shift) * gate', {'scale': ('...',), 'shift': ('F',)})"
COOLED = "Expression('softmax(x / temperature, axis=-1) * mask', {'temperature': 1})"

CASES = [
    *(case(call, size) for call, sizes in ANY_NUMBERS.items() for size in sizes),
    *(case(call, size, UNTIED) for call, sizes in DISTINCT_NUMBERS.items() for size in sizes),
    # Losses.
    case("SoftmaxCE()", 4, targets=1),
    case("SoftmaxCE()", (2, 2, 3), targets=(2, 2, 1)),
    case("SoftmaxCE(None, [0.5, 2, 0])", 3, targets=1),
    case("SoftmaxCE(None, None, 0.2)", 3, targets=1),
    case("SoftmaxCE(None, [0.5, 2, 1], 0.3)", 3, targets=1),
    case("HingeLoss()", 4, targets=1),
    case("HingeLoss(0.3)", (2, 2, 3), targets=(2, 2, 1)),
    case("SigmoidCE()", 3, {"targets": probabilities}, targets=3),
    case("SigmoidCE()", (2, 2), BINARY, targets=(2, 2)),
    case("BinomialCrossEntropy()", 3, {**BETWEEN, "targets": inside}, targets=3),
    case("BinomialCrossEntropy()", (2, 1, 2), BETWEEN | BINARY, targets=(2, 1, 2)),
    case("SquaredError()", 3, targets=3),
    case("SquaredError()", (2, 1, 2), targets=(2, 1, 2)),
    case("HuberLoss()", 3, targets=3),
    case("HuberLoss(0.3)", (2, 1, 2), targets=(2, 1, 2)),
    case("SquaredDifference()", inputs_1=3, inputs_2=3),
    case("Loss()", (2, 2), lead="B"),
    case("Loss()", (2, 3), lead=""),
    *(case("L1Decay()", size, lead=lead) for lead, size in LEADS),
    *(case("L2Decay()", size, lead=lead) for lead, size in LEADS),
    case("CTC()", 3, {"labels": label_sequences(3, 5)}, labels=1),
    case("CTC()", 4, {"labels": label_sequences(4, 1), "mask": some_ones}, labels=1, mask=1),
    # Statistics.
    case("Accuracy()", 3, targets=1),
    case("Accuracy()", 3, A_MASK, targets=1, mask=1),
    case("BinaryAccuracy(0.3)", 3, BETWEEN | BINARY, targets=3),
    # Masks.
    case("Mask()", 3, A_MASK, mask=1),
    case("Mask()", (2, 3, 2), mask=1),
    case("Mask()", (2, 3, 2), mask=(2, 3, 1)),
    case("Mask()", (2, 3), mask=(2, 3)),
    case("Reverse()", (2, 2), A_MASK, mask=1),
    case("BatchNorm()", 3, sizes=MORE_THAN_ONE),
    case("BatchNorm()", 3, A_MASK, MORE_THAN_ONE, mask=1),
    case("BatchNorm()", 3, lead="B", sizes=SEVERAL_SEQUENCES),
    *(case(f"{kind}(3)", 2, A_MASK, mask=1) for kind in ("Recurrent", "Lstm", "Gru")),
    *(case(f"{kind}(3, 'sigmoid')", 2, CLOCKS) for kind in ("Clockwork", "ClockworkLstm")),
    *(case(f"{kind}(3)", 2, CLOCKS | A_MASK, mask=1) for kind in ("Clockwork", "ClockworkLstm")),
    case("Lstm(3)", 2, lead="SB"),
    *(
        case(f"TimePooling({kind!r})", size, UNTIED | A_MASK, **mask)
        for kind in ("avg", "last", "max", "sum")
        for mask in ({}, {"mask": 1})
        for size in (3, (2, 2))
    ),
    *(case("RepeatOverTime()", size, lead="B") for size in (3, (2, 1, 2))),
    # Attention: causal, masked, with rotary positions.
    *(
        case(
            f"{kind}(2, 4, {'c' in options}, {'r' in options})",
            3,
            A_MASK,
            **memory,
            **({"mask": 1} if "m" in options else {}),
        )
        for kind, memory, chosen in (
            ("MultiHeadSelfAttention", {}, ("", "m", "c", "cm", "r", "cmr")),
            ("MultiHeadAttention", {"memory": 2}, ("", "mr", "cm", "cr")),
        )
        for options in chosen
    ),
    *(
        Case(
            f"MultiHeadAttention of {times}, {options}",
            partial(bl.MultiHeadAttention, 2, 4, rotary="r" in options),
            {
                "default": (times[0], "B", 3),
                "memory": (times[1], "B", 2),
                **({"mask": (times[1], "B", 1)} if "m" in options else {}),
            },
            A_MASK,
        )
        for times, options in (("TS", ""), ("TS", "mr"), ("ST", "mr"), ("SS", "r"))
    ),
    # Several inputs.
    case("Merge()", inputs_1=3, inputs_2=2),
    case("Merge()", inputs_1=(2, 2), inputs_2=(2, 3)),
    case("Merge()", lead="B", inputs_1=3, inputs_2=2),
    case("Merge()", lead="", inputs_1=3, inputs_2=2),
    *(
        case(f"{kind}({count})", **{f"inputs_{i + 1}": size for i in range(count)})
        for kind in ("Add", "Multiply")
        for count, size in ((2, 3), (2, (2, 2)), (3, 3), (4, (2, 1)))
    ),
    case("Highway()", H=3, T=3, x=3),
    case("Highway()", H=(2, 1, 2), T=(2, 1, 2), x=(2, 1, 2)),
    # Classes and formulas.
    case("Embedding(4, 3)", 1, WORDS),
    case("Embedding(4, 2)", 3, WORDS),
    case("Power(2.0, 0.5, 0.5)", 3, BETWEEN),
    case("Power(1.0, 0.3, -1.5)", 3, BETWEEN),
    case(GATED, (2, 3), gate=1),
    case(COOLED, 4, {"parameters.temperature": inside}, mask=(2, 1)),
    case("Expression('where(x > other, x ** 2, other)')", (2, 1, 2), other=(2, 1, 2)),
    case("Expression('logsumexp(x, -1) - gather(x, targets, -1)')", 4, targets=1),
    case("Expression('take(V, a, axis=0)', {'V': (4, 2)})", None, {"a": classes(4)}, a=1),
    case("Expression('tanh(take(x, 1, axis=2)) * take(x, axis=-1, indices=-1)')", (3, 3)),
    case("Expression('lgamma(exp(x) + r) - lgamma(r)', {'r': (1,)})", 3, {"parameters.r": inside}),
    case("Expression('a * b')", a=3, b=3),
    case("Expression('x * input_deltas')", (2, 3), input_deltas=3),
    case("Expression('x * gradients')", 3, gradients=3),
]

#: Cases that are checked on inputs without a time axis, too.
ALSO_PER_SEQUENCE = {
    *("FullyConnected(4, 'gelu') of 3", "Elementwise('tanh') of 3", "LayerNorm(0.1) of 2x3x2"),
    *("Dropout(0.3) of 5", "Dropout(0.3, shared_over_time=True) of 5", "Split((1, 3, 2)) of 6"),
    "Convolution2D(3, (1, 1), activation='sigmoid') of 2x2x2",
    "Pooling2D((2, 2), 'max', (2, 2), 0) of 4x5x2",
    *("Embedding(4, 2) of 3", "Mask() of 3, mask 1", "Add(2) of inputs_1 3, inputs_2 3"),
    f"{GATED} of 2x3, gate 1",
    *("Highway() of H 3, T 3, x 3", "SoftmaxCE() of 4, targets 1", "SigmoidCE() of 3, targets 3"),
    *("SquaredError() of 2x1x2, targets 2x1x2", "HingeLoss() of 4, targets 1"),
    "Accuracy() of 3, targets 1, mask 1",
}
CASES += [
    Case(
        f"{case.name}, B",
        case.create,
        {port: shape[1:] for port, shape in case.in_shapes.items()},
        case.inputs,
    )
    for case in CASES
    if case.name in ALSO_PER_SEQUENCE
]
assert {case.name for case in CASES} >= ALSO_PER_SEQUENCE
