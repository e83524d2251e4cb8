"""What the layers say when options, shapes or data do not fit."""

import re

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.constraints import number
from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.layers.base_layer import Layer
from brainstorm.structure.architecture import Connection
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import build_layer
from tests.trainings import refused

VECTOR, IMAGE, CUBE = (3,), (4, 28, 1), (4, 4, 4, 2)
CLASSES, PAIR = {"default": (3,), "targets": (1,)}, {"inputs_1": (3,), "inputs_2": (3,)}
WINDOW = "Use a smaller kernel_size or padding=1."
COUNT, FINITE, POSITIVE = "an int >= 1", "a finite number", "a finite number > 0"
TWO, THREE = "two of them (rows, columns)", "three of them (depth, rows, columns)"
PADS = "an int >= 0, or for each of 2 axes one or two of them (before, after)"
SIZE, ACTIVATION = "a positive int or a tuple of positive ints", "one of 'sigmoid', 'rel'"
SHARE, MAX_OR_AVG = "a number in [0, 1]", "one of 'max', 'avg'"
WEIGHTS = "a list of numbers >= 0 or None"
NAMES = {**vars(bl), "array": np.array, "nan": np.nan}

#: A call, the features of the inputs, an option, what it is expected to be, and what it is not.
OPTIONS = [
    ("FullyConnected({})", VECTOR, "size", f"{SIZE} or None", ["big", 2.5, 0]),
    ("FullyConnected(2, {})", VECTOR, "activation", ACTIVATION, ["rl"]),
    ("Elementwise({})", VECTOR, "activation", ACTIVATION, [None, np.arange(2)]),
    ("Dropout({})", VECTOR, "drop_prob", "a number in [0, 1)", [1.0, -0.1]),
    ("Dropout(shared_over_time={})", VECTOR, "shared_over_time", "one of True", ["no", None]),
    ("BatchNorm(decay={})", VECTOR, "decay", SHARE, [1.5]),
    ("BatchNorm(epsilon={})", VECTOR, "epsilon", POSITIVE, [0]),
    ("Loss({})", VECTOR, "importance", FINITE, ["much", np.nan, 1j]),
    ("Loss(10**{})", VECTOR, "importance", f"{FINITE}, got 1000", [400]),
    ("SoftmaxCE(None, {})", CLASSES, "class_weights", WEIGHTS,
     [[1.0, -1.0], {0: 1.0}, "balanced", np.array(1.0)]),
    ("SoftmaxCE(None, None, {})", CLASSES, "label_smoothing", SHARE, [1.5, None, "", False]),
    ("Recurrent({})", VECTOR, "size", COUNT, [(2, 2)]),
    ("Lstm({})", VECTOR, "size", COUNT, [2.0]),
    ("Convolution2D({}, 1)", IMAGE, "num_filters", COUNT, [0]),
    ("Convolution2D(1, {})", IMAGE, "kernel_size", f"{COUNT} or {TWO}", [3.0]),
    ("Convolution2D(1, 1, {})", IMAGE, "stride", f"{COUNT} or {TWO}", [10**18, (0, 1)]),
    ("Convolution2D(1, 1, padding={})", IMAGE, "padding", PADS, [-1]),
    ("Convolution2D(2, 1, dilation={})", IMAGE, "dilation", f"{COUNT} or {TWO}", [0]),
    ("Convolution2D(2, 1, groups={})", IMAGE, "groups", COUNT, [0]),
    ("Convolution1D(2, {})", (4, 2), "kernel_size", COUNT, [(3,)]),
    ("Convolution1D(2, 1, {})", (4, 2), "stride", COUNT, [0]),
    ("Convolution1D(2, 1, dilation={})", (4, 2), "dilation", COUNT, [1.5]),
    ("Convolution3D(2, {})", CUBE, "kernel_size", f"{COUNT} or {THREE}", [(3, 3)]),
    ("Convolution3D(2, 1, {})", CUBE, "stride", f"{COUNT} or {THREE}", [(1, 0, 1)]),
    ("ConvolutionTranspose2D(1, {})", IMAGE, "kernel_size", f"{COUNT} or {TWO}", [0]),
    ("ConvolutionTranspose2D(1, 3, (3, 2), output_padding={})", IMAGE, "output_padding",
     "less than stride=(3, 2)", [2]),
    ("Pooling2D({})", IMAGE, "kernel_size", f"{COUNT} or {TWO}", [2**31]),
    ("Pooling2D(1, {})", IMAGE, "type", MAX_OR_AVG, ["min", np.arange(2)]),
    ("Pooling2D(2, padding={})", IMAGE, "padding", PADS, [((1, 2, 3), 0)]),
    ("Pooling2D(2, ceil_mode={})", IMAGE, "ceil_mode", "one of False, True", [2]),
    ("Pooling1D(2, padding={})", (3, 2), "padding",
     "an int >= 0 or two of them (before, after)", [(1, -1)]),
    ("Pooling1D({})", (3, 2), "kernel_size", COUNT, [(2, 2)]),
    ("Pooling3D({})", CUBE, "kernel_size", f"{COUNT} or {THREE}", [(2, 2)]),
    ("GlobalPooling2D({})", IMAGE, "type", MAX_OR_AVG, ["min"]),
    ("TimePooling({})", VECTOR, "type", "one of 'last', 'avg', 'max', 'sum'", ["mean"]),
    ("Padding({})", IMAGE, "padding", PADS, [-1, (1, 2, 3)]),
    ("Padding(1, {})", IMAGE, "value", FINITE, ["0", np.nan]),
    ("DepthToSpace({})", IMAGE, "block", COUNT, [0]),
    ("DepthToSpace(2, {})", IMAGE, "order", "one of 'CRD', 'DCR'", ["RCD"]),
    ("Upsampling2D({})", IMAGE, "scale", f"{COUNT} or {TWO} or None", [1.5]),
    ("Upsampling2D(2, {})", IMAGE, "type", "one of 'nearest', 'bilinear'", ["cubic"]),
    ("Crop({})", IMAGE, "size", f"{COUNT} or {TWO}", [True]),
    ("Crop((1, 1), {})", IMAGE, "offset", f"an int >= 0 or {TWO} or None", [-1]),
    ("Reshape({})", IMAGE, "shape", SIZE, [-1]),
    ("Slice({}, 2)", IMAGE, "start", "less than stop=2", [2]),
    ("Slice({}, 1)", IMAGE, "start", "an int >= 0", [-1]),
    ("Add({})", PAIR, "num_inputs", "an int >= 2 and <= 10000", [1, 10**30]),
    ("DeltasScaling({})", VECTOR, "factor", FINITE, ["-"]),
    ("Power(power={})", VECTOR, "power", FINITE, [None]),
    ("HingeLoss({})", CLASSES, "margin", "a finite number >= 0", [-1]),
    ("GLU({})", (4,), "activation", ACTIVATION, ["glue"]),
    ("LayerNorm({})", VECTOR, "epsilon", POSITIVE, [0]),
    ("RMSNorm({})", VECTOR, "epsilon", POSITIVE, [-1.0]),
    ("GroupNorm({})", VECTOR, "num_groups", COUNT, [0]),
    ("LocalResponseNormalization({})", VECTOR, "size", COUNT, [0]),
    ("LocalResponseNormalization(k={})", VECTOR, "k", POSITIVE, [0.0]),
    ("LocalResponseNormalization(alpha={})", VECTOR, "alpha", "a finite number >= 0", [-1]),
    ("LocalResponseNormalization(beta={})", VECTOR, "beta", FINITE, ["b"]),
    ("Convolution1D(2, 1, groups={})", (4, 6), "groups", "a divisor of num_filters=2", [3]),
    ("Convolution2D(2, 1, groups={})", (4, 4, 6), "groups", "a divisor of num_filters=2", [3]),
    ("Convolution3D(2, 1, groups={})", CUBE, "groups", "a divisor of num_filters=2", [3]),
]  # fmt: skip
OPTION_ROWS = [
    (call.format(repr(v)), shapes, *row, v) for call, shapes, *row, vs in OPTIONS for v in vs
]

