"""Tables of vectors."""

import numpy as np
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare, drawn

small = st.integers(1, 5)


@drawn(T=small, B=small, n=small, vocabulary=small, size=small)
def test_embedding(T, B, n, vocabulary, size, seed):
    classes = np.random.RandomState(seed).randint(0, vocabulary, size=(T, B, n)).astype(float)

    def peer(default, W):
        vectors = functional.embedding(default.detach().long(), W)
        return vectors[:, :, 0] if n == 1 else vectors

    compare(bl.Embedding(vocabulary, size), classes, peer, seed=seed)
