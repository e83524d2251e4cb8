"""Recurrent layers that hold their state: by a mask, and by the clocks of their units."""

import numpy as np
import pytest

from brainstorm import layers as bl
from tests.layers.running import run, run_backward

RND = np.random.RandomState(4)
MASKABLE = [bl.Recurrent, bl.Lstm, bl.Gru, bl.Clockwork, bl.ClockworkLstm]


def states(harness):
    """Output and, where there is one, cell, each with the state before the first step in front."""
    paths = ["outputs.default"] + ["internals.Ca"] * ("Ca" in harness.layer.internal_shapes)
    return {
        path: np.concatenate([harness.values[f"context.{path}"], harness.get(path)])
        for path in paths
    }


def masked(create, mask, x, **values):
    return run(create(3), {"default": x, "mask": mask[:, :, None].astype(float)}, **values)


@pytest.mark.parametrize("create", MASKABLE)
def test_the_state_is_held_where_the_mask_is_zero(create):
    x = RND.normal(size=(6, 3, 2))
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 2], [0, 1, 0.5], [0, 0, 0], [1, 0, 1]])
    values = {"timing": np.array([1, 2, 3])} if create in (bl.Clockwork, bl.ClockworkLstm) else {}
    harness = masked(create, mask, x, **values)
    for path, state in states(harness).items():
        before, after = state[:-1], state[1:]
        np.testing.assert_array_equal(after[mask == 0], before[mask == 0], err_msg=path)
        if not values:
            assert not (after[mask != 0] == before[mask != 0]).any()


@pytest.mark.parametrize(
    ("create", "plain", "mask"),
    [
        *((create, create, np.ones((5, 2, 1))) for create in MASKABLE),
        (bl.Clockwork, bl.Recurrent, None),
        (bl.ClockworkLstm, bl.Lstm, None),
    ],
)
def test_what_holds_nothing_is_the_layer_without(create, plain, mask):
    """With a mask of ones, and with clocks that tick at every step."""
    x = RND.normal(size=(5, 2, 2))
    timing = np.array([1, 2, 3]) if create is plain else np.ones(3)
    clocks = {c: {"timing": timing} for c in (bl.Clockwork, bl.ClockworkLstm)}
    given = {"default": x} if mask is None else {"default": x, "mask": mask}
    holding = run(create(3), given, **clocks.get(create, {}))
    other = run(plain(3), {"default": x}, **clocks.get(plain, {}))
    give_the_parameters_of(holding, other)
    for harness in (holding, other):
        run_backward(harness)
    for path in ["outputs.default", *other.delta_paths, *other.gradient_paths]:
        np.testing.assert_array_equal(holding.get(path), other.get(path), err_msg=path)


def give_the_parameters_of(one, other):
    """Run the other one again with the parameters and the context of the first."""
    contexts = [path for path in other.values if path.startswith("context.")]
    for path in [*other.paths("parameters"), *contexts]:
        other.values[path] = one.values[path]
    other.forward(other.values)


# -- clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("create", [bl.Clockwork, bl.ClockworkLstm])
def test_a_unit_computes_at_the_multiples_of_its_timing(create):
    timing = np.array([1, 2, 3])
    harness = run(create(3), {"default": RND.normal(size=(8, 2, 2))}, timing=timing)
    ticks = np.arange(8)[:, None] % timing == 0
    for path, state in states(harness).items():
        changed = (state[1:] != state[:-1]).all(axis=1)
        np.testing.assert_array_equal(changed, ticks, err_msg=path)


def test_clockwork_forward():
    timing, x = np.array([1, 2, 4]), RND.normal(size=(6, 2, 2))
    harness = run(bl.Clockwork(3, "sigmoid"), {"default": x}, timing=timing)
    W, R, bias, _ = (harness.get(f"parameters.{name}") for name in harness.layer.parameter_shapes)
    y = harness.values["context.outputs.default"][0]
    for t in range(6):
        y = np.where(t % timing == 0, 1 / (1 + np.exp(-(x[t] @ W.T + y @ R.T + bias))), y)
        np.testing.assert_allclose(harness.get("outputs.default")[t], y)
