"""Weights from a ``state_dict`` of PyTorch, by a map of names; PyTorch itself is not needed.

    unused = load_state_dict(net, module.state_dict(), {"Hidden": "fc1", "Lstm": "encoder.rnn"})

A name stands for the tensors below it (``fc1.weight``, ``fc1.bias``). Where they are called
otherwise, ``*`` stands for their names: ``rnn.*_l1_reverse``; recurrent layers are read as
``<name>.*_l0`` without that.

Layouts differ: here features have their channels last, there first, and recurrent layers there
have their gates in one matrix, in an order of their own, and two biases, of which the sum counts.
What is no tensor there (the epsilon of a normalization, the number of heads) is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, UnknownPathError, unknown
from brainstorm.network import Network
from brainstorm.utils import as_array

__all__ = ["load_state_dict"]

#: From a layer and the reader of its tensors to (path within the layer, values).
Converter = Callable[[Any, "_Tensors"], Iterator[tuple[str, np.ndarray]]]


def load_state_dict(
    net: Network, state_dict: Mapping[str, Any], names: Mapping[str, str]
) -> list[str]:
    """Copy tensors into the layers of a network.

    Args:
        net: The network; it is changed only if everything fits.
        state_dict: Tensor name to what `numpy.asarray` takes: tensors on the CPU, or arrays.
        names: Layer name to name in the state dict; layers that are not named keep their values.

    Returns:
        The names of the tensors that no named layer has used, sorted.

    Raises:
        UnknownPathError: `names` has a layer that is not in the network.
        NetworkValidationError: Something does not fit; the text lists every difference.
    """
    values: dict[str, np.ndarray] = {}
    used: set[str] = set()
    problems: list[str] = []
    for name, prefix in names.items():
        if name not in net.layers:
            raise UnknownPathError(f"load_state_dict: {unknown('layer', name, net.layers)}")
        layer = net.layers[name]
        convert = _CONVERTERS.get(layer.type_name)
        if convert is None:
            known = ", ".join(sorted(_CONVERTERS))
            problems.append(f"{name}: no module of PyTorch for {layer.type_name}, only for {known}")
            continue
        tensors = _Tensors(state_dict, _pattern(prefix, layer.type_name))
        try:
            found = {f"{name}.{path}": array for path, array in convert(layer, tensors)}
        except (NetworkValidationError, ValueError, TypeError, RuntimeError) as error:
            problems.append(f"{name} ({prefix}): {error}")
            continue
        for path, array in found.items():
            if array.shape != tuple(net.buffer[path].shape):
                problems.append(
                    f"{path}: expected shape {tuple(net.buffer[path].shape)}, got {array.shape}"
                )
        values.update(found)
        used |= tensors.used
        problems.extend(f"{name}: {key} has no place in it" for key in tensors.left())
    if problems:
        raise NetworkValidationError("load_state_dict: " + "; ".join(problems) + ".")
    for path, array in values.items():
        net.handler.set_from_numpy(net.buffer[path], array)
    return sorted(set(state_dict) - used)


def _pattern(prefix: str, type_name: str) -> str:
    if "*" in prefix:
        return prefix
    return f"{prefix}.*_l0" if type_name in _GATES else f"{prefix}.*"


class _Tensors:
    """The tensors of one module.

    Args:
        state_dict: All tensors.
        pattern: Their names, with ``*`` for the names within the module.
    """

    def __init__(self, state_dict: Mapping[str, Any], pattern: str) -> None:
        self._state_dict = state_dict
        self._start, _, self._end = pattern.partition("*")
        self.used: set[str] = set()

    def get(self, name: str, otherwise: np.ndarray | None = None) -> np.ndarray:
        """Return a tensor as an array; one that may be missing has a value for that."""
        key = f"{self._start}{name}{self._end}"
        if key not in self._state_dict:
            if otherwise is None:
                raise NetworkValidationError(unknown("tensor", key, sorted(self._state_dict)))
            return otherwise
        self.used.add(key)
        return as_array(self._state_dict[key], f"tensor {key!r}")

    def left(self) -> list[str]:
        """Return the names of the module's tensors that were not asked for."""
        names = [n for n in self._state_dict if n.startswith(self._start) and n.endswith(self._end)]
        ours = [n for n in names if "." not in n[len(self._start) : len(n) - len(self._end)]]
        return sorted(set(ours) - self.used - {f"{self._start}num_batches_tracked{self._end}"})


# -- one converter per kind of layer --------------------------------------------------------------


def _rows(features: tuple[int, ...], array: np.ndarray) -> np.ndarray:
    """Return rows for features in this library's order, from rows with the channels first."""
    if len(features) == 1:
        return array
    channels_first = array.reshape(features[-1], *features[:-1], *array.shape[1:])
    return np.moveaxis(channels_first, 0, len(features) - 1).reshape(array.shape)


