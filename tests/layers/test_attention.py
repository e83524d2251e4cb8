"""Attention in blocks, and without kept weights. Values: `test_formulas`."""

import numpy as np
import pytest

from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.base_handler import Handler
from brainstorm.layers import (
    FullyConnected,
    Input,
    LearnedPositionalEncoding,
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


def test_sequences_can_be_too_long_for_learned_positions():
    match = (
        r"layer 'LearnedPositionalEncoding' \(LearnedPositionalEncoding\), input 'default': "
        r"expected at most max_length=2 time steps, got T=3\. Make max_length larger\."
    )
    with pytest.raises(LayerValidationError, match=match):
        run(LearnedPositionalEncoding(2), {"default": np.zeros((3, 1, 4))})
