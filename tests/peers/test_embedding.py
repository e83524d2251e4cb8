"""Tables of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare

small = st.integers(1, 5)


@settings(max_examples=25, deadline=None)
@given(T=small, B=small, n=small, vocabulary=small, size=small, seed=st.integers(0, 1000))
def test_embedding(T: int, B: int, n: int, vocabulary: int, size: int, seed: int) -> None:
    classes = np.random.RandomState(seed).randint(0, vocabulary, size=(T, B, n)).astype(float)

    def peer(default: Any, W: Any) -> Any:
        vectors = functional.embedding(default.detach().long(), W)
        return vectors[:, :, 0] if n == 1 else vectors

    compare(bl.Embedding(vocabulary, size), {"default": classes}, peer, seed=seed)