#: A layer, the features of its inputs, one of these, what is expected of it, and what is advised.
#: Shapes that begin with B have no time.
SHAPES = [
    (bl.SoftmaxCE(), {"default": (4,), "targets": (2,)}, "targets", "(T, B, 1)", ""),
    (bl.SoftmaxCE(), {"default": (2, 4), "targets": (1,)}, "targets", "(T, B, 2, 1)", ""),
    (bl.SoftmaxCE(), {"default": ("B", 4), "targets": ("B", 2)}, "targets", "(B, 1)", ""),
    (bl.SoftmaxCE(), {"default": (3,), "targets": (3,)}, "targets", "(T, B, 1)", " Of one-hot "
     "vectors take the class numbers, array.argmax(-1)[..., None]; for probabilities use "
     "Expression('-sum(targets * log_softmax(x), axis=-1, keepdims=True)')."),
    (bl.HingeLoss(), {"default": (3,), "targets": (3,)}, "targets", "(T, B, 1)", ""),
    (bl.Accuracy(), {"default": (3,), "targets": (3,)}, "targets", "(T, B, 1)", ""),
    (bl.SigmoidCE(), {"default": (4,), "targets": (1,)}, "targets", "(T, B, 4)", ""),
    (bl.SquaredError(), {"default": (4,), "targets": (5,)}, "targets", "(T, B, 4)", ""),
    (bl.BinomialCrossEntropy(), CLASSES, "targets", "(T, B, 3)", ""),
    (bl.Mask(), {"default": (4, 2), "mask": (2,)}, "mask",
     "(T, B, 1) or (T, B, 4, 1) or (T, B, 4, 2)", ""),
    (bl.Mask(), {"default": (4,), "mask": (2,)}, "mask", "(T, B, 1) or (T, B, 4)", ""),
    (bl.Gru(2), {"default": (3,), "mask": (2,)}, "mask", "(T, B, 1)", ""),
    (bl.Merge(), {"inputs_1": (2, 3), "inputs_2": (4, 3)}, "inputs_2", "(T, B, 2, 3)", ""),
    (bl.Merge(), {"inputs_1": (3,), "inputs_2": ("B", 3)}, "inputs_2", "(T, B, 3)",
     " Either all inputs have a time axis, or none."),
    (bl.SquaredDifference(), {**PAIR, "inputs_2": (4,)}, "inputs_2", "(T, B, 3)", ""),
    (bl.Multiply(), {**PAIR, "inputs_2": (4,)}, "inputs_2", "(T, B, 3)", ""),
    (bl.Highway(), {"H": (3,), "T": (2,), "x": (3,)}, "T", "(T, B, 3)", ""),
    (bl.Highway(), {"H": (2,), "T": (3,), "x": (3,)}, "H", "(T, B, 3)", ""),
    (bl.GLU(), (3,), "default", "an even last dimension", ""),
    (bl.GroupNorm(4), (2, 6), "default", "(T, B, ..., C) with C a multiple of 4", ""),
    (bl.ChannelPooling(4), (2, 6), "default", "(T, B, ..., C) with C a multiple of 4", ""),
    (bl.DepthToSpace(2), (4, 5, 6), "default", "(T, B, H, W, C) with C a multiple of 4", ""),
    (bl.SpaceToDepth(2), (4, 5, 6), "default", "(T, B, H, W, C) with H and W multiples of 2",
     " Use Padding or Crop."),
    (bl.Crop((5, 1)), IMAGE, "default", "(T, B, H, W, C) with H >= 5",
     " Use a smaller size or offset."),
    (bl.Crop((2, 3), (0, 26)), IMAGE, "default", "(T, B, H, W, C) with W >= 29", ""),
    (bl.Reshape((7, 2)), IMAGE, "default", "14 features, for shape=(7, 2)", ""),
    (bl.Slice(2, 6, 1), (4, 5, 6), "default", "at least 6 on feature dimension 1", ""),
    *((bl.Slice(0, 1, axis), (4, 5, 6), "default", f"a feature dimension {axis}", "")
      for axis in (3, -4)),
    (bl.Split((2, 3)), (4, 5, 6), "default", "(T, B, ..., 5), the sum of sizes=(2, 3)", ""),
    (bl.Padding(1), VECTOR, "default", "(T, B, ..., C) with at least one axis before C", ""),
    *((layer, IMAGE, "default", "(T, B, H, W, C) with H >= 5", f" {WINDOW}")
      for layer in (bl.Convolution2D(8, (5, 3)), bl.Pooling2D((5, 3)))),
    *((layer, VECTOR, "default", "(T, B, H, W, C)", "")
      for layer in (bl.Convolution2D(8, (1, 1)), bl.Pooling2D((1, 1)))),
    (bl.Convolution2D(8, (3, 3)), (8, 8), "default", "(T, B, H, W, C)",
     " The channel axis is missing: for one "),
    (bl.Convolution1D(8, 3), VECTOR, "default", "(T, B, L, C)",
     " The channel axis is missing: for one channel, use array[..., None]. (It does not move "),
    (bl.Convolution2D(2, (1, 1)), ("B", 4), "default", "(B, H, W, C)", ""),
    (bl.Pooling2D((5, 5)), ("B", 4, 4, 1), "default", "(B, H, W, C) with H >= 5", ""),
    (bl.Pooling2D(9, "max", 2, ceil_mode=True), IMAGE, "default", "(T, B, H, W, C) with H >= 8",
     " Use a smaller kernel_size or padding=3."),
    (bl.Pooling1D(4), (3, 2), "default", "(T, B, L, C) with L >= 4", f" {WINDOW}"),
    (bl.Pooling3D(4), (4, 4, 3, 2), "default", "(T, B, D, H, W, C) with W >= 4", ""),
    (bl.Pooling3D(2), (4, 3, 2), "default", "(T, B, D, H, W, C)", ""),
    (bl.Convolution1D(8, 1, groups=4), (4, 6), "default",
     "(T, B, L, C) with C a multiple of 4", ""),
    (bl.Convolution1D(2, 3, dilation=2), (4, 2), "default", "(T, B, L, C) with L >= 5",
     f" {WINDOW}"),
    (bl.Convolution1D(2, 1), (4,), "default", "(T, B, L, C)", ""),
    (bl.Convolution2D(8, 1, groups=4), (4, 4, 6), "default",
     "(T, B, H, W, C) with C a multiple of 4", ""),
    (bl.Convolution2D(2, 3, dilation=(1, 2)), (4, 4, 2), "default", "(T, B, H, W, C) with W >= 5",
     f" {WINDOW}"),
    (bl.Convolution3D(8, 1, groups=4), (4, 4, 4, 6), "default",
     "(T, B, D, H, W, C) with C a multiple of 4", ""),
    (bl.Convolution3D(2, (1, 1, 3), dilation=2), CUBE, "default",
     "(T, B, D, H, W, C) with W >= 5", f" {WINDOW}"),
    (bl.Convolution3D(2, 1), (4,), "default", "(T, B, D, H, W, C)", ""),
]  # fmt: skip

