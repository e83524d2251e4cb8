"""Weights of samples: a Mask between a loss layer and its Loss."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.network import Network
from brainstorm.testing import build_layer
from tests.layers.cases import CASES, numbers_for

T, B = 3, 4
WEIGHTS = np.array([0.25, 2.0, 0.0, 1.5])


def output_of(case):
    """Return the name of a layer's output that is a loss."""
    return "default" if case.create().layer.layer_type == "BinomialCrossEntropy" else "loss"


def loss_of(case):
    """Return the structure of a layer's loss; None for layers without one, or without samples."""
    layer = build_layer(case.create(), case.in_shapes)
    structure = None if layer.has_loss else layer.out_shapes.get(output_of(case))
    return structure if structure is not None and structure.scales_with_batch_size else None


LOSSES = {case.name: case for case in CASES if loss_of(case) is not None}


def results(case, is_weighted):
    """Return the losses of single samples, the total, and the input deltas of a network."""
    shape = loss_of(case).shape
    weights = (*shape[: shape.index("B") + 1], 1)
    inp, loss, mask = bl.Input({**case.in_shapes, "weights": weights}), case.create(), bl.Mask()
    for port in case.in_shapes:
        inp - port >> port - loss
    if is_weighted:
        loss - output_of(case) >> mask >> bl.Loss()
        inp - "weights" >> "mask" - mask
    else:
        loss - output_of(case) >> bl.Loss()
    net = Network.from_layer(inp, handler=NumpyHandler(np.float64))
    net.keep_input_deltas = True
    sizes = {"T": T, "B": B}
    data = numbers_for(case, case.in_shapes, np.random.RandomState(0), sizes)
    column = np.broadcast_to(WEIGHTS[:, None], [sizes.get(n, n) for n in weights])
    net.provide_external_data({**data, "weights": column}, all_inputs=is_weighted)
    net.forward_pass(training_pass=True)
    net.backward_pass()
    name = loss.layer.name
    paths = f"{name}.outputs.{output_of(case)}", "Loss.outputs.loss", f"{name}.input_deltas.default"
    return map(net.get, paths)


def test_all_losses_are_here():
    kinds = {case.create().layer.layer_type for case in LOSSES.values()}
    assert kinds == {
        *("SoftmaxCE", "SigmoidCE", "SquaredError", "HuberLoss", "BinomialCrossEntropy"),
        *("HingeLoss", "CTC", "L1Decay", "L2Decay"),
    }


@pytest.mark.parametrize("name", LOSSES)
def test_a_mask_behind_a_loss_weighs_samples_and_their_gradients(name):
    losses, _, deltas = results(LOSSES[name], is_weighted=False)
    same, total, weighted = results(LOSSES[name], is_weighted=True)
    np.testing.assert_array_equal(same, losses)
    by_sample = np.moveaxis(losses, loss_of(LOSSES[name]).shape.index("B"), 0).reshape(B, -1)
    np.testing.assert_allclose(total, WEIGHTS @ by_sample.sum(1) / B)
    axis = deltas.shape.index(B)
    expected = np.moveaxis(deltas, axis, -1) * WEIGHTS
    np.testing.assert_allclose(np.moveaxis(weighted, axis, -1), expected, rtol=1e-12, atol=1e-15)
