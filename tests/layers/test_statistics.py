"""Statistics layers: what they count, over batches, in the trainer and in evaluations."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.data_iterators import Minibatches
from brainstorm.errors import ValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.hooks import MonitorLoss, StopAfterEpoch
from brainstorm.network import Network
from brainstorm.scorers import Accuracy
from brainstorm.tools import evaluate
from brainstorm.training import SgdStepper, Trainer
from tests.networks import wire_input, wire_loss

DOUBLE = NumpyHandler(np.float64)


def counting_network(layer, features=3, targets=1, mask=False, handler=DOUBLE):
    shapes = {"default": ("T", "B", features), "targets": ("T", "B", targets)}
    if mask:
        shapes["mask"] = ("T", "B", 1)
    inp = bl.Input(shapes)
    for name in shapes:
        inp - name >> name - layer
    return Network.from_layer(inp, handler=handler)


def run(net, **data):
    net.provide_external_data({name: np.asarray(v, dtype=float) for name, v in data.items()})
    net.forward_pass()


def test_accuracy_accumulates_until_reset(capsys):
    net = counting_network(bl.Accuracy(name="right"))
    assert np.isnan(net.dump_statistics()["right"])
    run(net, default=[[[0, 1, 0], [5, 1, 1]]], targets=[[[1], [2]]])
    assert net.dump_statistics() == {"right": 0.5}
    run(net, default=[[[0, 1, 0]], [[0, 0, 9]]], targets=[[[1]], [[2]]])
    storage = {"other": 1.0}
    assert net.dump_statistics(storage, show=True) is storage
    assert storage == {"other": 1.0, "right": 0.75}
    assert capsys.readouterr().out == "right: 0.75\n"
    net.reset_statistics()
    run(net, default=[[[0, 1, 0]]], targets=[[[0]]])
    assert net.dump_statistics() == {"right": 0.0}


@pytest.mark.parametrize("handler", [NumpyHandler(np.float32), None], ids=["numpy", "default"])
def test_more_cases_are_counted_than_float32_has_integers(handler):
    net = counting_network(bl.Accuracy(name="right"), 2, handler=handler)
    sizes = [700_001, 1, 1, 700_000]
    for total in net.buffer.right.internals:
        total[0] = 2**26
    for size in sizes:
        run(net, default=np.tile([0, 1], (1, size, 1)), targets=np.ones((1, size, 1)))
    for total in net.buffer.right.internals:
        assert total.sum(dtype=float) == 2**26 + sum(sizes)
        assert total[0] % 2**20 == 0 <= total[1] < 2**20
    assert net.dump_statistics() == {"right": 1.0}


@pytest.mark.parametrize("layer", [bl.Accuracy, bl.BinaryAccuracy], ids=lambda f: f.__name__)
def test_nan_is_neither_right_nor_wrong_unless_it_does_not_count(layer):
    width = 3 if layer is bl.Accuracy else 1
    net = counting_network(layer(name="right"), features=width, mask=True)
    x = np.zeros((1, 2, width))
    x[0, 1, 0] = np.nan
    for mask, expected in (([1, 0], 1.0), ([1, 1], np.nan)):
        run(net, default=x, targets=np.zeros((1, 2, 1)), mask=np.reshape(mask, (1, 2, 1)))
        np.testing.assert_equal(net.dump_statistics()["right"], expected)


def test_binary_accuracy():
    net = counting_network(bl.BinaryAccuracy(0.3, name="right"), features=2, targets=2)
    run(net, default=[[[0.2, 0.4], [0.31, 0.3]]], targets=[[[0, 1], [1, 1]]])
    assert net.dump_statistics() == {"right": 0.75}


def classifier_with_statistics(name="right"):
    inp, right = wire_input((2,)), bl.Accuracy(name=name)
    scores = inp >> bl.FullyConnected(2, "linear")
    wire_loss(inp, scores)
    scores >> right
    inp - "targets" >> "targets" - right
    net = Network.from_layer(inp, seed=1)
    net.initialize(1.0)
    net.output_name = "Out.outputs.predictions"
    return net


def separable(count, seed):
    x = np.random.RandomState(seed).randn(1, count, 2)
    return {"default": x, "targets": (x[..., :1] > 0).astype(float)}


def test_the_trainer_logs_and_resets_them_and_evaluations_do_not_disturb():
    net = classifier_with_statistics()
    trainer = Trainer(SgdStepper(1.0), verbose=False)
    trainer.train_scorers = [Accuracy()]
    trainer.add_hook(MonitorLoss("other", timescale="update"))
    trainer.add_hook(StopAfterEpoch(3))
    training = Minibatches(7, **separable(30, 1))
    trainer.train(net, training, other=Minibatches(10, **separable(40, 2)))
    logged = trainer.logs["statistics"]["right"]
    np.testing.assert_allclose(logged, trainer.logs["rolling_training"]["Accuracy"], rtol=1e-6)
    assert len(trainer.logs["MonitorLoss"]["right"]) > 3
    assert logged[-1] > 0.8


def test_evaluate_reports_them():
    net = classifier_with_statistics()
    data = Minibatches(8, **separable(50, 3))
    run(net, **separable(5, 4))
    before = net.dump_statistics()["right"]
    results = evaluate(net, data, [Accuracy()])
    assert results["right"] == pytest.approx(results["Accuracy"]) != before
    assert net.dump_statistics()["right"] == before
    clashing = classifier_with_statistics(name="Accuracy")
    with pytest.raises(ValidationError, match="both called Accuracy"):
        evaluate(clashing, data, [Accuracy()])
