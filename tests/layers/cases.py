"""One row per layer and combination of options: adding a layer means adding rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """The timing of clockwork units."""
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


def perhaps_masked(
    shapes: Mapping[str, tuple[Any, ...]], masked: bool, time: str = "T"
) -> dict[str, tuple[Any, ...]]:
    """The same shapes, perhaps with a mask of steps."""
    return {**shapes, **({"mask": (time, "B", 1)} if masked else {})}


def vector(size: int = 3) -> dict[str, tuple[Any, ...]]:
    return {"default": ("T", "B", size)}


def image(*size: int) -> dict[str, tuple[Any, ...]]:
    return {"default": ("T", "B", *size)}


def pair_of(shape: tuple[Any, ...], second: str = "targets") -> dict[str, tuple[Any, ...]]:
    return {"default": ("T", "B", *shape), second: ("T", "B", *shape)}


ACTIVATIONS = (
    *("sigmoid", "rel", "tanh", "linear", "el"),
    *("softplus", "leaky_rel", "gelu", "silu", "hard_sigmoid", "exp"),
    *("selu", "mish", "hard_swish"),
)

CASES = [
    Case("NoOp", bl.NoOp, vector()),
    Case("NoOp image", bl.NoOp, image(2, 3, 2)),
    *(
        Case(f"FullyConnected {a}", lambda a=a: bl.FullyConnected(4, a), vector())
        for a in ACTIVATIONS
    ),
    Case(
        "FullyConnected shape to shape", lambda: bl.FullyConnected((2, 2), "tanh"), image(2, 1, 2)
    ),
    Case("FullyConnected keeps shape", lambda: bl.FullyConnected(activation="tanh"), image(2, 3)),
    *(Case(f"Elementwise {a}", lambda a=a: bl.Elementwise(a), vector()) for a in ACTIVATIONS),
    Case("Dropout", lambda: bl.Dropout(0.3), vector(5)),
    Case("Dropout shared over time", lambda: bl.Dropout(0.3, shared_over_time=True), vector(5)),
    Case("Dropout of nothing", lambda: bl.Dropout(0.0), vector()),
    Case(
        "SoftmaxCE",
        bl.SoftmaxCE,
        {**vector(4), "targets": ("T", "B", 1)},
        {"targets": classes(4)},
    ),
    Case(
        "SoftmaxCE image",
        bl.SoftmaxCE,
        {**image(2, 2, 3), "targets": ("T", "B", 2, 2, 1)},
        {"targets": classes(3)},
    ),
    *(
        Case(
            f"SoftmaxCE weights {weights} smoothing {smoothing}",
            lambda w=weights, s=smoothing: bl.SoftmaxCE(None, w, s),
            {**vector(3), "targets": ("T", "B", 1)},
            {"targets": classes(3)},
        )
        for weights, smoothing in (([0.5, 2, 0], 0.0), (None, 0.2), ([0.5, 2, 1], 0.3))
    ),
    Case("SigmoidCE", bl.SigmoidCE, pair_of((3,)), {"targets": probabilities}),
    Case("SigmoidCE image", bl.SigmoidCE, pair_of((2, 2)), {"targets": zeros_and_ones}),
    Case("SquaredError", bl.SquaredError, pair_of((3,))),
    Case("HuberLoss", bl.HuberLoss, pair_of((3,))),
    Case("HuberLoss 0.3", lambda: bl.HuberLoss(0.3), pair_of((2, 1, 2))),
    Case("SquaredError image", bl.SquaredError, pair_of((2, 1, 2))),
    Case(
        "SquaredDifference",
        bl.SquaredDifference,
        {"inputs_1": ("T", "B", 3), "inputs_2": ("T", "B", 3)},
    ),
    Case("Mask per step", bl.Mask, {**vector(), "mask": ("T", "B", 1)}, {"mask": zeros_and_ones}),
    Case("Mask per step, image", bl.Mask, {**image(2, 3, 2), "mask": ("T", "B", 1)}),
    Case("Mask per pixel", bl.Mask, {**image(2, 3, 2), "mask": ("T", "B", 2, 3, 1)}),
    Case("Mask per element", bl.Mask, pair_of((2, 3), "mask")),
    Case("Merge", bl.Merge, {"inputs_1": ("T", "B", 3), "inputs_2": ("T", "B", 2)}),
    Case("Merge channels", bl.Merge, {"inputs_1": ("T", "B", 2, 2), "inputs_2": ("T", "B", 2, 3)}),
    Case("Merge per sequence", bl.Merge, {"inputs_1": ("B", 3), "inputs_2": ("B", 2)}),
    Case("Merge constants", bl.Merge, {"inputs_1": (3,), "inputs_2": (2,)}),
    Case("Loss", lambda: bl.Loss(2.5), vector()),
    Case("Loss of a batch", bl.Loss, {"default": ("B", 2, 2)}),
    Case("Loss of a constant", bl.Loss, {"default": (2, 3)}),
    Case("BatchNorm", bl.BatchNorm, vector(), {}, MORE_THAN_ONE),
    Case("BatchNorm image", lambda: bl.BatchNorm(decay=0.5, epsilon=0.1), image(2, 3, 2)),
    Case(
        "BatchNorm masked",
        bl.BatchNorm,
        {**vector(), "mask": ("T", "B", 1)},
        {"mask": zeros_and_ones},
        MORE_THAN_ONE,
    ),
    *(
        Case(
            f"Convolution2D {a} stride {stride} padding {padding}",
            lambda a=a, s=stride, p=padding: bl.Convolution2D(2, (2, 3), s, p, a),
            image(4, 5, 2),
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
        lambda: bl.Convolution2D(3, (1, 1), activation="sigmoid"),
        image(2, 2, 2),
    ),
    *(
        Case(
            f"Pooling2D {kind} {kernel} stride {stride} padding {padding}",
            lambda k=kind, z=kernel, s=stride, p=padding: bl.Pooling2D(z, k, s, p),
            image(4, 5, 2),
            UNTIED,
        )
        for kind in ("max", "avg")
        for kernel, stride, padding in (
            ((2, 2), (2, 2), 0),
            ((3, 2), (1, 2), 1),
            ((1, 2), (2, 1), 2),
        )
    ),
    *(
        Case(f"Recurrent {a}", lambda a=a: bl.Recurrent(3, a), vector(2))
        for a in ("tanh", "sigmoid", "rel", "gelu", "silu")
    ),
    Case("Recurrent of images", lambda: bl.Recurrent(2), image(2, 1, 2)),
    *(
        Case(f"Lstm {a}", lambda a=a: bl.Lstm(3, a), vector(2))
        for a in ("tanh", "sigmoid", "rel", "gelu", "silu")
    ),
    Case("Lstm over S", lambda: bl.Lstm(3), {"default": ("S", "B", 2)}),
    Case("Lstm of images", lambda: bl.Lstm(2), image(2, 1, 2)),
    *(
        Case(f"Gru {a}", lambda a=a: bl.Gru(3, a), vector(2))
        for a in ("tanh", "sigmoid", "rel", "gelu")
    ),
    Case("Gru of images", lambda: bl.Gru(2), image(2, 1, 2)),
    Case("Embedding", lambda: bl.Embedding(4, 3), vector(1), {"default": classes(4)}),
    Case("Embedding of several", lambda: bl.Embedding(4, 2), vector(3), {"default": classes(4)}),
    *(
        Case(
            f"MultiHeadSelfAttention{' causal' * causal}{' masked' * masked}{' rotary' * rotary}",
            lambda causal=causal, rotary=rotary: bl.MultiHeadSelfAttention(2, 4, causal, rotary),
            perhaps_masked(vector(), masked),
            {"mask": zeros_and_ones},
        )
        for causal, masked, rotary in (
            (False, False, False),
            (False, True, False),
            (True, False, False),
            (True, True, False),
            (False, False, True),
            (True, True, True),
        )
    ),
    *(
        Case(
            f"MultiHeadAttention{' causal' * causal}{' masked' * masked}{' rotary' * rotary}",
            lambda causal=causal, rotary=rotary: bl.MultiHeadAttention(2, 4, causal, rotary),
            perhaps_masked({**vector(), "memory": ("T", "B", 2)}, masked),
            {"mask": zeros_and_ones},
        )
        for causal, masked, rotary in (
            (False, False, False),
            (False, True, True),
            (True, True, False),
            (True, False, True),
        )
    ),
    *(
        Case(
            f"MultiHeadAttention of {' to '.join(times)}{' masked' * masked}{' rotary' * rotary}",
            lambda rotary=rotary: bl.MultiHeadAttention(2, 4, rotary=rotary),
            perhaps_masked(
                {"default": (times[0], "B", 3), "memory": (times[1], "B", 2)}, masked, times[1]
            ),
            {"mask": zeros_and_ones},
        )
        for times, masked, rotary in (
            ("TS", False, False),
            ("TS", True, True),
            ("ST", True, True),
            ("SS", True, False),
        )
    ),
    Case("MultiHeadSelfAttention of images", lambda: bl.MultiHeadSelfAttention(1), image(1, 2, 2)),
    Case("PositionalEncoding", bl.PositionalEncoding, vector(5)),
    Case("LearnedPositionalEncoding", lambda: bl.LearnedPositionalEncoding(5), vector(2)),
    Case(
        "CTC",
        bl.CTC,
        {**vector(3), "labels": ("T", "B", 1)},
        {"labels": label_sequences(3, 5)},
    ),
    Case(
        "CTC masked",
        bl.CTC,
        {**vector(4), "labels": ("T", "B", 1), "mask": ("T", "B", 1)},
        {"labels": label_sequences(4, 1), "mask": some_ones},
    ),
    Case("Reverse", bl.Reverse, vector()),
    Case("Reverse image", bl.Reverse, image(2, 1, 2)),
    Case(
        "Reverse masked",
        bl.Reverse,
        {**image(2, 2), "mask": ("T", "B", 1)},
        {"mask": zeros_and_ones},
    ),
    *(
        Case(
            f"{create.__name__}{' masked' * masked}",
            lambda create=create: create(3),
            perhaps_masked(vector(2), masked),
            {"mask": zeros_and_ones, "parameters.timing": periods},
        )
        for create, masked in (
            *((create, True) for create in (bl.Recurrent, bl.Lstm, bl.Gru)),
            *((create, m) for create in (bl.Clockwork, bl.ClockworkLstm) for m in (False, True)),
        )
    ),
    *(
        Case(
            f"Convolution2D dilation {dilation} groups {groups}",
            lambda d=dilation, g=groups: bl.Convolution2D(
                4, (2, 3), (2, 1), 1, "tanh", dilation=d, groups=g
            ),
            image(4, 5, 4),
        )
        for dilation, groups in (((2, 1), 1), ((1, 2), 2), ((1, 1), 4))
    ),
    *(
        Case(
            f"Convolution1D stride {stride} padding {padding} dilation {dilation} groups {groups}",
            lambda s=stride, p=padding, d=dilation, g=groups: bl.Convolution1D(
                2, 3, s, p, "tanh", dilation=d, groups=g
            ),
            image(6, 2),
        )
        for stride, padding, dilation, groups in ((1, 0, 1, 1), (2, 1, 2, 1), (3, 2, 1, 2))
    ),
    *(
        Case(
            f"Convolution3D stride {stride} padding {padding} dilation {dilation} groups {groups}",
            lambda s=stride, p=padding, d=dilation, g=groups: bl.Convolution3D(
                2, (2, 1, 2), s, p, "tanh", dilation=d, groups=g
            ),
            image(3, 2, 3, 2),
        )
        for stride, padding, dilation, groups in (
            ((1, 1, 1), 0, (1, 1, 1), 1),
            ((2, 1, 3), 1, (2, 1, 1), 2),
        )
    ),
    *(
        Case(f"{create(1).layer.layer_type} of ints", lambda c=create: c(2), shape, UNTIED)
        for create, shape in (
            (lambda n: bl.Convolution2D(2, n, n, dilation=n), image(6, 5, 1)),
            (lambda n: bl.Convolution3D(1, n, n), image(2, 3, 2, 1)),
            (lambda n: bl.ConvolutionTranspose2D(2, n, n), image(2, 3, 1)),
            (lambda n: bl.Pooling2D(n, stride=n), image(5, 4, 2)),
            (lambda n: bl.Crop(n, 1), image(4, 3, 2)),
            (lambda n: bl.Pooling3D(n, stride=n), image(3, 2, 4, 1)),
            (lambda n: bl.Padding(n, 0.5), image(2, 1, 2)),
            (lambda n: bl.Upsampling2D(n), image(2, 3, 2)),
        )
    ),
    *(
        Case(
            f"ConvolutionTranspose2D stride {stride} padding {padding} + {extra}",
            lambda s=stride, p=padding, e=extra, a=activation: bl.ConvolutionTranspose2D(
                2, (2, 3), s, p, e, a
            ),
            image(3, 2, 2),
        )
        for stride, padding, extra, activation in (
            ((1, 1), 0, 0, "rel"),
            ((2, 3), 1, 1, "tanh"),
            ((3, 2), 0, 0, "linear"),
            ((1, 2), 1, 0, "gelu"),
        )
    ),
    *(
        Case(
            f"{layer.layer_type}{' avg' * (layer.layer_kwargs.get('type') == 'avg')} padded by "
            f"{layer.layer_kwargs['padding']}",
            create,
            shape,
            UNTIED,
        )
        for create, shape in (
            (lambda: bl.Convolution1D(2, 3, 2, (2, 0), "tanh"), image(4, 2)),
            (lambda: bl.Convolution2D(2, (2, 3), (2, 1), ((0, 2), (1, 0)), "tanh"), image(3, 3, 2)),
            (lambda: bl.Convolution2D(2, (2, 3), (2, 1), (1, (2, 1)), "tanh"), image(3, 3, 2)),
            (
                lambda: bl.Convolution3D(2, 2, 2, ((0, 1), (1, 0), 1), "tanh"),
                image(2, 3, 2, 1),
            ),
            (
                lambda: bl.ConvolutionTranspose2D(2, 3, 2, ((2, 0), (0, 1)), activation="tanh"),
                image(3, 2, 2),
            ),
            *(
                (lambda k=kind: bl.Pooling2D((3, 2), k, (2, 1), ((2, 0), (0, 1))), image(3, 3, 2))
                for kind in ("max", "avg")
            ),
            (lambda: bl.Padding((0, 2), 1.5), image(3, 2)),
            (lambda: bl.Padding(((0, 2), 1), -1), image(2, 1, 2)),
            (lambda: bl.Padding((1, (0, 2), (1, 0))), image(1, 2, 2, 2)),
        )
        for layer in (create().layer,)
    ),
    *(
        Case(
            f"{create.__name__} {kind} {window} stride {stride} padding {padding}{' up' * up}",
            lambda c=create, k=kind, z=window, s=stride, p=padding, u=up: c(
                z, k, s, p, ceil_mode=u
            ),
            shape,
            UNTIED,
        )
        for create, shape, window, stride, padding, up in (
            (bl.Pooling1D, image(6, 2), 3, 2, 0, False),
            (bl.Pooling1D, image(6, 2), 3, 2, (1, 2), True),
            (bl.Pooling2D, image(4, 5, 2), (2, 3), (3, 2), 0, True),
            (bl.Pooling3D, image(3, 4, 3, 2), (2, 3, 2), (1, 2, 2), (1, 0, (0, 1)), False),
            (bl.Pooling3D, image(3, 4, 2, 1), 2, 2, 0, True),
        )
        for kind in ("max", "avg")
    ),
    *(
        Case(
            f"Upsampling2D {kind} {options} of {shape}",
            lambda k=kind, o=options: bl.Upsampling2D(type=k, **o),
            image(*shape),
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
        Case(f"{create.__name__} {order}", lambda c=create, o=order: c(2, o), shape)
        for create, shape in (
            (bl.DepthToSpace, image(2, 3, 8)),
            (bl.SpaceToDepth, image(4, 2, 3)),
        )
        for order in ("CRD", "DCR")
    ),
    *(
        Case(f"GlobalPooling2D {k}", lambda k=k: bl.GlobalPooling2D(k), image(3, 2, 2), UNTIED)
        for k in ("max", "avg")
    ),
    *(
        Case(
            f"ChannelPooling {kind} of {shape['default']}",
            lambda k=kind, s=size: bl.ChannelPooling(s, k),
            shape,
            UNTIED,
        )
        for size, shape in ((2, vector(6)), (3, image(2, 2, 6)), (1, vector(2)))
        for kind in ("max", "avg")
    ),
    Case("Crop in the centre", lambda: bl.Crop((2, 1)), image(5, 4, 2)),
    Case("Crop at an offset", lambda: bl.Crop((2, 3), (2, 0)), image(4, 3, 2)),
    *(
        Case(
            f"LocalResponseNormalization of {size}",
            lambda s=size: bl.LocalResponseNormalization(s, 0.5, 0.6, 2.0),
            shape,
        )
        for size, shape in ((1, vector(3)), (4, image(2, 1, 6)), (5, vector(3)))
    ),
    Case("LayerNorm", bl.LayerNorm, vector(4)),
    Case("LayerNorm image", lambda: bl.LayerNorm(0.1), image(2, 3, 2)),
    Case("RMSNorm", bl.RMSNorm, vector(4)),
    Case("RMSNorm image", lambda: bl.RMSNorm(0.1), image(2, 3, 2)),
    Case("GroupNorm", lambda: bl.GroupNorm(2), vector(6)),
    *(
        Case(f"GroupNorm image {groups}", lambda g=groups: bl.GroupNorm(g, 0.1), image(2, 3, 4))
        for groups in (1, 2, 4)
    ),
    Case("Reshape vector", lambda: bl.Reshape((2, 3)), vector(6)),
    Case("Reshape image", lambda: bl.Reshape(8), image(2, 1, 4)),
    Case("Slice", lambda: bl.Slice(1, 3), vector(4)),
    Case("Slice channels", lambda: bl.Slice(0, 1), image(2, 3, 2)),
    Case("Slice rows", lambda: bl.Slice(1, 2, 0), image(3, 2, 2)),
    Case("Slice columns", lambda: bl.Slice(1, 3, axis=-2), image(2, 3, 2)),
    Case("Split", lambda: bl.Split((1, 3, 2)), vector(6)),
    Case("Argmax", bl.Argmax, vector(4)),
    Case("Argmax over channels", bl.Argmax, image(2, 3, 2)),
    Case(
        "Accuracy",
        bl.Accuracy,
        {"default": ("T", "B", 3), "targets": ("T", "B", 1)},
        {"targets": classes(3)},
    ),
    Case(
        "Accuracy with mask",
        bl.Accuracy,
        {"default": ("T", "B", 3), "targets": ("T", "B", 1), "mask": ("T", "B", 1)},
        {"targets": classes(3), "mask": zeros_and_ones},
    ),
    Case(
        "BinaryAccuracy",
        lambda: bl.BinaryAccuracy(0.3),
        {"default": ("T", "B", 3), "targets": ("T", "B", 3)},
        {"default": probabilities, "targets": zeros_and_ones},
    ),
    Case("Split channels", lambda: bl.Split((2, 1)), image(2, 2, 3)),
    *(
        Case(
            f"{create.__name__} {count} of {shape}",
            lambda c=create, n=count: c(n),
            {f"inputs_{i}": ("T", "B", *shape) for i in range(1, count + 1)},
        )
        for create in (bl.Add, bl.Multiply)
        for count, shape in ((2, (3,)), (2, (2, 2)), (3, (3,)), (4, (2, 1)))
    ),
    *(
        Case(f"Highway{kind}", bl.Highway, dict.fromkeys("HTx", ("T", "B", *shape)))
        for kind, shape in (("", (3,)), (" image", (2, 1, 2)))
    ),
    *(
        Case(f"PReLU of {shape}{' shared' * shared}", lambda s=shared: bl.PReLU(s), image(*shape))
        for shape, shared in (((3,), False), ((2, 1, 3), False), ((2, 2), True))
    ),
    # With another factor, its deltas are not the derivatives, on purpose.
    Case("DeltasScaling by 1", lambda: bl.DeltasScaling(1), vector()),
    Case(
        "BinomialCrossEntropy",
        bl.BinomialCrossEntropy,
        pair_of((3,)),
        {"default": inside, "targets": probabilities},
    ),
    Case(
        "BinomialCrossEntropy image",
        bl.BinomialCrossEntropy,
        pair_of((2, 1, 2)),
        {"default": inside, "targets": zeros_and_ones},
    ),
    *(
        Case(f"{create.__name__} of {shape}", create, {"default": shape})
        for create in (bl.L1Decay, bl.L2Decay)
        for shape in (("T", "B", 3), ("T", "B", 2, 1, 2), ("B", 3), ("B", 2, 2), (4,), (3, 2))
    ),
    *(
        Case(
            f"Power ({scale} x + {shift}) ** {power}",
            lambda a=scale, b=shift, p=power: bl.Power(a, b, p),
            vector(),
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
    Case(
        "HingeLoss",
        bl.HingeLoss,
        {**vector(4), "targets": ("T", "B", 1)},
        {"targets": classes(4)},
    ),
    Case(
        "HingeLoss image",
        lambda: bl.HingeLoss(0.3),
        {**image(2, 2, 3), "targets": ("T", "B", 2, 2, 1)},
        {"targets": classes(3)},
    ),
    *(
        Case(f"GLU {a}", lambda a=a: bl.GLU(a), shape)
        for a, shape in (
            *((a, vector(6)) for a in ("sigmoid", "linear", "gelu")),
            ("tanh", image(2, 1, 4)),
        )
    ),
    Case("SwiGLU", bl.SwiGLU, image(2, 6)),
    *(
        Case(
            f"TiedFullyConnected {a}",
            lambda a=a, s=size: bl.TiedFullyConnected(bl.FullyConnected(3), a, size=s),
            shape,
        )
        for a, size, shape in (
            ("rel", 4, vector(3)),
            ("linear", (2, 2), vector(3)),
            ("gelu", 4, image(3, 1)),
        )
    ),
    *(
        Case(
            f"Expression {formula}",
            lambda f=formula, p=parameters: bl.Expression(f, p),
            shapes,
            sources,
        )
        for formula, parameters, shapes, sources in (
            ("x", {}, vector(), {}),
            ("tanh(x) * (1 + sig(x)) + 0.5 * sig(x)", {}, vector(), {}),
            (
                "tanh(scale * x + shift) * gate",
                {"scale": ("...",), "shift": ("F",)},
                {**image(2, 3), "gate": ("T", "B", 1)},
                {},
            ),
            ("where(x > other, x ** 2, other)", {}, pair_of((2, 1, 2), "other"), {}),
            (
                "scale * (x - mean(x, axis=-1)) / sqrt(var(x, axis=-1) + 0.1)",
                {"scale": ("F",)},
                image(2, 4),
                {},
            ),
            (
                "softmax(x / temperature, axis=-1) * mask",
                {"temperature": 1},
                {**vector(4), "mask": ("T", "B", 2, 1)},
                {"parameters.temperature": inside},
            ),
            (
                "logsumexp(x, -1) - gather(x, targets, -1)",
                {},
                {**vector(4), "targets": ("T", "B", 1)},
                {"targets": classes(4)},
            ),
            ("max(x, axis=(2, 3)) + min(x, axis=2)", {}, image(2, 3), UNTIED),
            ("tanh(x @ W)", {"W": (3, 2)}, vector(), {}),
            ("take(V, word, axis=0)", {"V": (4, 2)}, {"word": ("T", "B", 1)}, {"word": classes(4)}),
            ("a * b", {}, {"a": ("T", "B", 3), "b": ("T", "B", 3)}, {}),
        )
    ),
    *(
        Case(
            f"TimePooling {kind}{' masked' * masked} of {shape}",
            lambda k=kind: bl.TimePooling(k),
            perhaps_masked(image(*shape), masked),
            {**UNTIED, "mask": zeros_and_ones},
        )
        for kind in ("avg", "last", "max", "sum")
        for masked in (False, True)
        for shape in ((3,), (2, 2))
    ),
    Case("BatchNorm per sequence", bl.BatchNorm, per_sequence(vector()), {}, SEVERAL_SEQUENCES),
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
