"""Compare a layer with the same computation in PyTorch: outputs, deltas and gradients.

    compare(
        bl.FullyConnected(4, "tanh"),
        x,
        lambda default, W, bias: torch.tanh(default @ W.T + bias),
    )

The peer gets float64 tensors in the layout of this library, under the names of the layer's inputs
and parameters, and converts with operations of PyTorch: so the gradients come back in this layout.
"""

from collections.abc import Mapping

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.handlers import NumpyHandler
from brainstorm.testing import LayerHarness, build_layer, check_close

#: Largest relative difference; differences below ATOL times the largest number do not count.
RTOL, ATOL = 1e-5, 1e-9


def drawn(examples=25, **strategies):
    """Return a decorator of tests whose arguments hypothesis draws, and a seed with them."""

    def decorate(test):
        test = given(**strategies, seed=st.integers(0, 1000))(test)
        return settings(max_examples=examples)(test)

    return decorate


def numbers(shape, seed):
    return np.random.RandomState(seed).normal(size=shape)


def as_mask(lengths, T):
    """Return the mask (T, B, 1) of sequences."""
    return (np.arange(T)[:, None] < lengths).astype(float)[:, :, None]


def compare(layer, inputs, peer, *, training_pass=True, backward=True, seed=0, **values):
    """Run a layer and its peer on the same numbers and compare all that both compute.

    Args:
        layer: The layer.
        inputs: Data (T, B, ...), or input name to data.
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
    inputs = inputs if isinstance(inputs, Mapping) else {"default": inputs}
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


def _compare_derivatives(harness, tensors, outputs, seed):
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


def _name(path):
    name = path.rpartition(".")[2]
    return f"context_{name}" if path.startswith("context.") else name


def _check(harness, path, tensor):
    expected = tensor.detach().numpy()
    atol = ATOL * max(1.0, float(np.abs(expected).max(initial=0.0)))
    check_close(f"{harness.describe()}, {path}", harness.get(path), expected, RTOL, atol)


def channels_first(array):
    """Return (T*B, C, ...) of (T, B, ..., C)."""
    return array.flatten(0, 1).movedim(-1, 1)


def channels_last(array, like):
    """Return (T, B, ..., C) of (T*B, C, ...), with T and B as in `like`."""
    return array.movedim(1, -1).unflatten(0, like.shape[:2])


def on_images(function):
    """Return the peer that is a function of images (T*B, C, ...), and of parameters."""
    return lambda default, **p: channels_last(function(channels_first(default), **p), default)


def as_data(x, letters):
    """Return an input as a network has it: (T, B, features...), channels last."""
    lead = [letters.index(letter) for letter in "TB" if letter in letters]
    rest = [i for i in range(len(letters)) if i not in lead]
    moved = x.transpose([*lead, *sorted(rest, key=lambda i: letters[i] == "C")])
    if not set(letters) - {"T", "B"}:
        return moved[..., None]  # one class for each step
    return moved if "T" in letters else moved[None]
