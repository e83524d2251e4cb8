"""Events for TensorBoard, read back."""

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import UnknownPathError
from brainstorm.ext.tensorboard import TensorBoardWriter
from brainstorm.hooks import Hook, MonitorLoss
from brainstorm.initializers import Gaussian
from brainstorm.tools import create_net_from_spec
from brainstorm.training import SgdStepper
from tests.trainings import make_trainer


class Say(Hook):
    """Logs a text, and a number every other time."""

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        return {"text": "hello", **({"even": np.float32(epoch_nr)} if epoch_nr % 2 == 0 else {})}


@pytest.fixture
def net():
    net = create_net_from_spec("regression", 3, 2, "Ft5")
    net.initialize(Gaussian(0.5), seed=1)
    return net


X = np.random.RandomState(0).normal(size=(1, 8, 3))
BATCHES = Minibatches(4, default=X, targets=X[..., :2])


def train(net, *hooks):
    trainer = make_trainer(*hooks, stepper=SgdStepper(0.1), epochs=3)
    trainer.train(net, BATCHES, valid=BATCHES)
    return trainer


def read(folder):
    """Return {tag: {step: value}} of all events: numbers, and histograms as messages."""
    from tensorboardX.proto.event_pb2 import Event

    content, found = b"".join(file.read_bytes() for file in sorted(folder.iterdir())), {}
    while content:  # a length (8 bytes and 4 of its checksum), the event, 4 of its checksum
        length = int.from_bytes(content[:8], "little")
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            found.setdefault(value.tag, {})[event.step] = getattr(value, kind)
    return found


def test_scalars(net, tmp_path):
    trainer = train(
        net, MonitorLoss("valid", name="valid"), Say("say"), TensorBoardWriter(tmp_path)
    )
    found = read(tmp_path)
    assert set(found) == {"valid/total_loss", "rolling_training/total_loss", "say/even"}
    values = [found["valid/total_loss"][step] for step in range(4)]
    assert values == pytest.approx(trainer.logs["valid.total_loss"])
    assert sorted(found["rolling_training/total_loss"]) == [1, 2, 3]
    assert found["say/even"] == {0: 0.0, 2: 2.0}


def test_a_training_that_goes_on_adds_a_file_and_writes_no_value_twice(net, tmp_path):
    say = Say("say")
    trainer = train(net, MonitorLoss("valid", name="valid"), say, TensorBoardWriter(tmp_path))
    del trainer.hooks["say"]
    trainer.hooks["StopAfterEpoch"].max_epochs = 5
    trainer.train(net, BATCHES, valid=BATCHES)  # within the same second
    assert len(list(tmp_path.iterdir())) == 2
    found = read(tmp_path)
    assert sorted(found["valid/total_loss"]) == list(range(6))
    assert found["say/even"] == {0: 0.0, 2: 2.0}


def test_histograms(net, tmp_path):
    writer = TensorBoardWriter(tmp_path, ["*.parameters.W", "Fu*.gradients.*"], "update", 2)
    net.buffer.FullyConnected.parameters.bias[:] = 0
    train(net, writer)
    found = read(tmp_path)
    names = {"FullyConnected/parameters/W", "Output_projection/parameters/W"}
    names |= {"FullyConnected/gradients/W", "FullyConnected/gradients/bias"}
    assert {tag for tag in found if "rolling" not in tag} == names
    assert sorted(found["FullyConnected/parameters/W"]) == [0, 2, 4, 6]
    W = net.get("FullyConnected.parameters.W")
    last = found["FullyConnected/parameters/W"][6]
    assert last.num == W.size
    assert (last.min, last.max) == pytest.approx((W.min(), W.max()))
    assert sum(last.bucket) == W.size


def test_values_that_are_not_finite_are_left_out(net, tmp_path):
    writer = TensorBoardWriter(tmp_path, "*.parameters.*")
    net.buffer.FullyConnected.parameters.W[:] = np.nan
    net.buffer.FullyConnected.parameters.bias[0] = np.inf
    writer.start(net, None, False, {})
    writer(0, 0, net, None, bs.training.Logs())
    writer.finalize(net, None, None)
    found = read(tmp_path)
    assert "FullyConnected/parameters/W" not in found
    assert found["FullyConnected/parameters/bias"][0].num == 4


def test_the_file_is_closed_with_the_training(net, tmp_path):
    writer = TensorBoardWriter(tmp_path)
    train(net, writer)
    assert writer._writer is None
    writer.finalize(net, None, None)


def test_an_unknown_buffer(net, tmp_path):
    writer = TensorBoardWriter(tmp_path / "runs", ["*.parameters.*", "FullyConected.parameters.*"])
    with pytest.raises(UnknownPathError, match="unknown buffer 'FullyConected.parameters.*'"):
        train(net, writer)
    assert not (tmp_path / "runs").exists()


def test_description():
    writer = create_from_description(get_description(TensorBoardWriter("a", "*.W", "update", 3)))
    assert (writer.folder, writer.histograms) == ("a", ["*.W"])
    assert (writer.timescale, writer.interval) == ("update", 3)