#: The others: a layer, the features of its inputs, and what is said.
OTHERS = [
    (bl.SoftmaxCE(None, [1, 2]), CLASSES, "option 'class_weights': expected one number for each of "
     "3 classes, got 2."),
    (bl.ConvolutionTranspose2D(1, (2, 3), padding=3), (4, 4, 1), "the output would have -1 rows and"
     " 0 columns. Use a smaller padding or a larger kernel_size."),
    (bl.Upsampling2D(), IMAGE, "expected a scale or a size, got scale=None and size=None."),
    (bl.Upsampling2D(2, size=3), IMAGE, "expected a scale or a size, got scale=2 and size=3."),
    (bl.Upsampling2D(2**20), (4, 5, 6), "expected at most 1048576 rows and columns of the output, "
     "got 4194304 and 5242880. Use a smaller scale or size."),
    (bl.MultiHeadSelfAttention(3), (4,), "option 'size': expected a multiple of num_heads=3, got 4."
     " Each head gets"),
    (bl.MultiHeadSelfAttention(2, rotary=True), (6,), "option 'size': expected a multiple of 2 * "
     "num_heads=4 with rotary=True, got 6. The features of a head are turned in pairs."),
    (bl.Multiply(2), {**PAIR, "inputs_3": (3,)}, "unknown input 'inputs_3'. Choices are: inputs_1, "
     "inputs_2."),
    (bl.Add(3), PAIR, "input 'inputs_3': expected (T, B, ...), but nothing is connected."),
    (bl.Input({"x": ("T", "B", "T")}), {}, "output 'x': only an internal can grow with T squared."),
    *((bl.Input(shapes), {}, "option 'out_shapes': expected a dict such as")
      for shapes in (None, {}, 784, ("T", "B", 3))),
    *((bl.Input({"default": shape}), {}, "option 'out_shapes': expected a shape such ")
      for shape in (("B", "T", 3), 5, (), ("T", "B"))),
]  # fmt: skip


