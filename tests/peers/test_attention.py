"""Multi-head attention, to itself and to a memory, with masks, causal and with rotary positions."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from brainstorm import layers as bl
from tests.peers.comparing import compare, drawn

small = st.integers(1, 4)


@pytest.mark.parametrize("to_memory", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@drawn(15, T=st.integers(1, 7), B=small, heads=small, size=small)
def test_multi_head_attention(causal, masked, to_memory, T, B, heads, size, seed):
    inputs = make_inputs(T, B, heads * size, masked, to_memory, seed)

    def peer(default, memory=None, mask=None, **p):
        memory = default if memory is None else memory
        parameters = {
            **{f"{kind}_proj_weight": p[f"W{kind}"] for kind in "qkv"},
            "in_proj_bias": torch.cat([p[f"b{kind}"] for kind in "qkv"]),
            "out_proj.weight": p["Wo"],
            "out_proj.bias": p["bo"],
        }
        if memory.shape[2] == heads * size:
            stacked = [parameters.pop(f"{kind}_proj_weight") for kind in "qkv"]
            parameters["in_proj_weight"] = torch.cat(stacked)
        options = {
            "key_padding_mask": None if mask is None else (mask.detach()[:, :, 0] == 0).T,
            "attn_mask": torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None,
            "need_weights": False,
        }
        features = memory.shape[2]
        module = nn.MultiheadAttention(heads * size, heads, kdim=features, vdim=features).double()
        return functional_call(module, parameters, (default, memory, memory), options)[0]

    compare(make_layer(to_memory, heads, causal, False), inputs, peer, seed=seed)


@pytest.mark.parametrize("to_memory", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@drawn(15, T=st.integers(1, 7), B=small, heads=small, pairs=small)
def test_rotary_positions(causal, to_memory, T, B, heads, pairs, seed):
    size = 2 * pairs
    inputs = make_inputs(T, B, heads * size, False, to_memory, seed)

    def turned(x):
        """Multiply pairs of features, as complex numbers, with exp(i t / 10000 ** (2k / d))."""
        steps, pair = torch.arange(T).double(), torch.arange(0, size, 2).double()
        angles = steps[:, None] / 10000.0 ** (pair / size)
        points = torch.view_as_complex(x.reshape(*x.shape[:-1], pairs, 2))
        points = points * torch.polar(torch.ones_like(angles), angles)[:, None, None]
        return torch.view_as_real(points).reshape(x.shape)

    def peer(default, memory=None, **p):
        sources = {"q": default, **dict.fromkeys("kv", default if memory is None else memory)}
        q, k, v = (
            nn.functional.linear(x, p[f"W{kind}"], p[f"b{kind}"]).reshape(T, B, heads, size)
            for kind, x in sources.items()
        )
        given = [x.permute(1, 2, 0, 3) for x in (turned(q), turned(k), v)]
        found = nn.functional.scaled_dot_product_attention(*given, is_causal=causal)
        found = found.permute(2, 0, 1, 3).reshape(T, B, heads * size)
        return nn.functional.linear(found, p["Wo"], p["bo"])

    compare(make_layer(to_memory, heads, causal, True), inputs, peer, seed=seed)


def make_inputs(T, B, features, masked, to_memory, seed):
    """PyTorch has as many outputs as inputs, and gives NaN where there is no key at all."""
    rnd = np.random.RandomState(seed)
    inputs = {"default": rnd.normal(size=(T, B, features))}
    if to_memory:
        inputs["memory"] = rnd.normal(size=(T, B, 3))
    if masked:
        inputs["mask"] = rnd.randint(0, 2, size=(T, B, 1)).astype(float)
        inputs["mask"][0] = 1.0
    return inputs


def make_layer(to_memory, heads, causal, rotary):
    layer = bl.MultiHeadAttention if to_memory else bl.MultiHeadSelfAttention
    return layer(heads, causal=causal, rotary=rotary)