def _linear(layer: Any, tensors: _Tensors) -> Iterator[tuple[str, np.ndarray]]:
    given, wanted = (
        shapes["default"].feature_shape for shapes in (layer.in_shapes, layer.out_shapes)
    )
    weight = _rows(wanted, _rows(given, tensors.get("weight").T).T)
    yield "parameters.W", weight
    yield "parameters.bias", _rows(wanted, tensors.get("bias", np.zeros(len(weight))))


def _convolution(layer: Any, tensors: _Tensors) -> Iterator[tuple[str, np.ndarray]]:
    size = layer.get_shape("parameters.bias").feature_size
    yield "parameters.W", np.moveaxis(tensors.get("weight"), 1, -1)
    yield "parameters.bias", tensors.get("bias", np.zeros(size))


def _table(layer: Any, tensors: _Tensors) -> Iterator[tuple[str, np.ndarray]]:
    yield "parameters.W", tensors.get("weight")


def _normalization(layer: Any, tensors: _Tensors) -> Iterator[tuple[str, np.ndarray]]:
    shape = layer.get_shape("parameters.gamma").feature_shape
    renamed = {"gamma": "weight", "beta": "bias"}
    constants = {"gamma": np.ones, "beta": np.zeros}
    for name in layer.parameter_shapes:
        array = tensors.get(renamed[name], constants[name]((shape[-1], *shape[:-1])))
        yield f"parameters.{name}", np.moveaxis(array, 0, -1)


def _batch_norm(layer: Any, tensors: _Tensors) -> Iterator[tuple[str, np.ndarray]]:
    yield from _normalization(layer, tensors)
    for name in ("running_mean", "running_var"):
        yield f"internals.{name}", tensors.get(name)


#: Recurrent layer to its gates in the order of PyTorch; see `_recurrent` for the underscore.
_GATES = {"Recurrent": "_", "Lstm": "ifzo", "Gru": "rzh"}

_ACTIVATIONS = {"Recurrent": ("tanh", "rel", "relu"), "Lstm": ("tanh",), "Gru": ("tanh",)}


def _recurrent(layer: Any, tensors: _Tensors) -> Iterator[tuple[str, np.ndarray]]:
    kind, gates = layer.type_name, _GATES[layer.type_name]
    activation, possible = layer.kwargs.get("activation", "tanh"), _ACTIVATIONS[kind]
    if activation not in possible:
        raise NetworkValidationError(
            f"its activation is {activation!r}, that of PyTorch {' or '.join(map(repr, possible))}"
        )
    zeros = np.zeros(len(gates) * layer.get_shape("outputs.default").feature_size)
    biases = [tensors.get(f"bias_{part}", zeros) for part in ("ih", "hh")]
    if kind == "Gru":  # the recurrent bias of its candidate is inside of the reset gate
        yield "parameters.bRh", np.split(biases[1], 3)[2]
        biases[1] = np.concatenate([*np.split(biases[1], 3)[:2], np.zeros(len(zeros) // 3)])
    stacked = {
        "W": tensors.get("weight_ih"),
        "R": tensors.get("weight_hh"),
        "bias" if kind == "Recurrent" else "b": biases[0] + biases[1],
    }
    for start, matrix in stacked.items():
        for gate, part in zip(gates, np.split(matrix, len(gates)), strict=True):
            yield f"parameters.{start}{gate.strip('_')}", part
    if kind == "Lstm":  # that of PyTorch has no peepholes
        for gate in "ifo":
            yield f"parameters.p{gate}", np.zeros((1, len(zeros) // 4))


def _attention(layer: Any, tensors: _Tensors) -> Iterator[tuple[str, np.ndarray]]:
    size, features = layer.parameter_shapes["Wk"].shape
    if layer.memory == "default" or features == size:
        weights = np.split(tensors.get("in_proj_weight"), 3)
    else:
        weights = [tensors.get(f"{kind}_proj_weight") for kind in "qkv"]
    size = len(weights[0])
    biases = np.split(tensors.get("in_proj_bias", np.zeros(3 * size)), 3)
    for start, parts in (("W", weights), ("b", biases)):
        for kind, part in zip("qkv", parts, strict=True):
            yield f"parameters.{start}{kind}", part
    output = _Tensors(tensors._state_dict, f"{tensors._start}out_proj.*{tensors._end}")
    yield "parameters.Wo", output.get("weight")
    yield "parameters.bo", output.get("bias", np.zeros(size))
    tensors.used |= output.used


_CONVERTERS: dict[str, Converter] = {
    "FullyConnected": _linear,
    **dict.fromkeys(("Convolution1D", "Convolution2D", "Convolution3D"), _convolution),
    "ConvolutionTranspose2D": _convolution,
    **dict.fromkeys(("Embedding", "LearnedPositionalEncoding"), _table),
    "BatchNorm": _batch_norm,
    **dict.fromkeys(("GroupNorm", "LayerNorm", "RMSNorm"), _normalization),
    **dict.fromkeys(_GATES, _recurrent),
    **dict.fromkeys(("MultiHeadAttention", "MultiHeadSelfAttention"), _attention),
}
