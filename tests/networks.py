"""Networks of every kind of wiring, with data for them, and their numerical gradients."""

import numpy as np

from brainstorm import layers as bl
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.structure.architecture import (
    generate_architecture,
    instantiate_layers_from_architecture,
)
from brainstorm.testing import approx_fprime


def wire_input(features=(4,), targets=(1,)):
    """Return an Input of data and targets."""
    return bl.Input({"default": ("T", "B", *features), "targets": ("T", "B", *targets)})


def wire_loss(inp, last, loss=bl.SoftmaxCE, port="targets"):
    """Wire the last layer and the targets to a loss called Out; return the Input."""
    out = loss(name="Out")
    last >> out - "loss" >> bl.Loss()
    inp - "targets" >> port - out
    return inp


def chain(inp, *layers):
    """Wire layers behind each other; return the last one."""
    for layer in layers:
        inp >>= layer
    return inp


def classifier(*hidden, features=(4,), classes=3):
    """Wire Input >> hidden layers >> linear layer >> SoftmaxCE >> Loss."""
    inp = wire_input(features)
    linear = bl.FullyConnected(classes, "linear", name="Projection")
    return wire_loss(inp, chain(inp, *hidden, linear))


def trainable(*hidden, handler=None, features=(4,)):
    """Return the initialized network of a classifier, by default in float64."""
    handler = handler or NumpyHandler(np.float64)
    net = Network.from_layer(classifier(*hidden, features=features), seed=3, handler=handler)
    net.initialize(Gaussian(0.3), seed=2)
    return net


def batch_for(T=3, B=4, seed=0):
    """Return a random batch for a classifier."""
    rnd = np.random.default_rng(seed)
    return {"default": rnd.standard_normal((T, B, 4)), "targets": rnd.integers(0, 3, (T, B, 1))}


def _joined():
    inp, final = wire_input(), bl.FullyConnected(3, "linear", name="D")
    a, b, c = (bl.FullyConnected(n, "tanh", name=x) for n, x in ((3, "A"), (5, "B"), (2, "C")))
    inp >> a >> c >> final
    inp >> b >> c
    b >> final
    return wire_loss(inp, final)


def _impossible():
    inp, final = wire_input(), bl.FullyConnected(3, "linear", name="z")
    sources = {x: bl.FullyConnected(2, "tanh", name=x) for x in "abcd"}
    for pair in ("ab", "bc", "ca", "ad"):
        target = bl.FullyConnected(2, "tanh", name=f"to_{pair}")
        for x in pair:
            sources[x] >> target
        target >> final
    for source in sources.values():
        inp >> source
    return wire_loss(inp, final)


def _channels():
    inp, joint = wire_input((4, 4, 2)), bl.Convolution2D(3, (2, 2), activation="tanh", name="joint")
    for name in ("left", "right"):
        inp >> bl.Convolution2D(2, (1, 1), activation="tanh", name=name) >> joint
    inp >> joint
    return wire_loss(inp, chain(joint, bl.Pooling2D((2, 2)), bl.FullyConnected(3, "linear")))


def _both_inputs_from_one_output():
    inp = bl.Input({"default": ("T", "B", 4)})
    same = bl.FullyConnected(3, "tanh", name="same")
    other = bl.FullyConnected(3, "tanh", name="other")
    inp >> same
    inp >> other
    merged, difference = bl.Merge(), bl.SquaredDifference()
    same >> "inputs_1" - merged
    same >> "inputs_2" - merged
    same >> "inputs_1" - difference
    other >> "inputs_2" - difference
    merged >> bl.Elementwise("tanh") >> bl.Loss(importance=0.3, name="merged_loss")
    difference >> bl.Loss(name="difference_loss")
    return inp


def _penalty():
    inp, hidden = wire_input(), bl.FullyConnected(3, "tanh", name="Hidden")
    hidden - "..parameters.W" >> bl.Loss(importance=0.5, name="penalty")
    return wire_loss(inp, chain(inp, hidden, bl.FullyConnected(3, "linear", name="Last")))


def _fan_out_of_recurrence():
    inp, joint = wire_input(targets=(3,)), bl.FullyConnected(3, "linear", name="joint")
    rnn, lstm = bl.Recurrent(3, name="Rnn"), bl.Lstm(2, name="Lstm")
    inp >> rnn >> lstm >> joint
    rnn >> joint
    inp >> joint
    return wire_loss(inp, joint, bl.SquaredError)


def _two_lengths():
    inp = bl.Input({"default": ("T", "B", 4), "source": ("S", "B", 3), "targets": ("T", "B", 1)})
    encoder, attention = bl.Lstm(3), bl.MultiHeadAttention(2, 4, rotary=True)
    inp - "source" >> encoder >> bl.FullyConnected(2, "tanh") >> "memory" - attention
    return wire_loss(inp, chain(inp, bl.Lstm(2), attention, bl.FullyConnected(3, "linear")))


