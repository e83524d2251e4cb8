"""What the layers say when options, shapes or data do not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.layers.base_layer import Layer
from brainstorm.structure.architecture import Connection
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import build_layer

VECTOR, IMAGE, CUBE = (3,), (4, 28, 1), (4, 4, 4, 2)
CLASSES = {"default": (3,), "targets": (1,)}
PAIR = {"inputs_1": (3,), "inputs_2": (3,)}
WINDOW = "Use a smaller kernel_size or padding=1."
TWO, THREE = "two of them (rows, columns)", "three of them (depth, rows, columns)"
PADS = "an int >= 0, or for each of 2 axes one or two of them (before, after)"

#: A layer, the features of its inputs, and what is said. Shapes that begin with B have no time.
REFUSED = [
    # Options.
    (bl.FullyConnected("big"), VECTOR, "option 'size': expected a positive int or a tuple of posi"),
    (bl.FullyConnected(2.5), VECTOR, "option 'size': expected a positive int or a tuple of positive"
     " ints or None, got 2.5."),
    (bl.FullyConnected(0), VECTOR, " positive ints or None, got 0."),
    (bl.FullyConnected(2, "rl"), VECTOR, "option 'activation': expected one of 'sigmoid'"),
    (bl.Elementwise(None), VECTOR, "'hard_swish', got None"),
    (bl.Elementwise(np.arange(2)), VECTOR, "'hard_swish', got array"),
    (bl.Dropout(1.0), VECTOR, "option 'drop_prob': expected a number in [0, 1), got 1.0"),
    (bl.Dropout(-0.1), VECTOR, "option 'drop_prob': expected a number in [0, 1), got -0.1"),
    (bl.BatchNorm(decay=1.5), VECTOR, "option 'decay': expected a number in [0, 1]"),
    (bl.BatchNorm(epsilon=0), VECTOR, "option 'epsilon': expected a finite number > 0"),
    (bl.Loss("much"), VECTOR, "'importance': expected a finite number, got 'much'"),
    (bl.Loss(np.nan), VECTOR, "option 'importance': expected a finite number, got nan"),
    (bl.Loss(10**400), VECTOR, "'importance': expected a finite number, got 1000"),
    (bl.Loss(1j), VECTOR, "option 'importance': expected a finite number, got 1j"),
    (bl.SoftmaxCE(None, [1.0, -1.0]), CLASSES, "option 'class_weights': expected a list of numbers "
     ">= 0 or None, got [1.0, -1.0]"),
    (bl.SoftmaxCE(None, {0: 1.0, 1: 2.0}), CLASSES, "option 'class_weights': expected a list of "
     "numbers >= 0 or None, got {0: 1.0, 1: 2.0}"),
    (bl.SoftmaxCE(None, "balanced"), CLASSES, "option 'class_weights': expected a list of numbers "
     ">= 0 or None, got 'balanced'"),
    (bl.SoftmaxCE(None, [1, 2]), CLASSES, "option 'class_weights': expected one number for each of "
     "3 classes, got 2"),
    (bl.SoftmaxCE(None, None, 1.5), CLASSES, "option 'label_smoothing': expected a number in [0, 1]"
     ", got 1.5"),
    *(
        (bl.SoftmaxCE(None, None, wrong), CLASSES,
         f"option 'label_smoothing': expected a number in [0, 1], got {wrong!r}")
        for wrong in (None, "", False)
    ),
    *(
        (bl.Dropout(0.5, shared_over_time=wrong), VECTOR,
         f"option 'shared_over_time': expected one of True, False, got {wrong!r}")
        for wrong in ("no", None)
    ),
    (bl.Recurrent((2, 2)), VECTOR, "option 'size': expected an int >= 1"),
    (bl.Lstm(2.0), VECTOR, "option 'size': expected an int >= 1, got 2.0"),
    (bl.Convolution2D(1, 1, 10**18), IMAGE, f"'stride': expected an int >= 1 or {TWO}, got 10000"),
    (bl.Pooling2D(2**31), IMAGE, f"'kernel_size': expected an int >= 1 or {TWO}, got 2147"),
    (bl.Convolution2D(0, (1, 1)), IMAGE, "option 'num_filters': expected an int >= 1"),
    (bl.Convolution2D(1, 3.0), IMAGE, "option 'kernel_size': expected an int >= 1 or two of "),
    (bl.Convolution2D(1, (3, 3), (0, 1)), IMAGE, "option 'stride': expected an int >= 1 or"),
    (bl.Convolution2D(1, (3, 3), padding=-1), IMAGE, "option 'padding': expected an int"),
    (bl.Convolution1D(2, (3,)), (4, 2), "option 'kernel_size': expected an int >= 1, got (3,)."),
    (bl.Convolution1D(2, 1, 0), (4, 2), "option 'stride': expected an int >= 1, got 0."),
    (bl.Convolution1D(2, 1, dilation=1.5), (4, 2), "option 'dilation': expected an int >= 1, got "
     "1.5."),
    (bl.Convolution2D(2, 1, dilation=0), IMAGE, f"option 'dilation': expected an int >= 1 or {TWO},"
     " got 0."),
    (bl.Convolution2D(2, 1, groups=0), IMAGE, "option 'groups': expected an int >= 1, got 0."),
    (bl.Convolution3D(2, (3, 3)), CUBE, f"option 'kernel_size': expected an int >= 1 or {THREE}, "
     "got (3, 3)."),
    (bl.Convolution3D(2, 1, (1, 0, 1)), CUBE, f"option 'stride': expected an int >= 1 or {THREE}"),
    (bl.ConvolutionTranspose2D(1, (3, 3), (3, 2), output_padding=2), IMAGE, "option "
     "'output_padding': expected less than stride=(3, 2), got 2."),
    (bl.ConvolutionTranspose2D(1, (2, 3), padding=3), (4, 4, 1), "the output would have -1 rows and"
     " 0 columns. Use a smaller padding or a larger kernel_size."),
    (bl.ConvolutionTranspose2D(1, 0), IMAGE, f"'kernel_size': expected an int >= 1 or {TWO}"),
    (bl.Pooling2D((1, 1), np.arange(2)), IMAGE, "option 'type': expected one of 'max', 'avg', got "
     "array"),
    (bl.Pooling2D((1, 1), "min"), IMAGE, "option 'type': expected one of 'max', 'avg'"),
    (bl.Pooling2D(2, padding=((1, 2, 3), 0)), IMAGE, f"option 'padding': expected {PADS}, got "
     "((1, 2, 3), 0)."),
    (bl.Pooling2D(2, ceil_mode=2), IMAGE, "option 'ceil_mode': expected one of False, True, got 2"),
    (bl.Pooling1D(2, padding=(1, -1)), (3, 2), "an int >= 0 or two of them (before, after)"),
    (bl.Pooling1D((2, 2)), (3, 2), "'kernel_size': expected an int >= 1, got (2, 2)."),
    (bl.Pooling3D((2, 2)), CUBE, f"or {THREE}, got (2, 2)"),
    (bl.GlobalPooling2D("min"), IMAGE, "option 'type': expected one of 'max', 'avg', got 'min'"),
    (bl.TimePooling("mean"), VECTOR, "option 'type': expected one of 'last', 'avg', 'max', 'sum', "
     "got 'mean'"),
    (bl.Padding(-1), IMAGE, f"option 'padding': expected {PADS}, got -1."),
    (bl.Padding((1, 2, 3)), IMAGE, "option 'padding': expected an int >= 0, or for each of 2 axes"),
    (bl.Padding(1, "0"), IMAGE, "option 'value': expected a finite number"),
    (bl.Padding(1, np.nan), IMAGE, "option 'value': expected a finite number, got nan"),
    (bl.DepthToSpace(0), IMAGE, "option 'block': expected an int >= 1, got 0."),
    (bl.DepthToSpace(2, "RCD"), IMAGE, "option 'order': expected one of 'CRD', 'DCR', got 'RCD'."),
    (bl.Upsampling2D(), IMAGE, "expected a scale or a size, got scale=None and size=None."),
    (bl.Upsampling2D(2, size=3), IMAGE, "expected a scale or a size, got scale=2 and size=3."),
    (bl.Upsampling2D(2**20), (4, 5, 6), "expected at most 1048576 rows and columns of the output, "
     "got 4194304 and 5242880. Use a smaller scale or size."),
    (bl.Upsampling2D(1.5), IMAGE, f"option 'scale': expected an int >= 1 or {TWO} or None, got 1."),
    (bl.Upsampling2D(2, "cubic"), IMAGE, "'type': expected one of 'nearest', 'bilinear', got "
     "'cubic'"),
    (bl.Crop(True), IMAGE, f"option 'size': expected an int >= 1 or {TWO}, got True."),
    (bl.Crop((1, 1), -1), IMAGE, f"option 'offset': expected an int >= 0 or {TWO} or No"),
    (bl.Reshape(-1), IMAGE, "option 'shape': expected a positive int or a tuple of positive"),
    (bl.Slice(2, 2), IMAGE, "option 'start': expected less than stop=2, got 2."),
    (bl.Slice(-1, 1), IMAGE, "option 'start': expected an int >= 0, got -1."),
    (bl.Add(1), PAIR, "option 'num_inputs': expected an int >= 2, got 1."),
    (bl.DeltasScaling("-"), VECTOR, "'factor': expected a finite number, got '-'."),
    (bl.Power(power=None), VECTOR, "'power': expected a finite number, got None."),
    (bl.HingeLoss(-1), CLASSES, "option 'margin': expected a finite number >= 0, got -1."),
    (bl.GLU("glue"), (4,), "option 'activation': expected one of 'sigmoid'"),
    (bl.LayerNorm(0), VECTOR, "option 'epsilon': expected a finite number > 0, got 0."),
    (bl.RMSNorm(-1.0), VECTOR, "'epsilon': expected a finite number > 0, got -1.0."),
    (bl.GroupNorm(0), VECTOR, "option 'num_groups': expected an int >= 1, got 0."),
    (bl.LocalResponseNormalization(0), VECTOR, "option 'size': expected an int >= 1, got 0."),
    (bl.LocalResponseNormalization(k=0.0), VECTOR, "option 'k': expected a finite number > 0"),
    (bl.LocalResponseNormalization(alpha=-1), VECTOR, "option 'alpha': expected a finite number"),
    (bl.LocalResponseNormalization(beta="b"), VECTOR, "option 'beta': expected a finite num"),
    (bl.MultiHeadSelfAttention(3), (4,), "option 'size': expected a multiple of num_heads=3, got 4."
     " Each head gets"),
    (bl.MultiHeadSelfAttention(2, rotary=True), (6,), "option 'size': expected a multiple of 2 * "
     "num_heads=4 with rotary=True, got 6. The features of a head are turned in pairs."),
    # Shapes.
    (bl.SoftmaxCE(), {"default": (4,), "targets": (2,)}, "input 'targets': expected (T, B, 1), got "
     "(T, B, 2)"),
    (bl.SoftmaxCE(), {"default": (2, 4), "targets": (1,)}, "input 'targets': expected (T, B, 2, 1),"
     " got (T, B, 1)"),
    (bl.SoftmaxCE(), {"default": ("B", 4), "targets": ("B", 2)}, "input 'targets': expected (B, 1),"
     " got (B, 2)"),
    (bl.SigmoidCE(), {"default": (4,), "targets": (1,)}, "input 'targets': expected (T, B, 4), got "
     "(T, B, 1)"),
    (bl.SquaredError(), {"default": (4,), "targets": (5,)}, "input 'targets': expected (T, B, 4), "
     "got (T, B, 5)"),
    (bl.BinomialCrossEntropy(), CLASSES, "input 'targets': expected (T, B, 3), got (T, B, 1)"),
    (bl.SoftmaxCE(), {"default": (3,), "targets": (3,)}, "expected (T, B, 1), got (T, B, 3). Of "
     "one-hot vectors take the class numbers, array.argmax(-1)[..., None]; for probabilities use "
     "Expression('-sum(targets * log_softmax(x), axis=-1, keepdims=True)')."),
    (bl.HingeLoss(), {"default": (3,), "targets": (3,)}, "input 'targets': expected (T, B, 1), got "
     "(T, B, 3)"),
    (bl.Accuracy(), {"default": (3,), "targets": (3,)}, "input 'targets': expected (T, B, 1), got"),
    (bl.Mask(), {"default": (4, 2), "mask": (2,)}, "input 'mask': expected (T, B, 1) or (T, B, 4, 1"
     ") or (T, B, 4, 2), got (T, B, 2)"),
    (bl.Mask(), {"default": (4,), "mask": (2,)}, "input 'mask': expected (T, B, 1) or (T, B, 4), "
     "got (T, B, 2)"),
    (bl.Gru(2), {"default": (3,), "mask": (2,)}, "layer 'Gru' (Gru), input 'mask': expected (T, B, "
     "1), got (T, B, 2)"),
    (bl.Merge(), {"inputs_1": (2, 3), "inputs_2": (4, 3)}, "input 'inputs_2': expected (T, B, 2, 3)"
     ", got (T, B, 4, 3)"),
    (bl.Merge(), {"inputs_1": (3,), "inputs_2": ("B", 3)}, "input 'inputs_2': expected (T, B, 3), "
     "got (B, 3)"),
    (bl.SquaredDifference(), {**PAIR, "inputs_2": (4,)}, "input 'inputs_2': expected (T, B, 3), got"
     " (T, B, 4)"),
    (bl.Multiply(), {**PAIR, "inputs_2": (4,)}, "input 'inputs_2': expected (T, B, 3), got (T, B, "
     "4)."),
    (bl.Multiply(2), {**PAIR, "inputs_3": (3,)}, "unknown input 'inputs_3'. Choices are: inputs_1, "
     "inputs_2."),
    (bl.Add(3), PAIR, "input 'inputs_3': expected (T, B, ...), but nothing is connected."),
    (bl.Highway(), {"H": (3,), "T": (2,), "x": (3,)}, "input 'T': expected (T, B, 3), got (T, B,"),
    (bl.Highway(), {"H": (2,), "T": (3,), "x": (3,)}, "input 'H': expected (T, B, 3), got (T, B,"),
    (bl.GLU(), (3,), "input 'default': expected an even last dimension, got (T, B, 3"),
    (bl.GroupNorm(4), (2, 6), "input 'default': expected (T, B, ..., C) with C a multiple of 4, got"
     " (T, B, 2, 6)."),
    (bl.ChannelPooling(4), (2, 6), "expected (T, B, ..., C) with C a multiple of 4, got (T, B"),
    (bl.DepthToSpace(2), (4, 5, 6), "input 'default': expected (T, B, H, W, C) with C a multiple of"
     " 4, got (T, B, 4, 5, 6)."),
    (bl.SpaceToDepth(2), (4, 5, 6), "input 'default': expected (T, B, H, W, C) with H and W "
     "multiples of 2, got (T, B, 4, 5, 6). Use Padding or Crop."),
    (bl.Crop((5, 1)), IMAGE, "with H >= 5, got (T, B, 4, 28, 1). Use a smaller size or offset."),
    (bl.Crop((2, 3), (0, 26)), IMAGE, "expected (T, B, H, W, C) with W >= 29, got"),
    (bl.Reshape((7, 2)), IMAGE, "expected 14 features, for shape=(7, 2), got (T, B, 4, 28, 1)."),
    (bl.Slice(2, 6, 1), (4, 5, 6), "expected at least 6 on feature dimension 1, got (T, B, 4"),
    (bl.Slice(0, 1, 3), (4, 5, 6), "expected a feature dimension 3, got (T, B, 4, 5, 6)."),
    (bl.Slice(0, 1, -4), (4, 5, 6), "expected a feature dimension -4, got (T, B, 4, 5, 6)."),
    (bl.Split((2, 3)), (4, 5, 6), "expected (T, B, ..., 5), the sum of sizes=(2, 3), got (T, B, 4, "
     "5, 6)."),
    (bl.Padding(1), VECTOR, "expected (T, B, ..., C) with at least one axis before C, got"),
    *((layer, IMAGE, "input 'default': expected (T, B, H, W, C) with H >= 5, got (T, B, 4, 28, 1). "
       + WINDOW) for layer in (bl.Convolution2D(8, (5, 3)), bl.Pooling2D((5, 3)))),
    *((layer, VECTOR, "expected (T, B, H, W, C), got (T, B, 3)")
      for layer in (bl.Convolution2D(8, (1, 1)), bl.Pooling2D((1, 1)))),
    (bl.Convolution2D(8, (3, 3)), (8, 8), "expected (T, B, H, W, C), got (T, B, 8, 8). The channel "
     "axis is missing: for one "),
    (bl.Convolution2D(2, (1, 1)), ("B", 4), "expected (B, H, W, C), got (B, 4)"),
    (bl.Pooling2D((5, 5)), ("B", 4, 4, 1), "expected (B, H, W, C) with H >= 5, got (B, 4, 4, 1)"),
    (bl.Pooling2D(9, stride=2, ceil_mode=True), IMAGE, "with H >= "),
    (bl.Pooling1D(4), (3, 2), f"expected (T, B, L, C) with L >= 4, got (T, B, 3, 2). {WINDOW}"),
    (bl.Pooling3D(4), (4, 4, 3, 2), "(T, B, D, H, W, C) with W >= 4, got (T, B, 4, 4, 3, 2)"),
    (bl.Pooling3D(2), (4, 3, 2), "expected (T, B, D, H, W, C), got (T, B, 4, 3, 2)"),
    *(
        row
        for create, letters, shape, kernel, dilation in (
            (bl.Convolution1D, "L", (4,), 3, 2),
            (bl.Convolution2D, "H, W", (4, 4), (1, 3), (1, 2)),
            (bl.Convolution3D, "D, H, W", (4, 4, 4), (1, 1, 3), (1, 1, 2)),
        )
        for row in (
            (create(2, 1, groups=3), (*shape, 6), "), option 'groups': expected a divisor of "
             "num_filters=2, got 3."),
            (create(8, 1, groups=4), (*shape, 6), f"'default': expected (T, B, {letters}, C) with C"
             " a multiple of 4, got (T, B, 4"),
            (create(2, kernel, dilation=dilation), (*shape, 2), f"expected (T, B, {letters}, C) "
             f"with {letters[-1]} >= 5, got (T, B, {', '.join(map(str, shape))}, 2). {WINDOW}"),
            (create(2, 1), (4,), f"'default': expected (T, B, {letters}, C), got (T, B, 4)."),
        )
    ),
    (bl.Input({"x": ("T", "B", "T")}), {}, "layer 'Input' (Input): output 'x': only an internal can"
     " grow with T squared."),
    *((bl.Input(shapes), {}, "option 'out_shapes': expected a dict such as")
      for shapes in (None, {}, 784, ("T", "B", 3))),
    *((bl.Input({"default": shape}), {}, "option 'out_shapes': expected a shape such ")
      for shape in (("B", "T", 3), 5, (), ("T", "B"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "features", "text"),
    REFUSED,
    ids=[f"{layer.layer.layer_type}-{text[:40]}" for layer, _, text in REFUSED],
)
def test_what_does_not_fit_is_refused(layer: ConstructionWrapper, features: Any, text: str) -> None:
    given = features if isinstance(features, dict) else {"default": features}
    shapes = {p: shape if "B" in shape else ("T", "B", *shape) for p, shape in given.items()}
    with pytest.raises(LayerValidationError, match=re.escape(text)) as caught:
        build_layer(layer, shapes)
    kind = layer.layer.layer_type
    assert str(caught.value).startswith(f"layer {kind!r} ({kind})")


@pytest.mark.parametrize(
    ("construction", "features", "option"),
    [
        (bl.Recurrent(2), VECTOR, "size"),
        (bl.Lstm(2), VECTOR, "size"),
        (bl.Convolution2D(2, (1, 1)), IMAGE, "num_filters"),
        (bl.Convolution2D(2, (1, 1)), IMAGE, "kernel_size"),
        (bl.Pooling2D((1, 1)), IMAGE, "kernel_size"),
    ],
)
def test_missing_option(construction: ConstructionWrapper, features: Any, option: str) -> None:
    del construction.layer.layer_kwargs[option]
    match = rf"layer '\w+' \(\w+\), option '{option}': expected .* >= 1.*, got nothing\."
    with pytest.raises(LayerValidationError, match=match):
        build_layer(construction, {"default": ("T", "B", *features)})


def test_message_names_where_the_input_comes_from() -> None:
    cls = type(build_layer(bl.Pooling2D((1, 1)), {"default": ("T", "B", *IMAGE)}))
    incoming = {Connection("Pool1", "default", "P", "default")}
    shapes = {"default": BufferStructure("T", "B", 4, 4, 1)}
    with pytest.raises(LayerValidationError, match=r"got .* from 'Pool1.outputs.default'\. Use"):
        cls("P", shapes, incoming, set(), kernel_size=(5, 1))


def test_input_takes_the_shapes_of_a_json_file() -> None:
    layer = build_layer(bl.Input({"a": ["T", "B", 3], "b": ["B", 2]}), {})
    assert [s.shape for s in layer.out_shapes.values()] == [("T", "B", 3), ("B", 2)]


# -- data ---------------------------------------------------------------------------------------


def layer_of_classes(kind: str) -> tuple[Layer, str]:
    """Return a layer for which an input, which is named, has three classes."""
    if kind == "Embedding":
        return build_layer(bl.Embedding(3, 2), {"default": ("T", "B", 1)}), "default"
    shapes = {"default": ("T", "B", 3), "targets": ("T", "B", 1)}
    return build_layer(getattr(bl, kind)(), shapes), "targets"


@pytest.mark.parametrize("kind", ["SoftmaxCE", "HingeLoss", "Embedding"])
@pytest.mark.parametrize("bad", [3.0, -1.0, 0.5, np.nan, np.inf])
def test_class_indices_out_of_range(kind: str, bad: float) -> None:
    layer, port = layer_of_classes(kind)
    indices = np.zeros((2, 4, 1))
    indices[1, 2, 0] = bad
    larger = ", or make vocabulary_size larger" if kind == "Embedding" else ""
    text = (
        f"layer '{kind}' ({kind}), input '{port}': expected class indices, whole numbers in "
        f"[0, 3), got {bad} at index (1, 2, 0). Number the classes from 0{larger}"
    )
    with pytest.raises(LayerValidationError, match=f"^{re.escape(text)}"):
        layer.validate_data(port, indices)


@pytest.mark.parametrize("kind", ["SoftmaxCE", "HingeLoss", "Embedding"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, bool])
def test_class_indices_in_range(kind: str, dtype: type) -> None:
    layer, port = layer_of_classes(kind)
    layer.validate_data(port, np.array([[[0], [1]]], dtype=dtype))
    if port == "targets":
        layer.validate_data("default", np.full((1, 2, 3), np.nan))


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
        build_layer(layer, {"default": ("T", "B", *VECTOR)})


@pytest.mark.parametrize("kind", ["SigmoidCE", "BinomialCrossEntropy"])
@pytest.mark.parametrize("bad", [2.0, -1.0, np.nan])
def test_targets_that_are_no_probabilities(kind: str, bad: float) -> None:
    shapes = {"default": ("T", "B", 2), "targets": ("T", "B", 2)}
    layer = build_layer(getattr(bl, kind)(), shapes)
    layer.validate_data("default", np.full((1, 2, 2), np.nan))
    text = (
        f"layer '{kind}' ({kind}), input 'targets': expected probabilities in [0, 1], got {bad} at "
        f"index (0, 1, 1). Give 0 and 1 for no and yes."
    )
    with pytest.raises(LayerValidationError, match=f"^{re.escape(text)}$"):
        layer.validate_data("targets", np.array([[[0.0, 1.0], [0.5, bad]]]))
