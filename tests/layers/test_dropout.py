"""Dropout: masks, their scale, and their seeds."""

import numpy as np
import pytest

from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.layers import Dropout, Input
from brainstorm.network import Network
from tests.layers.running import run, run_backward

X = np.random.RandomState(3).normal(size=(4, 50, 100))


@pytest.mark.parametrize("shared", [False, 1.0, True])  # 1.0 from a file is True
@pytest.mark.parametrize("drop_prob", [0.0, 0.2, 0.5, 0.9])
def test_training_drops_and_scales(drop_prob, shared):
    harness = run(Dropout(drop_prob, shared_over_time=shared), {"default": X})
    mask, scale = harness.get("internals.mask"), 1 / (1 - drop_prob)
    assert mask.shape == X.shape[bool(shared) :]
    assert set(np.unique(mask)) <= {0.0, 1.0}
    # Four standard deviations of the mean of so many draws.
    limit = 4 * np.sqrt(drop_prob * (1 - drop_prob) / mask.size)
    assert abs(mask.mean() - (1 - drop_prob)) <= limit
    np.testing.assert_allclose(harness.get("outputs.default"), X * mask * scale)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), dy * mask * scale)


def test_outside_training_nothing_is_dropped():
    harness = run(Dropout(0.3), {"default": X}, training_pass=False)
    np.testing.assert_array_equal(harness.get("outputs.default"), X)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), dy)


def masks(seed, change=lambda net: None):
    """Return what is kept in three training passes, with a change of the network before each."""
    inp = Input({"default": ("T", "B", 12)})
    inp >> Dropout(0.5, name="D")
    net = Network.from_layer(inp, handler=NumpyHandler(np.float32), seed=seed)
    found = []
    for _ in range(3):
        change(net)
        net.provide_external_data({"default": np.ones((1, 1700, 12))})
        net.forward_pass(training_pass=True)
        found.append(net.get("D.outputs.default") != 0)
    return np.array(found)


def test_masks_follow_from_the_seed_and_change_from_pass_to_pass():
    found = masks(5)
    np.testing.assert_array_equal(masks(5), found)
    # Independent masks agree in half of the elements.
    for other in (found[1], masks(6)[0]):
        assert abs((found[0] == other).mean() - 0.5) < 0.02


@pytest.mark.parametrize(
    "other", [lambda net: net.handler, lambda net: DebugHandler(NumpyHandler(np.float32))]
)
def test_another_handler_goes_on_with_the_masks(other):
    found = masks(1, lambda net: net.set_handler(other(net)))
    np.testing.assert_array_equal(found, masks(1))