#: Name to a function that wires a network, one for every way of sharing memory.
WIRINGS = {
    "mlp": lambda: classifier(bl.FullyConnected(5, "tanh"), bl.FullyConnected(4, "sigmoid")),
    "cnn": lambda: classifier(
        bl.Convolution2D(3, (2, 2), padding=1, activation="tanh"),
        bl.Pooling2D((2, 2), stride=(2, 2)),
        bl.BatchNorm(),
        features=(4, 4, 2),
    ),
    "lstm": lambda: classifier(bl.Lstm(3), bl.Recurrent(2)),
    "autoencoder": lambda: classifier(
        bl.Lstm(3), bl.TimePooling(), bl.FullyConnected(2), bl.RepeatOverTime(), bl.Lstm(2)
    ),
    "frozen start": lambda: classifier(bl.Elementwise("tanh"), bl.FullyConnected(4, "tanh")),
    "joined": _joined,
    "impossible": _impossible,
    "channels": _channels,
    "one output twice": _both_inputs_from_one_output,
    "penalty": _penalty,
    "recurrent fan-out": _fan_out_of_recurrence,
    "two lengths": _two_lengths,
}


def layers_of(wiring):
    """Return the layers of a wiring, without memory."""
    return instantiate_layers_from_architecture(generate_architecture(wiring))


def checked(inp, handler=None, seed=1, memory="inspectable"):
    """Return the initialized network with an Input, in float64 and checked."""
    handler = handler or DebugHandler(NumpyHandler(np.float64))
    net = Network.from_layer(inp, seed, handler, memory)
    net.initialize(Gaussian(0.5))
    return net


def build(wiring, *options, **named):
    """Return the network of a wiring; arguments as for `checked`."""
    return checked(WIRINGS[wiring](), *options, **named)


def data_for(net, T=3, B=2, seed=3):
    """Return random data for all inputs of a network; S is T + 2."""
    rnd = np.random.RandomState(seed)
    data = {}
    for name, structure in net.layers["Input"].out_shapes.items():
        shape = structure.get_shape(T, B, T + 2)
        is_class = name == "targets" and structure.feature_shape == (1,)
        data[name] = rnd.randint(0, 3, shape) if is_class else rnd.randn(*shape)
    return data


def loss_function(net, **pass_arguments):
    """Return the total loss of a network as a function of its parameters."""

    def total_loss(parameters):
        net.handler.set_from_numpy(net.buffer.parameters, parameters)
        net.forward_pass(training_pass=True, **pass_arguments)
        return net.get_loss_values()["total_loss"]

    return total_loss


def numerical_gradients(net, epsilon=1e-5, **pass_arguments):
    """Return central differences of the total loss for every parameter."""
    start = net.get("parameters")
    gradients = approx_fprime(start, loss_function(net, **pass_arguments), epsilon)
    net.handler.set_from_numpy(net.buffer.parameters, start)
    return gradients


def numerical_slopes(net, directions, epsilon=1e-5, **pass_arguments):
    """Return central differences of the total loss in directions of the parameters."""
    start, loss = net.get("parameters"), loss_function(net, **pass_arguments)
    slopes = [
        approx_fprime(np.zeros(()), lambda step, d=d: loss(start + step * d), epsilon)
        for d in directions
    ]
    net.handler.set_from_numpy(net.buffer.parameters, start)
    return slopes


def provide(net, T=3, B=2, seed=3):
    """Provide random data for all inputs of a network; return them."""
    data = data_for(net, T, B, seed)
    net.provide_external_data(data)
    return data


def forward(net, T=3, B=2, seed=3, data=None, training_pass=True, **arguments):
    """Run a forward pass, by default of a training, on given or random data; return the data."""
    data = data_for(net, T, B, seed) if data is None else data
    net.provide_external_data(data)
    net.forward_pass(training_pass, **arguments)
    return data


def run_passes(net, data=None, **arguments):
    """Run both passes of a training step on given or random data; return the gradients."""
    forward(net, data=data, **arguments)
    net.backward_pass()
    return net.get("gradients")


def assert_gradients(net, data=None, **pass_arguments):
    """Check the gradients of all parameters on given or random data by central differences.

    Parameters are taken one by one only if the slopes in random directions are not right.
    """
    found = run_passes(net, data, **pass_arguments)
    directions = np.random.RandomState(0).normal(size=(3, found.size)) / np.sqrt(found.size)
    slopes = numerical_slopes(net, directions, **pass_arguments)
    if not np.allclose(directions @ found, slopes, 1e-8, 1e-9):
        expected = numerical_gradients(net, **pass_arguments)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)
