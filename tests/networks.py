"""Networks of every kind of wiring, with data for them, and their numerical gradients."""

import numpy as np

from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import (
    BatchNorm,
    Convolution2D,
    Elementwise,
    FullyConnected,
    Input,
    Loss,
    Lstm,
    Merge,
    MultiHeadAttention,
    Pooling2D,
    Recurrent,
    SoftmaxCE,
    SquaredDifference,
    SquaredError,
)
from brainstorm.network import Network


def classifier(*hidden, features=(4,), classes=3):
    """Wire Input >> hidden layers >> linear layer >> SoftmaxCE >> Loss."""
    inp = Input({"default": ("T", "B", *features), "targets": ("T", "B", 1)})
    out = SoftmaxCE(name="Out")
    last = inp
    for layer in hidden:
        last >>= layer
    last >> FullyConnected(classes, "linear", name="Projection") >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    return inp


def trainable(*hidden, handler=None):
    """Return the initialized network of a classifier, by default in float64."""
    handler = handler or NumpyHandler(np.float64)
    net = Network.from_layer(classifier(*hidden), seed=3, handler=handler)
    net.initialize(Gaussian(0.3), seed=2)
    return net


def batch_for(T, B, seed=0):
    """Return a random batch for a classifier."""
    rnd = np.random.default_rng(seed)
    return {"default": rnd.standard_normal((T, B, 4)), "targets": rnd.integers(0, 3, (T, B, 1))}


def _joined():
    inp = Input({"default": ("T", "B", 4), "targets": ("T", "B", 1)})
    a, b, c = (FullyConnected(n, "tanh", name=x) for n, x in ((3, "A"), (5, "B"), (2, "C")))
    out = SoftmaxCE(name="Out")
    inp >> a >> c
    inp >> b >> c
    final = FullyConnected(3, "linear", name="D")
    b >> final
    c >> final
    final >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    return inp


def _impossible():
    inp = Input({"default": ("T", "B", 4), "targets": ("T", "B", 1)})
    sources = {x: FullyConnected(2, "tanh", name=x) for x in "abcd"}
    out = SoftmaxCE(name="Out")
    final = FullyConnected(3, "linear", name="z")
    for pair in ("ab", "bc", "ca", "ad"):
        target = FullyConnected(2, "tanh", name=f"to_{pair}")
        for x in pair:
            sources[x] >> target
        target >> final
    for source in sources.values():
        inp >> source
    final >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    return inp


def _channels():
    inp = Input({"default": ("T", "B", 4, 4, 2), "targets": ("T", "B", 1)})
    out = SoftmaxCE(name="Out")
    joint = Convolution2D(3, (2, 2), activation="tanh", name="joint")
    for name in ("left", "right"):
        inp >> Convolution2D(2, (1, 1), activation="tanh", name=name) >> joint
    inp >> joint
    joint >> Pooling2D((2, 2)) >> FullyConnected(3, "linear") >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    return inp


def _both_inputs_from_one_output():
    inp = Input({"default": ("T", "B", 4)})
    same = FullyConnected(3, "tanh", name="same")
    other = FullyConnected(3, "tanh", name="other")
    inp >> same
    inp >> other
    merged, difference = Merge(), SquaredDifference()
    same >> "inputs_1" - merged
    same >> "inputs_2" - merged
    same >> "inputs_1" - difference
    other >> "inputs_2" - difference
    merged >> Elementwise("tanh") >> Loss(importance=0.3, name="merged_loss")
    difference >> Loss(name="difference_loss")
    return inp


def _penalty():
    inp = Input({"default": ("T", "B", 4), "targets": ("T", "B", 1)})
    hidden, out = FullyConnected(3, "tanh", name="Hidden"), SoftmaxCE(name="Out")
    inp >> hidden >> FullyConnected(3, "linear", name="Last") >> out - "loss" >> Loss()
    hidden - "..parameters.W" >> Loss(importance=0.5, name="penalty")
    inp - "targets" >> "targets" - out
    return inp


