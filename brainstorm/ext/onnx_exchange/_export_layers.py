"""The export of each layer to ONNX; those for sequences are in `_export_sequences`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._body import BATCH, FLOAT, INT64, TIME, Body
from brainstorm.ext.onnx_exchange._export import Exporter, composes, writes
from brainstorm.ext.onnx_exchange._export_formulas import activate, compute
from brainstorm.ext.onnx_exchange._tables import NORMALIZATIONS, PREDICTIONS
from brainstorm.layers.expression_layer import ExpressionLayer
from brainstorm.optree import Variable


def _pads(sides: Sequence[tuple[int, int]]) -> list[int]:
    """Return paddings in the order of ONNX: first all before, then all after."""
    return [cells for ends in zip(*sides, strict=True) for cells in ends]


# -- matrices -------------------------------------------------------------------------------------


@writes("FullyConnected", "TiedFullyConnected")
def _fully_connected(e: Exporter, layer: Any) -> None:
    W = e.parameter("W", np.transpose if layer.type_name == "FullyConnected" else None)
    y = e.body.op("Add", e.body.op("MatMul", e.flat(), W), e.parameter("bias"))
    y = activate(e.body, layer.activation, y)
    shape = layer.get_shape("outputs.default").feature_shape
    e.put(y if len(shape) == 1 else e.body.reshape(y, [0, 0, *shape]))


@writes("Embedding")
def _embedding(e: Exporter, layer: Any) -> None:
    indices = e.body.op("Cast", e.x(), to=INT64)
    if layer.in_shapes["default"].feature_size == 1:
        indices = e.body.op("Squeeze", indices, e.body.constant([2]))
    e.put(e.body.op("Gather", e.parameter("W"), indices))


# -- images ---------------------------------------------------------------------------------------


def _by_windows(
    e: Exporter, layer: Any, kind: str, kernel: Sequence[int], *inputs: str, **options: Any
) -> str:
    """Add an operator that looks at windows of images, the first input, and return its output."""
    options |= {"strides": list(layer.stride), "pads": _pads(layer.padding)}
    return e.body.op(kind, *inputs, kernel_shape=list(kernel), **options)


def _filtered(e: Exporter, layer: Any, kind: str, kernel: Sequence[int], **options: Any) -> None:
    W = e.parameter("W", lambda W: np.moveaxis(W, -1, 1))
    y = _by_windows(e, layer, kind, kernel, e.images(), W, e.parameter("bias"), **options)
    e.put_images(activate(e.body, layer.activation, y))


@writes("Convolution1D", "Convolution2D", "Convolution3D")
def _convolution(e: Exporter, layer: Any) -> None:
    options = {"dilations": list(layer.dilation), "group": layer.groups}
    _filtered(e, layer, "Conv", layer.kernel_size, **options)


@writes("ConvolutionTranspose2D")
def _convolution_transpose(e: Exporter, layer: Any) -> None:
    kernel, extra = layer.get_shape("parameters.W").shape[1:3], [layer.output_padding] * 2
    _filtered(e, layer, "ConvTranspose", kernel, output_padding=extra)


@writes("Pooling1D", "Pooling2D", "Pooling3D")
def _pooling(e: Exporter, layer: Any) -> None:
    sides = zip(layer.padding, layer.kernel_size, strict=True)
    if any(max(side) >= window for side, window in sides):
        raise e.fail(
            f"ONNX wants a padding smaller than the window {layer.kernel_size}, got "
            f"{layer.padding}."
        )
    kind = "MaxPool" if layer.type == "max" else "AveragePool"
    e.put_images(_by_windows(e, layer, kind, layer.kernel_size, e.images()))


@writes("GlobalPooling2D")
def _global_pooling(e: Exporter, layer: Any) -> None:
    kind = "GlobalMaxPool" if layer.type == "max" else "GlobalAveragePool"
    e.put_images(e.body.op("Flatten", e.body.op(kind, e.images())))


@writes("Padding")
def _padding(e: Exporter, layer: Any) -> None:
    pads = e.body.constant(_pads([(0, 0), (0, 0), *layer.sides]))
    e.put_images(e.body.op("Pad", e.images(), pads, e.body.constant(layer.value)))


@writes("Upsampling2D")
def _upsampling(e: Exporter, layer: Any) -> None:
    is_nearest = layer.kwargs.get("type", "nearest") == "nearest"
    options: dict[str, Any] = (
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        if is_nearest
        else {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    )
    x, wanted = e.images(), e.body.constant([wanted for _, wanted in layer.sizes])
    size = e.body.op("Concat", e.body.op("Shape", x, start=0, end=2), wanted, axis=0)
    e.put_images(e.body.op("Resize", x, "", "", size, **options))


@writes("DepthToSpace")
def _depth_to_space(e: Exporter, layer: Any) -> None:
    options = layer.kwargs
    mode = options.get("order", "CRD")
    e.put_images(e.body.op("DepthToSpace", e.images(), blocksize=options["block"], mode=mode))


@writes("SpaceToDepth")
def _space_to_depth(e: Exporter, layer: Any) -> None:
    block = layer.kwargs["block"]
    if layer.kwargs.get("order", "CRD") == "DCR":
        e.put_images(e.body.op("SpaceToDepth", e.images(), blocksize=block))
        return
    rows, columns, channels = layer.in_shapes["default"].feature_shape

    def write(body: Body, given: Mapping[str, str]) -> list[str]:
        blocks = [0, 0, rows // block, block, columns // block, block, channels]
        x = body.op("Transpose", body.reshape(given["default"], blocks), perm=[0, 1, 2, 4, 6, 3, 5])
        return [body.reshape(x, [0, 0, *layer.out_shapes["default"].feature_shape])]

    e.function(write)


@writes("Crop")
def _crop(e: Exporter, layer: Any) -> None:
    _, *image = layer.part
    starts, ends = [part.start for part in image], [part.stop for part in image]
    e.put_slice(starts, ends, [2, 3])


# -- normalizations -------------------------------------------------------------------------------


def _normalized(e: Exporter, layer: Any, x: str) -> str:
    kind, arrays, options = NORMALIZATIONS[layer.type_name]
    known = vars(layer) | layer.kwargs  # an option with its default is an attribute only
    attributes = {name: known[key] for key, name in options.items()}
    return e.body.op(kind, x, *map(e.parameter, arrays), **attributes)


@writes("BatchNorm", "GroupNorm")
def _normalization(e: Exporter, layer: Any) -> None:
    e.put_images(_normalized(e, layer, e.images()))


@writes("LayerNorm")
def _layer_norm(e: Exporter, layer: Any) -> None:
    gamma, beta = e.parameter("gamma"), e.parameter("beta")
    e.put(e.body.op("LayerNormalization", e.x(), gamma, beta, axis=2, epsilon=layer.epsilon))


@writes("LocalResponseNormalization")
def _local_response_normalization(e: Exporter, layer: Any) -> None:
    if layer.size % 2 == 0:
        raise e.fail(f"ONNX wants an odd size, got {layer.size}.")
    spatial = layer.in_shapes["default"].feature_shape[:-1]
    x = e.body.reshape(e.images(), [0, 0, -1, 1])  # runtimes support images only
    e.put_images(e.body.reshape(_normalized(e, layer, x), [0, 0, *spatial]))


# -- element by element ---------------------------------------------------------------------------


#: Element-wise layer to a function from the layer, a body and inputs to the output.
_OF_ELEMENTS: dict[str, Callable[..., str]] = {
    "Add": lambda layer, body, *x: body.op("Sum", *x),
    "DeltasScaling": lambda layer, body, x: x,
    "Dropout": lambda layer, body, x: body.op("Dropout", x, body.constant(float(layer.drop_prob))),
    "Elementwise": lambda layer, body, x: activate(body, layer.activation, x),
    "Multiply": lambda layer, body, *x: functools.reduce(functools.partial(body.op, "Mul"), x),
    "NoOp": lambda layer, body, x: x,
}


@writes(*_OF_ELEMENTS)
def _elementwise(e: Exporter, layer: Any) -> None:
    e.either(functools.partial(_OF_ELEMENTS[layer.type_name], layer))


@writes(*PREDICTIONS)
def _predictions(e: Exporter, layer: Any) -> None:
    kind, options = PREDICTIONS[layer.type_name]
    e.put(e.x() if kind == "Identity" else e.body.op(kind, e.x(), **options), "predictions")


@composes("GLU")
def _glu(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    a, b = body.op("Split", given["default"], outputs=2, axis=-1, num_outputs=2)
    return [body.op("Mul", a, activate(body, layer.activation, b))]


@composes("RMSNorm")
def _rms_norm(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    axes = list(range(2, 2 + len(layer.in_shapes["default"].feature_shape)))
    x = given["default"]
    square = body.op("ReduceMean", body.op("Mul", x, x), body.constant(axes), keepdims=1)
    epsilon = body.constant(float(layer.epsilon))
    sigma = body.op("Sqrt", body.op("Add", square, epsilon))
    return [body.op("Mul", body.op("Div", x, sigma), given["gamma"])]


@composes("ChannelPooling")
def _channel_pooling(layer: Any, body: Body, given: Mapping[str, str]) -> list[str]:
    size, features = layer.kwargs["group_size"], layer.out_shapes["default"].feature_shape
    kind = "ReduceMax" if layer.type == "max" else "ReduceMean"
    groups = body.reshape(given["default"], [0, 0, *features, size])
    return [body.op(kind, groups, body.constant([-1]), keepdims=0)]


@writes("Expression")
def _expression(e: Exporter, layer: Any) -> None:
    outputs = list(layer.out_shapes)
    if len(e.needed_ports()) == len(layer.in_shapes):
        e.function(functools.partial(_formula, layer, outputs))
        return
    outputs = [output for output in outputs if output in e.needed[layer.name]]
    given = {port: e.x(port) for port in e.needed_ports()}
    given |= {name: e.parameter(name) for name in layer.parameter_shapes}
    for output, tensor in zip(outputs, _formula(layer, outputs, e.body, given), strict=True):
        e.put(tensor, output)


def _formula(layer: Any, outputs: Sequence[str], body: Body, given: Mapping[str, str]) -> list[str]:
    """Add some outputs of a layer that is a formula, given the tensors that they depend on."""
    if isinstance(layer, ExpressionLayer):
        features = {x: layer._features[x] for x in layer._names}
    else:
        features = {f"inputs.{p}": s.feature_shape for p, s in layer.in_shapes.items()}
    operands, tensors = [], []
    for path, shape in features.items():
        kind, _, name = path.partition(".")
        is_input, tensor = kind == "inputs", given.get(name, "")
        if tensor and is_input and shape != layer.in_shapes[name].feature_shape:
            tensor = body.reshape(tensor, [0, 0, *shape])
        whole = (TIME, BATCH, *shape) if is_input else shape
        operands.append(Variable(whole, np.float32, name))
        tensors.append(tensor)
    for array in getattr(layer, "constants", ()):
        values = layer.handler.get_numpy_copy(array)
        operands.append(Variable(values.shape, np.float32, "constant"))
        tensors.append(body.constant(values))
    wanted = [list(layer.out_shapes).index(output) for output in outputs]
    return compute(body, layer.formula, operands, tensors, wanted)


# -- rearranging ----------------------------------------------------------------------------------


@writes("Merge")
def _merge(e: Exporter, layer: Any) -> None:
    e.join([e.source(port) for port in layer.in_shapes], f"{layer.name}.default")


@writes("Split")
def _split(e: Exporter, layer: Any) -> None:
    sizes = [structure.feature_shape[-1] for structure in layer.out_shapes.values()]
    if len(sizes) == 1:
        e.put(e.x(), "outputs_1")
        return
    parts = e.body.op("Split", e.x(), e.body.constant(sizes), outputs=len(sizes), axis=-1)
    for output, part in zip(layer.out_shapes, parts, strict=True):
        e.put(part, output)


@writes("Slice")
def _slice(e: Exporter, layer: Any) -> None:
    rank = len(layer.in_shapes["default"].feature_shape)
    axis = 2 + layer.kwargs.get("axis", -1) % rank
    e.put_slice([layer.kwargs["start"]], [layer.kwargs["stop"]], [axis])


@writes("Reshape")
def _reshape(e: Exporter, layer: Any) -> None:
    e.put(e.body.reshape(e.x(), [0, 0, *layer.out_shapes["default"].feature_shape]))


@writes("Argmax")
def _argmax(e: Exporter, layer: Any) -> None:
    e.put(e.body.op("Cast", e.body.op("ArgMax", e.x(), axis=-1), to=FLOAT))
