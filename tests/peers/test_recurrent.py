"""Recurrent layers over time, from a context that is not zero, and over sequences of any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.layers.lstm_layer import LstmLayerImpl
from brainstorm.network import Network
from brainstorm.structure.construction import ConstructionWrapper
from tests.peers.comparing import compare

steps, batches, small = st.integers(1, 6), st.integers(1, 4), st.integers(1, 5)
seeds = st.integers(0, 1000)
ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "linear": lambda x: x}
Tensors = Mapping[str, Any]


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.RandomState(seed).normal(size=shape)


def lengths_for(T: int, B: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).randint(1, T + 1, size=B)


def as_mask(lengths: np.ndarray, T: int) -> np.ndarray:
    return (np.arange(T)[:, None] < lengths).astype(float)[:, :, None]


def weights(p: Tensors, gates: str, suffix: str = "") -> dict[str, Any]:
    """PyTorch's stacked weights; it adds a second bias everywhere."""
    zero = torch.zeros_like(p[f"b{gates[0]}"])
    return {
        f"weight_ih_l0{suffix}": torch.cat([p[f"W{gate}"] for gate in gates]),
        f"weight_hh_l0{suffix}": torch.cat([p[f"R{gate}"] for gate in gates]),
        f"bias_ih_l0{suffix}": torch.cat([p[f"b{gate}"] for gate in gates]),
        f"bias_hh_l0{suffix}": torch.cat([p.get(f"bR{gate}", zero) for gate in gates]),
    }


def run(module: Any, p: Tensors, x: Any, state: Any, mask: Any = None) -> Any:
    """Return the outputs of a module of PyTorch; behind the end of a sequence, its last state."""
    if mask is None:
        return functional_call(module, dict(p), (x, state))[0]
    lengths = mask.detach().sum(dim=(0, 2)).long()
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    y, last = functional_call(module, dict(p), (packed, state))
    y, _ = nn.utils.rnn.pad_packed_sequence(y, total_length=len(x))
    last = last[0] if isinstance(last, tuple) else last
    return torch.where(mask.detach() > 0, y, last)


class NoPeepholeLstmLayerImpl(LstmLayerImpl):
    """For PyTorch, which has no peepholes: they are zero, and their gradients are not compared."""

    computes_no_gradients_for = ("pi", "pf", "po")


def no_peephole_lstm(size: int) -> ConstructionWrapper:
    return ConstructionWrapper.create(NoPeepholeLstmLayerImpl, size=size)


