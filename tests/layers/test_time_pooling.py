"""Pooling over time against NumPy: whole sequences, masks, and sequences in parts."""

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.layers import Input, Loss, TimePooling
from brainstorm.network import Network

RND = np.random.RandomState(4)
X = RND.normal(size=(5, 4, 3))
#: A gap, a late start, an early end, and nothing.
MASK = np.array([[1, 0, 2, 0], [0, 0, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]])[..., None]
POOLS = {
    "last": lambda steps: steps[-1],
    "avg": lambda steps: steps.mean(axis=0),
    "max": lambda steps: steps.max(axis=0),
    "sum": lambda steps: steps.sum(axis=0),
}


def expected(kind, x, mask):
    """Pool one sequence after the other."""
    kept = [x[:, b][mask[:, b, 0] != 0] for b in range(x.shape[1])]
    return np.array([POOLS[kind](steps) if len(steps) else np.zeros(x.shape[2:]) for steps in kept])


def network(kind, is_masked, features=(3,)):
    shapes = {"default": ("T", "B", *features), "mask": ("T", "B", 1)}
    inp = Input(shapes if is_masked else {"default": shapes["default"]})
    pooling = TimePooling(kind, name="Pool")
    inp >> pooling >> Loss()
    if is_masked:
        inp - "mask" >> "mask" - pooling
    net = Network.from_layer(inp)
    net.output_name = "Pool.outputs.default"
    return net


@pytest.mark.parametrize("smallest", [-np.inf, -1e300])
def test_the_largest_of_the_smallest_numbers_is_what_counts(smallest):
    net = network("max", True)
    net.set_handler(NumpyHandler(float))
    found = net.predict({"default": np.full_like(X, smallest), "mask": MASK})
    np.testing.assert_array_equal(found[:3], smallest)
    assert not found[3].any()


@pytest.mark.parametrize("length", [1, 2, 4, 9])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("features", [(3,), (3, 1), (1, 3)])
def test_parts_of_sequences_are_pooled_from_their_beginning_on(features, kind, is_masked, length):
    """So the last part gives what the whole sequence gives, also for those that ended before."""
    x = X.reshape(5, 4, *features)
    data = {"default": x, "mask": MASK} if is_masked else {"default": x}
    net, state = network(kind, is_masked, features), []
    for start in range(0, len(X), length):
        net.provide_external_data({n: a[start : start + length] for n, a in data.items()})
        net.carry_context(state, continues=start > 0)
        net.forward_pass()
    want = expected(kind, x, MASK if is_masked else np.ones((5, 4, 1)))
    np.testing.assert_allclose(net.get("Pool.outputs.default"), want, rtol=1e-5)


@pytest.mark.parametrize("is_masked", [False, True])
def test_equal_steps_share_the_gradient(is_masked):
    """They may be one value, as where a recurrent layer holds its state."""
    net = network("max", is_masked)
    net.set_handler(NumpyHandler(float))
    net.keep_input_deltas = True
    net.provide_external_data({"default": np.ones_like(X), "mask": MASK})
    net.forward_pass()
    net.backward_pass()
    share = (MASK != 0) if is_masked else np.ones((5, 4, 1))
    share = np.repeat(share / np.maximum(share.sum(axis=0), 1) / 4, 3, axis=2)
    np.testing.assert_allclose(net.get("Input.output_deltas.default"), share, rtol=1e-15)
