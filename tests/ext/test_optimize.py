"""Batch optimisers of SciPy as steppers."""

import numpy as np
import pytest

import brainstorm as bs
from brainstorm import layers as bl
from brainstorm.data_iterators import Undivided
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError
from brainstorm.ext.optimize import LbfgsStepper
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers.dropout_layer import DropoutLayerImpl
from brainstorm.structure import ConstructionWrapper
from brainstorm.training import ParameterGroup, SgdStepper
from brainstorm.value_modifiers import ClipValues, L2Decay
from tests.networks import chain, wire_input, wire_loss
from tests.trainings import make_trainer

RND = np.random.RandomState(0)
X = RND.normal(size=(1, 40, 3))
TARGETS = X @ [[1.0], [2.0], [-3.0]] + 0.5


class OwnDropoutLayerImpl(DropoutLayerImpl):
    """Draws random numbers under another name."""


def make_net(*hidden, dtype=np.float64):
    inp = wire_input((3,))
    last = chain(inp, *hidden, bl.FullyConnected(1, "linear", name="Last"))
    wire_loss(inp, last, bl.SquaredError)
    net = bs.Network.from_layer(inp, handler=NumpyHandler(dtype))
    net.initialize(Gaussian(0.5), seed=1)
    return net


def train(net, epochs, stepper):
    trainer = make_trainer(stepper=stepper, epochs=epochs)
    trainer.train(net, Undivided(default=X, targets=TARGETS))
    return trainer


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_linear_problem_is_solved_in_one_step(dtype):
    net, stepper = make_net(dtype=dtype), LbfgsStepper(30)
    trainer = train(net, 1, stepper)
    tolerance = 1e-3 if dtype == np.float32 else 1e-4
    np.testing.assert_allclose(net.get("Last.parameters.W"), [[1, 2, -3]], atol=tolerance)
    np.testing.assert_allclose(net.get("Last.parameters.bias"), [0.5], atol=tolerance)
    assert trainer.logs["rolling_training.total_loss"][-1] < 1e-6
    assert 2 < stepper.passes < 40
    assert stepper.message


def test_a_pass_that_fails_leaves_the_parameters_as_they_were():
    net, stepper = make_net(), LbfgsStepper(30)
    stepper.start(net)
    net.provide_external_data({"default": X, "targets": TARGETS})
    before, last = net.get("parameters"), net.layers["Last"]
    original = last.forward_pass

    def fail(*args):
        if stepper.passes > 2:
            raise RuntimeError("on purpose")
        original(*args)

    last.forward_pass = fail
    with pytest.raises(RuntimeError, match="on purpose"):
        stepper.run()
    np.testing.assert_array_equal(net.get("parameters"), before)
    assert stepper.steps == 0


def test_losses_and_gradients_are_those_of_the_result():
    net = make_net(bl.FullyConnected(4, "tanh"))
    trainer = train(net, 2, LbfgsStepper(iterations=3))
    logged, gradients = trainer.logs["rolling_training.total_loss"][-1], net.get("gradients")
    net.forward_pass(training_pass=True)
    net.backward_pass()
    assert net.get_loss_values()["total_loss"] == logged
    np.testing.assert_array_equal(net.get("gradients"), gradients)


def test_statistics_are_those_of_the_result():
    inp = wire_input((3,))
    last, hits = bl.FullyConnected(1, "linear"), bl.BinaryAccuracy(name="Hits")
    wire_loss(inp, inp >> last, bl.SigmoidCE)
    last >> hits
    inp - "targets" >> "targets" - hits
    net = bs.Network.from_layer(inp, handler=NumpyHandler(np.float64))
    net.initialize(0)
    batch = {"default": X, "targets": (X[..., :1] > 0.1) * 1.0}
    stepper = LbfgsStepper(30)
    stepper.start(net)
    for _ in range(2):
        net.provide_external_data(batch)
        stepper.run()
    assert net.get("Hits.internals.total_cases").sum() == 2 * 40
    assert net.get("Hits.internals.total_hits").sum() > 2 * 38


def test_more_iterations_come_further_than_fewer():
    losses = []
    for n in (1, 5, 25):
        trainer = train(make_net(bl.FullyConnected(4, "tanh")), 1, LbfgsStepper(n))
        losses.append(trainer.logs["rolling_training.total_loss"][-1])
    assert losses[0] > losses[1] > losses[2]


def test_it_can_be_described():
    description = get_description(LbfgsStepper(7, history=3))
    assert description == {"@type": "LbfgsStepper", "iterations": 7, "history": 3}
    assert create_from_description(description).iterations == 7
    text = "LbfgsStepper.iterations: expected a finite number >= 1"
    with pytest.raises(TrainingError, match=text):
        LbfgsStepper(0)


def test_what_is_no_function_of_the_parameters_is_refused():
    with pytest.raises(TrainingError, match="layer 'Dropout': with Dropout the loss is another"):
        train(make_net(bl.Dropout()), 1, LbfgsStepper())
    own = ConstructionWrapper.create(OwnDropoutLayerImpl, name="Own")
    with pytest.raises(TrainingError, match="layer 'Own': with OwnDropout the loss is another"):
        train(make_net(own), 1, LbfgsStepper())
    net = make_net()
    net.set_gradient_modifiers(Last=L2Decay(0.1))
    with pytest.raises(TrainingError, match=r"got gradient modifiers of Last\. Wire penalties"):
        train(net, 1, LbfgsStepper())
    net = make_net()
    net.set_weight_modifiers(Last=ClipValues())
    with pytest.raises(TrainingError, match=r"got modifiers of Last: the line search would not"):
        train(net, 1, LbfgsStepper())
    stepper = LbfgsStepper()
    stepper.max_gradient_norm = 1.0
    with pytest.raises(TrainingError, match="expected no max_gradient_norm: the line"):
        train(make_net(), 1, stepper)
    stepper, net = LbfgsStepper(), make_net()
    train(net, 1, stepper)
    for change in (
        lambda: setattr(stepper, "groups", [ParameterGroup("*.bias", frozen=True)]),
        lambda: (setattr(stepper, "groups", []), net.set_gradient_modifiers(Last=L2Decay(0.1))),
    ):
        change()
        with pytest.raises(TrainingError, match="expected no groups|got gradient modifiers"):
            stepper.run()


def test_a_step_takes_back_what_another_stepper_has_set():
    net, minimizing, keeping = make_net(bl.BatchNorm(name="Norm")), LbfgsStepper(2), SgdStepper()
    keeping.groups = [ParameterGroup("Norm", keep_statistics=True)]
    for stepper in (minimizing, keeping):
        stepper.start(net)
    net.provide_external_data({"default": X, "targets": TARGETS})
    minimizing.run()
    assert not net.layers["Norm"].keeps_statistics
    assert net.get("Norm.internals.running_mean").any()
