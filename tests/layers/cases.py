"""One row per layer and combination of options: adding a layer means adding rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from brainstorm import layers as bl
from brainstorm.structure.construction import ConstructionWrapper

Source = Callable[[tuple[int, ...], np.random.RandomState], np.ndarray]


class Case(NamedTuple):
    """A layer to check, with the shapes of its inputs and the data that is not just any number."""

    name: str
    create: Callable[[], ConstructionWrapper]
    in_shapes: Mapping[str, tuple[Any, ...]]
    inputs: Mapping[str, Source] = {}


def classes(count: int) -> Source:
    """Class indices in [0, count)."""
    return lambda shape, rnd: rnd.randint(0, count, size=shape).astype(float)


def probabilities(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """Numbers in [0, 1)."""
    return rnd.uniform(size=shape)


def zeros_and_ones(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """A mask."""
    return rnd.randint(0, 2, size=shape).astype(float)


def distinct(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    """Numbers with gaps between them, so that no maximum changes hands."""
    return rnd.permutation(np.prod(shape, dtype=int)).reshape(shape) / 10.0


def vector(size: int = 3) -> dict[str, tuple[Any, ...]]:
    return {"default": ("T", "B", size)}


def image(*size: int) -> dict[str, tuple[Any, ...]]:
    return {"default": ("T", "B", *size)}


def pair_of(shape: tuple[Any, ...], second: str = "targets") -> dict[str, tuple[Any, ...]]:
    return {"default": ("T", "B", *shape), second: ("T", "B", *shape)}


ACTIVATIONS = ("sigmoid", "rel", "tanh", "linear", "el")

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
    Case("SigmoidCE", bl.SigmoidCE, pair_of((3,)), {"targets": probabilities}),
    Case("SigmoidCE image", bl.SigmoidCE, pair_of((2, 2)), {"targets": zeros_and_ones}),
    Case("SquaredError", bl.SquaredError, pair_of((3,))),
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
    Case("BatchNorm", bl.BatchNorm, vector()),
    Case("BatchNorm image", lambda: bl.BatchNorm(decay=0.5, epsilon=0.1), image(2, 3, 2)),
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
            {"default": distinct},
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
        for a in ("tanh", "sigmoid", "rel")
    ),
    Case("Recurrent of images", lambda: bl.Recurrent(2), image(2, 1, 2)),
    *(Case(f"Lstm {a}", lambda a=a: bl.Lstm(3, a), vector(2)) for a in ("tanh", "sigmoid", "rel")),
    Case("Lstm of images", lambda: bl.Lstm(2), image(2, 1, 2)),
]
