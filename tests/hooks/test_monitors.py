"""Monitors: what they log, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import brainstorm as bs
from brainstorm import tools
from brainstorm.data_iterators import Undivided
from brainstorm.errors import UnknownPathError
from brainstorm.hooks import (
    MonitorLayerDeltas,
    MonitorLayerGradients,
    MonitorLayerInOuts,
    MonitorLayerParameters,
    MonitorLoss,
    MonitorScores,
)
from brainstorm.scorers import Accuracy
from brainstorm.utils import flatten_items
from tests.networks import build, forward
from tests.trainings import make_trainer

LAYER_MONITORS = [
    MonitorLayerDeltas,
    MonitorLayerGradients,
    MonitorLayerInOuts,
    MonitorLayerParameters,
]


def statistics(array, suffix=""):
    names = (f"min{suffix}", f"avg{suffix}", f"max{suffix}")
    return dict(zip(names, (array.min(), array.mean(), array.max()), strict=True))


def last(logs):
    return {k: last(v) if isinstance(v, dict) else v[-1] for k, v in logs.items()}


def assert_close(found, expected):
    assert dict(flatten_items(found)) == pytest.approx(dict(flatten_items(expected)))


def test_parameters(train, net):
    logs = train(MonitorLayerParameters("Hidden")).logs["MonitorParameters_Hidden"]
    weights, bias = net.get("Hidden.parameters.W"), net.get("Hidden.parameters.bias")
    norms = np.sqrt((weights**2).sum(axis=1))
    expected = {
        "W": {**statistics(weights), **statistics(norms, "_L2_norm")},
        "bias": statistics(bias),
    }
    assert_close(last(logs), expected)
    assert len(logs["bias"]["max"]) == 3
    for scale in (1e-25, 1e25):  # the squares of which are no float32
        net.buffer.Hidden.parameters.W[:] = scale
        found = MonitorLayerParameters("Hidden").summarize(net, "parameters")["W"]
        assert found["max_L2_norm"] == pytest.approx(scale * weights.shape[1] ** 0.5)
        assert found["avg"] == pytest.approx(scale)


def test_gradients(train, net):
    logs = train(MonitorLayerGradients("Projection")).logs["MonitorGradients_Projection"]
    gradients = net.buffer.Projection.gradients
    assert_close(last(logs), {name: statistics(gradients[name]) for name in ("W", "bias")})
    assert logs["W"]["max"][-1] > 0


@pytest.mark.parametrize(
    ("monitor", "layer", "ports"),
    [
        (
            MonitorLayerInOuts,
            "Output",
            {"inputs": ("default", "targets"), "outputs": ("predictions", "loss")},
        ),
        (
            MonitorLayerDeltas,
            "Projection",
            {"input_deltas": ("default",), "output_deltas": ("default",)},
        ),
    ],
)
def test_ports(train, net, monitor, layer, ports):
    logs = train(monitor(layer)).logs[f"{monitor.prefix}_{layer}"]
    expected = {
        port: {name: statistics(net.get(f"{layer}.{port}.{name}")) for name in names}
        for port, names in ports.items()
    }
    assert_close(last(logs), expected)
    if monitor is MonitorLayerInOuts:  # before the first batch there is nothing to look at
        assert len(logs["outputs"]["loss"]["max"]) == 2
    else:
        assert logs["input_deltas"]["default"]["max"][-1] > 0


def test_deltas_that_nobody_needs_are_left_out_unless_kept(train, net):
    logs = train(MonitorLayerDeltas("Hidden")).logs["MonitorDeltas_Hidden"]
    assert set(logs) == {"output_deltas"}
    net.keep_input_deltas = True
    logs = train(MonitorLayerDeltas("Hidden")).logs["MonitorDeltas_Hidden"]
    assert set(logs) == {"input_deltas", "output_deltas"}


@pytest.mark.parametrize("monitor", LAYER_MONITORS)
@pytest.mark.parametrize("layer", ["Input", "Hidden", "Norm", "Projection", "Output", "Loss"])
def test_every_layer_can_be_watched(monitor, layer, train):
    train(monitor(layer), monitor(layer, name="u", timescale="update", interval=3), epochs=1)


def test_the_context_of_recurrent_outputs_is_left_out():
    net = build("lstm")
    forward(net, T=3)
    found = MonitorLayerInOuts("Lstm")(1, 1, net, None, {})["outputs"]["default"]
    outputs = net.get("Lstm.outputs.default")
    assert found == statistics(outputs[:3])
    assert len(outputs) == 4
    assert found["avg"] != outputs.mean()


@pytest.mark.parametrize("monitor", LAYER_MONITORS)
def test_unknown_layer(monitor, train):
    with pytest.raises(
        UnknownPathError,
        match=r"hook 'm' \(Monitor\w+\): unknown layer 'Hiden'. Choices are: Input, Hidden, .*"
        r"Did you mean 'Hidden'",
    ):
        train(monitor("Hiden", name="m"))
    with pytest.raises(UnknownPathError, match="unknown layer 'Hidden.parameters.W'"):
        train(monitor("Hidden.parameters.W"))


def test_loss_and_scores(train, net, batches):
    trainer = train(MonitorLoss("valid"), MonitorScores("valid", [Accuracy()]))
    expected = tools.evaluate(net, batches, [Accuracy()])
    assert trainer.logs["MonitorLoss.total_loss"][-1] == expected["total_loss"]
    assert trainer.logs["MonitorScores.total_loss"][-1] == expected["total_loss"]
    assert trainer.logs["MonitorScores.Accuracy"][-1] == expected["Accuracy"]
    assert set(trainer.logs["MonitorLoss"]) == {"total_loss"}


def test_monitoring_leaves_the_training_as_it_is(train, net):
    start = net.get("parameters")
    train()
    plain = net.get("parameters")
    net.handler.set_from_numpy(net.buffer.parameters, start)
    train(MonitorLoss("valid", timescale="update"), *(m("Hidden") for m in LAYER_MONITORS))
    np.testing.assert_array_equal(net.get("parameters"), plain)


@pytest.mark.parametrize("hook", [MonitorLoss("vali"), MonitorScores("vali", [])])
def test_unknown_iterator(hook, train):
    with pytest.raises(
        UnknownPathError,
        match=r"\(Monitor\w+\): unknown data iterator 'vali'. Choices are: training_data_iter, "
        r"valid. Did you mean 'valid'\? Give it to the training: trainer.train\(net, data, vali=\.",
    ):
        train(hook)


def test_outside_of_a_trainer(net, batches):
    hook = MonitorLoss("x")
    hook.start(net, None, False, {"x": batches})
    assert hook(0, 0, net, None, {}) == tools.evaluate(net, batches)


def test_missing_data_are_named(net, batches):
    part = Undivided(default=np.zeros((1, 2, 3)))
    text = (
        r"^hook 'MonitorLoss' \(MonitorLoss\), data 'valid': Undivided: data for 'targets' is missi"
    )
    with pytest.raises(bs.errors.MissingDataError, match=text) as caught:
        make_trainer(MonitorLoss("valid")).train(net, batches, valid=part)
    assert caught.value.__notes__ == ["Raised by the hook 'MonitorLoss' (MonitorLoss)."]


def test_data_that_do_not_fit_are_named_with_their_iterator(net, batches):
    wrong = Undivided(default=np.zeros((1, 2, 9)), targets=np.zeros((1, 2, 1)))
    for place, run in (
        ("Undivided", lambda: tools.evaluate(net, wrong)),
        (r"Trainer.train, training_data_iter \(Undivided\)",
         lambda: make_trainer().train(net, wrong)),
        (r"hook 'v' \(MonitorLoss\), data 'x': Undivided",
         lambda: make_trainer(MonitorLoss("x", "v")).train(net, batches, x=wrong)),
    ):  # fmt: skip
        with pytest.raises(
            bs.errors.NetworkValidationError, match=f"^{place}: data 'default': exp"
        ):
            run()
