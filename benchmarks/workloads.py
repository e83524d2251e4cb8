"""The workloads: networks as lists of parts, which every library builds in its own way.

All libraries start from the parameters of our network, ``{layer name: {parameter: array}}``, and
give theirs back in the same form, so that a test can compare what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = [
    "LEARNING_RATE",
    "OUTPUT",
    "STACKED",
    "WORKLOADS",
    "Attention",
    "BatchNorm",
    "Contestant",
    "Convolution",
    "Dense",
    "Embed",
    "Lstm",
    "Norm",
    "Numbers",
    "Part",
    "Pool",
    "Positions",
    "Residual",
    "Workload",
    "in_turn",
    "named",
    "sinusoids",
]

Numbers: TypeAlias = Mapping[str, Mapping[str, np.ndarray]]

#: So small that a million steps on the same batch change nothing that would change the time.
LEARNING_RATE = 1e-7

#: The name of the layer before the softmax.
OUTPUT = "Output_projection"


class Dense(NamedTuple):
    """A fully connected layer."""

    size: int
    is_linear: bool = False  # else the activation is relu


class Lstm(NamedTuple):
    """An LSTM with peepholes; PyTorch has none."""

    size: int


class Convolution(NamedTuple):
    """A convolution with a square kernel."""

    filters: int
    kernel: int
    padding: int = 0
    is_linear: bool = False  # else the activation is relu


class Pool(NamedTuple):
    """The maximum of square windows."""

    window: int
    stride: int


class Embed(NamedTuple):
    """A table of vectors."""

    symbols: int
    size: int


class Positions(NamedTuple):
    """Adds sines and cosines of the time step to vectors of a size."""

    size: int


class Norm(NamedTuple):
    """Layer normalization."""


class BatchNorm(NamedTuple):
    """Batch normalization of channels, in training, and relu."""


class Attention(NamedTuple):
    """Causal multi-head self-attention."""

    heads: int


class Residual(NamedTuple):
    """Adds what parts make of the input to the input."""

    parts: tuple[Any, ...]


Part: TypeAlias = (
    Dense | Lstm | Convolution | Pool | Embed | Positions | Norm | BatchNorm | Attention | Residual
)

#: Parameters that others keep as one, and ours that it consists of, in their order.
STACKED = {
    Lstm: {
        "W": ("Wi", "Wf", "Wz", "Wo"),
        "R": ("Ri", "Rf", "Rz", "Ro"),
        "bias": ("bi", "bf", "bz", "bo"),
    },
    Attention: {"W": ("Wq", "Wk", "Wv"), "bias": ("bq", "bk", "bv")},
}


def named(parts: Sequence[Part], prefix: str = "L") -> Iterator[tuple[str, Part]]:
    """Yield the parts with the names of their layers."""
    for number, part in enumerate(parts):
        yield f"{prefix}{number}", part


class Workload(NamedTuple):
    """A classifier, and the batch that it is trained on or predicts for.

    Attributes:
        key: Short name.
        name: What it is, for people.
        T: Time steps.
        B: Sequences.
        features: Shape of the input at one time step.
        classes: Size of the output.
        hidden: What is before the output layer.
        predicts: Whether predictions are timed, from array to array, and not training steps.
        sizes: If given, predictions are made one after the other for so many sequences each.
    """

    key: str
    name: str
    T: int
    B: int
    features: tuple[int, ...]
    classes: int
    hidden: tuple[Part, ...]
    predicts: bool = False
    sizes: tuple[int, ...] = ()

    @property
    def parts(self) -> list[tuple[str, Part]]:
        """All named parts, with the output layer."""
        return [*named(self.hidden), (OUTPUT, Dense(self.classes, is_linear=True))]

    @property
    def is_batch_first(self) -> bool:
        """Whether others have sequences first, then time: those that attend do."""
        return isinstance(self.hidden[0], (Attention, Embed))

    @property
    def batches(self) -> list[Workload]:
        """The workload for each batch that is predicted: itself, or one for each of the sizes."""
        return [self._replace(B=B, sizes=()) for B in self.sizes] or [self]

    def data(self) -> dict[str, np.ndarray]:
        """Return a batch of noise: 'default' (T, B, *features) and 'targets' (T, B, 1)."""
        rnd = np.random.RandomState(0)
        shape, first = (self.T, self.B, *self.features), self.hidden[0]
        if isinstance(first, Embed):
            inputs = rnd.randint(0, first.symbols, shape)
        else:
            inputs = rnd.standard_normal(shape).astype(np.float32)
        return {"default": inputs, "targets": rnd.randint(0, self.classes, (self.T, self.B, 1))}

    def peer_data(self) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and flat targets as others like them: no time if there is one step."""
        x, targets = self.data().values()
        if self.is_batch_first:
            x, targets = x.swapaxes(0, 1), targets.swapaxes(0, 1)
            x = x[..., 0] if isinstance(self.hidden[0], Embed) else x
        elif self.T == 1:
            x = x[0]
        return np.ascontiguousarray(x), targets.reshape(-1).copy()


