"""Multi-head attention: every step of a sequence attends to the steps of another one."""

from __future__ import annotations

from brainstorm.layers._attention import AttentionLayer
from brainstorm.structure import ConstructionWrapper, StructureTemplate


def MultiHeadAttention(
    num_heads: int,
    size: int | None = None,
    causal: bool = False,
    rotary: bool = False,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add scaled dot-product attention to a memory with several heads (Vaswani et al. 2017).

    The formulas are those of `MultiHeadSelfAttention`, except that keys and values come from the
    memory m: Q, K, V = x Wq^T + bq, m Wk^T + bk, m Wv^T + bv.

    Args:
        num_heads: Number of heads.
        size: Number of output features, a multiple of `num_heads`; `None`: that of the input.
        causal: Whether a step attends only to the same and to earlier steps of the memory, which
            must have the same T.
        rotary: Whether positions are rotary; size / num_heads must be even.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; memory ('S', 'B', ...) or ('T', 'B', ...), k
        features; optional mask ('S', 'B', 1) or ('T', 'B', 1): steps of the memory where it is 0
        are not attended to
    Outputs: default ('T', 'B', size)
    Parameters: Wq (size, n), Wk Wv (size, k), Wo (size, size), bq bk bv bo (size,)
    Internals: as in `MultiHeadSelfAttention`, with the time of the memory for keys and values
    """
    return ConstructionWrapper.create(
        MultiHeadAttentionLayerImpl,
        name=name,
        num_heads=num_heads,
        size=size,
        causal=causal,
        rotary=rotary,
    )


class MultiHeadAttentionLayerImpl(AttentionLayer):
    """Implements `MultiHeadAttention`."""

    is_traceable = True
    memory = "memory"
    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "memory": StructureTemplate("S", "B", "..."),
        "mask": StructureTemplate("S", "B", 1),
    }
