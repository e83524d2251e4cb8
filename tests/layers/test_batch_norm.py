from __future__ import annotations

import numpy as np
import pytest

from brainstorm.layers import BatchNorm
from brainstorm.testing import LayerBench, build_layer
from tests.layers.running import run

RND = np.random.RandomState(4)
SHAPES = [(2, 5, 3), (2, 3, 4, 2, 3)]


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axes = tuple(range(x.ndim - 1))
    return x.mean(axes), x.var(axes)


@pytest.mark.parametrize("shape", SHAPES)
def test_training_normalizes_with_the_statistics_of_the_batch(shape: tuple[int, ...]) -> None:
    x = RND.normal(3.0, 2.0, size=shape)
    bench = run(BatchNorm(epsilon=0.01), {"default": x}, gamma=[1, 2, 3], beta=[0, 1, -1])
    mean, var = moments(x)
    sigma = np.sqrt(var + 0.01)
    np.testing.assert_allclose(bench.get("internals.sigma_b"), sigma)
    np.testing.assert_allclose(bench.get("internals.centered"), x - mean)
    np.testing.assert_allclose(bench.get("internals.x_hat"), (x - mean) / sigma)
    expected = (x - mean) / sigma * [1, 2, 3] + [0, 1, -1]
    np.testing.assert_allclose(bench.get("outputs.default"), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_training_moves_the_running_statistics(shape: tuple[int, ...]) -> None:
    x = RND.normal(3.0, 2.0, size=shape)
    bench = run(BatchNorm(decay=0.75), {"default": x})
    mean, var = moments(x)
    before = bench.values
    running = 0.75 * before["internals.running_mean"] + 0.25 * mean
    np.testing.assert_allclose(bench.get("internals.running_mean"), running)
    running = 0.75 * before["internals.running_var"] + 0.25 * var
    np.testing.assert_allclose(bench.get("internals.running_var"), running)


@pytest.mark.parametrize("shape", SHAPES)
def test_outside_training_the_running_statistics_are_used_and_kept(shape: tuple[int, ...]) -> None:
    x = RND.normal(3.0, 2.0, size=shape)
    bench = run(BatchNorm(), {"default": x}, training_pass=False)
    values = bench.values
    mean, var = values["internals.running_mean"], values["internals.running_var"]
    gamma, beta = values["parameters.gamma"], values["parameters.beta"]
    np.testing.assert_array_equal(bench.get("internals.running_mean"), mean)
    np.testing.assert_array_equal(bench.get("internals.running_var"), var)
    expected = gamma * (x - mean) / np.sqrt(var + 1e-5) + beta
    np.testing.assert_allclose(bench.get("outputs.default"), expected)


def test_running_statistics_start_as_standard_and_converge() -> None:
    bench = LayerBench(build_layer(BatchNorm(decay=0.5), {"default": ("T", "B", 2)}))
    bench.resize(1, 50)
    np.testing.assert_array_equal(bench.get("internals.running_mean"), [0, 0])
    np.testing.assert_array_equal(bench.get("internals.running_var"), [1, 1])
    x = RND.normal([3.0, -1.0], [2.0, 0.1], size=(1, 50, 2))
    bench.load({"inputs.default": x, "parameters.gamma": np.ones(2), "parameters.beta": np.ones(2)})
    for _ in range(40):
        bench.layer.forward_pass(bench.buffers, training_pass=True)
    mean, var = moments(x)
    np.testing.assert_allclose(bench.get("internals.running_mean"), mean)
    np.testing.assert_allclose(bench.get("internals.running_var"), var)


def test_running_statistics_are_no_parameters() -> None:
    layer = build_layer(BatchNorm(), {"default": ("T", "B", 2)})
    assert list(layer.parameter_shapes) == ["gamma", "beta"]
    persistent = [name for name, s in layer.internal_shapes.items() if s.persistent]
    assert persistent == ["running_mean", "running_var"]
