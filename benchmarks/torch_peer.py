"""The workloads in PyTorch: eager, compiled, and with bfloat16 products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks import THREADS
from benchmarks.workloads import (
    LEARNING_RATE,
    STACKED,
    Attention,
    BatchNorm,
    Contestant,
    Convolution,
    Dense,
    Embed,
    Lstm,
    Norm,
    Numbers,
    Part,
    Pool,
    Positions,
    Residual,
    Workload,
    in_turn,
    named,
    sinusoids,
)

__all__ = ["VERSION", "contestant", "product"]

VERSION = f"PyTorch {torch.__version__}"

torch.set_num_threads(THREADS)


class _Lstm(nn.LSTM):
    """Without peepholes, and with one bias: the other one is zero, and is not trained."""

    def __init__(self, n: int, size: int) -> None:
        super().__init__(n, size)
        nn.init.zeros_(self.bias_hh_l0).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


class _Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.outputs = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, size = x.shape
        joint = self.inputs(x).view(batch, steps, 3, self.heads, size // self.heads)
        q, k, v = joint.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outputs(found.transpose(1, 2).reshape(batch, steps, size))


class _Positions(nn.Module):
    def __init__(self, steps: int, size: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.from_numpy(sinusoids(steps, size)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


class _Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class _FlatImages(nn.Module):
    """(B, C, H, W) as (B, H * W * C), without a copy where channels come last in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class _Builder:
    """Builds modules with our parameters.

    Attributes:
        places: For every layer and parameter of ours, where it is: a view of one of PyTorch's.
    """

    def __init__(self, workload: Workload, numbers: Numbers) -> None:
        self._steps, self._numbers = workload.T, numbers
        self.places: dict[str, dict[str, torch.Tensor]] = {}
        self.model = nn.Sequential(*self._modules(workload.parts))

    def _modules(self, parts: Iterable[tuple[str, Part]]) -> Iterator[nn.Module]:
        is_image = False
        for name, part in parts:
            if isinstance(part, Dense) and is_image:
                yield _FlatImages()
            is_image = isinstance(part, (Convolution, Pool, BatchNorm))
            if isinstance(part, Residual):
                yield _Residual(*self._modules(named(part.parts, f"{name}_")))
            else:
                module, places = self._module(part, self._numbers.get(name, {}))
                self._fill(name, part, places)
                yield module
            if isinstance(part, BatchNorm) or not getattr(part, "is_linear", True):
                yield nn.ReLU()

    def _module(
        self, part: Part, own: Mapping[str, np.ndarray]
    ) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        """Return the module for a part with these parameters, and where it has them."""
        match part:
            case Dense(size):
                linear = nn.Linear(own["W"].shape[1], size)
                return linear, {"W": linear.weight, "bias": linear.bias}
            case Lstm(size):
                lstm = _Lstm(own["Wi"].shape[1], size)
                weights = {"W": lstm.weight_ih_l0, "R": lstm.weight_hh_l0}
                return lstm, {**weights, "bias": lstm.bias_ih_l0}
            case Convolution(filters, kernel, padding, _):
                conv = nn.Conv2d(own["W"].shape[-1], filters, kernel, padding=padding)
                conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                return conv, {"W": conv.weight.permute(0, 2, 3, 1), "bias": conv.bias}
            case Pool(window, stride):
                return nn.MaxPool2d(window, stride), {}
            case Embed(symbols, size):
                embedding = nn.Embedding(symbols, size)
                return embedding, {"W": embedding.weight}
            case Positions(size):
                return _Positions(self._steps, size), {}
            case Norm():
                norm = nn.LayerNorm(own["gamma"].shape)
                return norm, {"gamma": norm.weight, "beta": norm.bias}
            case BatchNorm():
                batch_norm = nn.BatchNorm2d(len(own["gamma"]))
                return batch_norm, {"gamma": batch_norm.weight, "beta": batch_norm.bias}
            case Attention(heads):
                attention = _Attention(len(own["Wq"]), heads)
                into, out = attention.inputs, attention.outputs
                places = {"W": into.weight, "bias": into.bias}
                return attention, {**places, "Wo": out.weight, "bo": out.bias}
        raise TypeError(f"{part!r} is no layer")

    def _fill(self, name: str, part: Part, places: Mapping[str, torch.Tensor]) -> None:
        views = {}
        for key, tensor in places.items():
            ours = STACKED.get(type(part), {}).get(key, (key,))
            views.update(zip(ours, tensor.detach().chunk(len(ours)), strict=True))
        for key, view in views.items():
            view.copy_(torch.from_numpy(self._numbers[name][key]))
        if views:
            self.places[name] = views


