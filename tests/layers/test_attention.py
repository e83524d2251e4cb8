"""Attention, positional encodings and embeddings against plain loops, and what they refuse."""

import numpy as np
import pytest

from brainstorm.errors import LayerValidationError, NetworkValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.base_handler import Handler
from brainstorm.layers import (
    FullyConnected,
    Input,
    LearnedPositionalEncoding,
    MultiHeadAttention,
    MultiHeadSelfAttention,
    _attention,
)
from brainstorm.network import Network
from brainstorm.testing import build_layer, check_layer
from tests.layers.cases import CASES
from tests.layers.running import run, run_backward

RND = np.random.RandomState(6)


def sequences(steps, batch, size):
    """Return inputs, of which those of the second sequence do not count from the middle on."""
    mask = np.ones((steps, batch, 1))
    mask[steps // 2 :, 1] = 0
    return {"default": RND.normal(size=(steps, batch, size)), "mask": mask}


@pytest.mark.parametrize("causal", [False, True])
def test_attention_forward(causal):
    inputs = sequences(4, 3, 5)
    inputs["mask"][0, 2] = 0
    harness = run(MultiHeadSelfAttention(2, 6, causal), inputs)
    p = {name: harness.get(f"parameters.{name}") for name in harness.layer.parameter_shapes}
    for b in range(3):
        x, mask, heads = inputs["default"][:, b], inputs["mask"][:, b, 0], []
        for head in (slice(0, 3), slice(3, 6)):
            q, k, v = (x @ p[f"W{n}"][head].T + p[f"b{n}"][head] for n in "qkv")
            powers = np.exp(q @ k.T / np.sqrt(3)) * mask
            powers = np.tril(powers) if causal else powers
            weights = powers / np.maximum(powers.sum(axis=1, keepdims=True), 1e-300)
            np.testing.assert_allclose(harness.get("internals.P")[:, b, len(heads)], weights)
            heads.append(weights @ v)
        y = np.concatenate(heads, axis=1) @ p["Wo"].T + p["bo"]
        np.testing.assert_allclose(harness.get("outputs.default")[:, b], y)


@pytest.mark.parametrize("steps", [1, 3, 6, 7])
def test_attention_in_blocks_is_the_same(steps, monkeypatch):
    inputs, found = sequences(steps, 2, 5), []
    for block in (100, 3):
        monkeypatch.setattr(Handler, "causal_rows", block)
        harness = run(MultiHeadSelfAttention(2, 6, True), inputs)
        run_backward(harness)
        paths = [*harness.delta_paths, *harness.gradient_paths, "outputs.default"]
        paths += [f"internals.{name}" for name in ("P", "dP", "dQ", "dK", "dV")]
        found.append({path: harness.get(path) for path in paths})
    for path, values in found[0].items():
        np.testing.assert_allclose(found[1][path], values, 1e-9, 1e-12, err_msg=path)


@pytest.mark.parametrize("ports", [{"default"}, {"default", "mask"}])
def test_attention_to_itself_is_attention_to_a_memory_that_is_the_same(ports):
    inputs = {port: array for port, array in sequences(5, 2, 4).items() if port in ports}
    own = run(MultiHeadSelfAttention(2, 8, True, True), inputs)
    parameters = {name: own.get(f"parameters.{name}") for name in own.layer.parameter_shapes}
    both = {**inputs, "memory": inputs["default"]}
    other = run(MultiHeadAttention(2, 8, True, True), both, **parameters)
    for harness in (own, other):
        run_backward(harness)
    for path in ("outputs.default", *own.gradient_paths):
        np.testing.assert_allclose(own.get(path), other.get(path))
    total = other.get("input_deltas.default") + other.get("input_deltas.memory")
    np.testing.assert_allclose(own.get("input_deltas.default"), total)


def test_rotary_positions_depend_on_distances_alone():
    x = np.repeat(RND.normal(size=(1, 2, 8)), 9, axis=0)
    harness = run(MultiHeadSelfAttention(2, causal=False, rotary=True), {"default": x})
    scores = np.log(harness.get("internals.P"))[:, :, 0]  # of the same vectors everywhere
    for t in range(1, 8):
        moved = scores[t + 1, :, 1:] - scores[t, :, :-1]
        np.testing.assert_allclose(moved, moved[:, :1] * np.ones((1, 8)), atol=1e-9)
    assert not np.allclose(scores[0], scores[4])


@pytest.mark.parametrize(
    "case", [case for case in CASES if "Attention" in case.name], ids=lambda case: case.name
)
def test_attention_without_kept_weights_has_all_properties(case, monkeypatch):
    monkeypatch.setattr(_attention, "SMALL_BLOCK", 3)
    layer = build_layer(case.create(), case.in_shapes)
    layer.save_memory()
    check_layer(layer, None, case.inputs, [(4, 1), (2, 2)], NumpyHandler(float))


def test_the_memory_of_compact_attention_grows_with_t():
    def attending(memory):
        inp = Input({"default": ("T", "B", 4)})
        inp >> MultiHeadSelfAttention(2, name="A") >> FullyConnected(1)
        return Network.from_layer(inp, memory=memory)

    def internals(memory, T):
        return attending(memory).memory(T, 3).layers["A"]["internals"]

    assert internals("compact", 2000) == 2 * internals("compact", 1000)
    assert internals("compact", 2000) < internals("inspectable", 2000) / 20
    assert "P" not in attending("compact").copy().buffer.A.internals


def test_attention_weights_cannot_be_connected():
    inp = Input({"default": ("T", "B", 4)})
    inp >> MultiHeadSelfAttention(2, name="A") - "..internals.P" >> FullyConnected(1, name="F")
    match = (
        r"layer 'F', input 'default', joined from A\.\.\.internals\.P: cannot connect "
        r"\(T, B, 2, T\): no layer takes features that grow with T"
    )
    with pytest.raises(NetworkValidationError, match=match):
        Network.from_layer(inp)


# -- positions and words ------------------------------------------------------------------------


def test_sequences_can_be_too_long_for_learned_positions():
    match = (
        r"layer 'LearnedPositionalEncoding' \(LearnedPositionalEncoding\), input 'default': "
        r"expected at most max_length=2 time steps, got T=3\. Make max_length larger\."
    )
    with pytest.raises(LayerValidationError, match=match):
        run(LearnedPositionalEncoding(2), {"default": np.zeros((3, 1, 4))})
