"""Common parts of attention layers: queries attend to the keys and values of a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brainstorm.layers._masked import MaskedLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import integer, one_of
from brainstorm.optree import formula
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import (
    Array,
    flatten_all_but_last,
    flatten_features,
    flatten_time,
    flatten_time_and_features,
    product,
)

#: Queries that are processed together by a layer that does not keep weights (measured).
SMALL_BLOCK = 32


@formula
def rotated(x: Any, y: Any, sine: Any, cosine: Any) -> Any:
    """Return points, rotated by angles."""
    return [x * cosine - y * sine, y * cosine + x * sine]


class AttentionLayer(MaskedLayer):
    """Base of attention layers; a subclass defines the memory."""

    expected_kwargs = {
        "num_heads": integer(minimum=1).required(),
        "size": integer(minimum=1).or_none(),
        "causal": one_of(False, True),
        "rotary": one_of(False, True),
    }
    time_coupled = True
    needs_in_backward = ("inputs", "internals")
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients", "internals")

    #: The input from which keys and values are computed.
    memory = "default"
    #: Whether weights are not kept: both passes compute them, block by block.
    is_blockwise = False

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        heads, queries = kwargs["num_heads"], in_shapes["default"].feature_size
        features = in_shapes[self.memory].feature_size
        size = queries if kwargs.get("size") is None else kwargs["size"]
        self.causal, self.rotary = kwargs.get("causal", False), kwargs.get("rotary", False)
        #: The time axis of the memory: 'S' if it has a length of its own.
        self.memory_time = in_shapes[self.memory].time
        self._check_size(size, heads)
        self._check_times(in_shapes)
        self.scale = (size // heads) ** -0.5
        parameters = {
            "Wq": BufferStructure(size, queries),
            **dict.fromkeys(("Wk", "Wv"), BufferStructure(size, features)),
            "Wo": BufferStructure(size, size),
            **dict.fromkeys(("bq", "bk", "bv", "bo"), BufferStructure(size)),
        }
        vectors, keys = ("B", heads, size // heads), self.memory_time
        shapes: dict[str, tuple[Any, ...]] = {
            **{name: (keys if name in "KV" else "T", *vectors) for name in "QKVA"},
            "P": ("T", "B", heads, keys),
        }
        internals = {name: BufferStructure(*shape) for name, shape in shapes.items()}
        for name, shape in shapes.items():
            internals[f"d{name}"] = BufferStructure(*shape, is_backward_only=True)
        if "mask" in in_shapes:
            internals["keep"] = BufferStructure(keys, "B", heads)
        if self.rotary:
            internals["angles"] = BufferStructure("T", "B", size // heads)
            internals["key_angles"] = BufferStructure(keys, "B", size // heads)
        return {"default": BufferStructure("T", "B", size)}, parameters, internals

    def save_memory(self) -> None:
        self.is_blockwise = True
        for name in ("P", "dP"):
            del self.internal_shapes[name]
        keys = self.internal_shapes["K"].shape
        block = (*keys[:3], SMALL_BLOCK)
        self.internal_shapes["block"] = BufferStructure(*block)
        self.internal_shapes["dblock"] = BufferStructure(*block, is_backward_only=True)
        self.internal_shapes["product"] = BufferStructure(*keys, is_backward_only=True)

    def _check_size(self, size: int, heads: int) -> None:
        if size % heads:
            raise self.fail(
                f"expected a multiple of num_heads={heads}, got {size}. Each head gets "
                f"size / num_heads features.",
                option="size",
            )
        if self.rotary and size // heads % 2:
            raise self.fail(
                f"expected a multiple of 2 * num_heads={2 * heads} with rotary=True, got {size}. "
                f"The features of a head are turned in pairs.",
                option="size",
            )

    def _check_times(self, in_shapes: Structures) -> None:
        if self.causal and self.memory_time == "S":
            raise self.fail(
                "expected False, because the memory has a length of its own (S): no step of it is "
                "earlier or later than one of the other (T).",
                option="causal",
            )
        if "mask" in in_shapes and in_shapes["mask"].time != self.memory_time:
            raise self.misfit("mask", f"({self.memory_time}, B, 1)", " It is that of the memory.")

    # -- both passes ----------------------------------------------------------------------------

    def _sources(self, inputs: BufferView) -> dict[str, Array]:
        """Return the inputs of queries, keys and values, or their deltas."""
        memory = inputs[self.memory]
        return {"q": inputs.default, "k": memory, "v": memory}

    def _project(self, buffers: BufferView, kind: str, source: Array, target: Array) -> None:
        W, bias = buffers.parameters[f"W{kind}"], buffers.parameters[f"b{kind}"]
        x, y = flatten_time_and_features(source), flatten_time_and_features(target)
        self.handler.affine_mm(x, W, bias, y, "linear")

    def _project_inputs(self, buffers: BufferView, kinds: str = "qkv") -> None:
        """Compute queries, keys and values, with rotary positions if wanted."""
        internals, sources = buffers.internals, self._sources(buffers.inputs)
        for kind in kinds:
            self._project(buffers, kind, sources[kind], internals[kind.upper()])
        self.handler.mult_st(self.scale, internals.Q, internals.Q)
        self._rotate(internals, [internals[kind.upper()] for kind in kinds[:2]])

    def _rotate(self, internals: BufferView, vectors: Sequence[Array], step: int = 1) -> None:
        """Rotate queries and keys; or with a step of -1, which swaps x and y, rotate them back."""
        if not self.rotary:
            return
        for array, angles in zip(vectors, (internals.angles, internals.key_angles), strict=False):
            steps, batch, size = angles.shape
            points = _pairs(array)[::step]
            waves = _pairs(angles.reshape((steps, batch, 1, size)))
            self.handler.compute(rotated, [*points, *waves], points)

    def _find_angles(self, views: BufferView) -> None:
        for angles in (views.angles, views.key_angles) if self.rotary else ():
            self.handler.fill(angles, 0.0)
            self.handler.add_sinusoids(angles, angles)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        _h, internals = self.handler, buffers.internals
        self._find_angles(internals)
        self._project_inputs(buffers)
        mask = self._keys(buffers)
        K, V, A = (_by_head(internals[name]) for name in "KVA")
        for start, stop, seen in self._blocks(A.shape[0], K.shape[0]):
            weights = self._find_weights(internals, mask, start, stop, seen)
            if seen < K.shape[0] and not self.is_blockwise:
                _h.fill(_by_head(internals.P)[start:stop, :, seen:], 0.0)
            _h.batched_dot_mm(weights, V[:seen], A[start:stop])
        self._project(buffers, "o", internals.A, buffers.outputs.default)

    def _find_weights(
        self, internals: BufferView, mask: Array | None, start: int, stop: int, seen: int
    ) -> Array:
        """Compute and return the weights of a block of queries."""
        Q, K = _by_head(internals.Q), _by_head(internals.K)
        weights = self._block(internals, "P", start, stop, seen)
        self.handler.batched_dot_mm(Q[start:stop], K[:seen], weights, transb=True)
        keys = None if mask is None else mask[:seen]
        self.handler.attention_softmax(weights, keys, self.causal, weights)
        return weights

    def _block(self, internals: BufferView, name: str, start: int, stop: int, seen: int) -> Array:
        """Return the array for the weights of a block of queries, or for their deltas."""
        if not self.is_blockwise:
            return _by_head(internals[name])[start:stop, :, :seen]
        memory = internals[name.replace("P", "block")]
        shape = (stop - start, memory.shape[1] * memory.shape[2], seen)
        return memory.reshape((product(memory.shape),))[: product(shape)].reshape(shape)

    def _blocks(self, queries: int, keys: int) -> list[tuple[int, int, int]]:
        """Return the blocks of queries as (start, stop, number of keys that they attend to).

        In a causal layer the keys after the last query of a block are left out. The block with most
        keys is the first: scratch memory has its size from the beginning, so that no call that
        holds less has to be built again.
        """
        whole = self.handler.causal_rows if self.causal else queries
        size = SMALL_BLOCK if self.is_blockwise else whole
        ends = [(start, min(start + size, queries)) for start in range(0, queries, size)][::-1]
        return [(start, stop, stop if self.causal else keys) for start, stop in ends]

    def _keys(self, buffers: BufferView) -> Array | None:
        """Return the mask with one column per sequence and head."""
        if "mask" not in self.in_shapes:
            return None
        keep = buffers.internals.keep
        self.handler.broadcast_t(buffers.inputs.mask, 2, keep)
        return flatten_features(keep, 1)

    def backward_pass(self, buffers: BufferView) -> None:
        _h, internals = self.handler, buffers.internals
        names = ("Q", "K", "dQ", "dK", "dV", "dA")
        Q, K, dQ, dK, dV, dA = (_by_head(internals[name]) for name in names)
        dy = flatten_time_and_features(buffers.output_deltas.default)
        _h.dot_mm(dy, buffers.parameters.Wo, flatten_time_and_features(internals.dA))
        self._gradients(buffers, "o", flatten_time_and_features(internals.A), dy)
        blocks = self._blocks(Q.shape[0], K.shape[0])
        if self.is_blockwise:
            _h.clear([dK, dV])
        for start, stop, seen in blocks:
            weights, deltas = self._find_deltas(buffers, start, stop, seen)
            if self.is_blockwise:
                self._add_product(internals, weights, dA[start:stop], dV[:seen])
            flat = flatten_all_but_last(deltas)
            _h.softmax_deriv_m(flatten_all_but_last(weights), flat, flat)
            _h.batched_dot_mm(deltas, K[:seen], dQ[start:stop])
            if self.is_blockwise:
                self._add_product(internals, deltas, Q[start:stop], dK[:seen])
        for start, _, seen in () if self.is_blockwise else blocks:  # not seen by earlier queries
            P, dP, part = _by_head(internals.P), _by_head(internals.dP), slice(start, seen)
            _h.batched_dot_mm(P[start:, :, part], dA[start:], dV[part], transa=True)
            _h.batched_dot_mm(dP[start:, :, part], Q[start:], dK[part], transa=True)
        self._rotate(internals, [internals.dQ, internals.dK], -1)
        _h.mult_st(self.scale, dQ, dQ)
        self._backward_inputs(buffers)

    def _find_deltas(
        self, buffers: BufferView, start: int, stop: int, seen: int
    ) -> tuple[Array, Array]:
        """Compute and return the weights of a block of queries, and their deltas."""
        internals = buffers.internals
        V, dA = _by_head(internals.V), _by_head(internals.dA)
        weights = self._block(internals, "P", start, stop, seen)
        if self.is_blockwise:
            self._find_weights(internals, self._keys(buffers), start, stop, seen)
        deltas = self._block(internals, "dP", start, stop, seen)
        self.handler.batched_dot_mm(dA[start:stop], V[:seen], deltas, transb=True)
        if seen < V.shape[0] and not self.is_blockwise:
            self.handler.fill(_by_head(internals.dP)[start:stop, :, seen:], 0.0)
        return weights, deltas

    def _add_product(self, internals: BufferView, a: Array, b: Array, out: Array) -> None:
        """Add the contribution of a block of queries to the deltas of its keys or values."""
        found = _by_head(internals["product"])[: out.shape[0]]
        self.handler.batched_dot_mm(a, b, found, transa=True)
        self.handler.add_tt(found, out, out)

    def _backward_inputs(self, buffers: BufferView) -> None:
        """Compute input deltas and gradients from the deltas of queries, keys and values."""
        written = set()
        for kind, source in self._sources(buffers.inputs).items():
            port = "default" if kind == "q" else self.memory
            deltas = flatten_time_and_features(buffers.internals[f"d{kind.upper()}"])
            self._gradients(buffers, kind, flatten_time_and_features(source), deltas)
            if self.needs_delta(port):
                dx = flatten_time_and_features(buffers.input_deltas[port])
                first = self.dot_op(f"input_deltas.{port}")
                dot = self.handler.dot_add_mm if port in written else first
                dot(deltas, buffers.parameters[f"W{kind}"], dx)
                written.add(port)

    def _gradients(self, buffers: BufferView, kind: str, x: Array, deltas: Array) -> None:
        weights, bias = f"gradients.W{kind}", f"gradients.b{kind}"
        self.dot_op(weights)(deltas, x, buffers[weights], transa=True)
        self.sum_op(bias)(deltas, 0, buffers[bias])

    # -- step by step ---------------------------------------------------------------------------

    @property
    def is_continued(self) -> bool:
        return self.memory_time == "S"  # which is there as a whole

    def remembered(self, steps: int) -> Structures:
        if not self.causal and self.memory_time == "T":
            raise self.looks_ahead("Without causal=True every step looks at all others.")
        heads, internals = self.kwargs["num_heads"], self.internal_shapes
        names = ("K", "V", "angles", "key_angles")
        kept = {name: internals[name] for name in names if name in internals}
        per_key = dict.fromkeys(("keep", "P"), BufferStructure(self.memory_time, "B", heads))
        return {**kept, **per_key, "one": BufferStructure("B", heads)}

    def remember(self, buffers: BufferView, past: BufferView) -> None:
        _h, internals = self.handler, buffers.internals
        seen = slice(0, internals.K.shape[0])
        _h.fill(past.one, 1.0)
        _h.fill(past.keep[seen], 1.0)
        for name in ("K", "V", "keep"):
            if name in internals:
                _h.copy_to(internals[name], past[name][seen])
        self._find_angles(past)

    def forward_step(self, buffers: BufferView, past: BufferView) -> None:
        _h, internals = self.handler, buffers.internals
        self._project_step(buffers, past)
        Q, K, V, A = (_by_head(b) for b in (internals.Q, past.K, past.V, internals.A))
        weights = past.P.reshape((1, Q.shape[1], K.shape[0]))
        _h.batched_dot_mm(Q, K, weights, transb=True)
        _h.attention_softmax(weights, flatten_features(past.keep, 1), False, weights)
        _h.batched_dot_mm(weights, V, A)
        self._project(buffers, "o", internals.A, buffers.outputs.default)

    def _project_step(self, buffers: BufferView, past: BufferView) -> None:
        """Compute the query of a step, and add its key and value to those of all steps."""
        _h, internals, step = self.handler, buffers.internals, past.position[0:1]
        is_apart = self.memory_time == "S"  # then all keys exist already
        for name in ("angles", *["key_angles"] * (not is_apart)) if self.rotary else ():
            _h.take_rows_mv(past[name][:, 0], past.position, flatten_time(internals[name]))
        if is_apart:
            self._project_inputs(buffers, "q")
            return
        self._project_inputs(buffers)
        masked = self._keys(buffers) is not None
        now = {"K": internals.K, "V": internals.V, "keep": internals.keep if masked else past.one}
        for name, row in now.items():  # the rows of this step were zero
            flat = flatten_features(past[name], 1)
            _h.add_rows_mv(row.reshape((1, flat.shape[1])), step, flat)


def _by_head(array: Array) -> Array:
    """Return (T, B, heads, n) as (T, B * heads, n): a matrix for each sequence and head."""
    steps, batch, heads, size = array.shape
    return array.reshape((steps, batch * heads, size))


def _pairs(array: Array) -> list[Array]:
    """Return (..., n) as two arrays (..., n / 2): the even and the odd features."""
    *scaling, size = array.shape
    pairs = array.reshape((*scaling, size // 2, 2))
    return [pairs[(*(slice(None),) * (len(scaling) + 1), i)] for i in range(2)]