def assert_refused(layer, features, *texts):
    given = features if isinstance(features, dict) else {"default": features}
    shapes = {p: shape if "B" in shape else ("T", "B", *shape) for p, shape in given.items()}
    kind = layer.layer.layer_type
    place, text = f"layer {kind!r} ({kind})", ".*".join(map(re.escape, texts))
    with pytest.raises(LayerValidationError, match=f"^{re.escape(place)}.*{text}"):
        build_layer(layer, shapes)


@pytest.mark.parametrize(("call", "features", "option", "expected", "value"), OPTION_ROWS)
def test_wrong_options_are_refused(call, features, option, expected, value):
    texts = f", option {option!r}: expected {expected}", f"got {value!r}"
    assert_refused(eval(call, NAMES), features, *texts[: 2 - ("got" in expected)])


@pytest.mark.parametrize(("layer", "features", "port", "expected", "advice"), SHAPES)
def test_wrong_shapes_are_refused(layer, features, port, expected, advice):
    got = features[port] if isinstance(features, dict) else features
    got = ", ".join(map(str, got if "B" in got else ("T", "B", *got)))
    assert_refused(layer, features, f", input {port!r}: expected {expected}, got ({got}).{advice}")


@pytest.mark.parametrize(("layer", "features", "text"), OTHERS)
def test_what_does_not_fit_is_refused(layer, features, text):
    assert_refused(layer, features, text)


