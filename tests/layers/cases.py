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


def zeros_and_ones(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """A mask."""
    return rnd.randint(0, 2, size=shape).astype(float)


def periods(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """The timing of clockwork units, and how many steps they have done."""
    return rnd.randint(1, 4, size=shape).astype(float)


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


def per_sequence(shapes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The same shapes without T."""
    return {name: shape[1:] for name, shape in shapes.items()}


def over_time(
    *features: int, masked: bool = False, **others: int | tuple[int, ...]
) -> dict[str, tuple[Any, ...]]:
    """Shapes with T and B for these features of default, if any, and those of other inputs."""
    given = {**({"default": features} if features else {}), **others}
    given |= {"mask": 1} if masked else {}
    sizes = {name: (size,) if isinstance(size, int) else size for name, size in given.items()}
    return {name: ("T", "B", *size) for name, size in sizes.items()}


def named(create: Callable[[], ConstructionWrapper], *args: Any, **kwargs: Any) -> Case:
    """A case with the type of the layer in place of {} in the name."""
    name, *rest = args
    return Case(name.format(create().layer.layer_type), create, *rest, **kwargs)


ACTIVATIONS = (
    *("sigmoid", "rel", "tanh", "linear", "el"),
    *("softplus", "leaky_rel", "gelu", "silu", "hard_sigmoid", "exp"),
    *("selu", "mish", "hard_swish"),
)
KINDS = ("max", "avg")
ONE_CLASS = {"targets": classes(3)}
A_MASK = {"mask": zeros_and_ones}

CASES = [
    Case("NoOp", bl.NoOp, over_time(3)),
    Case("NoOp image", bl.NoOp, over_time(2, 3, 2)),
    # Without a derivative, with one from the output, and with one from the input.
    *(
        Case(f"FullyConnected {a}", partial(bl.FullyConnected, 4, a), over_time(3))
        for a in ("linear", "rel", "gelu")
    ),
    Case(
        "FullyConnected shape to shape",
        partial(bl.FullyConnected, (2, 2), "tanh"),
        over_time(2, 1, 2),
    ),
    Case("FullyConnected keeps shape", partial(bl.FullyConnected, None, "tanh"), over_time(2, 3)),
    *(Case(f"Elementwise {a}", partial(bl.Elementwise, a), over_time(3)) for a in ACTIVATIONS),
    Case("Dropout", partial(bl.Dropout, 0.3), over_time(5)),
    Case("Dropout shared over time", partial(bl.Dropout, 0.3, shared_over_time=True), over_time(5)),
    Case("Dropout of nothing", partial(bl.Dropout, 0.0), over_time(3)),
    Case("SoftmaxCE", bl.SoftmaxCE, over_time(4, targets=1), {"targets": classes(4)}),
    Case("SoftmaxCE image", bl.SoftmaxCE, over_time(2, 2, 3, targets=(2, 2, 1)), ONE_CLASS),
    *(
        Case(
            f"SoftmaxCE weights {weights} smoothing {smoothing}",
            partial(bl.SoftmaxCE, None, weights, smoothing),
            over_time(3, targets=1),
            ONE_CLASS,
        )
        for weights, smoothing in (([0.5, 2, 0], 0.0), (None, 0.2), ([0.5, 2, 1], 0.3))
    ),
    Case("SigmoidCE", bl.SigmoidCE, over_time(3, targets=3), {"targets": probabilities}),
    Case(
        "SigmoidCE image",
        bl.SigmoidCE,
        over_time(2, 2, targets=(2, 2)),
        {"targets": zeros_and_ones},
    ),
    Case("SquaredError", bl.SquaredError, over_time(3, targets=3)),
    Case("HuberLoss", bl.HuberLoss, over_time(3, targets=3)),
    Case("HuberLoss 0.3", partial(bl.HuberLoss, 0.3), over_time(2, 1, 2, targets=(2, 1, 2))),
    Case("SquaredError image", bl.SquaredError, over_time(2, 1, 2, targets=(2, 1, 2))),
    Case("SquaredDifference", bl.SquaredDifference, over_time(inputs_1=3, inputs_2=3)),
    Case("Mask per step", bl.Mask, over_time(3, mask=1), A_MASK),
    Case("Mask per step, image", bl.Mask, over_time(2, 3, 2, mask=1)),
    Case("Mask per pixel", bl.Mask, over_time(2, 3, 2, mask=(2, 3, 1))),
    Case("Mask per element", bl.Mask, over_time(2, 3, mask=(2, 3))),
    Case("Merge", bl.Merge, over_time(inputs_1=3, inputs_2=2)),
    Case("Merge channels", bl.Merge, over_time(inputs_1=(2, 2), inputs_2=(2, 3))),
    Case("Merge per sequence", bl.Merge, {"inputs_1": ("B", 3), "inputs_2": ("B", 2)}),
    Case("Merge constants", bl.Merge, {"inputs_1": (3,), "inputs_2": (2,)}),
    Case("Loss", partial(bl.Loss, 2.5), over_time(3)),
    Case("Loss of a batch", bl.Loss, {"default": ("B", 2, 2)}),
    Case("Loss of a constant", bl.Loss, {"default": (2, 3)}),
    Case("BatchNorm", bl.BatchNorm, over_time(3), {}, MORE_THAN_ONE),
    Case("BatchNorm image", partial(bl.BatchNorm, None, 0.5, 0.1), over_time(2, 3, 2)),
    Case("BatchNorm masked", bl.BatchNorm, over_time(3, mask=1), A_MASK, MORE_THAN_ONE),
    *(
        Case(
            f"Convolution2D {a} stride {stride} padding {padding}",
            partial(bl.Convolution2D, 2, (2, 3), stride, padding, a),
            over_time(4, 5, 2),
        )
        for a, stride, padding in (
            ("rel", (1, 1), 0),
            ("tanh", (2, 1), 1),
            ("linear", (1, 2), 2),
            ("el", (3, 3), 0),
            ("gelu", (1, 1), 1),
            ("silu", (2, 2), 0),
        )
    ),
    Case(
        "Convolution2D 1x1",
        partial(bl.Convolution2D, 3, (1, 1), activation="sigmoid"),
        over_time(2, 2, 2),
    ),
    *(
        Case(
            f"Pooling2D {kind} {kernel} stride {stride} padding {padding}",
            partial(bl.Pooling2D, kernel, kind, stride, padding),
            over_time(4, 5, 2),
            UNTIED,
        )
        for kind in KINDS
        for kernel, stride, padding in (
            ((2, 2), (2, 2), 0),
            ((3, 2), (1, 2), 1),
            ((1, 2), (2, 1), 2),
        )
    ),
    *(
        case
        for create, activations in (
            (bl.Recurrent, ("tanh", "sigmoid", "rel", "gelu", "silu")),
            (bl.Lstm, ("tanh", "linear")),
            (bl.Gru, ("tanh", "gelu")),
        )
        for case in (
            *(
                Case(f"{create.__name__} {a}", partial(create, 3, a), over_time(2))
                for a in activations
            ),
            Case(f"{create.__name__} of images", partial(create, 2), over_time(2, 1, 2)),
        )
    ),
    Case("Lstm over S", partial(bl.Lstm, 3), {"default": ("S", "B", 2)}),
    Case("Embedding", partial(bl.Embedding, 4, 3), over_time(1), {"default": classes(4)}),
    Case(
        "Embedding of several", partial(bl.Embedding, 4, 2), over_time(3), {"default": classes(4)}
    ),
    *(
        Case(
            f"{create.__name__}{' causal' * causal}{' masked' * masked}{' rotary' * rotary}",
            partial(create, 2, 4, causal, rotary),
            over_time(3, masked=masked, **memory),
            A_MASK,
        )
        for create, memory, options in (
            (bl.MultiHeadSelfAttention, {}, ("", "m", "c", "cm", "r", "cmr")),
            (bl.MultiHeadAttention, {"memory": 2}, ("", "mr", "cm", "cr")),
        )
        for causal, masked, rotary in ([letter in chosen for letter in "cmr"] for chosen in options)
    ),
    *(
        Case(
            f"MultiHeadAttention of {' to '.join(times)}{' masked' * masked}{' rotary' * rotary}",
            partial(bl.MultiHeadAttention, 2, 4, rotary=rotary),
            {
                "default": (times[0], "B", 3),
                "memory": (times[1], "B", 2),
                **({"mask": (times[1], "B", 1)} if masked else {}),
            },
            A_MASK,
        )
        for times, masked, rotary in (
            ("TS", False, False),
            ("TS", True, True),
            ("ST", True, True),
            ("SS", True, False),
        )
    ),
    Case(
        "MultiHeadSelfAttention of images",
        partial(bl.MultiHeadSelfAttention, 1),
        over_time(1, 2, 2),
    ),
    Case("PositionalEncoding", bl.PositionalEncoding, over_time(5)),
    Case("LearnedPositionalEncoding", partial(bl.LearnedPositionalEncoding, 5), over_time(2)),
    Case("CTC", bl.CTC, over_time(3, labels=1), {"labels": label_sequences(3, 5)}),
    Case(
        "CTC masked",
        bl.CTC,
        over_time(4, labels=1, mask=1),
        {"labels": label_sequences(4, 1), "mask": some_ones},
    ),
    Case("Reverse", bl.Reverse, over_time(3)),
    Case("Reverse image", bl.Reverse, over_time(2, 1, 2)),
    Case("Reverse masked", bl.Reverse, over_time(2, 2, mask=1), A_MASK),
    *(
        Case(
            f"{create.__name__}{' masked' * masked}",
            partial(create, 3),
            over_time(2, masked=masked),
            {**A_MASK, "parameters.timing": periods, "context.internals.time": periods},
        )
        for create, masked in (
            *((create, True) for create in (bl.Recurrent, bl.Lstm, bl.Gru)),
            *((create, m) for create in (bl.Clockwork, bl.ClockworkLstm) for m in (False, True)),
        )
    ),
    *(
        Case(
            f"Convolution2D dilation {dilation} groups {groups}",
            partial(
                bl.Convolution2D, 4, (2, 3), (2, 1), 1, "tanh", dilation=dilation, groups=groups
            ),
            over_time(4, 5, 4),
        )
        for dilation, groups in (((2, 1), 1), ((1, 2), 2), ((1, 1), 4))
    ),
    *(
        Case(
            f"{create.__name__} stride {s} padding {p} dilation {d} groups {g}",
            partial(create, 2, kernel, s, p, "tanh", dilation=d, groups=g),
            over_time(*size),
        )
        for create, kernel, size, options in (
            (bl.Convolution1D, 3, (6, 2), ((1, 0, 1, 1), (2, 1, 2, 1), (3, 2, 1, 2))),
            (
                bl.Convolution3D,
                (2, 1, 2),
                (3, 2, 3, 2),
                (((1, 1, 1), 0, (1, 1, 1), 1), ((2, 1, 3), 1, (2, 1, 1), 2)),
            ),
        )
        for s, p, d, g in options
    ),
    *(
        named(create, "{} of ints", over_time(*size), UNTIED)
        for create, size in (
            (partial(bl.Convolution2D, 2, 2, 2, dilation=2), (6, 5, 1)),
            (partial(bl.Convolution3D, 1, 2, 2), (2, 3, 2, 1)),
            (partial(bl.ConvolutionTranspose2D, 2, 2, 2), (2, 3, 1)),
            (partial(bl.Pooling2D, 2, stride=2), (5, 4, 2)),
            (partial(bl.Crop, 2, 1), (4, 3, 2)),
            (partial(bl.Pooling3D, 2, stride=2), (3, 2, 4, 1)),
            (partial(bl.Padding, 2, 0.5), (2, 1, 2)),
            (partial(bl.Upsampling2D, 2), (2, 3, 2)),
        )
    ),
    *(
        Case(
            f"ConvolutionTranspose2D stride {stride} padding {padding} + {extra}",
            partial(bl.ConvolutionTranspose2D, 2, (2, 3), stride, padding, extra, activation),
            over_time(3, 2, 2),
        )
        for stride, padding, extra, activation in (
            ((1, 1), 0, 0, "rel"),
            ((2, 3), 1, 1, "tanh"),
            ((3, 2), 0, 0, "linear"),
            ((1, 2), 1, 0, "gelu"),
        )
    ),
    *(
        named(
            create,
            f"{{}}{' avg' * (options.get('type') == 'avg')} padded by {options['padding']}",
            over_time(*size),
            UNTIED,
        )
        for create, size in (
            (partial(bl.Convolution1D, 2, 3, 2, (2, 0), "tanh"), (4, 2)),
            (partial(bl.Convolution2D, 2, (2, 3), (2, 1), ((0, 2), (1, 0)), "tanh"), (3, 3, 2)),
            (partial(bl.Convolution2D, 2, (2, 3), (2, 1), (1, (2, 1)), "tanh"), (3, 3, 2)),
            (partial(bl.Convolution3D, 2, 2, 2, ((0, 1), (1, 0), 1), "tanh"), (2, 3, 2, 1)),
            (
                partial(bl.ConvolutionTranspose2D, 2, 3, 2, ((2, 0), (0, 1)), activation="tanh"),
                (3, 2, 2),
            ),
            *(
                (partial(bl.Pooling2D, (3, 2), kind, (2, 1), ((2, 0), (0, 1))), (3, 3, 2))
                for kind in KINDS
            ),
            (partial(bl.Padding, (0, 2), 1.5), (3, 2)),
            (partial(bl.Padding, ((0, 2), 1), -1), (2, 1, 2)),
            (partial(bl.Padding, (1, (0, 2), (1, 0))), (1, 2, 2, 2)),
        )
        for options in (create().layer.layer_kwargs,)
    ),
    *(
        Case(
            f"{create.__name__} {kind} {window} stride {stride} padding {padding}{' up' * up}",
            partial(create, window, kind, stride, padding, ceil_mode=up),
            over_time(*size),
            UNTIED,
        )
        for create, size, window, stride, padding, up in (
            (bl.Pooling1D, (6, 2), 3, 2, 0, False),
            (bl.Pooling1D, (6, 2), 3, 2, (1, 2), True),
            (bl.Pooling2D, (4, 5, 2), (2, 3), (3, 2), 0, True),
            (bl.Pooling3D, (3, 4, 3, 2), (2, 3, 2), (1, 2, 2), (1, 0, (0, 1)), False),
            (bl.Pooling3D, (3, 4, 2, 1), 2, 2, 0, True),
        )
        for kind in KINDS
    ),
    *(
        Case(
            f"Upsampling2D {kind} {options} of {shape}",
            partial(bl.Upsampling2D, type=kind, **options),
            over_time(*shape),
        )
        for kind in ("nearest", "bilinear")
        for options, shape in (
            ({"scale": (2, 3)}, (2, 3, 2)),
            ({"size": (5, 2)}, (3, 4, 1)),
            ({"size": (1, 3)}, (2, 1, 2)),
            ({"size": (2, 9)}, (1, 1, 2)),  # each input counts for many outputs
        )
    ),
    *(
        Case(f"{create.__name__} {order}", partial(create, 2, order), over_time(*size))
        for create, size in ((bl.DepthToSpace, (2, 3, 8)), (bl.SpaceToDepth, (4, 2, 3)))
        for order in ("CRD", "DCR")
    ),
    *(
        Case(f"GlobalPooling2D {k}", partial(bl.GlobalPooling2D, k), over_time(3, 2, 2), UNTIED)
        for k in KINDS
    ),
    *(
        Case(
            f"ChannelPooling {kind} of {shape['default']}",
            partial(bl.ChannelPooling, size, kind),
            shape,
            UNTIED,
        )
        for size, shape in ((2, over_time(6)), (3, over_time(2, 2, 6)), (1, over_time(2)))
        for kind in KINDS
    ),
    Case("Crop in the centre", partial(bl.Crop, (2, 1)), over_time(5, 4, 2)),
    Case("Crop at an offset", partial(bl.Crop, (2, 3), (2, 0)), over_time(4, 3, 2)),
    *(
        Case(
            f"LocalResponseNormalization of {size}",
            partial(bl.LocalResponseNormalization, size, 0.5, 0.6, 2.0),
            shape,
        )
        for size, shape in ((1, over_time(3)), (4, over_time(2, 1, 6)), (5, over_time(3)))
    ),
    Case("LayerNorm", bl.LayerNorm, over_time(4)),
    Case("LayerNorm image", partial(bl.LayerNorm, 0.1), over_time(2, 3, 2)),
    Case("RMSNorm", bl.RMSNorm, over_time(4)),
    Case("RMSNorm image", partial(bl.RMSNorm, 0.1), over_time(2, 3, 2)),
    Case("GroupNorm", partial(bl.GroupNorm, 2), over_time(6)),
    *(
        Case(f"GroupNorm image {n}", partial(bl.GroupNorm, n, 0.1), over_time(2, 3, 4))
        for n in (1, 2, 4)
    ),
    Case("Reshape vector", partial(bl.Reshape, (2, 3)), over_time(6)),
    Case("Reshape image", partial(bl.Reshape, 8), over_time(2, 1, 4)),
    Case("Slice", partial(bl.Slice, 1, 3), over_time(4)),
    Case("Slice channels", partial(bl.Slice, 0, 1), over_time(2, 3, 2)),
    Case("Slice rows", partial(bl.Slice, 1, 2, 0), over_time(3, 2, 2)),
    Case("Slice columns", partial(bl.Slice, 1, 3, axis=-2), over_time(2, 3, 2)),
    Case("Split", partial(bl.Split, (1, 3, 2)), over_time(6)),
    Case("Argmax", bl.Argmax, over_time(4)),
    Case("Argmax over channels", bl.Argmax, over_time(2, 3, 2)),
    Case("Accuracy", bl.Accuracy, over_time(3, targets=1), ONE_CLASS),
    Case(
        "Accuracy with mask", bl.Accuracy, over_time(3, targets=1, mask=1), {**ONE_CLASS, **A_MASK}
    ),
    Case(
        "BinaryAccuracy",
        partial(bl.BinaryAccuracy, 0.3),
        over_time(3, targets=3),
        {"default": probabilities, "targets": zeros_and_ones},
    ),
    Case("Split channels", partial(bl.Split, (2, 1)), over_time(2, 2, 3)),
    *(
        Case(
            f"{create.__name__} {count} of {shape}",
            partial(create, count),
            over_time(**{f"inputs_{i}": shape for i in range(1, count + 1)}),
        )
        for create in (bl.Add, bl.Multiply)
        for count, shape in ((2, (3,)), (2, (2, 2)), (3, (3,)), (4, (2, 1)))
    ),
    *(
        Case(f"Highway{kind}", bl.Highway, over_time(**dict.fromkeys("HTx", shape)))
        for kind, shape in (("", 3), (" image", (2, 1, 2)))
    ),
    *(
        Case(f"PReLU of {shape}{' shared' * shared}", partial(bl.PReLU, shared), over_time(*shape))
        for shape, shared in (((3,), False), ((2, 1, 3), False), ((2, 2), True))
    ),
    # With another factor, its deltas are not the derivatives, on purpose.
    Case("DeltasScaling by 1", partial(bl.DeltasScaling, 1), over_time(3)),
    *(
        Case(
            f"BinomialCrossEntropy{kind}",
            bl.BinomialCrossEntropy,
            over_time(*size, targets=size),
            {"default": inside, "targets": targets},
        )
        for kind, size, targets in (
            ("", (3,), probabilities),
            (" image", (2, 1, 2), zeros_and_ones),
        )
    ),
    *(
        Case(f"{create.__name__} of {shape}", create, {"default": shape})
        for create in (bl.L1Decay, bl.L2Decay)
        for shape in (("T", "B", 3), ("T", "B", 2, 1, 2), ("B", 3), ("B", 2, 2), (4,), (3, 2))
    ),
    *(
        Case(
            f"Power ({scale} x + {shift}) ** {power}",
            partial(bl.Power, scale, shift, power),
            over_time(3),
            {"default": inside} if power in (0.5, -1.5) else {},
        )
        for scale, shift, power in (
            (1, 0, 1),
            (-2.0, 0.5, 3),
            (2.0, 0.5, 0.5),
            (1.0, 0.3, -1.5),
            (1.0, 0.0, 0),
            (0, 2.0, 2),
        )
    ),
    Case("HingeLoss", bl.HingeLoss, over_time(4, targets=1), {"targets": classes(4)}),
    Case(
        "HingeLoss image",
        partial(bl.HingeLoss, 0.3),
        over_time(2, 2, 3, targets=(2, 2, 1)),
        ONE_CLASS,
    ),
    *(
        Case(f"GLU {a}", partial(bl.GLU, a), over_time(*size))
        for a, size in (("sigmoid", (6,)), ("linear", (6,)), ("gelu", (6,)), ("tanh", (2, 1, 4)))
    ),
    Case("SwiGLU", bl.SwiGLU, over_time(2, 6)),
    *(
        Case(
            f"TiedFullyConnected {a}",
            lambda a=a, s=size: bl.TiedFullyConnected(bl.FullyConnected(3), a, size=s),
            shape,
        )
        for a, size, shape in (
            ("rel", 4, over_time(3)),
            ("linear", (2, 2), over_time(3)),
            ("gelu", 4, over_time(3, 1)),
        )
    ),
    *(
        Case(f"Expression {formula}", partial(bl.Expression, formula, parameters), shapes, sources)
        for formula, parameters, shapes, sources in (
            ("x", {}, over_time(3), {}),
            ("tanh(x) * (1 + sig(x)) + 0.5 * sig(x)", {}, over_time(3), {}),
            (
                "tanh(scale * x + shift) * gate",
                {"scale": ("...",), "shift": ("F",)},
                over_time(2, 3, gate=1),
                {},
            ),
            ("where(x > other, x ** 2, other)", {}, over_time(2, 1, 2, other=(2, 1, 2)), {}),
            (
                "scale * (x - mean(x, axis=-1)) / sqrt(var(x, axis=-1) + 0.1)",
                {"scale": ("F",)},
                over_time(2, 4),
                {},
            ),
            (
                "softmax(x / temperature, axis=-1) * mask",
                {"temperature": 1},
                over_time(4, mask=(2, 1)),
                {"parameters.temperature": inside},
            ),
            (
                "logsumexp(x, -1) - gather(x, targets, -1)",
                {},
                over_time(4, targets=1),
                {"targets": classes(4)},
            ),
            ("max(x, axis=(2, 3)) + min(x, axis=2)", {}, over_time(2, 3), UNTIED),
            ("tanh(x @ W)", {"W": (3, 2)}, over_time(3), {}),
            ("take(V, word, axis=0)", {"V": (4, 2)}, over_time(word=1), {"word": classes(4)}),
            ("a * b", {}, over_time(a=3, b=3), {}),
        )
    ),
    *(
        Case(
            f"TimePooling {kind}{' masked' * masked} of {shape}",
            partial(bl.TimePooling, kind),
            over_time(*shape, masked=masked),
            {**UNTIED, **A_MASK},
        )
        for kind in ("avg", "last", "max", "sum")
        for masked in (False, True)
        for shape in ((3,), (2, 2))
    ),
    Case("BatchNorm per sequence", bl.BatchNorm, {"default": ("B", 3)}, {}, SEVERAL_SEQUENCES),
]

#: Cases that are checked on inputs without a time axis, too.
ALSO_PER_SEQUENCE = {
    *("FullyConnected gelu", "Elementwise tanh", "Dropout", "Dropout shared over time"),
    *("LayerNorm image", "Convolution2D 1x1", "Pooling2D max (2, 2) stride (2, 2) padding 0"),
    *("Embedding of several", "Expression tanh(scale * x + shift) * gate", "Mask per step"),
    *("Add 2 of (3,)", "Highway", "Split", "SoftmaxCE", "SigmoidCE", "SquaredError image"),
    *("HingeLoss", "Accuracy with mask"),
}
CASES += [
    Case(f"{case.name}, per sequence", case.create, per_sequence(case.in_shapes), case.inputs)
    for case in CASES
    if case.name in ALSO_PER_SEQUENCE
]
assert sum(case.name.endswith(", per sequence") for case in CASES) == len(ALSO_PER_SEQUENCE)