MODULES = {
    "Recurrent": (bl.Recurrent, nn.RNN, {}),
    "Lstm": (no_peephole_lstm, nn.LSTM, {"pi": 0.0, "pf": 0.0, "po": 0.0}),
    "Gru": (bl.Gru, nn.GRU, {}),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", MODULES)
@settings(max_examples=15, deadline=None)
@given(T=steps, B=batches, n=small, size=small, seed=seeds)
def test_against_modules(
    kind: str, masked: bool, T: int, B: int, n: int, size: int, seed: int
) -> None:
    layer, module, zeros = MODULES[kind]

    def peer(default: Any, context_default: Any, mask: Any = None, **p: Any) -> Any:
        state, gates = context_default, {"Lstm": "ifzo", "Gru": "rzh"}.get(kind, "")
        if kind == "Lstm":
            state = (context_default, p["context_Ca"])
        if kind == "Recurrent":
            p = {"W_": p["W"], "R_": p["R"], "b_": p["bias"]}
            gates = "_"
        return run(module(n, size).double(), weights(p, gates), default, state, mask)

    inputs = {"default": numbers((T, B, n), seed)}
    if masked:
        inputs["mask"] = as_mask(lengths_for(T, B, seed), T)
    compare(layer(size), inputs, peer, seed=seed, **zeros)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@settings(max_examples=10, deadline=None)
@given(T=steps, B=batches, n=small, size=small, seed=seeds)
def test_lstm_with_peepholes(activation: str, T: int, B: int, n: int, size: int, seed: int) -> None:
    act, sigmoid = ACTIVATIONS[activation], torch.sigmoid

    def peer(default: Any, context_default: Any, context_Ca: Any, **p: Any) -> Any:
        y, c, rows = context_default[0], context_Ca[0], []
        for x in default:

            def before(gate: str, x: Any = x, y: Any = y) -> Any:
                return x @ p[f"W{gate}"].T + y @ p[f"R{gate}"].T + p[f"b{gate}"]

            i, f = sigmoid(before("i") + p["pi"] * c), sigmoid(before("f") + p["pf"] * c)
            c = i * act(before("z")) + f * c
            y = sigmoid(before("o") + p["po"] * c) * act(c)
            rows.append(y)
        return torch.stack(rows)

    compare(bl.Lstm(size, activation), {"default": numbers((T, B, n), seed)}, peer, seed=seed)


@settings(max_examples=15, deadline=None)
@given(T=steps, B=batches, n=small, seed=seeds, masked=st.booleans())
def test_reverse(T: int, B: int, n: int, seed: int, masked: bool) -> None:
    lengths = lengths_for(T, B, seed) if masked else np.full(B, T)

    def peer(default: Any, mask: Any = None) -> Any:
        columns = [
            torch.cat([default[:length, b].flip(0), default[length:, b]])
            for b, length in enumerate(lengths)
        ]
        return torch.stack(columns, dim=1)

    inputs = {"default": numbers((T, B, n), seed)}
    if masked:
        inputs["mask"] = as_mask(lengths, T)
    compare(bl.Reverse(), inputs, peer, seed=seed)


@pytest.mark.parametrize("masked", [False, True])
@settings(max_examples=10, deadline=None)
@given(T=steps, B=batches, n=small, size=small, seed=seeds)
def test_bidirectional_gru(masked: bool, T: int, B: int, n: int, size: int, seed: int) -> None:
    inp = bl.Input({"default": ("T", "B", n), "mask": ("T", "B", 1)})
    both = bl.BidirectionalWrapper(bl.Gru, size, name="Both")
    inp >> both
    if masked:
        inp - "mask" >> "mask" - both
    net = Network.from_layer(inp, handler=NumpyHandler(float))
    net.handler.set_from_numpy(net.buffer.parameters, numbers((net.parameters_size,), seed))
    x, mask = numbers((T, B, n), seed), as_mask(lengths_for(T, B, seed), T)
    net.provide_external_data({"default": x, "mask": mask})
    net.forward_pass()
    p = {}
    for layer, suffix in (("Both_forward", ""), ("Both_backward", "_reverse")):
        views = net.buffer[layer].parameters
        p.update(weights({k: torch.tensor(v) for k, v in views.items()}, "rzh", suffix))
    module = nn.GRU(n, size, bidirectional=True).double()
    zeros = torch.zeros(2, B, size).double()
    if masked:
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.tensor(x), mask.sum(axis=(0, 2)), enforce_sorted=False
        )
        y, _ = functional_call(module, p, (packed, zeros))
        y, _ = nn.utils.rnn.pad_packed_sequence(y, total_length=T)
    else:
        y, _ = functional_call(module, p, (torch.tensor(x), zeros))
    keep = mask if masked else 1.0
    got = net.get("Both.outputs.default") * keep
    np.testing.assert_allclose(got, y.detach().numpy(), 1e-7, 1e-12)


POOLS = {
    "last": lambda rows: rows[-1],
    "avg": lambda rows: rows.mean(dim=0),
    "max": lambda rows: rows.amax(dim=0),
    "sum": lambda rows: rows.sum(dim=0),
}


@pytest.mark.parametrize("kind", POOLS)
@settings(max_examples=10, deadline=None)
@given(T=steps, B=batches, n=small, seed=seeds, masked=st.booleans())
def test_pooling_over_time(kind: str, T: int, B: int, n: int, seed: int, masked: bool) -> None:
    lengths = lengths_for(T, B, seed) if masked else np.full(B, T)

    def peer(default: Any, mask: Any = None, **context: Any) -> Any:
        return torch.stack([POOLS[kind](default[:k, b]) for b, k in enumerate(lengths)])

    inputs = {"default": numbers((T, B, n), seed)}
    if masked:
        inputs["mask"] = as_mask(lengths, T)
    names = [] if kind == "last" and not masked else ["context_state"]
    names += ["context_counted"] if kind in ("avg", "max") else []
    compare(bl.TimePooling(kind), inputs, peer, seed=seed, **dict.fromkeys(names, 0.0))


def test_the_last_step_is_the_last_state_of_packed_sequences() -> None:
    lengths = torch.tensor([3, 5, 1])
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.tensor(numbers((5, 3, 2), 0)), lengths, enforce_sorted=False
    )
    y, state = nn.GRU(2, 4).double()(packed)
    y = nn.utils.rnn.pad_packed_sequence(y)[0].detach()
    mask = as_mask(lengths.numpy(), 5)
    inputs = {"default": y.numpy(), "mask": mask}
    compare(
        bl.TimePooling("last"),
        inputs,
        lambda default, **_: default[lengths - 1, torch.arange(3)],
        context_state=0.0,
    )
    np.testing.assert_allclose(y[lengths - 1, torch.arange(3)], state[0].detach())
