"""Multi-head self-attention, with masks, causal, and both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from brainstorm import layers as bl
from tests.peers.comparing import compare

small, seeds = st.integers(1, 4), st.integers(0, 1000)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=15, deadline=None)
@given(T=st.integers(1, 7), B=small, heads=small, size=small, seed=seeds)
def test_multi_head_self_attention(
    causal: bool, masked: bool, T: int, B: int, heads: int, size: int, seed: int
) -> None:
    rnd = np.random.RandomState(seed)
    features = heads * size  # PyTorch has as many outputs as inputs
    inputs = {"default": rnd.normal(size=(T, B, features))}
    if masked:
        inputs["mask"] = rnd.randint(0, 2, size=(T, B, 1)).astype(float)
        inputs["mask"][0] = 1.0  # PyTorch gives NaN where there is no key at all

    def peer(default: Any, mask: Any = None, **p: Any) -> Any:
        parameters = {
            "in_proj_weight": torch.cat([p[f"W{kind}"] for kind in "qkv"]),
            "in_proj_bias": torch.cat([p[f"b{kind}"] for kind in "qkv"]),
            "out_proj.weight": p["Wo"],
            "out_proj.bias": p["bo"],
        }
        options = {
            "key_padding_mask": None if mask is None else (mask.detach()[:, :, 0] == 0).T,
            "attn_mask": torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None,
            "need_weights": False,
        }
        module = nn.MultiheadAttention(features, heads).double()
        return functional_call(module, parameters, (default, default, default), options)[0]

    compare(bl.MultiHeadSelfAttention(heads, causal=causal), inputs, peer, seed=seed)