def _fan_out_of_recurrence():
    inp = Input({"default": ("T", "B", 4), "targets": ("T", "B", 3)})
    rnn, lstm = Recurrent(3, name="Rnn"), Lstm(2, name="Lstm")
    joint, out = FullyConnected(3, "linear", name="joint"), SquaredError(name="Out")
    inp >> rnn >> lstm >> joint
    rnn >> joint
    inp >> joint
    joint >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    return inp


#: Name to a function that wires a network, one for every way of sharing memory.
def _two_lengths():
    inp = Input({"default": ("T", "B", 4), "source": ("S", "B", 3), "targets": ("T", "B", 1)})
    encoder, attention, out = Lstm(3), MultiHeadAttention(2, 4, rotary=True), SoftmaxCE(name="Out")
    inp - "source" >> encoder >> FullyConnected(2, "tanh") >> "memory" - attention
    inp >> Lstm(2) >> attention >> FullyConnected(3, "linear") >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    return inp


WIRINGS = {
    "mlp": lambda: classifier(FullyConnected(5, "tanh"), FullyConnected(4, "sigmoid")),
    "cnn": lambda: classifier(
        Convolution2D(3, (2, 2), padding=1, activation="tanh"),
        Pooling2D((2, 2), stride=(2, 2)),
        BatchNorm(),
        features=(4, 4, 2),
    ),
    "lstm": lambda: classifier(Lstm(3), Recurrent(2)),
    "frozen start": lambda: classifier(Elementwise("tanh"), FullyConnected(4, "tanh")),
    "joined": _joined,
    "impossible": _impossible,
    "channels": _channels,
    "one output twice": _both_inputs_from_one_output,
    "penalty": _penalty,
    "recurrent fan-out": _fan_out_of_recurrence,
    "two lengths": _two_lengths,
}


def build(wiring, handler=None, seed=1, memory="inspectable"):
    """Return the initialized network of a wiring, in float64 and checked."""
    handler = handler or DebugHandler(NumpyHandler(np.float64))
    net = Network.from_layer(WIRINGS[wiring](), seed, handler, memory)
    net.initialize(Gaussian(0.5))
    return net


def data_for(net, T=3, B=2, seed=3):
    """Return random data for all inputs of a network; S is T + 2."""
    rnd = np.random.RandomState(seed)
    data = {}
    for name, structure in net.layers["Input"].out_shapes.items():
        shape = structure.get_shape(T, B, T + 2)
        is_class = name == "targets" and structure.feature_shape == (1,)
        data[name] = rnd.randint(0, 3, shape) if is_class else rnd.randn(*shape)
    return data


def numerical_gradients(net, epsilon=1e-5, **pass_arguments):
    """Return central differences of the total loss for every parameter."""
    start = net.get("parameters")
    gradients = np.zeros_like(start)
    for i in range(start.size):
        values = []
        for step in (epsilon, -epsilon):
            moved = start.copy()
            moved[i] += step
            net.handler.set_from_numpy(net.buffer.parameters, moved)
            net.forward_pass(training_pass=True, **pass_arguments)
            values.append(net.get_loss_values()["total_loss"])
        gradients[i] = (values[0] - values[1]) / (2 * epsilon)
    net.handler.set_from_numpy(net.buffer.parameters, start)
    return gradients


def run_passes(net, data=None):
    """Run both passes of a training step on given or random data; return the gradients."""
    net.provide_external_data(data_for(net) if data is None else data)
    net.forward_pass(training_pass=True)
    net.backward_pass()
    return net.get("gradients")


def assert_gradients(net, data=None, **pass_arguments):
    """Check the gradients of all parameters on given or random data by central differences."""
    net.provide_external_data(data_for(net) if data is None else data)
    expected = numerical_gradients(net, **pass_arguments)
    net.forward_pass(training_pass=True, **pass_arguments)
    net.backward_pass()
    np.testing.assert_allclose(net.get("gradients"), expected, rtol=1e-5, atol=1e-8)