@pytest.mark.parametrize(
    ("layer", "features", "option"),
    [
        (bl.Recurrent(2), VECTOR, "size"),
        (bl.Lstm(2), VECTOR, "size"),
        (bl.Convolution2D(2, (1, 1)), IMAGE, "num_filters"),
        (bl.Convolution2D(2, (1, 1)), IMAGE, "kernel_size"),
        (bl.Pooling2D((1, 1)), IMAGE, "kernel_size"),
    ],
)
def test_missing_option(layer, features, option):
    del layer.layer.layer_kwargs[option]
    assert_refused(layer, features, f", option '{option}': expected ", " >= 1", ", got nothing.")


def test_message_names_where_the_input_comes_from():
    cls = type(build_layer(bl.Pooling2D((1, 1)), {"default": ("T", "B", *IMAGE)}))
    incoming = {Connection("Pool1", "default", "P", "default")}
    shapes = {"default": BufferStructure("T", "B", 4, 4, 1)}
    with pytest.raises(LayerValidationError, match=r"got .* from 'Pool1.outputs.default'\. Use"):
        cls("P", shapes, incoming, set(), kernel_size=(5, 1))


def test_input_takes_the_shapes_of_a_json_file():
    layer = build_layer(bl.Input({"a": ["T", "B", 3], "b": ["B", 2]}), {})
    assert [s.shape for s in layer.out_shapes.values()] == [("T", "B", 3), ("B", 2)]


# -- data ---------------------------------------------------------------------------------------


