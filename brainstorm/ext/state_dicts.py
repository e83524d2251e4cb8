"""Conversion of weights from and to a PyTorch ``state_dict``; does not need PyTorch.

    names = {"Hidden": "fc1", "Lstm": "encoder.rnn"}
    unused = load_state_dict(net, module.state_dict(), names)
    arrays = to_state_dict(net, names)
    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})

A name stands for the tensors below it (``fc1.weight``, ``fc1.bias``). If they have other names,
``*`` stands for these: ``rnn.*_l1_reverse``; the default for recurrent layers is ``<name>.*_l0``.

Layouts differ: this library has channels last, PyTorch has them first; PyTorch's recurrent layers
have their gates in one matrix, in another order, and two biases, which are added. Settings that are
not tensors in PyTorch (the epsilon of a normalization, the number of heads) are not compared. The
second bias of a recurrent layer is written as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, UnknownPathError, shown, unknown
from brainstorm.ext._gates import Stacked, stack
from brainstorm.network import Network
from brainstorm.network.network import check_network
from brainstorm.network.parameters import misfits, put_values
from brainstorm.structure.aliases import find_aliases
from brainstorm.utils import as_array, product

__all__ = ["load_state_dict", "to_state_dict"]

#: Path within a layer to a copy of the values.
Get = Callable[[str], np.ndarray]

#: Values, each with its path within a layer, or with the name of a tensor.
Pairs = Iterator[tuple[str, np.ndarray]]


def load_state_dict(
    net: Network, state_dict: Mapping[str, Any], names: Mapping[str, str]
) -> list[str]:
    """Copy tensors into the layers of a network.

    Args:
        net: The network; it is changed only if everything fits.
        state_dict: Tensor name to tensors on the CPU, or anything that `numpy.asarray` converts.
        names: Layer name to name in the state dict; other layers keep their values.

    Returns:
        The names of the tensors that no named layer uses, sorted.

    Raises:
        UnknownPathError: `names` has a layer that is not in the network.
        NetworkValidationError: Something does not fit; the text lists every difference.
    """
    if not isinstance(state_dict, Mapping):
        raise NetworkValidationError(
            f"load_state_dict: expected a dict of tensors, got {shown(state_dict)}. Read a file "
            f"with torch.load(file, weights_only=True)."
        )
    if strange := [key for key in state_dict if not isinstance(key, str)]:
        raise NetworkValidationError(
            f"load_state_dict: expected names of tensors, got {shown(strange[0])}."
        )
    values: dict[str, np.ndarray] = {}
    used: set[str] = set()
    problems: list[str] = []
    for name, prefix, layer in _named_layers(net, names, "load_state_dict", problems):
        convert, _ = _MODULES[layer.type_name]
        tensors = _Tensors(state_dict, _pattern(prefix, layer.type_name))
        try:
            found = {f"{name}.{path}": array for path, array in convert(layer, tensors)}
        except (NetworkValidationError, ValueError, TypeError, RuntimeError) as error:
            problems.append(f"{name} ({prefix}): {error}")
            continue
        problems.extend(misfits(net, found))
        values.update(found)
        used |= tensors.used
        problems.extend(f"{name}: {key} is not used by this layer" for key in tensors.left())
    problems.extend(_differences(net, values))
    _raise(problems, "load_state_dict")
    with net.alone():
        put_values(net, values)
    return sorted(set(state_dict) - used)


def _differences(net: Network, values: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield what is said of parameters that get other values than those that share them."""
    aliases, known = find_aliases(net.layers), dict[str, str]()
    for path, array in values.items():
        first = known.setdefault(aliases.get(path, path), path)
        if not np.array_equal(values[first], array, equal_nan=True):
            yield f"{path}: it shares its memory with {first}, which gets other values"


