"""What layers compute at the edges, and where `test_formulas` does not reach."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.network import Network
from brainstorm.testing import LayerHarness, build_layer
from tests.layers.running import run, run_backward
from tests.networks import run_passes

RND = np.random.RandomState(7)


#: The layer, its inputs, its output `default` or `loss`, and the deltas of `default` where those
#: of the output are 1.
EDGES = {
    "softmax of hopeless predictions": (
        bl.SoftmaxCE(), {"default": [1000.0, -1000.0, 0.0], "targets": [1.0]}, [2000], [1, -1, 0],
    ),
    "sigmoid of hopeless and certain predictions": (
        bl.SigmoidCE(), {"default": [100.0, -100.0, 50.0], "targets": [0.0, 1.0, 1.0]},
        [100, 100, np.exp(-50)], [1, -1, -np.exp(-50)],
    ),
    "binomial cross-entropy of hopeless predictions is clipped": (
        bl.BinomialCrossEntropy(), {"default": [0.0, 1.0, 1.0], "targets": [1.0, 0.0, 1.0]},
        [-2 * np.log(1e-6)], [-1e6, 1e6, 0],
    ),
    "no hinge loss beyond the margin": (
        bl.HingeLoss(), {"default": [3.0, 1.9, -4.0], "targets": [0.0]}, [0], [0, 0, 0],
    ),
    "x ** 0 at 0": (bl.Power(power=0), {"default": [0.0]}, [1], [0]),
    "x ** 1 at 0": (bl.Power(power=1), {"default": [0.0]}, [0], [1]),
    "x ** 2 at 0": (bl.Power(power=2), {"default": [0.0]}, [0], [0]),
    "absolute values at 0": (bl.L1Decay(), {"default": [0.0, 2.0, -3.0]}, [5], [0, 1, -1]),
    **{
        f"deltas scaled by {factor}": (
            bl.DeltasScaling(factor), {"default": [2.0, -3.0]}, [2, -3], [factor, factor],
        )
        for factor in (-0.5, 0, 3)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_values_and_deltas_at_the_edges(name):
    layer, given, value, slope = EDGES[name]
    harness = run(layer, {port: np.array([[numbers]]) for port, numbers in given.items()})
    output = "loss" if "outputs.loss" in harness.paths("outputs") else "default"
    np.testing.assert_allclose(harness.get(f"outputs.{output}"), [[value]])
    dy = run_backward(harness)[output]
    expected = np.reshape(slope, (1, 1, -1)) * dy
    np.testing.assert_allclose(harness.get("input_deltas.default"), expected, atol=1e-15)


def test_the_delta_of_a_product_with_zeros_is_that_of_the_others():
    x = np.ones((1, 1, 2))
    harness = run(bl.Multiply(3), {"inputs_1": x, "inputs_2": x * 0, "inputs_3": x * 2})
    dy = run_backward(harness)["default"]
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_2"), dy * 2)
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_1"), dy * 0)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", [("T", "B", 2), ("B", 2, 2), (2, 2), (4,)])
def test_a_loss_is_divided_by_the_batch_size_alone(shape, batch):
    harness = LayerHarness(build_layer(bl.Loss(0.5), {"default": shape}))
    harness.resize(5, batch)
    values, share = harness.sample(np.random.RandomState(0)), 0.5 / (batch if "B" in shape else 1)
    harness.forward(values)
    expected = values["inputs.default"].sum() * share
    np.testing.assert_allclose(harness.get("outputs.loss"), [expected])
    run_backward(harness)
    np.testing.assert_allclose(harness.get("input_deltas.default"), share)


def test_the_first_of_equal_channels_is_the_largest():
    x = RND.normal(2.0, 3.0, size=(2, 3, 6)).round()
    harness = run(bl.ChannelPooling(3), {"default": x})
    first = x.reshape(2, 3, 2, 3).argmax(-1) + np.array([0, 3])
    np.testing.assert_array_equal(harness.get("internals.argmax"), first)


def test_bilinear_upsampling_is_exact_on_a_plane_but_at_its_edges():
    rows, columns = np.mgrid[0:4.0, 0:3.0]
    x = (2 * rows - 3 * columns).reshape(1, 1, 4, 3, 1)
    y = run(bl.Upsampling2D(2, "bilinear"), {"default": x}).get("outputs.default")
    rows, columns = np.clip((np.mgrid[0:8.0, 0:6.0] + 0.5) / 2 - 0.5, 0, [[[3]], [[2]]])
    np.testing.assert_allclose(y[0, 0, :, :, 0], 2 * rows - 3 * columns, atol=1e-12)


@pytest.mark.parametrize(("kind", "reached"), [("nearest", (2, 3)), ("bilinear", (1, 4))])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_upsampling_keeps_nan_and_infinity_where_they_are(kind, reached, bad):
    x = np.ones((1, 1, 5, 1, 1))
    x[0, 0, 1] = bad
    found = run(bl.Upsampling2D((2, 1), kind), {"default": x}, handler=NumpyHandler(float))
    first, last = np.flatnonzero(~np.isfinite(found.get("outputs.default")))[[0, -1]]
    assert (first, last) == reached


@pytest.mark.parametrize("handler", [NumpyHandler(np.float64), NativeHandler()])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_a_mask_leaves_out_may_be_anything(wrong, handler):
    x, mask = np.full((2, 1, 3), [[[1.0]], [[wrong]]]), np.array([[[2.0]], [[0.0]]])
    harness = run(bl.Mask(), {"default": x, "mask": mask}, handler=handler)
    np.testing.assert_array_equal(harness.get("outputs.default")[:, 0, 0], [2.0, 0.0])
    run_backward(harness)
    np.testing.assert_array_equal(harness.get("input_deltas.default")[1], np.zeros((1, 3)))


def of_indirect_targets(create, handler, targets, mask):
    """Return a network after both passes, whose targets come out of a layer and are masked."""
    shapes = {"default": ("T", "B", 3), "both": ("T", "B", 2), "mask": ("T", "B", 1)}
    inp, loss, kept = bl.Input(shapes), create(name="Out"), bl.Mask()
    inp >> bl.FullyConnected(3, "linear", name="F") >> loss - "loss" >> kept >> bl.Loss()
    inp - "both" >> bl.Slice(0, 1) >> "targets" - loss
    inp - "mask" >> "mask" - kept
    net = Network.from_layer(inp, handler=handler)
    net.initialize(0.5)
    x = np.random.RandomState(1).normal(size=(1, len(targets), 3))
    both = np.stack([targets, targets], axis=1)[None]
    data = {"default": x, "both": both, "mask": np.array(mask, float)[None, :, None]}
    run_passes(net, data)
    return net


@pytest.mark.parametrize("handler", [NumpyHandler(np.float64), NativeHandler()])
@pytest.mark.parametrize("wrong", [-1.0, 3.0, 1.5, np.nan])
@pytest.mark.parametrize(
    "create",
    [
        bl.SoftmaxCE,
        lambda name: bl.SoftmaxCE(name, class_weights=[1, 2, 3], label_smoothing=0.1),
        lambda name: bl.HingeLoss(name=name),
    ],
    ids=["SoftmaxCE", "weighted", "HingeLoss"],
)
def test_targets_that_are_no_classes_have_no_loss_unless_they_are_masked(create, wrong, handler):
    right = of_indirect_targets(create, handler, [1.0, 2.0, 0.0], [1, 1, 0])
    masked = of_indirect_targets(create, handler, [1.0, 2.0, wrong], [1, 1, 0])
    counted = of_indirect_targets(create, handler, [1.0, 2.0, wrong], [1, 1, 1])
    for path in ("F.gradients.W", "Loss.outputs.loss"):
        np.testing.assert_array_equal(masked.get(path), right.get(path))
        assert np.isnan(counted.get(path)).all()
