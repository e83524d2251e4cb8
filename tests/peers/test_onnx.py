"""Modules of PyTorch, written as ONNX by PyTorch, and read here."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange import from_onnx
from brainstorm.handlers import NumpyHandler

Change = Callable[[np.ndarray], np.ndarray]


class Tagger(nn.Module):
    """A recurrent network with an output for each step."""

    def __init__(self, kind: Any, words: int = 0, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 4) if words else nn.Identity()
        self.recurrent = kind(4, 6, **options)
        self.output = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.recurrent(self.words(x))[0])


class Residual(nn.Module):
    """Convolutions, a sum, a concatenation, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.inner = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1),
        )  # fmt: skip
        self.output = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        both = torch.cat([x + self.inner(x), functional.gelu(x)], 1)
        pooled = functional.avg_pool2d(both, 2).mean((2, 3))
        return torch.log_softmax(self.output(pooled), 1)


class Excited(nn.Module):
    """Channels scaled by what a small network makes of their means."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.up = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.leaky_relu(self.first(x), 0.2)
        means = functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.up(functional.relu6(self.down(means))))


class Classifier(nn.Module):
    """A recurrence whose output becomes one vector for each sequence, and that its class."""

    def __init__(self, kind: type[nn.Module], what: str, **options: Any) -> None:
        super().__init__()
        self.what, self.recurrent = what, kind(4, 6, **options)
        self.out = nn.Linear(6 * (1 + self.recurrent.bidirectional), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, state = self.recurrent(x)
        state = state[0] if isinstance(state, tuple) else state
        pooled = {
            "last step": lambda: y[-1],
            "last state": lambda: torch.cat(list(state), dim=-1),
            "mean": lambda: y.mean(dim=0),
            "maximum": lambda: y.amax(dim=0),
        }[self.what]()
        return torch.log_softmax(self.out(pooled), dim=-1)


def vectors(x: np.ndarray) -> np.ndarray:
    return x[None]


def first_step(y: np.ndarray) -> np.ndarray:
    return y[0]


def same(x: np.ndarray) -> np.ndarray:
    return x


def swapped(x: np.ndarray) -> np.ndarray:
    return x.swapaxes(0, 1)


def nhwc(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 3, 1)[None]


def nchw(y: np.ndarray) -> np.ndarray:
    return y[0].transpose(0, 3, 1, 2)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(),
        nn.Conv2d(4, 6, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10), nn.Tanh(),
        nn.Linear(10, 64), nn.Unflatten(1, (4, 4, 4)), nn.ConvTranspose2d(4, 1, 3, 2, 1, 1),
        nn.Sigmoid(),
    )  # fmt: skip


class UNet(nn.Module):
    """Down and up again, with what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = functional.mish(self.down(x))
        inner = functional.hardswish(self.inner(functional.max_pool2d(before, 2, ceil_mode=True)))
        wide = functional.interpolate(inner, size=before.shape[2:], mode="bilinear")
        joined = functional.selu(self.up(torch.cat([before, wide], 1)))
        return functional.pixel_shuffle(functional.interpolate(self.out(joined), scale_factor=2), 2)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.Softmax(-1)
    )


#: Module, shape of its input, how data are given to the network, and what comes out of it.
ROWS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Change, Change]] = {
    "mlp": (mlp, (5, 4), vectors, first_step),
    "cnn": (cnn, (3, 2, 8, 8), nhwc, first_step),
    "residual": (Residual, (2, 3, 8, 8), nhwc, first_step),
    "excited": (Excited, (2, 3, 8, 8), nhwc, nchw),
    "u-net": (UNet, (2, 2, 5, 6), nhwc, nchw),
    "pooled with zeros": (
        lambda: nn.Sequential(
            nn.ZeroPad2d((1, 0, 0, 2)), nn.AvgPool2d(3, 2, 1), nn.ConstantPad2d(1, 0.5), nn.ELU()
        ),
        (2, 3, 8, 8), nhwc, nchw,
    ),
    "pooled volumes": (
        lambda: nn.Sequential(nn.MaxPool3d(2, ceil_mode=True), nn.AdaptiveAvgPool3d(1)),
        (2, 3, 4, 5, 3), lambda x: np.moveaxis(x, 1, -1)[None], lambda y: np.moveaxis(y[0], -1, 1),
    ),
    "pooled signals": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.MaxPool1d(3, 2)),
        (2, 2, 9), lambda x: x.transpose(0, 2, 1)[None], lambda y: y[0].swapaxes(1, 2),
    ),
    "autoencoder": (autoencoder, (2, 1, 8, 8), nhwc, nchw),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ELU()),
        (2, 2, 6, 6), nhwc, nchw,
    ),
    "signals": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2)),
        (2, 2, 8), lambda x: x.transpose(0, 2, 1)[None], first_step,
    ),
    **{
        kind.__name__: (lambda kind=kind: Tagger(kind), (7, 3, 4), same, same)
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    **{
        f"{kind.__name__} in both directions": (
            lambda kind=kind: Tagger(kind, num_layers=2, bidirectional=True, batch_first=True),
            (3, 7, 4), swapped, swapped,
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    **{
        f"the {what} of {kind.__name__}": (
            lambda kind=kind, what=what: Classifier(kind, what), (7, 3, 4), same, same,
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for what in ("last step", "last state", "mean", "maximum")
    },
    "last states in both directions": (
        lambda: Classifier(nn.GRU, "last state", bidirectional=True, batch_first=True),
        (3, 7, 4), swapped, same,
    ),
    "words": (
        lambda: Tagger(nn.LSTM, words=9), (7, 3), lambda x: x[:, :, None], same
    ),
    "words, batch first": (
        lambda: Tagger(nn.LSTM, words=9, batch_first=True), (3, 7),
        lambda x: x.T[:, :, None], swapped,
    ),
}  # fmt: skip


def exported(module: nn.Module, x: torch.Tensor, is_dynamic: bool) -> Any:
    """Return the model that PyTorch makes of a module."""
    stream = io.BytesIO()
    axes = {"x": {0: "first", 1: "second"} if x.ndim < 4 and x.shape[1] > 4 else {0: "first"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls this exporter the old one
        torch.onnx.export(
            module, (x,), stream, dynamo=False, opset_version=17, input_names=["x"],
            dynamic_axes=axes if is_dynamic else None,
        )  # fmt: skip
    return onnx.load_from_string(stream.getvalue())


@pytest.mark.parametrize("is_dynamic", [True, False])
@pytest.mark.parametrize("kind", ROWS)
def test_a_module_becomes_a_network(kind: str, is_dynamic: bool) -> None:
    make, shape, to_net, from_net = ROWS[kind]
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randint(0, 9, shape) if kind.startswith("words") else torch.randn(shape)
    net = from_onnx(exported(module, x, is_dynamic), handler=NumpyHandler(np.float32))
    expected = module(x).detach().numpy()
    found = from_net(net.predict({"default": to_net(x.numpy()).astype(np.float32)}))
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("pick", "message"),
    [
        (lambda y, state: y[0], "takes some of the time steps .* but the last step"),
        (lambda y, state: state[1], "its last cell"),
    ],
)
def test_other_steps_and_cells_are_refused(pick: Any, message: str) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return pick(*self.recurrent(x))

    model = exported(Part(), torch.randn(7, 3, 4), True)
    with pytest.raises(NetworkValidationError, match=message):
        from_onnx(model)
