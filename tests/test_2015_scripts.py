"""Files as a user of the 2015 release wrote them, run unchanged: scripts, layers, architectures."""

import json
import runpy
import textwrap

import h5py
import numpy as np
import pytest

import brainstorm as bs
from brainstorm.handlers import NumpyHandler
from brainstorm.testing import check_layer, get_test_configurations, run_layer_tests
from tests.networks import (
    assert_gradients,
    chain,
    checked,
    run_passes,
    wire_input,
    wire_loss,
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a script in a folder of its own and returns its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAINSTORM_DATA_DIR", str(tmp_path))

    def run_script(text):
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        return runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")

    return run_script


def write_data(file, group, shape, classes, sizes, targets=None):
    """Write classes that can be told from the mean of the first features."""
    rnd = np.random.RandomState(0)
    with h5py.File(file, "w") as out:
        for split, n in sizes.items():
            labels = rnd.randint(0, classes, (1, n, 1))
            features = rnd.randn(1, n, *shape) * 0.3
            features += labels.reshape(1, n, *[1] * len(shape)) - classes / 2
            out[f"{group}/{split}/default"] = features
            out[f"{group}/{split}/targets"] = labels


# -- training scripts -----------------------------------------------------------------------------

HEAD = """
    #!/usr/bin/env python
    # coding=utf-8
    from __future__ import division, print_function, unicode_literals
    import os
    import h5py
    import brainstorm as bs
    from brainstorm.data_iterators import Minibatches, OneHot
    from brainstorm.initializers import Gaussian

    bs.global_rnd.set_seed(42)
    data_dir = os.environ.get('BRAINSTORM_DATA_DIR', '../data')
"""

TRAIN = """
    trainer = bs.Trainer(bs.training.MomentumStepper(learning_rate=0.1, momentum=0.9))
    trainer.train_scorers = [bs.scorers.Accuracy(out_name='Output.outputs.predictions')]
    trainer.add_hook(bs.hooks.ProgressBar())
    scorers = [bs.scorers.Accuracy(out_name='Output.outputs.predictions')]
    trainer.add_hook(bs.hooks.MonitorScores('valid_getter', scorers, name='validation'))
    trainer.add_hook(bs.hooks.SaveBestNetwork('validation.Accuracy',
                                              filename='best.hdf5',
                                              name='best weights',
                                              criterion='max'))
    trainer.add_hook(bs.hooks.StopAfterEpoch(3))
    trainer.train(network, getter_tr, valid_getter=getter_va)
    print("Best validation accuracy:", max(trainer.logs["validation"]["Accuracy"]))
"""

MNIST_PI = """
    ds = h5py.File(os.path.join(data_dir, 'MNIST.hdf5'), 'r')['normalized_split']
    x_tr, y_tr = ds['training']['default'][:], ds['training']['targets'][:]
    x_va, y_va = ds['validation']['default'][:], ds['validation']['targets'][:]

    getter_tr = Minibatches(100, default=x_tr, targets=y_tr)
    getter_va = Minibatches(100, default=x_va, targets=y_va)

    inp, fc = bs.tools.get_in_out_layers('classification', (28, 28, 1), 10,
                                         projection_name='FC')
    network = bs.Network.from_layer(
        inp >>
        bs.layers.Dropout(drop_prob=0.2) >>
        bs.layers.FullyConnected(name='Hid1', size=20, activation='rel') >>
        bs.layers.Dropout(drop_prob=0.5) >>
        fc
    )
    # network.set_handler(PyCudaHandler())
    network.initialize(Gaussian(0.01))
    network.set_weight_modifiers({'FC': bs.value_modifiers.ConstrainL2Norm(1)})
"""


def test_permutation_invariant_digits(run, tmp_path, capsys):
    sizes = {"training": 300, "validation": 150}
    write_data(tmp_path / "MNIST.hdf5", "normalized_split", (28, 28, 1), 10, sizes)
    names = run(HEAD + MNIST_PI + TRAIN)
    logs = names["trainer"].logs
    assert len(logs["validation"]["Accuracy"]) == 4
    assert len(logs["rolling_training"]["total_loss"]) == 3
    norms = np.linalg.norm(names["network"].get("FC.parameters.W"), axis=1)
    assert norms.max() <= 1 + 1e-5
    assert "Best validation accuracy: " in capsys.readouterr().out
    best = bs.Network.from_hdf5("best.hdf5")
    accuracy = bs.tools.evaluate(best, names["getter_va"], names["scorers"])["Accuracy"]
    assert accuracy == pytest.approx(max(logs["validation"]["Accuracy"]))


CIFAR10 = """
    ds = h5py.File(os.path.join(data_dir, 'CIFAR-10.hdf5'), 'r')['normalized_split']
    getter_tr = Minibatches(20, default=ds['training']['default'][:],
                            targets=ds['training']['targets'][:])
    getter_va = Minibatches(20, default=ds['validation']['default'][:],
                            targets=ds['validation']['targets'][:])

    inp, fc = bs.tools.get_in_out_layers('classification', (8, 8, 3), 10)

    (inp >>
        bs.layers.Convolution2D(4, kernel_size=(5, 5), padding=2, name='Conv1') >>
        bs.layers.Pooling2D(type="max", kernel_size=(3, 3), stride=(2, 2)) >>
        bs.layers.Convolution2D(4, kernel_size=(5, 5), padding=2, name='Conv2') >>
        bs.layers.Pooling2D(type="max", kernel_size=(3, 3), stride=(2, 2)) >>
        bs.layers.FullyConnected(8, name='FC') >>
        fc)

    network = bs.Network.from_layer(fc)
    network.initialize({'Conv*': {'W': Gaussian(0.1), 'bias': 0},
                        'FC': {'W': Gaussian(0.1), 'bias': 0},
                        'Output_projection': {'W': Gaussian(0.1), 'bias': 0}})
"""


def test_convolutional_network(run, tmp_path):
    sizes = {"training": 60, "validation": 30}
    write_data(tmp_path / "CIFAR-10.hdf5", "normalized_split", (8, 8, 3), 10, sizes)
    names = run(HEAD + CIFAR10 + TRAIN)
    assert len(names["trainer"].logs["rolling_training"]["Accuracy"]) == 3
    assert names["network"].get("Pooling2D_1.outputs.default").shape == (1, 10, 3, 3, 4)
    assert (tmp_path / "best.hdf5").exists()


HUTTER = """
    ds = h5py.File(os.path.join(data_dir, 'HutterPrize.hdf5'), 'r')['split']
    x_tr, y_tr = ds['training']['default'], ds['training']['targets']
    x_va, y_va = ds['validation']['default'], ds['validation']['targets']

    getter_tr = OneHot(Minibatches(5, default=x_tr, targets=y_tr, shuffle=False), {'default': 20})
    getter_va = OneHot(Minibatches(5, default=x_va, targets=y_va, shuffle=False), {'default': 20})

    network = bs.tools.create_net_from_spec('classification', 20, 20, 'L8')

    trainer = bs.Trainer(bs.training.MomentumStepper(learning_rate=0.01, momentum=0.9))
    trainer.add_hook(bs.hooks.ProgressBar())
    scorers = [bs.scorers.Accuracy(out_name='Output.outputs.predictions')]
    trainer.add_hook(bs.hooks.MonitorScores('valid_getter', scorers, timescale='update',
                                            interval=3, name='validation'))
    trainer.add_hook(bs.hooks.StopOnNan())
    trainer.add_hook(bs.hooks.StopAfterEpoch(2))
    trainer.train(network, getter_tr, valid_getter=getter_va)
    print("Best validation loss:", min(trainer.logs["validation"]["total_loss"]))
"""


def test_recurrent_network_on_characters(run, tmp_path):
    rnd = np.random.RandomState(0)
    with h5py.File(tmp_path / "HutterPrize.hdf5", "w") as out:
        for split, n in (("training", 20), ("validation", 5)):
            characters = np.cumsum(rnd.randint(1, 3, (13, n, 1)), axis=0) % 20
            out[f"split/{split}/default"] = characters[:-1]
            out[f"split/{split}/targets"] = characters[1:]
    names = run(HEAD + HUTTER)
    losses = names["trainer"].logs["validation"]["total_loss"]
    assert len(losses) == 3  # at updates 0, 3 and 6
    assert losses[-1] < losses[0]
    # outputs of recurrent layers have the context as their last row
    assert names["network"].get("Lstm.outputs.default").shape[0] == 13
    extracted = bs.tools.extract(names["network"], names["getter_va"], ["Lstm.internals.Fb"])
    assert extracted["Lstm.internals.Fb"].shape == (13, 5, 8)


# -- layers ---------------------------------------------------------------------------------------

SQUARE = """
    from collections import OrderedDict

    from brainstorm.layers.base_layer import Layer
    from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
    from brainstorm.structure.construction import ConstructionWrapper


    def Square(name=None):
        '''Create a layer that squares its inputs.'''
        return ConstructionWrapper.create(SquareLayerImpl, name=name)


    class SquareLayerImpl(Layer):
        expected_inputs = {'default': StructureTemplate('T', 'B', '...')}
        expected_kwargs = {}

        def setup(self, kwargs, in_shapes):
            outputs = OrderedDict()
            outputs['default'] = BufferStructure(
                'T', 'B', *self.in_shapes['default'].feature_shape)
            internals = OrderedDict()
            internals['doubled'] = BufferStructure(
                'T', 'B', *self.in_shapes['default'].feature_shape, is_backward_only=True)
            return outputs, OrderedDict(), internals

        def forward_pass(self, buffers, training_pass=True):
            _h = self.handler
            _h.mult_tt(buffers.inputs.default, buffers.inputs.default, buffers.outputs.default)

        def backward_pass(self, buffers):
            _h = self.handler
            _h.mult_st(2, buffers.inputs.default, buffers.internals.doubled)
            _h.mult_add_tt(buffers.internals.doubled, buffers.output_deltas.default,
                           buffers.input_deltas.default)
"""

PROJECT = """
    from collections import OrderedDict

    from brainstorm.layers.base_layer import Layer
    from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
    from brainstorm.structure.construction import ConstructionWrapper
    from brainstorm.utils import LayerValidationError, flatten_time_and_features


    def Project(size, activation='tanh', name=None):
        return ConstructionWrapper.create('ProjectLayerImpl', name=name, size=size,
                                          activation=activation)


    class ProjectLayerImpl(Layer):
        expected_inputs = {'default': StructureTemplate('T', 'B', '...')}
        expected_kwargs = {'size', 'activation'}

        def setup(self, kwargs, in_shapes):
            self.activation = kwargs.get('activation', 'tanh')
            if not isinstance(kwargs['size'], int):
                raise LayerValidationError('size must be int')
            outputs = OrderedDict()
            outputs['default'] = BufferStructure('T', 'B', kwargs['size'])
            parameters = OrderedDict()
            parameters['W'] = BufferStructure(kwargs['size'], in_shapes['default'].feature_size)
            parameters['bias'] = BufferStructure(kwargs['size'])
            internals = OrderedDict()
            internals['H'] = BufferStructure('T', 'B', kwargs['size'])
            internals['dH'] = BufferStructure('T', 'B', kwargs['size'], is_backward_only=True)
            return outputs, parameters, internals

        def forward_pass(self, buffers, training_pass=True):
            _h = self.handler
            W, bias = buffers.parameters
            x = flatten_time_and_features(buffers.inputs.default)
            H = flatten_time_and_features(buffers.internals.H)
            _h.dot_mm(x, W, H, transb=True)
            _h.add_mv(H, bias.reshape((1, bias.shape[0])), H)
            _h.act_func[self.activation](H, flatten_time_and_features(buffers.outputs.default))

        def backward_pass(self, buffers):
            _h = self.handler
            W, bias = buffers.parameters
            dW, dbias = buffers.gradients
            H, dH = [flatten_time_and_features(b) for b in buffers.internals]
            x = flatten_time_and_features(buffers.inputs.default)
            y = flatten_time_and_features(buffers.outputs.default)
            dy = flatten_time_and_features(buffers.output_deltas.default)
            dx = flatten_time_and_features(buffers.input_deltas.default)
            _h.act_func_deriv[self.activation](H, y, dy, dH)
            _h.dot_add_mm(dH, W, out=dx)
            GRADIENTS
"""

ADDING = PROJECT.replace(
    "GRADIENTS",
    """_h.dot_add_mm(dH, x, out=dW, transa=True)
            tmp = _h.allocate(dbias.shape)
            _h.sum_t(dH, axis=0, out=tmp)
            _h.add_tt(tmp, dbias, out=dbias)""",
)

#: As the built-in layers of 2015 did it.
OVERWRITING = PROJECT.replace(
    "GRADIENTS",
    """_h.dot_mm(dH, x, out=dW, transa=True)
            _h.sum_t(dH, axis=0, out=dbias)""",
)


def around(*layers, features=(3,)):
    """Return a network of the layers between an Input and a squared error, in checked float64."""
    inp = wire_input(features, (2,))
    last = chain(inp, *layers, bs.layers.FullyConnected(2, "linear"))
    return checked(wire_loss(inp, last, bs.layers.SquaredError))


def check_gradients(net):
    assert_gradients(net)
    gradients = net.get("gradients")  # what the first pass leaves in memory plays no role
    np.testing.assert_array_equal(run_passes(net), gradients)


@pytest.mark.filterwarnings("ignore:.*write `is_traceable = True` into class SquareLayerImpl")
def test_the_squaring_layer_is_right_and_trains(run):
    Square = run(SQUARE)["Square"]
    check_layer(Square(), {"default": ("T", "B", 2, 3)})
    FullyConnected = bs.layers.FullyConnected
    for layers in ([Square()], [FullyConnected(4, "tanh"), Square()], [Square(), Square()]):
        check_gradients(around(*layers))
    for specs in get_test_configurations():
        layer_class = bs.layers.base_layer.get_layer_class_from_typename("SquareLayerImpl")
        shapes = {"default": bs.structure.BufferStructure("T", "B", 3)}
        run_layer_tests(layer_class("test", shapes, set(), set()), specs)


@pytest.mark.parametrize("text", [ADDING, OVERWRITING], ids=["adding", "overwriting"])
def test_a_layer_with_parameters_is_right_wherever_it_stands(run, text):
    Project = run(text)["Project"]
    if text is ADDING:
        check_layer(Project(3), {"default": ("T", "B", 2, 2)})
    check_gradients(around(Project(4)))  # directly after the Input
    check_gradients(around(bs.layers.Dropout(0.0), Project(4, "sigmoid"), features=(2, 3)))
    check_gradients(around(bs.layers.FullyConnected(4, "tanh"), Project(4), Project(3, "linear")))
    inp, joint = wire_input((3,), (2,)), bs.layers.FullyConnected(2, "linear")
    shared, left, right = Project(4), bs.layers.FullyConnected(2, "tanh"), Project(2)
    inp >> shared >> left >> joint
    shared >> right >> joint
    check_gradients(checked(wire_loss(inp, joint, bs.layers.SquaredError)))


def test_options_of_a_layer_are_checked_by_name(run):
    run(ADDING)
    inp = {"@type": "Input", "out_shapes": {"default": ("T", "B", 2)}}
    for options, text in (
        ({"size": 3, "activations": "rel"}, "Did you mean 'activation'"),
        ({"size": "three"}, "^size must be int$"),
    ):
        layers = {
            "Input": {**inp, "@outgoing_connections": ["P"]},
            "P": {"@type": "Project", **options},
        }
        with pytest.raises(bs.utils.LayerValidationError, match=text):
            bs.Network.from_architecture(layers)


# -- architectures --------------------------------------------------------------------------------

ARCHITECTURE = """
{
  "Input": {
    "@type": "Input",
    "out_shapes": {"default": ["T", "B", 4], "targets": ["T", "B", 1]},
    "@outgoing_connections": {"default": ["Lstm", "Skip.default"], "targets": ["Out.targets"]}
  },
  "Lstm": {"@type": "Lstm", "size": 3, "@outgoing_connections": ["Joint"]},
  "Skip": {"@type": "FullyConnected", "size": 2, "activation": "tanh",
           "@outgoing_connections": {"default": ["Joint.default"],
                                     "..parameters.W": ["Penalty.default"]}},
  "Joint": {"@type": "FullyConnected", "size": 3, "activation": "linear",
            "@outgoing_connections": ["Out"]},
  "Out": {"@type": "SoftmaxCE", "@outgoing_connections": {"loss": ["Loss"]}},
  "Loss": {"@type": "Loss", "@outgoing_connections": [], "importance": 2.0},
  "Penalty": {"@type": "Loss", "@outgoing_connections": [], "importance": 0.1}
}
"""


SAVED = """
{
  "@type": "Network",
  "architecture": {
    "Input": {"@type": "Input", "out_shapes": {"default": ["T", "B", 3]},
              "@outgoing_connections": {"default": ["Zeta.default"]}},
    "Zeta": {"@type": "FullyConnected", "size": 2, "activation": "linear",
             "@outgoing_connections": {"default": ["Norm.default"]}},
    "Norm": {"@type": "BatchNorm", "decay": 0.9, "epsilon": 1e-5,
             "@outgoing_connections": {"default": ["Alpha.default"]}},
    "Alpha": {"@type": "FullyConnected", "size": 2, "activation": "linear",
              "@outgoing_connections": {"default": []}}
  },
  "handler": {"@type": "NumpyHandler", "dtype": "float32"},
  "initializers": {"default": {"@type": "Gaussian", "std": 0.1, "mean": 0.0}},
  "weight_modifiers": {},
  "gradient_modifiers": {},
  "output_name": "Alpha.outputs.default"
}
"""


def save_as_in_2015(file, parameters):
    with h5py.File(file, "w") as out:
        out.attrs["format"] = b"Network file v1.0"
        out.attrs["info"] = b"Created with brainstorm 0.5"
        out["description"] = json.dumps(json.loads(SAVED)).encode()
        out.create_dataset("parameters", data=parameters, compression="gzip")


def test_a_network_file_with_batch_normalization(tmp_path):
    rnd = np.random.RandomState(0)
    alpha, zeta, x = rnd.randn(2, 2), rnd.randn(2, 3), rnd.randn(1, 4, 3)
    gamma, beta, mu = rnd.randn(3, 2)
    sigma = np.array([1.5, 0.003162277])  # the second: the root of epsilon, rounded down
    norm = [gamma, beta, mu, sigma]
    parts = [alpha, [1.0, 2.0], *norm, zeta, [3.0, 4.0]]  # in the order of the layers' names
    save_as_in_2015(tmp_path / "net.hdf5", np.concatenate([np.ravel(part) for part in parts]))
    net = bs.Network.from_hdf5(tmp_path / "net.hdf5")
    hidden = x @ zeta.T + [3.0, 4.0]
    expected = (gamma * (hidden + mu) / sigma + beta) @ alpha.T + [1.0, 2.0]
    np.testing.assert_allclose(net.predict(x), expected, rtol=1e-4)
    net.save_as_hdf5(tmp_path / "again.hdf5")
    again = bs.Network.from_hdf5(tmp_path / "again.hdf5")
    assert np.array_equal(again.predict(x), net.predict(x))


def test_a_network_file_that_has_lost_parameters(tmp_path):
    save_as_in_2015(tmp_path / "net.hdf5", np.zeros(21))
    text = r"net.hdf5' is of 2015: expected 22 parameters for its layers, got an array of shape "
    with pytest.raises(bs.errors.FileFormatError, match=rf"{text}\(21,\)\.$"):
        bs.Network.from_hdf5(tmp_path / "net.hdf5")


def test_an_architecture_read_from_json(tmp_path):
    architecture = json.loads(ARCHITECTURE)
    net = bs.Network.from_architecture(architecture, handler=NumpyHandler(np.float64))
    assert architecture == json.loads(ARCHITECTURE)
    assert next(iter(net.layers)) == "Input"
    assert net.layers["Joint"].in_shapes["default"].shape == ("T", "B", 5)
    net.initialize({"Lstm": {"b*": 1.0}, "default": bs.initializers.Gaussian(0.5)}, seed=3)
    assert (net.get("Lstm.parameters.bf") == 1).all()
    assert_gradients(net)
    assert set(net.get_loss_values()) == {"Loss", "Penalty", "total_loss"}
    net.save_as_hdf5(tmp_path / "net.hdf5", comment="from JSON")
    again = bs.Network.from_hdf5(str(tmp_path / "net.hdf5"))
    np.testing.assert_array_equal(again.get("parameters"), net.get("parameters"))
