"""Classification of sequences of different lengths: a training beside the same one in PyTorch."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from brainstorm.ext.state_dicts import to_state_dict
from brainstorm.handlers import NumpyHandler
from brainstorm.training import SgdStepper

EXAMPLE = Path(__file__).parents[2] / "examples" / "gestures.py"
RATE, UPDATES = 1.0, 40


@pytest.fixture
def gestures():
    """Return the module of the example."""
    spec = importlib.util.spec_from_file_location("gestures", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Peer(nn.Module):
    """The network of the example, on packed sequences."""

    def __init__(self, size, classes):
        super().__init__()
        self.gru, self.last = nn.GRU(2, size), nn.Linear(size, classes)

    def take(self, net):
        """Take the weights of a network."""
        arrays = to_state_dict(net, {"Gru": "gru", "Last": "last"})
        self.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0])
        return self.last(y.sum(dim=0) / lengths[:, None])


def test_a_training_on_labels_of_sequences_is_that_of_pytorch(gestures):
    rnd = np.random.RandomState(0)
    data = gestures.batches(*gestures.make_gestures(200, rnd))
    net = gestures.make_network()
    net.set_handler(NumpyHandler(np.float64))
    peer = Peer(gestures.SIZE, len(gestures.NAMES)).double()
    peer.take(net)
    # Where the two biases of a gate are added, ours is one: theirs must not learn twice.
    biases = (peer.gru.bias_hh_l0, 2 * gestures.SIZE)
    optimizer = torch.optim.SGD(peer.parameters(), RATE)
    stepper = SgdStepper(RATE)
    stepper.start(net)
    losses = []
    for batch in [batch for _ in range(UPDATES // data.length + 1) for batch in data()][:UPDATES]:
        net.provide_external_data(batch)
        stepper.run()
        lengths = torch.tensor(batch["mask"].sum(axis=(0, 2)))
        found = peer(torch.tensor(batch["default"]), lengths)
        loss = nn.functional.cross_entropy(found, torch.tensor(batch["targets"][:, 0]))
        optimizer.zero_grad()
        loss.backward()
        biases[0].grad[: biases[1]] = 0
        optimizer.step()
        losses.append((net.get_loss_values()["total_loss"], loss.item()))
    ours, theirs = np.array(losses).T
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert ours[-1] < ours[0] / 1.5
