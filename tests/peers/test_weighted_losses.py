"""Weights of samples, by a Mask behind each loss, with a layer that learns in front of it."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.network import Network

T, B, SIZE, CLASSES = 4, 5, 3, 4
RND = np.random.RandomState(0)
INDICES = RND.randint(0, CLASSES, (T, B, 1))
SHARES = RND.uniform(size=(T, B, CLASSES))
#: Of two labels, then of one, of none ...
LABELS = np.array([[[2], [1], [0], [3], [3]], [[1], [0], [0], [3], [0]]])
LABELS = np.concatenate([LABELS, np.zeros((T - 2, B, 1), int)])


def with_shares(function):
    return lambda x: function(x, torch.tensor(SHARES), reduction="none")


def cross_entropy(x):
    targets = torch.tensor(INDICES).flatten()
    return functional.cross_entropy(x.flatten(0, 1), targets, reduction="none").reshape(T, B, 1)


def hinge(x):
    at_target = x.gather(2, torch.tensor(INDICES))
    others = x.scatter(2, torch.tensor(INDICES), float("-inf"))
    return functional.relu(1 + others.amax(2, keepdim=True) - at_target)


def ctc(x):
    labels = torch.tensor(LABELS[:, :, 0].T)
    lengths = torch.full((B,), T), (labels != 0).sum(1)
    log_p = x.log_softmax(2)
    return functional.ctc_loss(log_p, labels, *lengths, reduction="none").reshape(B, 1)


#: Layer, output that is the loss, its other input, and the same in PyTorch.
LOSSES = {
    "SoftmaxCE": (bl.SoftmaxCE, "loss", {"targets": INDICES}, cross_entropy),
    "HingeLoss": (bl.HingeLoss, "loss", {"targets": INDICES}, hinge),
    "SigmoidCE": (
        bl.SigmoidCE, "loss", {"targets": SHARES},
        with_shares(functional.binary_cross_entropy_with_logits),
    ),
    "SquaredError": (
        bl.SquaredError, "loss", {"targets": SHARES},
        lambda x: with_shares(functional.mse_loss)(x) / 2,
    ),
    "HuberLoss": (
        bl.HuberLoss, "loss", {"targets": SHARES}, with_shares(functional.huber_loss)
    ),
    "BinomialCrossEntropy": (
        bl.BinomialCrossEntropy, "default", {"targets": SHARES},
        lambda x: with_shares(functional.binary_cross_entropy)(x).sum(2, keepdim=True),
    ),
    "CTC": (bl.CTC, "loss", {"labels": LABELS}, ctc),
    "L1Decay": (bl.L1Decay, "loss", {}, lambda x: x.abs().sum(2, keepdim=True)),
    "L2Decay": (bl.L2Decay, "loss", {}, lambda x: x.square().sum(2, keepdim=True) / 2),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_weighted_loss_and_its_gradient(name):
    create, output, targets, peer = LOSSES[name]
    act = "sigmoid" if name == "BinomialCrossEntropy" else "linear"
    per_sequence = name == "CTC"
    weights = RND.uniform(0, 2, (B, 1) if per_sequence else (T, B, 1))
    inp = bl.Input({
        "default": ("T", "B", SIZE),
        "weights": ("B", 1) if per_sequence else ("T", "B", 1),
        **{port: ("T", "B", *array.shape[2:]) for port, array in targets.items()},
    })  # fmt: skip
    hidden, loss, mask = bl.FullyConnected(CLASSES, act, name="Hidden"), create(), bl.Mask()
    inp >> hidden >> loss - output >> mask >> bl.Loss()
    inp - "weights" >> "mask" - mask
    for port in targets:
        inp - port >> port - loss
    net = Network.from_layer(inp, handler=NumpyHandler(np.float64))
    W, x = RND.normal(size=(CLASSES, SIZE)), RND.normal(size=(T, B, SIZE))
    net.initialize({"Hidden": {"W": W, "bias": 0.0}})
    net.provide_external_data({"default": x, "weights": weights, **targets})
    net.forward_pass(training_pass=True)
    net.backward_pass()

    learned = torch.tensor(W, requires_grad=True)
    y = torch.tensor(x) @ learned.T
    losses = peer(torch.sigmoid(y) if act == "sigmoid" else y)
    total = (losses * torch.tensor(weights)).sum() / B
    total.backward()
    np.testing.assert_allclose(net.get("Loss.outputs.loss"), [total.item()], rtol=1e-9)
    np.testing.assert_allclose(net.get("Hidden.gradients.W"), learned.grad.numpy(), rtol=1e-6)