INDICES, SHARES = "class indices, whole numbers in [0, 3)", "probabilities in [0, 1]"
FINITE = "finite numbers"
NUMBER = "Number the classes from 0"
MASK = f"{NUMBER}, or give this layer more inputs. What has no class gets any class, and a Mask of"
#: A layer, the features of its inputs, what the last input is expected to have, and the advice.
DATA = [
    (bl.SoftmaxCE(), CLASSES, INDICES, MASK),
    (bl.HingeLoss(), CLASSES, INDICES, MASK),
    (bl.Embedding(3, 2), {"default": (1,)}, INDICES, f"{NUMBER}, or make vocabulary_size larger"),
    (bl.SigmoidCE(), {"default": (2,), "targets": (2,)}, SHARES, "Give 0 and 1 for no and yes."),
    (bl.BinomialCrossEntropy(), {"default": (2,), "targets": (2,)}, SHARES, "Give 0 and 1 for no"),
    *(
        (layer, {"default": (2,), "mask": (1,)}, FINITE, "A mask is 0 at steps that do not count.")
        for layer in (bl.Lstm(2), bl.MultiHeadSelfAttention(1), bl.BatchNorm(), bl.TimePooling())
    ),
]
#: Which of the bad numbers are not bad.
FINE = {INDICES: (), SHARES: (0.5,), FINITE: (3.0, -1.0, 0.5)}


@pytest.mark.parametrize(("layer", "features", "expected", "advice"), DATA)
@pytest.mark.parametrize("bad", [3.0, -1.0, 0.5, np.nan, np.inf])
def test_class_indices_probabilities_and_masks(layer, features, expected, advice, bad):
    layer = build_layer(layer, {port: ("T", "B", *size) for port, size in features.items()})
    port, size = list(features.items())[-1]
    for dtype in (np.float32, np.int64, np.uint8, bool):
        layer.validate_data(port, np.array([[[0] * size[0], [1] * size[0]]], dtype))
    for other in features.keys() - {port}:
        layer.validate_data(other, np.full((1, 2, *features[other]), np.nan))
    array, kind = np.zeros((2, 4, *size)), layer.type_name
    array[1, 2, -1] = bad
    if bad in FINE[expected]:
        layer.validate_data(port, array)
        return
    text = (
        f"layer '{kind}' ({kind}), input '{port}': expected {expected}, got {bad} at index "
        f"(1, 2, {size[0] - 1}). {advice}"
    )
    with pytest.raises(LayerValidationError, match=f"^{re.escape(text)}"):
        layer.validate_data(port, array)


def test_class_indices_that_would_become_others_are_refused():
    layer = build_layer(bl.Embedding(2**24 + 4, 1), {"default": ("T", "B", 1)})
    array = 2**24 + np.arange(-1, 2).reshape(1, 3, 1)
    text = "expected class indices that float32 can hold, got 16777217 at index (0, 2, 0). Use a h"
    layer.set_handler(NumpyHandler(np.float32))
    layer.validate_data("default", array[:, :2])
    with pytest.raises(LayerValidationError, match=re.escape(text)):
        layer.validate_data("default", array)
    layer.set_handler(NumpyHandler(np.float64))
    layer.validate_data("default", array)


class DeclaresTestLayerImpl(Layer):
    expected_kwargs = {"declared"}

    def setup(self, kwargs, in_shapes):
        declared = kwargs["declared"]
        return declared() if callable(declared) else declared


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({}, r"setup: expected mappings .* for outputs, parameters, internals; got \{\}\."),
        (({}, {}), "setup: expected mappings"),
        ((BufferStructure("T", "B", 1), {}, {}), "setup: expected mappings"),
        (({}, {"W": (3,)}, {}), r"setup, parameters, 'W': expected a BufferStructure .*got \(3,\)"),
        (
            ({}, {"W": BufferStructure("B", 3)}, {}),
            r"setup, parameters, 'W': expected a shape without T and B, got \(B, 3\)\.",
        ),
        (({"a.b": None}, {}, {}), r"outputs: expected names without '\.' and .* got 'a\.b'\."),
        (({}, {}, {"@type": None}), "internals: expected names without .* '@' at the start, got '"),
        (({}, {3: None}, {}), "parameters: expected names without .* got 3"),
        (({"": None}, {}, {}), "outputs: expected names without .* got ''"),
        (lambda: BufferStructure("T", "B"), r"setup: BufferStructure\('T', 'B'\): expected at"),
    ],
)
def test_what_setup_declares(declared, match):
    layer = ConstructionWrapper.create(DeclaresTestLayerImpl, declared=declared)
    with pytest.raises(LayerValidationError, match=rf"layer 'DeclaresTest' \(.*\): {match}"):
        build_layer(layer, {"default": ("T", "B", *VECTOR)})


