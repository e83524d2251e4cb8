"""Building common networks: inputs and outputs for a task, and whole networks from short texts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import (
    NetworkValidationError,
    UnknownPathError,
    ValidationError,
    shown,
    unknown,
)
from brainstorm.initializers import DenseSqrtFanInOut, Gaussian
from brainstorm.layers import (
    BatchNorm,
    Convolution2D,
    Dropout,
    FullyConnected,
    Input,
    Loss,
    Lstm,
    Mask,
    Pooling2D,
    Recurrent,
    SigmoidCE,
    SoftmaxCE,
    SquaredError,
    TimePooling,
    Upsampling2D,
)
from brainstorm.network import Network
from brainstorm.structure.buffer_structure import format_shape
from brainstorm.structure.construction import ConstructionWrapper

Shape = int | Sequence[int | str]

OUTPUT_LAYERS = {
    "classification": SoftmaxCE,
    "multi-label": SigmoidCE,
    "regression": SquaredError,
}


def get_in_out_layers(
    task_type: str,
    in_shape: Shape,
    out_shape: Shape,
    data_name: str = "default",
    targets_name: str = "targets",
    projection_name: str | None = None,
    outlayer_name: str | None = None,
    mask_name: str | None = None,
    use_conv: bool | None = None,
    per_sequence: bool = False,
    weights_name: str | None = None,
) -> tuple[ConstructionWrapper, ConstructionWrapper]:
    """Return an Input, and a linear projection connected to the loss of a task.

    Hidden layers go between them: ``inp >> FullyConnected(100) >> projection``.

    Args:
        task_type: 'classification' (softmax; targets are class indices), 'multi-label' (sigmoids)
            or 'regression' (squared error).
        in_shape: Feature shape of the data, perhaps after ``'T'`` or ``'T', 'B'``.
        out_shape: Feature shape of the predictions: number of classes, or (H, W, channels).
        data_name: Name of the data.
        targets_name: Name of the targets.
        projection_name: Name of the projection; ``<outlayer_name>_projection`` if `None`.
        outlayer_name: Name of the output layer; 'Output' if `None`.
        mask_name: Name of a mask (T, B, 1) that is multiplied with the loss, unless the loss is one
            of whole sequences: then the hidden layers may use it.
        use_conv: Whether the projection is a 1x1 convolution; `None`: if `out_shape` is 3-D.
        per_sequence: Whether there is one target for each sequence, (B, ...), and not for each of
            its steps; the hidden layers must then include a `TimePooling`.
        weights_name: Name of weights of the targets, (T, B, 1), or (B, 1) for one target per
            sequence: they are multiplied with the loss.

    Raises:
        ValidationError: Unknown task type, one name for data of two shapes, or a convolution for
            an `out_shape` that is not 3-D.
    """
    if task_type not in list(OUTPUT_LAYERS):  # a list: the name may be no hashable value
        raise ValidationError(unknown("task_type", task_type, OUTPUT_LAYERS))
    in_shape, out_shape = _as_tuple(in_shape), _as_tuple(out_shape)
    outlayer_name = outlayer_name or "Output"
    projection = _project(out_shape, use_conv, projection_name or f"{outlayer_name}_projection")

    is_classification = task_type == "classification"
    target_shape = (*out_shape[:-1], 1) if is_classification else out_shape
    lead = ("B",) if per_sequence else ("T", "B")
    shapes: dict[str, tuple[Any, ...]] = {}
    _add_data(shapes, "data_name", data_name, ("T", "B", *in_shape))
    _add_data(shapes, "targets_name", targets_name, (*lead, *target_shape))
    factors = []
    if mask_name:
        _add_data(shapes, "mask_name", mask_name, ("T", "B", 1))
        factors += [] if per_sequence else [mask_name]
    if weights_name:
        _add_data(shapes, "weights_name", weights_name, (*lead, 1))
        factors.insert(0, weights_name)  # the mask comes last: it says which steps count
    inp = Input(out_shapes=shapes)
    output = OUTPUT_LAYERS[task_type](name=outlayer_name)
    projection >> output
    inp - targets_name >> "targets" - output
    loss = output - "loss"
    for name in factors:
        mask = Mask()
        loss >>= mask
        inp - name >> "mask" - mask
    loss >> Loss()
    return inp - data_name, projection


def _project(out_shape: tuple[Any, ...], use_conv: bool | None, name: str) -> ConstructionWrapper:
    """Return the linear layer whose output has this shape."""
    if use_conv is None:
        use_conv = len(out_shape) == 3
    if use_conv not in (True, False):
        raise ValidationError(f"use_conv: expected True, False or None, got {use_conv!r}.")
    if use_conv and len(out_shape) != 3:
        raise ValidationError(
            f"out_shape: expected (H, W, channels) for a convolutional projection, got "
            f"{out_shape}. Use use_conv=False."
        )
    if use_conv:
        return Convolution2D(out_shape[-1], (1, 1), activation="linear", name=name)
    return FullyConnected(out_shape, "linear", name=name)


def _add_data(
    shapes: dict[str, tuple[Any, ...]], argument: str, name: Any, shape: tuple[Any, ...]
) -> None:
    """Add the data that an argument names; a name may occur twice, but with one shape."""
    if not isinstance(name, str):
        raise ValidationError(f"{argument}: expected a text, got {shown(name)}.")
    if shapes.setdefault(name, shape) != shape:
        raise ValidationError(
            f"{argument}: expected a name that no other data have, got {name!r}, which are "
            f"{format_shape(shapes[name])} and not {format_shape(shape)}."
        )


def _as_tuple(shape: Shape) -> tuple[Any, ...]:
    sizes = tuple(shape) if isinstance(shape, (Sequence, np.ndarray)) else (shape,)
    markers = next(n for n in (2, 1, 0) if sizes[:n] == ("T", "B")[:n])
    return sizes[markers:]


# -- networks from a text -----------------------------------------------------------------------

ACTIVATIONS = {"l": "linear", "r": "rel", "s": "sigmoid", "t": "tanh"}
POOLING = {"m": "max", "a": "avg"}
TIME_POOLING = {"l": "last", "a": "avg", "m": "max", "s": "sum"}
UPSAMPLING = {"n": "nearest", "b": "bilinear"}

_TOKENS = re.compile(r"[\s:/|]+|([A-Z]|[a-z]|\d+\.?\d*|\.\d+)|(?s:(.))")


#: Letter to the number of a layer that has none in the text.
DEFAULT_NUMBERS = {"D": 0.5}


class _LayerSpec:
    """The text of one layer: its letter, and arguments that are consumed one after the other.

    Attributes:
        number: The first number in the text as it stands there, or ``''``.
        span: Where the first number begins and ends in the whole text, or could be inserted.
    """

    def __init__(self, text: str, tokens: Sequence[re.Match[str]]) -> None:
        self.text = text
        self.letter, *self.arguments = (token[1] for token in tokens)
        first = next((token for token in tokens if not token[1].isalpha()), None)
        self.number = first[1] if first else ""
        self.span = first.span(1) if first else (tokens[0].end(1), tokens[0].end(1))

    def fail(self, expected: str) -> NetworkValidationError:
        return NetworkValidationError(f"spec {self.text!r}: expected {expected}.")

    def choice(self, choices: dict[str, str], default: str) -> str:
        if self.arguments and self.arguments[0] in choices:
            return choices[self.arguments.pop(0)]
        return default

    def integer(self, what: str) -> int:
        if not self.arguments or not self.arguments[0].isdigit():
            raise self.fail(f"a whole number ({what})")
        return int(self.arguments.pop(0))

    def optional_number(self) -> float:
        if not self.arguments:
            return DEFAULT_NUMBERS[self.letter]
        if self.arguments[0].isalpha():
            raise self.fail("a number")
        return float(self.arguments.pop(0))

    def marked_integer(self, mark: str, default: int) -> int:
        if self.arguments and self.arguments[0] == mark:
            del self.arguments[0]
            return self.integer(f"after {mark!r}")
        return default

    def window(self) -> dict[str, Any]:
        kernel = self.integer("kernel size")
        padding, stride = self.marked_integer("p", 0), self.marked_integer("s", 1)
        return {"kernel_size": (kernel, kernel), "stride": (stride, stride), "padding": padding}


#: Letter to a function that creates the layer; arguments are consumed in the order of the text.
LETTERS: dict[str, Callable[[_LayerSpec], ConstructionWrapper]] = {
    "F": lambda spec: FullyConnected(
        activation=spec.choice(ACTIVATIONS, "rel"), size=spec.integer("size")
    ),
    "R": lambda spec: Recurrent(
        activation=spec.choice(ACTIVATIONS, "tanh"), size=spec.integer("size")
    ),
    "L": lambda spec: Lstm(activation=spec.choice(ACTIVATIONS, "tanh"), size=spec.integer("size")),
    "T": lambda spec: TimePooling(spec.choice(TIME_POOLING, "last")),
    "B": lambda spec: BatchNorm(),
    "D": lambda spec: Dropout(spec.optional_number()),
    "C": lambda spec: Convolution2D(
        activation=spec.choice(ACTIVATIONS, "rel"),
        num_filters=spec.integer("number of filters"),
        **spec.window(),
    ),
    "P": lambda spec: Pooling2D(type=spec.choice(POOLING, "max"), **spec.window()),
    "U": lambda spec: Upsampling2D(
        type=spec.choice(UPSAMPLING, "nearest"), scale=spec.integer("scale")
    ),
}


def parse_spec(spec: str) -> Iterator[_LayerSpec]:
    """Yield the layers of a text, whose letters and arguments are not yet checked."""
    if not isinstance(spec, str):
        raise NetworkValidationError(f"spec: expected a text such as 'F100 D F50', got {spec!r}.")
    matches = list(_TOKENS.finditer(spec))
    for match in matches:
        if match[2]:
            raise NetworkValidationError(
                f"spec {spec!r}: unexpected {match[2]!r} at position {match.start()}."
            )
    tokens = [match for match in matches if match[1]]
    starts = [i for i, token in enumerate(tokens) if token[1].isupper()]
    if tokens and not tokens[0][1].isupper():
        raise NetworkValidationError(
            f"spec {spec!r}: expected a capital letter at the start, one of {', '.join(LETTERS)}."
        )
    for start, stop in itertools.pairwise([*starts, len(tokens)]):
        own = tokens[start:stop]
        yield _LayerSpec(spec[own[0].start() : own[-1].end()], own)


def create_layer(spec: str) -> ConstructionWrapper:
    """Return the layer of one letter and its arguments, for wiring: ``create_layer("C32:5p2")``.

    Args:
        spec: The text, see `create_net_from_spec`.

    Raises:
        NetworkValidationError: The text is not valid, or is that of no or several layers.
        UnknownPathError: There is no layer with this letter.
    """
    parts = list(parse_spec(spec))
    if len(parts) != 1:
        raise NetworkValidationError(f"spec {spec!r}: expected one layer, got {len(parts)}.")
    return _make_layer(parts[0])


def _make_layer(spec: _LayerSpec) -> ConstructionWrapper:
    if spec.letter not in LETTERS:
        raise UnknownPathError(unknown("layer letter in spec", spec.letter, LETTERS))
    layer = LETTERS[spec.letter](spec)
    if spec.arguments:
        raise spec.fail(f"nothing more, got {spec.arguments[0]!r}")
    return layer


def create_net_from_spec(
    task_type: str,
    in_shape: Shape,
    out_shape: Shape,
    spec: str,
    data_name: str = "default",
    targets_name: str = "targets",
    mask_name: str | None = None,
    use_conv: bool | None = None,
    weights_name: str | None = None,
) -> Network:
    """Return an initialized feed-forward or recurrent network from a short text.

        create_net_from_spec('classification', (28, 28, 1), 10, 'D0.2 C32:5p2 Pm2s2 F100 D')

    Each layer is a capital letter with arguments; spaces and ``: / |`` separate:

        F R L   size                      fully connected, recurrent, LSTM
        T       [l a m s]                 pooling over time: last, average, maximum or sum
        C       filters kernel [p pad] [s stride]       convolution
        P       kernel [p pad] [s stride]               pooling
        U       [n b] scale               upsampling, nearest or bilinear
        D       [probability]             dropout
        B                                 batch normalization

    A first argument ``l r s t`` chooses the activation linear, rel, sigmoid or tanh (default rel
    for F and C, tanh for R and L), and ``m a`` max or average pooling.

    With T there is one target for each sequence, (B, ...), and a mask is connected to the T and to
    the recurrent layers before it.

    Args:
        task_type: See `get_in_out_layers`, as for the other arguments.
        in_shape: Feature shape of the data.
        out_shape: Feature shape of the predictions.
        spec: The hidden layers.
        data_name: Name of the data.
        targets_name: Name of the targets.
        mask_name: Name of a mask on the loss, or on the pooling over time.
        use_conv: Whether the projection is a 1x1 convolution.
        weights_name: Name of weights of the targets.

    Raises:
        NetworkValidationError: The text is not valid.
        UnknownPathError: There is no layer with a letter.
    """
    parts = list(parse_spec(spec))
    per_sequence = any(part.letter == "T" for part in parts)
    inp, projection = get_in_out_layers(
        task_type,
        in_shape,
        out_shape,
        data_name,
        targets_name,
        mask_name=mask_name,
        use_conv=use_conv,
        per_sequence=per_sequence,
        weights_name=weights_name,
    )
    last = inp
    for part in parts:
        last >>= (layer := _make_layer(part))
        if per_sequence and mask_name and part.letter in "RLT":
            inp - mask_name >> "mask" - layer
    last >> projection
    net = Network.from_layer(projection)
    net.output_name = "Output.outputs.predictions"
    net.initialize(_initializers(net), fallback=Gaussian())
    return net


def _initializers(net: Network) -> dict[str, Any]:
    initializers: dict[str, Any] = {"default": Gaussian()}
    for name, layer in net.layers.items():
        if "activation" in layer.kwargs:
            initializers[name] = DenseSqrtFanInOut(layer.kwargs["activation"])
        elif layer.type_name == "BatchNorm":
            initializers[name] = {"gamma": 1.0, "beta": 0.0}
    return initializers
