"""Multi-head self-attention: every step of a sequence attends to every other one."""

from __future__ import annotations

from brainstorm.layers._attention import AttentionLayer
from brainstorm.structure import ConstructionWrapper


def MultiHeadSelfAttention(
    num_heads: int,
    size: int | None = None,
    causal: bool = False,
    rotary: bool = False,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add scaled dot-product attention over time with several heads (Vaswani et al. 2017).

    With Q, K, V = x Wq^T + bq, x Wk^T + bk, x Wv^T + bv, cut into heads of d = size / num_heads:

        P = softmax(Q K^T / sqrt(d)), A = P V, y = A Wo^T + bo

    for each sequence and head; the softmax is over the steps attended to. (Q is stored with the
    factor 1 / sqrt(d).)

    With rotary positions (RoFormer, Su et al. 2021) features 2i and 2i + 1 of each head of Q and
    K at step t are rotated by the angle t / 10000 ** (2i / d), so that their product depends on
    the distance of two steps.

    Args:
        num_heads: Number of heads.
        size: Number of output features, a multiple of `num_heads`; `None`: that of the input.
        causal: Whether a step attends only to itself and to earlier steps.
        rotary: Whether positions are rotary; d must be even.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1): steps where it is 0
        are not attended to
    Outputs: default ('T', 'B', size)
    Parameters: Wq Wk Wv (size, n), Wo (size, size), bq bk bv bo (size,)
    Internals: Q K V A ('T', 'B', num_heads, d), P ('T', 'B', num_heads, 'T') and their deltas; with
        a mask, keep ('T', 'B', num_heads); with rotary positions, angles and key_angles
        ('T', 'B', d), their sines and cosines. In a compact network P and its deltas are computed
        32 queries at a time, in block and dblock ('T', 'B', num_heads, 32) and product
    """
    return ConstructionWrapper.create(
        MultiHeadSelfAttentionLayerImpl,
        name=name,
        num_heads=num_heads,
        size=size,
        causal=causal,
        rotary=rotary,
    )


class MultiHeadSelfAttentionLayerImpl(AttentionLayer):
    """Implements `MultiHeadSelfAttention`."""

    is_traceable = True