class Contestant(NamedTuple):
    """What a library does with a workload.

    Attributes:
        run: Does it once. A step returns the loss (or None), a prediction the probabilities, of
            several batches those of the last.
        parameters: Returns the parameters as they are now.
    """

    run: Callable[[], Any]
    parameters: Callable[[], Numbers]


def in_turn(
    predict: Callable[[np.ndarray], np.ndarray], inputs: Sequence[np.ndarray]
) -> Callable[[], np.ndarray]:
    """Return a run that predicts for one input after the other."""

    def run() -> np.ndarray:
        for x in inputs:
            found = predict(x)
        return found

    return run


def sinusoids(steps: int, size: int) -> np.ndarray:
    """Return what `Positions` adds (steps, size): Vaswani et al. 2017, section 3.5."""
    angles = np.arange(steps)[:, None] / 10000.0 ** (np.arange(0, size, 2) / size)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(steps, size).astype("f")


#: Of batches whose size changes from one prediction to the next: as many sizes as traces are kept,
#: and more.
_FEW, _MANY = (
    tuple(np.random.RandomState(0).randint(1, largest + 1, 256).tolist()) for largest in (64, 200)
)

_MLP = Workload("mlp", "MLP 784-500-500-10, B=128", 1, 128, (784,), 10, (Dense(500), Dense(500)))
_SMALL_LSTM = Workload(
    "small_lstm", "LSTM 16-32 + FC 16, T=100, B=8", 100, 8, (16,), 16, (Lstm(32),),
)  # fmt: skip
_CNN = Workload(
    "cnn", "CNN 28x28, 32@5x5, 64@5x5, B=64", 1, 64, (28, 28, 1), 10,
    (Convolution(32, 5), Pool(2, 2), Convolution(64, 5), Pool(2, 2), Dense(128)),
)  # fmt: skip
_SMALL_MLP = Workload("", "", 1, max(_FEW), (64,), 10, (Dense(64),), predicts=True)
_FEED_FORWARD = Residual((Norm(), Dense(512), Dense(128, is_linear=True)))
_BLOCK = (Residual((Norm(), Attention(4))), _FEED_FORWARD)

WORKLOADS = (
    _MLP,
    Workload(
        "tiny_mlp", "MLP 784-32-32-10, B=16", 1, 16, (784,), 10, (Dense(32), Dense(32)),
    ),
    Workload(
        "lstm", "LSTM 64-256 + FC 64, T=50, B=32", 50, 32, (64,), 64, (Lstm(256),),
    ),
    _SMALL_LSTM,
    _CNN,
    Workload(
        "cifar", "CNN 32x32x3, 32-32-64@5x5, B=100", 1, 100, (32, 32, 3), 10,
        (
            Convolution(32, 5, 2), Pool(3, 2), Convolution(32, 5, 2), Pool(3, 2),
            Convolution(64, 5, 2), Pool(3, 2),
        ),
    ),
    Workload(
        "deep_lstm", "LSTM 100-100-100 + FC 100, T=60, B=10", 60, 10, (100,), 100,
        (Lstm(100), Lstm(100)),
    ),
    Workload(
        "transformer", "transformer, 2 blocks of 128, T=64, B=16", 64, 16, (1,), 96,
        (Embed(96, 128), Positions(128), *_BLOCK, *_BLOCK, Norm()),
    ),
    Workload(
        "attention", "causal attention, 3 heads of 64, T=2048, B=1", 2048, 1, (192,), 10,
        (Attention(3),),
    ),
    _SMALL_MLP._replace(key="predict_small_mlp", name="MLP 64-64-10 predicts, B=1", B=1),
    _MLP._replace(key="predict_mlp", name="the first MLP predicts, B=1", B=1, predicts=True),
    _CNN._replace(key="predict_cnn", name="the first CNN predicts, B=1", B=1, predicts=True),
    _SMALL_LSTM._replace(
        key="predict_lstm", name="LSTM 16-32 predicts, T=20, B=1", T=20, B=1, predicts=True
    ),
    _SMALL_MLP._replace(
        key="predict_few", name="MLP 64-64-10 predicts, another B in 1 to 64", sizes=_FEW,
    ),
    _SMALL_MLP._replace(
        key="predict_many", name="MLP 64-64-10 predicts, another B in 1 to 200", sizes=_MANY,
        B=max(_MANY),
    ),
    _MLP._replace(
        key="predict_mlp_few", name="the first MLP predicts, another B in 1 to 64", sizes=_FEW,
        B=max(_FEW), predicts=True,
    ),
)  # fmt: skip
