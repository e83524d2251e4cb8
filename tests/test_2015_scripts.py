"""Files as a user of the 2015 release wrote them, run unchanged: scripts, layers, networks."""

import json
import runpy
import textwrap

import h5py
import numpy as np
import pytest

import brainstorm as bs
from brainstorm.testing import check_layer, get_test_configurations, run_layer_tests
from tests.networks import assert_gradients, chain, checked, run_passes, wire_input, wire_loss


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs a script in a folder of its own and returns its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAINSTORM_DATA_DIR", str(tmp_path))

    def run_script(text):
        (tmp_path / "script.py").write_text(textwrap.dedent(text))
        return runpy.run_path(str(tmp_path / "script.py"), run_name="__main__")

    return run_script


# -- a training script ----------------------------------------------------------------------------

MNIST_PI = """
    #!/usr/bin/env python
    # coding=utf-8
    from __future__ import division, print_function, unicode_literals
    import os
    import h5py
    import brainstorm as bs
    from brainstorm.data_iterators import Minibatches
    from brainstorm.initializers import Gaussian

    bs.global_rnd.set_seed(42)
    data_dir = os.environ.get('BRAINSTORM_DATA_DIR', '../data')

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


def test_permutation_invariant_digits(run, tmp_path, capsys):
    rnd = np.random.RandomState(0)
    with h5py.File(tmp_path / "MNIST.hdf5", "w") as out:
        for split, n in (("training", 300), ("validation", 150)):
            labels = rnd.randint(0, 10, (1, n, 1))
            images = 0.3 * rnd.randn(1, n, 28, 28, 1) + labels[..., None, None] - 5
            out[f"normalized_split/{split}/default"] = images
            out[f"normalized_split/{split}/targets"] = labels
    names = run(MNIST_PI)
    logs = names["trainer"].logs
    assert len(logs["validation"]["Accuracy"]) == 4
    assert len(logs["rolling_training"]["total_loss"]) == 3
    norms = np.linalg.norm(names["network"].get("FC.parameters.W"), axis=1)
    assert norms.max() <= 1 + 1e-5
    assert "Best validation accuracy: " in capsys.readouterr().out
    best = bs.Network.from_hdf5("best.hdf5")
    accuracy = bs.tools.evaluate(best, names["getter_va"], names["scorers"])["Accuracy"]
    assert accuracy == pytest.approx(max(logs["validation"]["Accuracy"]))


# -- layers ---------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("text", [ADDING, OVERWRITING], ids=["adding", "overwriting"])
def test_a_layer_with_parameters_is_right_wherever_it_stands(run, text):
    Project = run(text)["Project"]
    if text is ADDING:
        check_layer(Project(3), {"default": ("T", "B", 2, 2)})
        layer_class = bs.layers.base_layer.get_layer_class_from_typename("ProjectLayerImpl")
        shapes = {"default": bs.structure.BufferStructure("T", "B", 3)}
        for specs in get_test_configurations():
            run_layer_tests(layer_class("test", shapes, set(), set(), size=2), specs)
    check_gradients(around(Project(4)))  # directly after the Input
    check_gradients(around(bs.layers.Dropout(0.0), Project(4, "sigmoid"), features=(2, 3)))
    check_gradients(around(bs.layers.FullyConnected(4, "tanh"), Project(4), Project(3, "linear")))
    inp, joint = wire_input((3,), (2,)), bs.layers.FullyConnected(2, "linear")
    shared, left, right = Project(4), bs.layers.FullyConnected(2, "tanh"), Project(2)
    inp >> shared >> left >> joint
    shared >> right >> joint
    check_gradients(checked(wire_loss(inp, joint, bs.layers.SquaredError)))


# -- network files --------------------------------------------------------------------------------

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
