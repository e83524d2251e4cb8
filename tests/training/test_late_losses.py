"""Losses that are read late are those that would have been read at once."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.data_iterators import BucketedMinibatches, Minibatches
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import (
    DeltasScaling,
    FullyConnected,
    Input,
    L2Decay,
    Loss,
    Mask,
    NoOp,
    SquaredError,
)
from brainstorm.network import Network
from brainstorm.scorers import MeanSquaredError
from brainstorm.scorers.base import find_loss_mask
from brainstorm.tools import evaluate
from brainstorm.training import SgdStepper
from brainstorm.training.late_losses import BATCHES
from tests.networks import classifier
from tests.trainings import Call, make_trainer

RND = np.random.RandomState(0)


def train(handler, batches, penalty=False, hooks=()):
    hidden = FullyConnected(5, "tanh", name="Hidden")
    inp = classifier(hidden)
    if penalty:
        hidden - "..parameters.W" >> L2Decay() - "loss" >> Loss(name="Penalty")
    net = Network.from_layer(inp, seed=3, handler=handler)
    net.initialize(Gaussian(0.3), seed=2)
    count = 4 * batches - 1  # the last batch is smaller
    data = {
        "default": RND.random_sample((1, count, 4)),
        "targets": RND.randint(0, 3, (1, count, 1)),
    }
    trainer = make_trainer(*hooks, stepper=SgdStepper(0.1), epochs=2)
    trainer.train(net, Minibatches(4, **data))
    return trainer.logs["rolling_training"]


@pytest.mark.parametrize("handler", [NumpyHandler, NativeHandler])
@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("batches", [1, BATCHES - 1, BATCHES, 2 * BATCHES + 3])
def test_the_averages_are_those_of_all_batches(handler, penalty, batches):
    losses_read = []  # after every update, as a person would

    def read(epoch_nr, update_nr, net):
        if update_nr:
            losses_read.append((net.batch_size, net.get_loss_values()))

    logs = train(handler(np.float32), batches, penalty, [Call(read)])
    assert set(logs) == ({"Loss", "Penalty", "total_loss"} if penalty else {"total_loss"})
    for epoch in range(2):
        seen = losses_read[epoch * batches : (epoch + 1) * batches]
        weights = [size for size, _ in seen]
        for name in logs:
            values = [losses[name] for _, losses in seen]
            assert logs[name][epoch] == pytest.approx(np.average(values, weights=weights))


def test_values_are_read_once_for_many_batches(monkeypatch):
    reads, read = [], NumpyHandler.get_numpy_copy
    monkeypatch.setattr(
        NumpyHandler, "get_numpy_copy", lambda self, mem: reads.append(1) or read(self, mem)
    )
    train(NumpyHandler(np.float32), batches=4 * BATCHES)
    assert 8 <= len(reads) <= 12


LENGTHS = (3, 9, 4, 7, 5)


def masked_network(handler, penalty, *after):
    """Return a network whose losses are masked, with layers after the mask; the output is 0."""
    inputs = Input(dict.fromkeys(("default", "targets", "mask"), ("T", "B", 1)))
    hidden, error, mask = FullyConnected(1, "linear", name="Hidden"), SquaredError(), Mask()
    last = inputs >> hidden >> "default" - error - "loss" >> mask
    for layer in after:
        last = last >> layer
    last >> Loss()
    inputs - "targets" >> "targets" - error
    inputs - "mask" >> "mask" - mask
    if penalty:
        hidden - "..parameters.W" >> L2Decay() - "loss" >> Loss(name="Penalty")
    net = Network.from_layer(inputs, seed=3, handler=handler)
    net.initialize(0.0)
    return net


@pytest.mark.parametrize("handler", [NumpyHandler(np.float64), NativeHandler()])
@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_padding_does_not_change_the_loss_per_step(size, penalty, handler):
    rnd = np.random.RandomState(0)
    targets = [rnd.random_sample((length, 1)) for length in LENGTHS]
    data = BucketedMinibatches(size, False, default=[0 * t for t in targets], targets=targets)
    net = masked_network(handler, penalty)
    trainer = make_trainer(stepper=SgdStepper(0.0), epochs=1)
    trainer.train(net, data)
    expected = 0.5 * np.mean(np.concatenate(targets) ** 2)
    assert trainer.logs["rolling_training.total_loss_per_step"] == pytest.approx([expected])
    assert evaluate(net, data)["total_loss_per_step"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("after", "mask"),
    [
        ([DeltasScaling(2.0)], "mask"),
        ([NoOp(), DeltasScaling(0.5)], "mask"),
        ([FullyConnected(1, "linear")], None),  # the loss of a masked step is a bias
    ],
)
def test_a_mask_before_layers_that_pass_the_losses_on(after, mask):
    assert find_loss_mask(masked_network(NumpyHandler(), False, *after)) == mask


def test_scores_that_count_padding(caplog):
    net, ones = masked_network(NumpyHandler(), penalty=False), [np.ones((n, 1)) for n in LENGTHS]
    data = BucketedMinibatches(5, default=ones, targets=ones)
    net.output_name = "Hidden.outputs.default"
    known = evaluate(net, data, [MeanSquaredError(mask_name="mask")])["MeanSquaredError"]
    assert (known, caplog.messages) == (0.5, [])
    for _ in range(2):
        assert evaluate(net, data, [MeanSquaredError()])["MeanSquaredError"] < 0.5
    (message,) = caplog.messages
    assert message == (
        "scorer 'MeanSquaredError': 'mask' leaves steps out of the losses, but not out of this "
        "score, which counts the padding. Write MeanSquaredError(..., mask_name='mask')."
    )


@pytest.mark.parametrize("steps", [1, 4])
def test_a_mask_of_one_of_several_losses_over_time_is_none_of_steps(steps):
    inputs = Input(dict.fromkeys(("default", "a", "b", "known"), ("T", "B", 1)))
    hidden, mask = FullyConnected(1, "linear"), Mask()
    heads = [SquaredError(name=f"Head_{name}") for name in "ab"]
    for head, name in zip(heads, "ab", strict=True):
        inputs >> hidden >> head
        inputs - name >> "targets" - head
    heads[0] - "loss" >> mask >> Loss(name="Masked")
    inputs - "known" >> "mask" - mask
    heads[1] - "loss" >> Loss(name="Whole")
    net = Network.from_layer(inputs, handler=NumpyHandler(np.float64))
    net.initialize(0.0)
    ones = {name: np.ones((steps, 6, 1)) for name in ("default", "a", "b", "known")}
    ones["known"][:, 1:] = 0
    found = evaluate(net, Minibatches(4, False, **ones))
    assert found["total_loss"] == pytest.approx(steps * (1 / 6 + 1) / 2)
    assert found.get("total_loss_per_step", found["total_loss"]) == found["total_loss"] / steps


@pytest.mark.parametrize("masked", [False, True])
def test_a_loss_over_the_second_length_is_averaged_over_its_steps(masked, caplog):
    shapes = {"default": ("T", "B", 1), "mask": ("T", "B", 1)}
    inputs = Input({**shapes, **dict.fromkeys(("source", "targets", "mask_s"), ("S", "B", 1))})
    head, mask = SquaredError(name="Head"), Mask()
    inputs - "source" >> FullyConnected(1, "linear") >> head
    inputs - "targets" >> "targets" - head
    if masked:
        head - "loss" >> mask >> Loss()
        inputs - "mask_s" >> "mask" - mask
    else:
        head - "loss" >> Loss()
    net = Network.from_layer(inputs, handler=NumpyHandler(np.float64))
    net.initialize(0.0)
    net.output_name = "Head.outputs.predictions"
    ones, one = [np.ones((n, 1)) for n in LENGTHS], [np.ones((1, 1)) for _ in LENGTHS]
    named = {"default": one, "source": ones, "targets": ones, "over_s": ["source", "targets"]}
    data = BucketedMinibatches(5 if masked else 1, **named)
    trainer = make_trainer(stepper=SgdStepper(0.0), epochs=1)
    trainer.train(net, data)
    assert trainer.logs["rolling_training.total_loss_per_step"] == pytest.approx([0.5])
    assert evaluate(net, data, [MeanSquaredError()])["total_loss_per_step"] == pytest.approx(0.5)
    assert ("'mask_s' leaves steps out of the losses" in caplog.text) == masked
