"""Gradients that are finished in a backward pass stay as they are until its end."""

from functools import partial

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.layers import FullyConnected, Input, Loss, NoOp, TiedFullyConnected
from brainstorm.network import Network
from brainstorm.training import SgdStepper
from tests.networks import WIRINGS, build, checked, classifier, provide, run_passes


def _tied():
    first = FullyConnected(5, "tanh", name="First")
    return classifier(first, TiedFullyConnected(first, "tanh", name="Tied"))


ALL = {**WIRINGS, "tied": _tied}


@pytest.mark.parametrize("wiring", ALL)
def test_nothing_is_written_to_what_is_finished(wiring):
    net = checked(ALL[wiring](), NumpyHandler(np.float64))
    finished, order = net.finished_gradients, []
    everything = [i for _, parts in finished for part in parts for i in range(*part)]
    assert sorted(everything) == list(range(net.parameters_size))
    found = np.full(net.parameters_size, np.nan)

    def follow(layer, parts):
        order.append(layer)
        for start, stop in parts:
            found[start:stop] = net.get("gradients")[start:stop]

    net.follow_backward_pass({layer: partial(follow, layer, parts) for layer, parts in finished})
    gradients = run_passes(net)
    assert order == [layer for layer, _ in finished]
    np.testing.assert_array_equal(found, gradients)


def test_shared_parameters_are_finished_by_their_last_writer():
    finished = Network.from_layer(_tied()).finished_gradients
    parts = {layer: sum(b - a for a, b in part) for layer, part in finished}
    assert (parts["Tied"], parts["First"]) == (4, 5 * 4 + 5)  # a bias, and all of the other


def test_without_parameters_nothing_is_ever_finished():
    net = Network.from_layer(Input({"default": ("T", "B", 3)}) >> NoOp() >> Loss())
    assert net.finished_gradients == []
    net.keep_input_deltas = True
    assert net.finished_gradients == [("Loss", []), ("NoOp", []), ("Input", [])]


def test_followers_are_called_in_replayed_passes_too_beside_those_of_a_block_and_are_replaced():
    net, calls, stepper = build("mlp", NumpyHandler(np.float32)), [], SgdStepper()
    always, block = ({"Projection": partial(calls.append, name)} for name in ("always", "block"))
    net.follow_backward_pass(always)
    stepper.start(net)

    def run(count, *expected):
        calls.clear()
        provide(net)
        for _ in range(count):
            stepper.run()
        assert calls == count * list(expected)

    run(4, "always")
    with net.following(block):
        run(2, "always", "block")
    run(1, "always")
    net.keep_input_deltas = True
    run(1, "always")
    net.follow_backward_pass({})
    run(1)
