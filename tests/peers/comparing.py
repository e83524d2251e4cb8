"""Compare a layer with the same computation in PyTorch: outputs, deltas and gradients.

    compare(
        bl.FullyConnected(4, "tanh"),
        {"default": x},
        lambda default, W, bias: torch.tanh(default @ W.T + bias),
    )

The peer gets float64 tensors in the layout of this library, under the names of the layer's inputs
and parameters, and converts with operations of PyTorch: so the gradients come back in this layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from brainstorm.handlers import NumpyHandler
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import LayerHarness, build_layer, check_close

#: Largest relative difference; differences below ATOL times the largest number do not count.
RTOL, ATOL = 1e-5, 1e-9


def compare(
    layer: ConstructionWrapper,
    inputs: Mapping[str, np.ndarray],
    peer: Callable[..., Any],
    *,
    training_pass: bool = True,
    backward: bool = True,
    seed: int = 0,
    **values: Any,
) -> LayerHarness:
    """Run a layer and its peer on the same numbers and compare all that both compute.

    Args:
        layer: The layer.
        inputs: Input name to data (T, B, ...).
        peer: Called with a tensor for each input, parameter and persistent internal by its name,
            and for each state before the first step (1, B, ...) by ``context_<name>``. Returns the
            output ``default``, or a dict from output names; others are neither compared nor get
            deltas.
        training_pass: As in `Layer.forward_pass`.
        backward: Whether to compare input deltas and gradients too.
        seed: Of all numbers that are not given.
        **values: Numbers for some of what the peer is called with, under the same names.

    Returns:
        The harness after both passes.

    Raises:
        PropertyError: Something differs by more than `RTOL`.
    """
    shapes = {name: ("T", "B", *array.shape[2:]) for name, array in inputs.items()}
    harness = LayerHarness(build_layer(layer, shapes), NumpyHandler(np.float64))
    harness.resize(*next(iter(inputs.values())).shape[:2])
    numbers = harness.sample(np.random.RandomState(seed))
    paths = {_name(path): path for path in numbers}
    for name, array in {**inputs, **values}.items():
        numbers[paths[name]] = np.broadcast_to(array, numbers[paths[name]].shape)
    tensors = {
        name: torch.tensor(numbers[path], dtype=torch.float64, requires_grad=backward)
        for name, path in paths.items()
    }
    found = peer(**tensors)
    outputs = found if isinstance(found, Mapping) else {"default": found}
    harness.forward(numbers, training_pass)
    for name, tensor in outputs.items():
        _check(harness, f"outputs.{name}", tensor)
    if backward:
        _compare_derivatives(harness, tensors, outputs, seed)
    return harness


def _compare_derivatives(
    harness: LayerHarness,
    tensors: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    seed: int,
) -> None:
    deltas = harness.sample_out_deltas(np.random.RandomState(seed + 1))
    compared = {f"output_deltas.{name}": tensor for name, tensor in outputs.items()}
    deltas = {path: d if path in compared else np.zeros_like(d) for path, d in deltas.items()}
    harness.load(dict.fromkeys(harness.delta_paths + harness.gradient_paths, np.zeros(())))
    harness.backward(deltas)
    total = sum(
        (compared[path] * torch.from_numpy(d)).sum() for path, d in deltas.items() if d.any()
    )
    total.backward()
    for path in harness.delta_paths + harness.gradient_paths:
        tensor = tensors[_name(path)]
        _check(harness, path, torch.zeros_like(tensor) if tensor.grad is None else tensor.grad)


def _name(path: str) -> str:
    name = path.rpartition(".")[2]
    return f"context_{name}" if path.startswith("context.") else name


def _check(harness: LayerHarness, path: str, tensor: torch.Tensor) -> None:
    expected = tensor.detach().numpy()
    atol = ATOL * max(1.0, float(np.abs(expected).max(initial=0.0)))
    check_close(f"{harness.describe()}, {path}", harness.get(path), expected, RTOL, atol)


def channels_first(array: torch.Tensor) -> torch.Tensor:
    """Return (T*B, C, ...) of (T, B, ..., C)."""
    return array.flatten(0, 1).movedim(-1, 1)


def channels_last(array: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return (T, B, ..., C) of (T*B, C, ...), with T and B as in `like`."""
    return array.movedim(1, -1).unflatten(0, like.shape[:2])


def as_data(x: np.ndarray, letters: str) -> np.ndarray:
    """Return an input as a network has it: (T, B, features...), channels last."""
    lead = [letters.index(letter) for letter in "TB" if letter in letters]
    rest = [i for i in range(len(letters)) if i not in lead]
    moved = x.transpose([*lead, *sorted(rest, key=lambda i: letters[i] == "C")])
    if not set(letters) - {"T", "B"}:
        return moved[..., None]  # one class for each step
    return moved if "T" in letters else moved[None]
