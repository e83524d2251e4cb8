"""What layers compute, written out in NumPy; `test_properties` derives the deltas from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import Handler, NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.network import Network
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import LayerHarness, build_layer
from tests.handlers.test_against_reference import activated
from tests.layers.running import run, run_backward

RND = np.random.RandomState(7)
X, Y = RND.normal(size=(2, 2, 3, 4))
SHARES = RND.uniform(0.1, 0.9, size=X.shape)
VECTORS = RND.normal(2.0, 3.0, size=(2, 3, 6))
IMAGES = RND.normal(2.0, 3.0, size=(2, 3, 4, 5, 6))
WIDE = RND.normal(size=(4, 3, 2))
MANY = RND.normal(size=(11, 2, 3, 4))
INDICES = np.array([[0, 1, 2], [3, 0, 1]], dtype=float)[..., None]
IS_TARGET = np.arange(4) == INDICES
WORDS = np.array([[2, 0], [2, 2], [1, 0]], dtype=float)[..., None]

Arrays = Mapping[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def normalized(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 0.2)


def features(x: np.ndarray) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def over_groups(x: np.ndarray, count: int) -> np.ndarray:
    parts = np.split(x, count, axis=-1)
    return np.concatenate([normalized(part, features(x)) for part in parts], axis=-1)


def over_neighbours(x: np.ndarray, size: int) -> np.ndarray:
    y = np.empty_like(x)
    for c in range(x.shape[-1]):
        there = slice(max(0, c - size // 2), c + (size - 1) // 2 + 1)
        y[..., c] = x[..., c] / (2.0 + 0.5 / size * (x[..., there] ** 2).sum(-1)) ** 0.6
    return y


def positions(x: np.ndarray) -> np.ndarray:
    t, _, i = np.indices(x.shape)
    angle = t / 10000 ** (2 * (i // 2) / x.shape[-1])
    return x + np.where(i % 2, np.cos(angle), np.sin(angle))


def hinge(x: np.ndarray, margin: float) -> np.ndarray:
    rivals = np.where(IS_TARGET, -np.inf, x).max(-1, keepdims=True)
    return np.maximum(0, margin + rivals - x[IS_TARGET].reshape(2, 3, 1))


def pixels(x: np.ndarray, order: str) -> np.ndarray:
    y = np.empty((*x.shape[:2], 4, 6, 3))
    for p, q, i, j, c in np.ndindex(2, 3, 2, 2, 3):
        channel = (c * 2 + i) * 2 + j if order == "CRD" else (i * 2 + j) * 3 + c
        y[:, :, p * 2 + i, q * 2 + j, c] = x[:, :, p, q, channel]
    return y


CELLS = RND.normal(size=(2, 1, 2, 3, 12))
Function = Callable[..., Any]

#: The layer, its inputs in their order, and its output `default`, or all outputs, as a function of
#: inputs and parameters.
ROWS: dict[str, tuple[ConstructionWrapper, Arrays, Function]] = {
    "NoOp": (bl.NoOp(), {"default": X}, lambda x: x),
    **{
        f"Elementwise {name}": (
            bl.Elementwise(name), {"default": X}, lambda x, name=name: activated(name, x),
        )
        for name in Handler.activations
    },
    **{
        f"FullyConnected {name}": (
            bl.FullyConnected(5, name), {"default": X},
            lambda x, W, bias, name=name: activated(name, x @ W.T + bias),
        )
        for name in Handler.activations
    },
    "SoftmaxCE": (
        bl.SoftmaxCE(), {"default": X, "targets": INDICES},
        lambda x, _: {
            "predictions": softmax(x), "loss": -np.log(softmax(x)[IS_TARGET]).reshape(2, 3, 1),
        },
    ),
    "SigmoidCE": (
        bl.SigmoidCE(), {"default": X, "targets": SHARES},
        lambda x, t: {
            "predictions": sigmoid(x),
            "loss": -(t * np.log(sigmoid(x)) + (1 - t) * np.log(1 - sigmoid(x))),
        },
    ),
    "SquaredError": (
        bl.SquaredError(), {"default": X, "targets": Y},
        lambda x, t: {"predictions": x, "loss": 0.5 * (x - t) ** 2},
    ),
    **{
        f"HuberLoss {delta}": (
            bl.HuberLoss(delta), {"default": X, "targets": Y},
            lambda x, t, delta=delta: {
                "predictions": x,
                "loss": np.where(
                    np.abs(x - t) < delta,
                    0.5 * (x - t) ** 2,
                    delta * (np.abs(x - t) - 0.5 * delta),
                ),
            },
        )
        for delta in (1.0, 0.3)
    },
    **{
        f"HingeLoss {margin}": (
            bl.HingeLoss(margin), {"default": X, "targets": INDICES},
            lambda x, _, margin=margin: {"predictions": x, "loss": hinge(x, margin)},
        )
        for margin in (1.0, 0.2)
    },
    "BinomialCrossEntropy": (
        bl.BinomialCrossEntropy(), {"default": SHARES, "targets": SHARES[::-1]},
        lambda y, t: -(t * np.log(y) + (1 - t) * np.log(1 - y)).sum(-1, keepdims=True),
    ),
    "SquaredDifference": (
        bl.SquaredDifference(), {"inputs_1": X, "inputs_2": Y}, lambda x, y: (x - y) ** 2
    ),
    "Mask per step": (
        bl.Mask(), {"default": IMAGES, "mask": X[..., :1]}, lambda x, m: x * m[..., None, None]
    ),
    "Mask per pixel": (
        bl.Mask(), {"default": IMAGES, "mask": IMAGES[..., :1]}, lambda x, m: x * m
    ),
    "Mask per element": (bl.Mask(), {"default": X, "mask": Y}, lambda x, m: x * m),
    "Merge": (
        bl.Merge(), {"inputs_1": IMAGES, "inputs_2": IMAGES[..., :1]},
        lambda x, y: np.concatenate([x, y], -1),
    ),
    "Loss": (bl.Loss(0.5), {"default": X}, lambda x: {"loss": [0.5 * x.sum() / 3]}),
    "Highway": (
        bl.Highway(), {"H": X, "T": SHARES, "x": Y}, lambda H, T, x: T * H + (1 - T) * x
    ),
    "Power": (bl.Power(2.0, 0.5, 3), {"default": X}, lambda x: (2 * x + 0.5) ** 3),
    "Power of nothing": (bl.Power(), {"default": X}, lambda x: x),
    "GLU": (bl.GLU(), {"default": X}, lambda x: x[..., :2] * sigmoid(x[..., 2:])),
    "GLU tanh": (bl.GLU("tanh"), {"default": X}, lambda x: x[..., :2] * np.tanh(x[..., 2:])),
    "SwiGLU": (
        bl.SwiGLU(), {"default": X}, lambda x: x[..., :2] * x[..., 2:] * sigmoid(x[..., 2:])
    ),
    "Argmax": (bl.Argmax(), {"default": IMAGES}, lambda x: x.argmax(-1)[..., None]),
    **{
        f"{layer.layer.layer_type} {options} of {'images' if x is IMAGES else 'vectors'}": (
            layer, {"default": x}, lambda x, part=part: x[part],
        )
        for layer, x, part in (
            (bl.Crop((2, 3)), IMAGES, np.s_[:, :, 1:3, 1:4]),
            (bl.Crop((1, 2)), IMAGES, np.s_[:, :, 1:2, 1:3]),
            (bl.Crop((2, 3), (0, 2)), IMAGES, np.s_[:, :, 0:2, 2:5]),
            (bl.Slice(1, 4), VECTORS, np.s_[..., 1:4]),
            (bl.Slice(2, 6), IMAGES, np.s_[..., 2:6]),
            (bl.Slice(1, 2, 0), IMAGES, np.s_[:, :, 1:2]),
            (bl.Slice(0, 4, axis=-2), IMAGES, np.s_[:, :, :, 0:4]),
        )
        for options in (layer.layer.layer_kwargs,)
    },
    **{
        f"Padding by {around}": (
            layer, {"default": x},
            lambda x, around=around, value=value: np.pad(
                x, ((0, 0), (0, 0), *around, (0, 0)), constant_values=value
            ),
        )
        for layer, x, around, value in (
            (bl.Padding(1, 0.5), IMAGES, ((1, 1), (1, 1)), 0.5),
            (bl.Padding(((0, 2), 1), -1), IMAGES, ((0, 2), (1, 1)), -1),
            (bl.Padding([2, 0]), VECTORS[..., None], ((2, 0),), 0),
            (bl.Padding(0), IMAGES, ((0, 0), (0, 0)), 0),
        )
    },
    **{
        f"{create.__name__} {order}": row
        for order in ("CRD", "DCR")
        for create, row in (
            (bl.DepthToSpace, (
                bl.DepthToSpace(2, order), {"default": CELLS},
                lambda x, order=order: pixels(x, order),
            )),
            (bl.SpaceToDepth, (
                bl.SpaceToDepth(2, order), {"default": pixels(CELLS, order)}, lambda _: CELLS,
            )),
        )
    },
    "Upsampling2D": (
        bl.Upsampling2D((2, 3)), {"default": IMAGES},
        lambda x: x.repeat(2, axis=2).repeat(3, axis=3),
    ),
    "Upsampling2D to a size": (
        bl.Upsampling2D(size=(3, 7)), {"default": IMAGES},
        lambda x: x[:, :, [0, 1, 2]][:, :, :, [0, 0, 1, 2, 2, 3, 4]],
    ),
    **{
        f"Reshape to {shape}": (
            bl.Reshape(shape), {"default": x},
            lambda x, shape=shape: x.reshape(2, 3, *np.atleast_1d(shape)),
        )
        for x, shape in (
            (IMAGES, 120), (IMAGES, (6, 4, 5)), (VECTORS, (3, 2)), (VECTORS, [1, 1, 6])
        )
    },
    **{
        f"Split of {x.ndim} axes": (
            bl.Split((1, 3, 2)), {"default": x},
            lambda x: {"outputs_1": x[..., :1], "outputs_2": x[..., 1:4], "outputs_3": x[..., 4:]},
        )
        for x in (VECTORS, IMAGES)
    },
    **{
        f"{create.__name__} {count}": (
            create(count), {f"inputs_{i + 1}": MANY[i] for i in range(count)},
            lambda *xs, reduce=reduce: reduce(xs, axis=0),
        )
        for create, reduce in ((bl.Add, np.sum), (bl.Multiply, np.prod))
        for count in (2, 3, 11)
    },
    **{
        f"GlobalPooling2D {kind}": (
            bl.GlobalPooling2D(kind), {"default": IMAGES},
            lambda x, reduce=reduce: reduce(x, axis=(2, 3)),
        )
        for kind, reduce in (("max", np.max), ("avg", np.mean))
    },
    **{
        f"ChannelPooling {kind} of {x.ndim} axes": (
            bl.ChannelPooling(3, kind), {"default": x},
            lambda x, reduce=reduce: reduce(x.reshape(*x.shape[:-1], 2, 3), axis=-1),
        )
        for kind, reduce in (("max", np.max), ("avg", np.mean))
        for x in (VECTORS, IMAGES)
    },
    **{
        f"{name} of {x.ndim} axes": (layer, {"default": x}, function)
        for x in (VECTORS, IMAGES)
        for name, layer, function in (
            ("LayerNorm", bl.LayerNorm(0.2), lambda x, gamma, beta: (
                gamma * normalized(x, features(x)) + beta
            )),
            ("RMSNorm", bl.RMSNorm(0.2), lambda x, gamma: (
                gamma * x / np.sqrt((x**2).mean(features(x), keepdims=True) + 0.2)
            )),
            *(
                (f"GroupNorm {count}", bl.GroupNorm(count, 0.2), lambda x, gamma, beta, n=count: (
                    gamma * over_groups(x, n) + beta
                ))
                for count in (1, 2, 3, 6)
            ),
        )
    },
    **{
        f"LocalResponseNormalization {size}": (
            bl.LocalResponseNormalization(size, 0.5, 0.6, 2.0), {"default": IMAGES},
            lambda x, size=size: over_neighbours(x, size),
        )
        for size in (1, 2, 3, 5, 20)
    },
    "Reverse": (bl.Reverse(), {"default": WIDE}, lambda x: x[::-1]),
    "Reverse masked": (
        bl.Reverse(), {"default": WIDE, "mask": (np.arange(4) < [[4], [2], [0]]).T[..., None]},
        lambda x, _: np.stack([x[::-1, 0], x[[1, 0, 2, 3], 1], x[:, 2]], axis=1),
    ),
    **{
        f"PositionalEncoding of {size}": (
            bl.PositionalEncoding(), {"default": RND.normal(size=(7, 2, size))}, positions,
        )
        for size in (1, 4, 5)
    },
    "LearnedPositionalEncoding": (
        bl.LearnedPositionalEncoding(5), {"default": X}, lambda x, W: x + W[:2, None]
    ),
    "Embedding": (bl.Embedding(4, 3), {"default": WORDS}, lambda x, W: W[x[..., 0].astype(int)]),
    "Expression": (
        bl.Expression("tanh(scale * x + shift) * gate", {"scale": ("...",), "shift": ("F",)}),
        {"default": IMAGES, "gate": X[..., :1]},
        lambda x, gate, scale, shift: np.tanh(scale * x + shift) * gate[..., None, None],
    ),
    "TiedFullyConnected": (
        bl.TiedFullyConnected(bl.FullyConnected(4), "tanh", size=5), {"default": X},
        lambda x, W, bias: np.tanh(x @ W + bias),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_layer_computes_its_formula(name: str) -> None:
    layer, inputs, function = ROWS[name]
    harness = run(layer, inputs)
    parameters = {p: harness.get(f"parameters.{p}") for p in harness.layer.parameter_shapes}
    found = function(*inputs.values(), **parameters)
    for output, expected in (found if isinstance(found, dict) else {"default": found}).items():
        np.testing.assert_allclose(harness.get(f"outputs.{output}"), expected, atol=1e-12)


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
    **{
        f"deltas scaled by {factor}": (
            bl.DeltasScaling(factor), {"default": [2.0, -3.0]}, [2, -3], [factor, factor],
        )
        for factor in (-0.5, 0, 3)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_values_and_deltas_at_the_edges(name: str) -> None:
    layer, given, value, slope = EDGES[name]
    harness = run(layer, {port: np.array([[numbers]]) for port, numbers in given.items()})
    output = "loss" if "outputs.loss" in harness.paths("outputs") else "default"
    np.testing.assert_allclose(harness.get(f"outputs.{output}"), [[value]])
    dy = run_backward(harness)[output]
    expected = np.reshape(slope, (1, 1, -1)) * dy
    np.testing.assert_allclose(harness.get("input_deltas.default"), expected, atol=1e-15)


def test_the_delta_of_a_product_with_zeros_is_that_of_the_others() -> None:
    x = np.ones((1, 1, 2))
    harness = run(bl.Multiply(3), {"inputs_1": x, "inputs_2": x * 0, "inputs_3": x * 2})
    dy = run_backward(harness)["default"]
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_2"), dy * 2)
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_1"), dy * 0)


@pytest.mark.parametrize(
    ("shape", "axes"), [(("T", "B", 2, 2), (2, 3)), (("B", 3), 1), ((3, 2), (0, 1)), ((4,), 0)]
)
@pytest.mark.parametrize(
    ("create", "value", "slope"),
    [(bl.L1Decay, np.abs, np.sign), (bl.L2Decay, lambda x: x**2 / 2, lambda x: x)],
)
def test_decay(create: Any, value: Callable, slope: Callable, shape: tuple, axes: Any) -> None:
    harness = LayerHarness(build_layer(create(), {"default": shape}))
    harness.resize(4, 5)
    values = harness.sample(np.random.RandomState(0))
    x = values["inputs.default"]
    x.flat[0] = 0.0
    harness.forward(values)
    loss = harness.get("outputs.loss")
    scaling = tuple({"T": 4, "B": 5}[d] for d in shape if isinstance(d, str))
    assert loss.shape == (*scaling, 1)
    np.testing.assert_allclose(loss[..., 0], value(x).sum(axes))
    dloss = run_backward(harness)["loss"]
    expected = slope(x) * dloss.reshape(scaling + (1,) * (x.ndim - len(scaling)))
    np.testing.assert_allclose(harness.get("input_deltas.default"), expected)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("shape", [("T", "B", 2), ("B", 2, 2), (2, 2), (4,)])
def test_a_loss_is_divided_by_the_batch_size_alone(shape: tuple, batch: int) -> None:
    harness = LayerHarness(build_layer(bl.Loss(), {"default": shape}))
    harness.resize(5, batch)
    values, divisor = harness.sample(np.random.RandomState(0)), batch if "B" in shape else 1
    harness.forward(values)
    expected = values["inputs.default"].sum() / divisor
    np.testing.assert_allclose(harness.get("outputs.loss"), [expected])
    run_backward(harness)
    np.testing.assert_allclose(harness.get("input_deltas.default"), 1 / divisor)


def test_the_first_of_equal_channels_and_pixels_is_the_largest() -> None:
    harness = run(bl.ChannelPooling(3), {"default": VECTORS.round()})
    first = VECTORS.round().reshape(2, 3, 2, 3).argmax(-1) + np.array([0, 3])
    np.testing.assert_array_equal(harness.get("internals.argmax"), first)
    for kind, internals in (("max", ["internals.argmax"]), ("avg", [])):
        pooled = run(bl.GlobalPooling2D(kind), {"default": IMAGES})
        assert pooled.paths("internals") == internals


def test_fully_connected_shapes_and_defaults() -> None:
    layer = build_layer(bl.FullyConnected(), {"default": ("T", "B", 2, 3)})
    assert layer.get_shape("outputs.default").shape == ("T", "B", 2, 3)
    assert list(layer.parameter_shapes) == ["W", "bias"]
    assert layer.get_shape("parameters.W").shape == (6, 6)
    layer = build_layer(bl.FullyConnected((2, 2)), {"default": ("T", "B", 3)})
    assert layer.get_shape("outputs.default").shape == ("T", "B", 2, 2)


def test_norms_have_a_scale_for_each_feature_and_defaults() -> None:
    gamma = build_layer(bl.LayerNorm(), {"default": ("T", "B", 2, 3)}).parameter_shapes["gamma"]
    assert gamma.shape == (2, 3)
    layer = build_layer(bl.LocalResponseNormalization(), {"default": ("T", "B", 3)})
    assert (layer.size, layer.before, layer.behind, layer.alpha) == (5, 2, 2, 1e-4)
    assert (layer.beta, layer.k) == (0.75, 1.0)
    for create in (bl.LayerNorm, bl.RMSNorm, lambda: bl.GroupNorm(1)):
        assert build_layer(create(), {"default": ("T", "B", 3)}).epsilon == 1e-5


def test_bilinear_upsampling_is_exact_on_a_plane_but_at_its_edges() -> None:
    rows, columns = np.mgrid[0:4.0, 0:3.0]
    x = (2 * rows - 3 * columns).reshape(1, 1, 4, 3, 1)
    y = run(bl.Upsampling2D(2, "bilinear"), {"default": x}).get("outputs.default")
    rows, columns = np.clip((np.mgrid[0:8.0, 0:6.0] + 0.5) / 2 - 0.5, 0, [[[3]], [[2]]])
    np.testing.assert_allclose(y[0, 0, :, :, 0], 2 * rows - 3 * columns, atol=1e-12)


@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
def test_upsampling_keeps_nan_and_infinity_where_they_are(kind: str) -> None:
    for bad in (np.nan, np.inf):
        x = np.ones((1, 1, 5, 1, 1))
        x[0, 0, 0] = bad
        net = Network.from_layer(
            bl.Input({"default": ("T", "B", 5, 1, 1)}) >> bl.Upsampling2D((2, 1), kind)
        )
        found, reached = net.predict(x).ravel(), 3 if kind == "bilinear" else 2
        assert np.isfinite(found).tolist() == [False] * reached + [True] * (10 - reached)


@pytest.mark.parametrize("handler", [NumpyHandler(np.float64), NativeHandler()])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_a_mask_leaves_out_may_be_anything(wrong: float, handler: NumpyHandler) -> None:
    shapes = {"default": ("T", "B", 3), "mask": ("T", "B", 1)}
    harness = LayerHarness(build_layer(bl.Mask(), shapes), handler)
    harness.resize(2, 1)
    x, mask = np.full((2, 1, 3), [[[1.0]], [[wrong]]]), np.array([[[2.0]], [[0.0]]])
    harness.forward({"inputs.default": x, "inputs.mask": mask})
    np.testing.assert_array_equal(harness.get("outputs.default")[:, 0, 0], [2.0, 0.0])
    run_backward(harness)
    np.testing.assert_array_equal(harness.get("input_deltas.default")[1], np.zeros((1, 3)))


def of_indirect_targets(create: Any, handler: Handler, targets: list, mask: list) -> Network:
    """Return a network after both passes, whose targets come out of a layer and are masked."""
    shapes = {"default": ("T", "B", 3), "both": ("T", "B", 2), "mask": ("T", "B", 1)}
    inp, loss, kept = bl.Input(shapes), create(name="Out"), bl.Mask()
    inp >> bl.FullyConnected(3, "linear", name="F") >> loss - "loss" >> kept >> bl.Loss()
    inp - "both" >> bl.Slice(0, 1) >> "targets" - loss
    inp - "mask" >> "mask" - kept
    net = Network.from_layer(inp, handler=handler)
    net.initialize(0.5)
    both = np.stack([targets, targets], axis=1)[None]
    x = np.random.RandomState(1).normal(size=(1, len(targets), 3))
    net.provide_external_data(
        {"default": x, "both": both, "mask": np.array(mask, float)[None, :, None]}
    )
    net.forward_pass(training_pass=True)
    net.backward_pass()
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
def test_targets_that_are_no_classes_have_no_loss_unless_they_are_masked(
    create: Any, wrong: float, handler: Handler
) -> None:
    right = of_indirect_targets(create, handler, [1.0, 2.0, 0.0], [1, 1, 0])
    masked = of_indirect_targets(create, handler, [1.0, 2.0, wrong], [1, 1, 0])
    counted = of_indirect_targets(create, handler, [1.0, 2.0, wrong], [1, 1, 1])
    for path in ("F.gradients.W", "Loss.outputs.loss"):
        np.testing.assert_array_equal(masked.get(path), right.get(path))
        assert np.isnan(counted.get(path)).all()
