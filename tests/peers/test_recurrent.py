"""Recurrent layers over time, from a context that is not zero, and over sequences of any length."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from brainstorm import layers as bl
from brainstorm.ext.state_dicts import to_state_dict
from brainstorm.handlers import NumpyHandler
from brainstorm.layers.lstm_layer import LstmLayerImpl
from brainstorm.network import Network
from brainstorm.structure.construction import ConstructionWrapper
from tests.peers.comparing import as_mask, compare, drawn, numbers

steps, batches, small = st.integers(1, 6), st.integers(1, 4), st.integers(1, 5)
ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "linear": lambda x: x}


def lengths_for(T, B, seed):
    return np.random.RandomState(seed).randint(1, T + 1, size=B)


def weights(p, gates):
    """PyTorch's stacked weights; it adds a second bias everywhere."""
    zero = torch.zeros_like(p[f"b{gates[0]}"])
    kinds = {"weight_ih": "W", "weight_hh": "R", "bias_ih": "b", "bias_hh": "bR"}
    return {
        f"{name}_l0": torch.cat([p.get(f"{kind}{gate}", zero) for gate in gates])
        for name, kind in kinds.items()
    }


def run(module, p, x, state, mask=None):
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


def no_peephole_lstm(size):
    return ConstructionWrapper.create(NoPeepholeLstmLayerImpl, size=size)


MODULES = {
    "Recurrent": (bl.Recurrent, nn.RNN, {}),
    "Lstm": (no_peephole_lstm, nn.LSTM, {"pi": 0.0, "pf": 0.0, "po": 0.0}),
    "Gru": (bl.Gru, nn.GRU, {}),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", MODULES)
@drawn(15, T=steps, B=batches, n=small, size=small)
def test_against_modules(kind, masked, T, B, n, size, seed):
    layer, module, zeros = MODULES[kind]

    def peer(default, context_default, mask=None, **p):
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
@drawn(10, T=steps, B=batches, n=small, size=small)
def test_lstm_with_peepholes(activation, T, B, n, size, seed):
    act, sigmoid = ACTIVATIONS[activation], torch.sigmoid

    def peer(default, context_default, context_Ca, **p):
        y, c, rows = context_default[0], context_Ca[0], []
        for x in default:

            def before(gate, x=x, y=y):
                return x @ p[f"W{gate}"].T + y @ p[f"R{gate}"].T + p[f"b{gate}"]

            i, f = sigmoid(before("i") + p["pi"] * c), sigmoid(before("f") + p["pf"] * c)
            c = i * act(before("z")) + f * c
            y = sigmoid(before("o") + p["po"] * c) * act(c)
            rows.append(y)
        return torch.stack(rows)

    compare(bl.Lstm(size, activation), numbers((T, B, n), seed), peer, seed=seed)


@drawn(15, T=steps, B=batches, n=small, masked=st.booleans())
def test_reverse(T, B, n, seed, masked):
    lengths = lengths_for(T, B, seed) if masked else np.full(B, T)

    def peer(default, mask=None):
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
@drawn(10, T=steps, B=batches, n=small, size=small)
def test_bidirectional_gru(masked, T, B, n, size, seed):
    inp = bl.Input({"default": ("T", "B", n), "mask": ("T", "B", 1)})
    both = bl.BidirectionalWrapper(bl.Gru, size, name="Both")
    inp >> both
    if masked:
        inp - "mask" >> "mask" - both
    net = Network.from_layer(inp, handler=NumpyHandler(float))
    net.handler.set_from_numpy(net.buffer.parameters, numbers((net.parameters_size,), seed))
    lengths = lengths_for(T, B, seed) if masked else np.full(B, T)
    x, mask = numbers((T, B, n), seed), as_mask(lengths, T)
    net.provide_external_data({"default": x, "mask": mask})
    net.forward_pass()
    names = {"Both_forward": "*_l0", "Both_backward": "*_l0_reverse"}
    state = {name: torch.tensor(array) for name, array in to_state_dict(net, names).items()}
    module = nn.GRU(n, size, bidirectional=True).double()
    packed = nn.utils.rnn.pack_padded_sequence(torch.tensor(x), lengths, enforce_sorted=False)
    y, _ = functional_call(module, state, (packed,))
    y, _ = nn.utils.rnn.pad_packed_sequence(y, total_length=T)
    got = net.get("Both.outputs.default") * mask
    np.testing.assert_allclose(got, y.detach().numpy(), 1e-7, 1e-12)


POOLS = {
    "last": lambda rows: rows[-1],
    "avg": lambda rows: rows.mean(dim=0),
    "max": lambda rows: rows.amax(dim=0),
    "sum": lambda rows: rows.sum(dim=0),
}


@pytest.mark.parametrize("kind", POOLS)
@drawn(10, T=steps, B=batches, n=small, masked=st.booleans())
def test_pooling_over_time(kind, T, B, n, seed, masked):
    lengths = lengths_for(T, B, seed) if masked else np.full(B, T)

    def peer(default, mask=None, **context):
        return torch.stack([POOLS[kind](default[:k, b]) for b, k in enumerate(lengths)])

    inputs = {"default": numbers((T, B, n), seed)}
    if masked:
        inputs["mask"] = as_mask(lengths, T)
    names = [] if kind == "last" and not masked else ["context_state"]
    names += ["context_counted"] if kind in ("avg", "max") else []
    compare(bl.TimePooling(kind), inputs, peer, seed=seed, **dict.fromkeys(names, 0.0))