def to_state_dict(net: Network, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the values of layers as tensors of PyTorch modules.

    Args:
        net: The network.
        names: Layer name to name in the state dict, as in `load_state_dict`.

    Returns:
        Tensor name to array, in the order of `names`; copies, in the network's precision.

    Raises:
        UnknownPathError: `names` has a layer that is not in the network.
        NetworkValidationError: A layer has no corresponding module; the message lists all of them.
    """
    tensors: dict[str, np.ndarray] = {}
    problems: list[str] = []
    layers = list(_named_layers(net, names, "to_state_dict", problems))
    with net.alone():  # all of one update
        for name, prefix, layer in layers:
            _, write = _MODULES[layer.type_name]
            start, _, end = _pattern(prefix, layer.type_name).partition("*")

            def get(path: str, name: str = name) -> np.ndarray:
                return net.get(f"{name}.{path}")

            try:
                found = {
                    f"{start}{tensor}{end}": np.ascontiguousarray(array)
                    for tensor, array in write(layer, get)
                }
            except NetworkValidationError as error:
                problems.append(f"{name} ({prefix}): {error}")
                continue
            problems.extend(
                f"{name}: another layer is written to {key}, too" for key in found if key in tensors
            )
            tensors.update(found)
    _raise(problems, "to_state_dict")
    return tensors


def _named_layers(
    net: Network, names: Mapping[str, str], caller: str, problems: list[str]
) -> Iterator[tuple[str, str, Any]]:
    """Yield layer name, name in the state dict and layer; layers without a module are problems."""
    check_network(caller, net)
    if not isinstance(names, Mapping) or not all(isinstance(p, str) for p in names.values()):
        raise NetworkValidationError(
            f"{caller}: expected names such as {{'Hidden': 'fc1'}}, got {shown(names)}."
        )
    for name, prefix in names.items():
        if name not in net.layers:
            raise UnknownPathError(f"{caller}: {unknown('layer', name, net.layers)}")
        layer = net.layers[name]
        if layer.type_name in _MODULES:
            yield name, prefix, layer
        else:
            known = ", ".join(sorted(_MODULES))
            problems.append(f"{name}: no module of PyTorch for {layer.type_name}, only for {known}")


def _raise(problems: list[str], caller: str) -> None:
    if problems:
        text = "; ".join(problem.removesuffix(".") for problem in problems)
        raise NetworkValidationError(f"{caller}: {text}{'' if text.endswith('?') else '.'}")


def _pattern(prefix: str, type_name: str) -> str:
    if "*" in prefix:
        return prefix
    return f"{prefix}.*_l0" if type_name in _GATES else f"{prefix}.*"


class _Tensors:
    """The tensors of one module: those with the names of a pattern, with ``*`` for those within."""

    def __init__(self, state_dict: Mapping[str, Any], pattern: str) -> None:
        self._state_dict = state_dict
        self._start, _, self._end = pattern.partition("*")
        self.used: set[str] = set()

    def get(
        self,
        name: str,
        shape: tuple[int, ...],
        otherwise: np.ndarray | None = None,
        is_exact: bool = True,
    ) -> np.ndarray:
        """Return a tensor as an array, of some shape; `otherwise` is the value of an optional one.

        If not `is_exact`, only the number of axes is checked: that they have the sizes of `shape`
        is checked after the conversion, of all tensors.
        """
        key = f"{self._start}{name}{self._end}"
        if key not in self._state_dict:
            if otherwise is None:
                raise NetworkValidationError(unknown("tensor", key, sorted(self._state_dict)))
            return otherwise
        self.used.add(key)
        array = as_array(self._state_dict[key], f"tensor {key!r}")
        if array.dtype.kind not in "biuf":
            raise NetworkValidationError(f"{key}: expected real numbers, got {array.dtype}")
        if array.shape != shape and (is_exact or array.ndim != len(shape)):
            raise NetworkValidationError(f"{key}: expected shape {shape}, got {array.shape}")
        return array

    def any_of(self, *names: str) -> bool:
        """Return whether there is one of some tensors."""
        return any(f"{self._start}{name}{self._end}" in self._state_dict for name in names)

    def left(self) -> list[str]:
        """Return the names of the module's tensors that were not read."""
        names = [n for n in self._state_dict if n.startswith(self._start) and n.endswith(self._end)]
        ours = [n for n in names if "." not in n[len(self._start) : len(n) - len(self._end)]]
        return sorted(set(ours) - self.used - {f"{self._start}num_batches_tracked{self._end}"})


# -- a reader and a writer per kind of layer ------------------------------------------------------


def _rows(features: tuple[int, ...], array: np.ndarray, back: bool = False) -> np.ndarray:
    """Convert rows with channels first to this library's order of features, or back."""
    if len(features) == 1:
        return array
    if array.shape[0] != product(features):
        sizes = " x ".join(map(str, features))
        raise NetworkValidationError(
            f"expected {product(features)} ({sizes}) features, got {array.shape[0]}"
        )
    channels_first = np.arange(product(features)).reshape(features[-1], *features[:-1])
    places = np.moveaxis(channels_first, 0, -1).ravel()
    return array[np.argsort(places) if back else places]


def _linear(layer: Any, tensors: _Tensors) -> Pairs:
    given = layer.in_shapes["default"].feature_shape
    wanted = layer.out_shapes["default"].feature_shape
    rows, columns = product(wanted), product(given)
    weight = tensors.get("weight", (rows, columns), is_exact=False)
    yield "parameters.W", _rows(wanted, _rows(given, weight.T).T)
    yield "parameters.bias", _rows(wanted, tensors.get("bias", (rows,), np.zeros(rows), False))


def _linear_back(layer: Any, get: Get) -> Pairs:
    given = layer.in_shapes["default"].feature_shape
    wanted = layer.out_shapes["default"].feature_shape
    yield "weight", _rows(given, _rows(wanted, get("parameters.W"), back=True).T, back=True).T
    yield "bias", _rows(wanted, get("parameters.bias"), back=True)


#: Path to tensor, the axis there that is the last one here, and the value of an absent tensor.
Row = tuple[str, str, "int | None", "float | None"]

_TABLE: list[Row] = [("parameters.W", "weight", None, None)]
_CONVOLUTION: list[Row] = [
    ("parameters.W", "weight", 1, None),
    ("parameters.bias", "bias", None, 0),
]
_SCALE: list[Row] = [("parameters.gamma", "weight", 0, 1)]
_NORMALIZATION: list[Row] = [*_SCALE, ("parameters.beta", "bias", 0, 0)]
_STATISTICS: list[Row] = [
    (f"internals.{name}", name, None, None) for name in ("running_mean", "running_var")
]

#: Type of a layer to its arrays, which are tensors with perhaps another order of axes.
_PLAIN = {
    "Embedding": _TABLE,
    "LearnedPositionalEncoding": _TABLE,
    "Convolution1D": _CONVOLUTION,
    "Convolution2D": _CONVOLUTION,
    "Convolution3D": _CONVOLUTION,
    "ConvolutionTranspose2D": _CONVOLUTION,
    "BatchNorm": [*_NORMALIZATION, *_STATISTICS],
    "GroupNorm": _NORMALIZATION,
    "LayerNorm": _NORMALIZATION,
    "RMSNorm": _SCALE,
}


def _plain(layer: Any, tensors: _Tensors) -> Pairs:
    for path, name, axis, value in _PLAIN[layer.type_name]:
        shape = layer.get_shape(path).feature_shape
        if axis is not None:
            shape = (*shape[:axis], shape[-1], *shape[axis:-1])
        absent = None if value is None else np.full(shape, float(value))
        array = tensors.get(name, shape, absent, is_exact=False)
        yield path, array if axis is None else np.moveaxis(array, axis, -1)


def _plain_back(layer: Any, get: Get) -> Pairs:
    for path, name, axis, _ in _PLAIN[layer.type_name]:
        yield name, get(path) if axis is None else np.moveaxis(get(path), -1, axis)


#: Recurrent layer to its gates in the order of PyTorch; that of `Recurrent` has no letter.
_GATES = {"Recurrent": "_", "Lstm": "ifzo", "Gru": "rzh"}

_ACTIVATIONS = {"Recurrent": ("tanh", "rel", "relu"), "Lstm": ("tanh",), "Gru": ("tanh",)}


def _recurrent(layer: Any, tensors: _Tensors) -> Pairs:
    kind, gates = layer.type_name, _GATES[layer.type_name]
    _check_activation(layer)
    given, size = (shapes["default"].feature_size for shapes in (layer.in_shapes, layer.out_shapes))
    rows, biases = len(gates) * size, ("bias_ih", "bias_hh")
    zeros = None if tensors.any_of(*biases) else np.zeros(rows)  # PyTorch has both or none
    stacked = Stacked(
        tensors.get("weight_ih", (rows, given)),
        tensors.get("weight_hh", (rows, size)),
        *(tensors.get(name, (rows,), zeros) for name in biases),
    )
    for name, array in stacked.parameters(kind, gates).items():
        yield f"parameters.{name}", array
    if kind == "Lstm":  # PyTorch's has no peepholes
        for gate in "ifo":
            yield f"parameters.p{gate}", np.zeros((1, size))


def _recurrent_back(layer: Any, get: Get) -> Pairs:
    kind, gates = layer.type_name, _GATES[layer.type_name]
    _check_activation(layer)
    if kind == "Lstm" and any(get(f"parameters.p{gate}").any() for gate in "ifo"):
        raise NetworkValidationError("its peepholes (pi, pf, po) are not 0; PyTorch has none")
    stacked = stack(kind, gates, lambda name: get(f"parameters.{name}"))
    yield from zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), stacked, strict=True)


