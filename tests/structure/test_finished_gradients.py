"""Gradients that are finished in a backward pass stay as they are until its end."""

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import FullyConnected, Input, Loss, NoOp, TiedFullyConnected
from brainstorm.network import Network
from brainstorm.training import SgdStepper
from tests.networks import WIRINGS, build, classifier, provide, run_passes


def _tied():
    first = FullyConnected(5, "tanh", name="First")
    return classifier(first, TiedFullyConnected(first, "tanh", name="Tied"))


ALL = {**WIRINGS, "tied": _tied}


@pytest.mark.parametrize("wiring", ALL)
def test_nothing_is_written_to_what_is_finished(wiring):
    net = Network.from_layer(ALL[wiring](), seed=1, handler=NumpyHandler(np.float64))
    net.initialize(Gaussian(0.5))
    finished, order = net.finished_gradients, []
    everything = [i for _, parts in finished for start, stop in parts for i in range(start, stop)]
    assert sorted(everything) == list(range(net.parameters_size))

    found = np.full(net.parameters_size, np.nan)

    def follow(layer, parts):
        order.append(layer)
        for start, stop in parts:
            found[start:stop] = net.get("gradients")[start:stop]

    net.follow_backward_pass(
        {layer: lambda layer=layer, parts=parts: follow(layer, parts) for layer, parts in finished}
    )
    gradients = run_passes(net)
    assert order == [layer for layer, _ in finished]
    np.testing.assert_array_equal(found, gradients)


def test_shared_parameters_are_finished_by_their_last_writer():
    net = Network.from_layer(_tied())
    parts = {layer: sum(b - a for a, b in p) for layer, p in net.finished_gradients}
    assert parts["Tied"] == 4  # its bias
    assert parts["First"] == 5 * 4 + 5


def test_without_parameters_nothing_is_ever_finished():
    inp = Input({"default": ("T", "B", 3)})
    inp >> NoOp() >> Loss()
    net = Network.from_layer(inp)
    assert net.finished_gradients == []
    net.keep_input_deltas = True
    assert net.finished_gradients == [("Loss", []), ("NoOp", []), ("Input", [])]


def test_followers_are_called_in_replayed_passes_too_and_are_replaced():
    net, calls, stepper = build("mlp", NumpyHandler(np.float32)), [], SgdStepper()
    net.follow_backward_pass({"Projection": lambda: calls.append("Projection")})

    def run(count):
        provide(net)
        for _ in range(count):
            stepper.run()

    stepper.start(net)
    run(4)
    assert calls == ["Projection"] * 4
    net.keep_input_deltas = True
    run(1)
    assert len(calls) == 5
    net.follow_backward_pass({})
    stepper.start(net)
    run(1)
    assert len(calls) == 5
