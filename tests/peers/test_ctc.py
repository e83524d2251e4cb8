"""Connectionist temporal classification, with repeated labels and sequences of any length."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import as_mask, compare, drawn


@pytest.mark.parametrize("masked", [False, True])
@drawn(30, T=st.integers(1, 12), B=st.integers(1, 5), K=st.integers(2, 6))
def test_ctc(masked, T, B, K, seed):
    rnd = np.random.RandomState(seed)
    lengths = rnd.randint(1, T + 1, size=B) if masked else np.full(B, T)
    counts = np.array([rnd.randint(0, (length + 1) // 2 + 1) for length in lengths])
    labels = rnd.randint(1, K, size=(T, B, 1)) * (np.arange(T)[:, None] < counts)[:, :, None]
    inputs = {"default": rnd.normal(size=(T, B, K)) * 2, "labels": labels.astype(float)}
    if masked:
        inputs["mask"] = as_mask(lengths, T)

    def peer(default, labels, mask=None):
        log_p = functional.log_softmax(default, dim=2)
        targets = labels.detach()[:, :, 0].T.long()
        loss = functional.ctc_loss(
            log_p, targets, torch.tensor(lengths), torch.tensor(counts), reduction="none"
        )
        return {"predictions": log_p.exp(), "loss": loss[:, None]}

    compare(bl.CTC(), inputs, peer, seed=seed)