class TakesOptionsTestLayerImpl(Layer):
    expected_kwargs = {"sizes", "factor"}

    def setup(self, kwargs, in_shapes):
        kwargs["sizes"].append(kwargs.pop("factor"))
        return {"default": in_shapes.pop("default")}, {}, {}


def test_setup_may_change_what_it_gets():
    options = {"sizes": [2], "factor": 3}
    create = ConstructionWrapper.create(TakesOptionsTestLayerImpl, **options)
    layer = build_layer(create, {"default": ("T", "B", *VECTOR)})
    assert layer.kwargs == {"sizes": [2], "factor": 3} == options
    assert list(layer.in_shapes) == ["default"]


def test_an_attribute_cannot_take_the_name_of_a_method():
    def setup(self, kwargs, in_shapes):
        self.overwrites = True

    own = type("NamesTestLayerImpl", (Layer,), {"setup": setup})
    text = "NamesTestLayerImpl: overwrites is a method: give the attribute another name."
    with refused(text, LayerValidationError, is_whole=True):
        build_layer(ConstructionWrapper.create(own), {"default": ("T", "B", *VECTOR)})


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"expected_inputs": {"default": BufferStructure("T", "B", 3)}},
         "expected_inputs: expected a StructureTemplate for 'default', such as "
         "StructureTemplate('T', 'B', 'F'), got BufferStructure('T', 'B', 3)."),
        ({"expected_inputs": {"default": ("T", "B", "...")}},
         "expected_inputs: expected a StructureTemplate for 'default', such as"),
        ({"expected_kwargs": {"size": int}},
         "expected_kwargs: expected a constraint of brainstorm.layers.constraints for 'size', such "
         "as number(0, 1), got <class 'int'>."),
        ({"expected_kwargs": {"count": number(0)}, "changeable_kwargs": ("cuont",)},
         "unknown name in changeable_kwargs 'cuont'. Choices are: count. Did you mean 'count'?"),
        ({"optional_inputs": ("mask",)},
         "unknown name in optional_inputs 'mask'. Choices are: default."),
        ({"computes_no_input_deltas_for": ("default",), "needs_in_backward": ("input",)},
         "unknown name in needs_in_backward 'input'. Choices are: inputs, internals, outputs."),
        ({"computes_no_input_deltas_for": "default"},
         "computes_no_input_deltas_for: expected names such as ('default',), got 'default'."),
        ({"optional_inputs": None}, "optional_inputs: expected names such as ('default',), got No"),
        ({"expected_kwargs": "size"}, "expected_kwargs: expected names such as ('default',), got"),
        ({"expected_inputs": ["default"]},
         "expected_inputs: expected a dict of templates, such as {'default': StructureTemplate("
         "'T', 'B', 'F')}, got ['default']."),
        ({"computes_no_input_deltas_for": ("defualt",)}, "unknown name in computes_no_input_delta"),
        ({"computes_no_gradients_for": ("W",)}, "unknown name in computes_no_gradients_for 'W'"),
        ({"takes_no_output_deltas_from": ("loss",)}, "unknown name in takes_no_output_deltas_from"),
        ({"can_overwrite": ("deltas",)}, "unknown name in can_overwrite 'deltas'. Choices are: g"),
    ],
)  # fmt: skip
def test_what_a_class_declares(declared, text):
    def setup(self, kwargs, in_shapes):
        return {"default": in_shapes["default"]}, {}, {}

    own = type("MisspeltTestLayerImpl", (Layer,), {**declared, "setup": setup})
    with pytest.raises(LayerValidationError, match=rf"^layer 'Mis.* \(.*\): {re.escape(text)}"):
        build_layer(ConstructionWrapper.create(own), {"default": ("T", "B", *VECTOR)})