def contestant(
    workload: Workload,
    numbers: Numbers,
    learning_rate: float = LEARNING_RATE,
    is_compiled: bool = False,
    is_half: bool = False,
    device: str = "cpu",
) -> Contestant:
    """Return training steps or predictions.

    Args:
        workload: What is trained.
        numbers: Our parameters, where it starts.
        learning_rate: Of the steps.
        is_compiled: Whether `torch.compile` compiles the forward pass, the loss and, with them,
            the backward pass.
        is_half: Whether products are computed in bfloat16, by autocast.
        device: Where.
    """
    with torch.device(device):
        builder = _Builder(workload, numbers)
    builder.model.to(device)  # tables that come from NumPy
    make = _predictions if workload.predicts else _steps
    run = make(workload, builder.model, learning_rate, is_compiled, is_half)

    def parameters() -> Numbers:
        return {
            name: {key: view.cpu().numpy().copy() for key, view in views.items()}
            for name, views in builder.places.items()
        }

    return Contestant(run, parameters)


def _compiled(function: Callable[..., torch.Tensor], *example: Any) -> Callable[..., Any]:
    """Compile a function for arguments like these."""
    torch.compiler.reset()  # what was compiled for other workloads counts as recompilation
    on_gpu = example[0].is_cuda  # there launches are what small networks wait for
    compiled = torch.compile(function, mode="reduce-overhead" if on_gpu else None)
    compiled(*example)
    return compiled


def _steps(
    workload: Workload, model: nn.Module, learning_rate: float, is_compiled: bool, is_half: bool
) -> Callable[[], torch.Tensor]:
    device = next(model.parameters()).device
    x, targets = (torch.from_numpy(values).to(device) for values in workload.peer_data())
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2)  # channels still come last in memory: the faster order
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, learning_rate, fused=True)

    def get_loss(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
            outputs = model(x).flatten(0, -2)
            return functional.cross_entropy(outputs, targets, reduction="sum") / workload.B

    loss_of = _compiled(get_loss, x, targets) if is_compiled else get_loss

    def step() -> torch.Tensor:
        if is_compiled and x.is_cuda:  # its CUDA graphs have to know where a step begins
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _predictions(
    workload: Workload, model: nn.Module, _: float, is_compiled: bool, is_half: bool
) -> Callable[[], np.ndarray]:
    model.eval()
    inputs = [batch.peer_data()[0] for batch in workload.batches]

    def probabilities(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            outputs = model(x.permute(0, 3, 1, 2) if x.ndim == 4 else x)
        return torch.softmax(outputs.float(), -1)

    with torch.inference_mode():
        example = torch.from_numpy(inputs[0])
        find = _compiled(probabilities, example) if is_compiled else probabilities

    @torch.inference_mode()
    def predict(x: np.ndarray) -> np.ndarray:
        return find(torch.from_numpy(x)).numpy()

    return in_turn(predict, inputs)


def product(
    a: np.ndarray, b: np.ndarray, is_half: bool = False, device: str = "cpu"
) -> Callable[[], object]:
    """Return the product of two matrices, in bfloat16 or float32."""
    dtype = torch.bfloat16 if is_half else torch.float32
    left, right = (torch.from_numpy(x).to(device, dtype) for x in (a, b))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)
