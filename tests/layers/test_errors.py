"""What the layers say when options, shapes or data do not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.layers.base_layer import Layer
from brainstorm.network import Network
from brainstorm.structure.architecture import Connection
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import build_layer

VECTOR = {"default": ("T", "B", 3)}
IMAGE = {"default": ("T", "B", 4, 28, 1)}

CLASSES = {"default": ("T", "B", 3), "targets": ("T", "B", 1)}
OPTIONS = [
    (lambda: bl.FullyConnected("big"), VECTOR, "option 'size': expected a positive int or a tuple"),
    (lambda: bl.FullyConnected(2.5), VECTOR, "option 'size'.*got 2.5."),
    (lambda: bl.FullyConnected(0), VECTOR, "option 'size'.*got 0."),
    (lambda: bl.FullyConnected(2, "rl"), VECTOR, "option 'activation': expected one of 'sigmoid'"),
    (lambda: bl.Elementwise(None), VECTOR, "option 'activation'.*got None"),
    (
        lambda: bl.Dropout(1.0),
        VECTOR,
        r"option 'drop_prob': expected a number in \[0, 1\), got 1.0",
    ),
    (lambda: bl.Dropout(-0.1), VECTOR, "option 'drop_prob'.*got -0.1"),
    (lambda: bl.BatchNorm(decay=1.5), VECTOR, r"option 'decay': expected a number in \[0, 1\]"),
    (lambda: bl.BatchNorm(epsilon=0), VECTOR, r"option 'epsilon': expected a number in \(0, inf\)"),
    (lambda: bl.Loss("much"), VECTOR, "option 'importance': expected a number, got 'much'"),
    (lambda: bl.Loss(np.nan), VECTOR, "option 'importance': expected a number, got nan"),
    (lambda: bl.Loss(10**400), VECTOR, "option 'importance': expected a number, got 1000"),
    (lambda: bl.Loss(1j), VECTOR, "option 'importance': expected a number, got 1j"),
    (
        lambda: bl.SoftmaxCE(None, [1.0, -1.0]),
        CLASSES,
        r"option 'class_weights': expected a list of numbers >= 0 or None, got \[1.0, -1.0\]",
    ),
    (
        lambda: bl.SoftmaxCE(None, [1, 2]),
        CLASSES,
        "option 'class_weights': expected one number for each of 3 classes, got 2",
    ),
    (
        lambda: bl.SoftmaxCE(None, None, 1.5),
        CLASSES,
        r"option 'label_smoothing': expected a number in \[0, 1\], got 1.5",
    ),
    (lambda: bl.Recurrent((2, 2)), VECTOR, "option 'size': expected an int >= 1"),
    (lambda: bl.Lstm(2.0), VECTOR, "option 'size': expected an int >= 1, got 2.0"),
    (lambda: bl.Convolution2D(0, (1, 1)), IMAGE, "option 'num_filters': expected an int >= 1"),
    (
        lambda: bl.Convolution2D(1, 3.0),
        IMAGE,
        "option 'kernel_size': expected an int >= 1 or two of ",
    ),
    (
        lambda: bl.Convolution2D(1, (3, 3), (0, 1)),
        IMAGE,
        "option 'stride': expected an int >= 1 or",
    ),
    (lambda: bl.Convolution2D(1, (3, 3), padding=-1), IMAGE, "option 'padding': expected an int"),
    (
        lambda: bl.Pooling2D((1, 1), np.arange(2)),
        IMAGE,
        "option 'type': expected one of 'max', 'avg', got array",
    ),
    (lambda: bl.Elementwise(np.arange(2)), VECTOR, "option 'activation': expected one of .*array"),
    (lambda: bl.Pooling2D((1, 1), "min"), IMAGE, "option 'type': expected one of 'max', 'avg'"),
]


@pytest.mark.parametrize(("create", "in_shapes", "match"), OPTIONS)
def test_bad_option(create: Any, in_shapes: dict, match: str) -> None:
    with pytest.raises(LayerValidationError, match=rf"layer '\w+' \(\w+\), {match}"):
        build_layer(create(), in_shapes)


@pytest.mark.parametrize(
    ("create", "in_shapes", "option"),
    [
        (lambda: bl.Recurrent(2), VECTOR, "size"),
        (lambda: bl.Lstm(2), VECTOR, "size"),
        (lambda: bl.Convolution2D(2, (1, 1)), IMAGE, "num_filters"),
        (lambda: bl.Convolution2D(2, (1, 1)), IMAGE, "kernel_size"),
        (lambda: bl.Pooling2D((1, 1)), IMAGE, "kernel_size"),
    ],
)
def test_missing_option(create: Any, in_shapes: dict, option: str) -> None:
    construction = create()
    del construction.layer.layer_kwargs[option]
    match = rf"layer '\w+' \(\w+\), option '{option}': expected .* >= 1.*, got nothing\."
    with pytest.raises(LayerValidationError, match=match):
        build_layer(construction, in_shapes)


SHAPES = [
    (bl.SoftmaxCE(), (4,), "targets", (2,), "(T, B, 1), got (T, B, 2)"),
    (bl.SoftmaxCE(), (2, 4), "targets", (1,), "(T, B, 2, 1), got (T, B, 1)"),
    (bl.SigmoidCE(), (4,), "targets", (1,), "(T, B, 4), got (T, B, 1)"),
    (bl.SquaredError(), (4,), "targets", (5,), "(T, B, 4), got (T, B, 5)"),
    (bl.Mask(), (4, 2), "mask", (2,), "(T, B, 1) or (T, B, 4, 1) or (T, B, 4, 2), got (T, B, 2)"),
    (bl.Mask(), (4,), "mask", (2,), "(T, B, 1) or (T, B, 4), got (T, B, 2)"),
]


@pytest.mark.parametrize(("layer", "shape", "port", "other", "match"), SHAPES)
def test_shapes_that_do_not_fit(
    layer: Any, shape: tuple[int, ...], port: str, other: tuple[int, ...], match: str
) -> None:
    with pytest.raises(LayerValidationError, match=rf"input '{port}': expected {re.escape(match)}"):
        build_layer(layer, {"default": ("T", "B", *shape), port: ("T", "B", *other)})


@pytest.mark.parametrize(
    ("layer", "first", "second", "match"),
    [
        (bl.Merge(), ("T", "B", 2, 3), ("T", "B", 4, 3), "(T, B, 2, 3), got (T, B, 4, 3)"),
        (bl.Merge(), ("T", "B", 3), ("B", 3), "(T, B, 3), got (B, 3)"),
        (bl.SquaredDifference(), ("T", "B", 3), ("T", "B", 4), "(T, B, 3), got (T, B, 4)"),
    ],
)
def test_two_inputs_that_do_not_fit(layer: Any, first: tuple, second: tuple, match: str) -> None:
    with pytest.raises(
        LayerValidationError, match=re.escape(f"input 'inputs_2': expected {match}")
    ):
        build_layer(layer, {"inputs_1": first, "inputs_2": second})


@pytest.mark.parametrize("layer", [bl.Convolution2D(8, (5, 3)), bl.Pooling2D((5, 3))])
def test_window_larger_than_the_image(layer: Any) -> None:
    kind = layer.layer.layer_type
    text = (
        f"layer '{kind}' ({kind}), input 'default': expected (T, B, H, W, C) with H >= 5, got "
        f"(T, B, 4, 28, 1). Use a smaller kernel_size or padding=1."
    )
    with pytest.raises(LayerValidationError, match=f"^{re.escape(text)}$"):
        build_layer(layer, IMAGE)


def test_message_names_where_the_input_comes_from() -> None:
    cls = type(build_layer(bl.Pooling2D((1, 1)), IMAGE))
    incoming = {Connection("Pool1", "default", "P", "default")}
    with pytest.raises(LayerValidationError, match=r"got .* from 'Pool1.outputs.default'\. Use"):
        cls(
            "P",
            {"default": BufferStructure("T", "B", 4, 4, 1)},
            incoming,
            set(),
            kernel_size=(5, 1),
        )


@pytest.mark.parametrize("layer", [bl.Convolution2D(8, (1, 1)), bl.Pooling2D((1, 1))])
def test_images_have_three_feature_dimensions(layer: Any) -> None:
    with pytest.raises(LayerValidationError, match=r"expected \(T, B, H, W, C\), got \(T, B, 3\)"):
        build_layer(layer, VECTOR)


def test_images_without_channels_are_told_of_the_axis() -> None:
    text = r"expected \(T, B, H, W, C\), got \(T, B, 8, 8\)\. The channel axis is missing: for one "
    with pytest.raises(LayerValidationError, match=text):
        build_layer(bl.Convolution2D(8, (3, 3)), {"default": ("T", "B", 8, 8)})


@pytest.mark.parametrize("shapes", [None, {}, 784, ("T", "B", 3)])
def test_input_without_shapes(shapes: Any) -> None:
    with pytest.raises(LayerValidationError, match="option 'out_shapes': expected a dict such as"):
        build_layer(bl.Input(shapes), {})


@pytest.mark.parametrize("shape", [("B", "T", 3), 5, (), ("T", "B")])
def test_input_with_a_bad_shape(shape: Any) -> None:
    with pytest.raises(
        LayerValidationError, match=r"option 'out_shapes': expected a shape such .* for 'default'"
    ):
        build_layer(bl.Input({"default": shape}), {})


def test_input_takes_the_shapes_of_a_json_file() -> None:
    layer = build_layer(bl.Input({"a": ["T", "B", 3], "b": ["B", 2]}), {})
    assert [s.shape for s in layer.out_shapes.values()] == [("T", "B", 3), ("B", 2)]


# -- data ---------------------------------------------------------------------------------------


def softmax_layer() -> Any:
    return build_layer(bl.SoftmaxCE(), {"default": ("T", "B", 3), "targets": ("T", "B", 1)})


@pytest.mark.parametrize("bad", [3.0, -1.0, 0.5, np.nan, np.inf])
def test_class_indices_out_of_range(bad: float) -> None:
    targets = np.zeros((2, 4, 1))
    targets[1, 2, 0] = bad
    match = (
        r"layer 'SoftmaxCE' \(SoftmaxCE\), input 'targets': expected class indices, whole numbers "
        rf"in \[0, 3\), got {bad} at index \(1, 2, 0\)\. Number the classes from 0"
    )
    with pytest.raises(LayerValidationError, match=match):
        softmax_layer().validate_data("targets", targets)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, bool])
def test_class_indices_in_range(dtype: type) -> None:
    softmax_layer().validate_data("targets", np.array([[[0], [1]]], dtype=dtype))
    softmax_layer().validate_data("default", np.full((1, 2, 3), np.nan))


class DeclaresTestLayerImpl(Layer):
    expected_kwargs = {"declared"}

    def setup(self, kwargs: Any, in_shapes: Any) -> Any:
        return kwargs["declared"]


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({}, r"setup: expected mappings .* for outputs, parameters, internals; got \{\}\."),
        (({}, {}), "setup: expected mappings"),
        ((BufferStructure("T", "B", 1), {}, {}), "setup: expected mappings"),
        (({}, {"W": (3,)}, {}), r"setup, parameters, 'W': expected a BufferStructure .*got \(3,\)"),
        (({"a.b": None}, {}, {}), r"outputs: expected names without '\.' and .* got 'a\.b'\."),
        (({}, {}, {"@type": None}), "internals: expected names without .* '@' at the start, got '"),
        (({}, {3: None}, {}), "parameters: expected names without .* got 3"),
    ],
)
def test_what_setup_declares(declared: Any, match: str) -> None:
    layer = ConstructionWrapper.create(DeclaresTestLayerImpl, declared=declared)
    with pytest.raises(LayerValidationError, match=rf"layer 'DeclaresTest' \(.*\): {match}"):
        build_layer(layer, VECTOR)


@pytest.mark.parametrize("layer", ["SigmoidCE", "BinomialCrossEntropy"])
@pytest.mark.parametrize("bad", [2.0, -1.0, np.nan])
def test_targets_that_are_no_probabilities(layer, bad):
    inp = bl.Input({"default": ("T", "B", 2), "targets": ("T", "B", 2)})
    out = getattr(bl, layer)(name="Out")
    inp >> out
    inp - "targets" >> "targets" - out
    net = Network.from_layer(inp)
    targets = np.array([[[0.0, 1.0], [0.5, bad]]])
    text = r"layer 'Out' .*input 'targets': expected probabilities in \[0, 1\], got .* at index \(0"
    with pytest.raises(LayerValidationError, match=text):
        net.provide_external_data({"default": np.zeros((1, 2, 2)), "targets": targets})
