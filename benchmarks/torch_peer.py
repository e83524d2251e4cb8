"""The workloads in PyTorch (eager, on the CPU)."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import THREADS
from benchmarks.timing import Call
from benchmarks.workloads import LEARNING_RATE, Workload

__all__ = ["VERSION", "product", "torch_calls"]

VERSION = f"PyTorch {torch.__version__}"

torch.set_num_threads(THREADS)


class _Lstm(nn.Module):
    """An LSTM (without peepholes) that returns its outputs alone."""

    def __init__(self, n_in: int, size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def _mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


MODELS = {
    "mlp": lambda: _mlp(784, 500, 500, 10),
    "tiny_mlp": lambda: _mlp(784, 32, 32, 10),
    "lstm": lambda: nn.Sequential(_Lstm(64, 256), nn.Linear(256, 64)),
    "small_lstm": lambda: nn.Sequential(_Lstm(16, 32), nn.Linear(32, 16)),
    "cnn": _cnn,
}


def _batch(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    data = workload.data()
    x = torch.from_numpy(data["default"])
    if workload.T == 1:
        x = x[0]
    if x.ndim == 4 and workload.key == "cnn":  # channels last: the faster order on the CPU too
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return x, torch.from_numpy(data["targets"]).reshape(-1)


def torch_calls(workload: Workload) -> dict[str, Call]:
    """Return what is timed: a forward pass, a backward pass, a whole step."""
    torch.manual_seed(0)
    model = MODELS[workload.key]()
    if workload.key == "cnn":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, targets = _batch(workload)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, fused=True)
    loss = torch.zeros(())

    def forward() -> None:
        nonlocal loss
        optimizer.zero_grad(set_to_none=True)
        loss = (
            functional.cross_entropy(model(x).flatten(0, -2), targets, reduction="sum") / workload.B
        )

    def backward() -> None:
        loss.backward()

    def step() -> None:
        forward()
        backward()
        optimizer.step()

    return {
        "forward": Call(forward),
        "backward": Call(backward, before=forward),
        "step": Call(step),
    }


def product(a: np.ndarray, b: np.ndarray) -> Call:
    """Return the product of two matrices as a call."""
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    out = torch.empty_like(left)
    return Call(lambda: torch.mm(left, right, out=out))