def _check_activation(layer: Any) -> None:
    activation = layer.kwargs.get("activation", "tanh")
    possible = _ACTIVATIONS[layer.type_name]
    if activation not in possible:
        raise NetworkValidationError(
            f"its activation is {activation!r}, that of PyTorch {' or '.join(map(repr, possible))}"
        )


def _attention_tensors(layer: Any) -> list[tuple[str, list[str], tuple[int, ...]]]:
    """Return name and shape of each tensor, and the paths of the arrays that it joins."""
    weights, biases = ([f"parameters.{start}{kind}" for kind in "qkv"] for start in "Wb")
    size, features = layer.parameter_shapes["Wq"].shape
    if size != features:
        raise NetworkValidationError(
            f"its size is {size}, that of its input {features}; those of PyTorch are equal"
        )
    if layer.memory == "default" or layer.parameter_shapes["Wk"].shape[1] == size:
        tensors = [("in_proj_weight", weights, (3 * size, features))]
    else:  # queries and memory have different sizes
        shapes = [layer.get_shape(path).shape for path in weights]
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        tensors = [(n, [path], x) for n, path, x in zip(names, weights, shapes, strict=True)]
    return [
        *tensors,
        ("in_proj_bias", biases, (3 * size,)),
        ("out_proj.weight", ["parameters.Wo"], (size, size)),
        ("out_proj.bias", ["parameters.bo"], (size,)),
    ]


def _attention(layer: Any, tensors: _Tensors) -> Pairs:
    has_biases = tensors.any_of("in_proj_bias", "out_proj.bias")  # PyTorch has both or none
    for name, paths, shape in _attention_tensors(layer):
        zeros = np.zeros(shape) if "bias" in name and not has_biases else None
        joined = tensors.get(name, shape, zeros, is_exact=len(paths) > 1)
        yield from zip(paths, np.split(joined, len(paths)), strict=True)


def _attention_back(layer: Any, get: Get) -> Pairs:
    for name, paths, _ in _attention_tensors(layer):
        yield name, np.concatenate([get(path) for path in paths])


#: Type of a layer to the functions that yield its values, given tensors, and the other way round.
_MODULES: dict[str, tuple[Callable[[Any, _Tensors], Pairs], Callable[[Any, Get], Pairs]]] = {
    "FullyConnected": (_linear, _linear_back),
    **dict.fromkeys(_PLAIN, (_plain, _plain_back)),
    **dict.fromkeys(_GATES, (_recurrent, _recurrent_back)),
    **dict.fromkeys(
        ("MultiHeadAttention", "MultiHeadSelfAttention"), (_attention, _attention_back)
    ),
}
