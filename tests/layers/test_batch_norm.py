"""Batch normalization outside training and at the edges. In training: `test_formulas`."""

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.layers import BatchNorm
from brainstorm.testing import LayerHarness, build_layer
from brainstorm.tools import create_net_from_spec
from brainstorm.training import SgdStepper
from tests.layers.running import run, run_backward

RND = np.random.RandomState(4)


def moments(x):
    axes = tuple(range(x.ndim - 1))
    return x.mean(axes), x.var(axes)


@pytest.mark.parametrize("shape", [(2, 5, 3), (2, 3, 4, 2, 3)])
def test_outside_training_the_running_statistics_are_used_and_kept(shape):
    """They are constants of the backward pass."""
    x = RND.normal(3.0, 2.0, size=shape)
    harness = run(BatchNorm(), {"default": x}, training_pass=False)
    values = harness.values
    mean, var = values["internals.running_mean"], values["internals.running_var"]
    gamma, sigma = values["parameters.gamma"], np.sqrt(var + 1e-5)
    np.testing.assert_array_equal(harness.get("internals.running_mean"), mean)
    np.testing.assert_array_equal(harness.get("internals.running_var"), var)
    expected = gamma * (x - mean) / sigma + values["parameters.beta"]
    np.testing.assert_allclose(harness.get("outputs.default"), expected)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), dy * gamma / sigma)
    expected = (dy * (x - mean) / sigma).sum(tuple(range(x.ndim - 1)))
    np.testing.assert_allclose(harness.get("gradients.gamma"), expected)


def test_running_statistics_are_no_parameters():
    layer = build_layer(BatchNorm(), {"default": ("T", "B", 2)})
    assert list(layer.parameter_shapes) == ["gamma", "beta"]
    persistent = {n: s.initial_value for n, s in layer.internal_shapes.items() if s.persistent}
    assert persistent == {"running_mean": 0.0, "running_var": 1.0}


@pytest.mark.parametrize("handler", [NumpyHandler(np.float32), NativeHandler()])
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize("place", [0, 7, 1999])
def test_an_outlier_costs_no_digits(place, mean, handler):
    x = RND.normal(mean, 1.0, size=(1, 2000, 3)).astype(np.float32)
    x[0, place] = 2e4
    layer = build_layer(BatchNorm(epsilon=1e-9), {"default": ("T", "B", 3)})
    harness = LayerHarness(layer, handler, {"default": x})
    harness.resize(1, 2000)
    harness.forward(harness.sample(RND))
    center, var = moments(x.astype(np.float64))
    np.testing.assert_allclose(harness.get("internals.sigma_b"), np.sqrt(var), rtol=1e-6)
    expected = (x - center) / np.sqrt(var)
    np.testing.assert_allclose(harness.get("internals.x_hat"), expected, rtol=2e-6, atol=4e-6)


def test_a_mask_of_zeros_leaves_the_running_statistics():
    inputs = {"default": RND.normal(size=(2, 5, 3)), "mask": np.zeros((2, 5, 1))}
    harness = run(BatchNorm(), inputs)
    for name in ("mean", "var"):
        path = f"internals.running_{name}"
        np.testing.assert_array_equal(harness.get(path), harness.values[path])
    assert np.isfinite(harness.get("outputs.default")).all()


def test_one_value_per_channel_is_refused_in_training_only():
    run(BatchNorm(), {"default": np.ones((1, 1, 3))}, training_pass=False)
    run(BatchNorm(), {"default": np.ones((1, 1, 2, 1, 3))})  # two pixels
    text = (
        r"layer 'L' \(BatchNorm\): expected more than one value per channel in a training pass, "
        r"got 1: it has no variance\. Avoid batches of one sequence \(drop_last=True, another "
        r"batch_size\), or let training"
    )
    with pytest.raises(LayerValidationError, match=text):
        run(BatchNorm(name="L"), {"default": np.ones((1, 1, 3))})


@pytest.mark.parametrize("handler", [NumpyHandler(np.float64), NativeHandler()])
@pytest.mark.parametrize("image", [(), (1, 2)])
def test_a_mask_that_leaves_one_value_is_refused_in_training_only(handler, image):
    inputs = bs.layers.Input({"default": ("T", "B", *image, 2), "mask": ("T", "B", 1)})
    layer = BatchNorm(name="L")
    inputs >> layer >> bs.layers.Loss()
    inputs - "mask" >> "mask" - layer
    net = bs.Network.from_layer(inputs, handler=handler)
    net.initialize(1.0)
    stepper, x = SgdStepper(0.0), RND.normal(size=(3, 2, *image, 2))
    stepper.start(net)

    def step(count):
        """Let the mask count so many values."""
        mask = (np.arange(6) < count).reshape(3, 2, 1)
        net.provide_external_data({"default": x, "mask": mask})
        stepper.run()

    for count in (3, 2, 0, 2):
        step(count)
    if image:
        step(1)
        return
    before = net.get("L.internals.running_var")
    with pytest.raises(LayerValidationError, match="more than one value per channel"):
        step(1)
    np.testing.assert_array_equal(net.get("L.internals.running_var"), before)
    net.forward_pass()
    step(2)


def test_the_memory_for_one_value_per_channel_can_be_asked_for():
    net = create_net_from_spec("classification", 2, 2, "B Ft3")
    assert net.largest_batch(net.memory(1, 1).total) >= 1


def test_a_constant_channel_has_no_variance():
    harness = run(BatchNorm(epsilon=0.25), {"default": np.full((2, 3, 1), 7.1)})
    np.testing.assert_array_equal(harness.get("internals.sigma_b"), [0.5])
    np.testing.assert_array_equal(harness.get("internals.x_hat"), np.zeros((2, 3, 1)))
