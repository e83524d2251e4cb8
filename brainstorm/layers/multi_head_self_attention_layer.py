"""Multi-head self-attention: every step of a sequence looks at every other one."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import integer, one_of
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import (
    Array,
    flatten_all_but_last,
    flatten_features,
    flatten_time_and_features,
)

__all__ = ["MultiHeadSelfAttention", "MultiHeadSelfAttentionLayerImpl"]

#: Queries of a causal layer that are treated together (measured).
BLOCK = 256


def MultiHeadSelfAttention(
    num_heads: int, size: int | None = None, causal: bool = False, name: str | None = None
) -> ConstructionWrapper:
    """Add scaled dot-product attention over time with several heads (Vaswani et al. 2017).

    With Q, K, V = x Wq^T + bq, x Wk^T + bk, x Wv^T + bv, cut into heads of d = size / num_heads:

        P = softmax(Q K^T / sqrt(d)), A = P V, y = A Wo^T + bo

    for each sequence and head; the softmax is over the steps whose keys are looked at. (Q is kept
    with the factor 1 / sqrt(d).)

    Args:
        num_heads: Number of heads.
        size: Number of output features, a multiple of `num_heads`; `None`: that of the input.
        causal: Whether a step looks only at itself and at earlier steps.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1): nobody looks at steps
        where it is 0
    Outputs: default ('T', 'B', size)
    Parameters: Wq Wk Wv (size, n), Wo (size, size), bq bk bv bo (size,)
    Internals: Q K V A ('T', 'B', num_heads, d), P ('T', 'B', num_heads, 'T') and their deltas; with
        a mask, keep ('T', 'B', num_heads)
    """
    return ConstructionWrapper.create(
        MultiHeadSelfAttentionLayerImpl, name=name, num_heads=num_heads, size=size, causal=causal
    )


class MultiHeadSelfAttentionLayerImpl(Layer):
    """Implements `MultiHeadSelfAttention`; no delta for the mask."""

    is_traceable = True
    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "mask": StructureTemplate("T", "B", 1),
    }
    optional_inputs = ("mask",)
    expected_kwargs = {
        "num_heads": integer(minimum=1).required(),
        "size": integer(minimum=1).or_none(),
        "causal": one_of(False, True),
    }
    computes_no_input_deltas_for = ("mask",)
    time_coupled = True
    needs_in_backward = ("inputs", "internals")
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients", "internals")

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        heads, inputs = kwargs["num_heads"], in_shapes["default"].feature_size
        size = inputs if kwargs.get("size") is None else kwargs["size"]
        self.causal = kwargs.get("causal", False)
        if size % heads:
            raise self.fail(
                f"expected a multiple of num_heads={heads}, got {size}. Each head gets "
                f"size / num_heads features.",
                option="size",
            )
        self.scale = (size // heads) ** -0.5
        parameters = {
            **dict.fromkeys(("Wq", "Wk", "Wv"), BufferStructure(size, inputs)),
            "Wo": BufferStructure(size, size),
            **dict.fromkeys(("bq", "bk", "bv", "bo"), BufferStructure(size)),
        }
        vectors = ("T", "B", heads, size // heads)
        shapes = {**dict.fromkeys("QKVA", vectors), "P": ("T", "B", heads, "T")}
        internals = {name: BufferStructure(*shape) for name, shape in shapes.items()}
        for name, shape in shapes.items():
            internals[f"d{name}"] = BufferStructure(*shape, is_backward_only=True)
        if "mask" in in_shapes:
            internals["keep"] = BufferStructure("T", "B", heads)
        return {"default": BufferStructure("T", "B", size)}, parameters, internals

    def _project(self, buffers: BufferView, kind: str, source: Array, target: Array) -> None:
        W, bias = buffers.parameters[f"W{kind}"], buffers.parameters[f"b{kind}"]
        x, y = flatten_time_and_features(source), flatten_time_and_features(target)
        self.handler.affine_mm(x, W, bias, y, "linear")

    def _project_inputs(self, buffers: BufferView) -> None:
        internals = buffers.internals
        for kind in "qkv":
            self._project(buffers, kind, buffers.inputs.default, internals[kind.upper()])
        self.handler.mult_st(self.scale, internals.Q, internals.Q)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        _h, internals = self.handler, buffers.internals
        self._project_inputs(buffers)
        Q, K, V, A, P = (_by_head(b) for b in internals[:5])
        mask = self._keys(buffers)
        for start, stop in self._blocks(Q.shape[0]):
            weights = P[start:stop, :, :stop]
            _h.batched_dot_mm(Q[start:stop], K[:stop], weights, transb=True)
            keys = None if mask is None else mask[:stop]
            _h.attention_softmax(weights, keys, self.causal, weights)
            if stop < Q.shape[0]:
                _h.fill(P[start:stop, :, stop:], 0.0)
            _h.batched_dot_mm(weights, V[:stop], A[start:stop])
        self._project(buffers, "o", internals.A, buffers.outputs.default)

    def remembered(self, steps: int) -> Structures:
        if not self.causal:
            raise self.looks_ahead("Without causal=True every step looks at all others.")
        heads = self.kwargs["num_heads"]
        vectors = {name: self.internal_shapes[name] for name in "KV"}
        per_step = dict.fromkeys(("keep", "P"), BufferStructure("T", "B", heads))
        return {**vectors, **per_step, "one": BufferStructure("B", heads)}

    def remember(self, buffers: BufferView, past: BufferView) -> None:
        _h, internals = self.handler, buffers.internals
        seen = slice(0, internals.K.shape[0])
        _h.fill(past.one, 1.0)
        _h.fill(past.keep[seen], 1.0)
        for name in ("K", "V", "keep"):
            if name in internals:
                _h.copy_to(internals[name], past[name][seen])

    def forward_step(self, buffers: BufferView, past: BufferView) -> None:
        _h, internals, step = self.handler, buffers.internals, past.position[0:1]
        self._project_inputs(buffers)
        now = {"K": internals.K, "V": internals.V, "keep": past.one}
        if self._keys(buffers) is not None:
            now["keep"] = internals.keep
        for name, row in now.items():  # their rows of this step were zero
            flat = flatten_features(past[name], 1)
            _h.add_rows_mv(row.reshape((1, flat.shape[1])), step, flat)
        Q, K, V, A = (_by_head(b) for b in (internals.Q, past.K, past.V, internals.A))
        weights = past.P.reshape((1, Q.shape[1], K.shape[0]))
        _h.batched_dot_mm(Q, K, weights, transb=True)
        _h.attention_softmax(weights, flatten_features(past.keep, 1), False, weights)
        _h.batched_dot_mm(weights, V, A)
        self._project(buffers, "o", internals.A, buffers.outputs.default)

    def _blocks(self, steps: int) -> list[tuple[int, int]]:
        """Return first and last of the queries that are treated together, of `steps` time steps.

        In a causal layer no query of a block attends to keys behind it, which are left out.
        """
        size = BLOCK if self.causal else steps
        return [(start, min(start + size, steps)) for start in range(0, steps, size)]

    def _keys(self, buffers: BufferView) -> Array | None:
        """Return the mask with one column per sequence and head."""
        if "mask" not in self.in_shapes:
            return None
        keep = buffers.internals.keep
        self.handler.broadcast_t(buffers.inputs.mask, 2, keep)
        return keep.reshape((keep.shape[0], keep.shape[1] * keep.shape[2]))

    def backward_pass(self, buffers: BufferView) -> None:
        _h, internals = self.handler, buffers.internals
        Q, K, V, _, P, dQ, dK, dV, dA, dP = (_by_head(b) for b in internals[:10])
        dy = flatten_time_and_features(buffers.output_deltas.default)
        _h.dot_mm(dy, buffers.parameters.Wo, flatten_time_and_features(internals.dA))
        self._gradients(buffers, "o", flatten_time_and_features(internals.A), dy)
        for start, stop in self._blocks(Q.shape[0]):
            weights, deltas = P[start:stop, :, :stop], dP[start:stop, :, :stop]
            _h.batched_dot_mm(dA[start:stop], V[:stop], deltas, transb=True)
            if stop < Q.shape[0]:
                _h.fill(dP[start:stop, :, stop:], 0.0)
            flat = flatten_all_but_last(deltas)
            _h.softmax_deriv_m(flatten_all_but_last(weights), flat, flat)
            _h.batched_dot_mm(deltas, K[:stop], dQ[start:stop])
        for start, stop in self._blocks(Q.shape[0]):  # of keys, to which no earlier query attends
            part = slice(start, stop)
            _h.batched_dot_mm(P[start:, :, part], dA[start:], dV[part], transa=True)
            _h.batched_dot_mm(dP[start:, :, part], Q[start:], dK[part], transa=True)
        _h.mult_st(self.scale, dQ, dQ)
        x = flatten_time_and_features(buffers.inputs.default)
        for kind in "qkv":
            deltas = flatten_time_and_features(internals[f"d{kind.upper()}"])
            self._gradients(buffers, kind, x, deltas)
            if self.needs_delta("default"):
                dx = flatten_time_and_features(buffers.input_deltas.default)
                dot = self.dot_op("input_deltas.default") if kind == "q" else _h.dot_add_mm
                dot(deltas, buffers.parameters[f"W{kind}"], dx)

    def _gradients(self, buffers: BufferView, kind: str, x: Array, deltas: Array) -> None:
        weights, bias = f"gradients.W{kind}", f"gradients.b{kind}"
        self.dot_op(weights)(deltas, x, buffers[weights], transa=True)
        self.sum_op(bias)(deltas, 0, buffers[bias])


def _by_head(array: Array) -> Array:
    """Return (T, B, heads, n) as (T, B * heads, n): a matrix for each sequence and head."""
    steps, batch, heads, size = array.shape
    return array.reshape((steps, batch * heads, size))
