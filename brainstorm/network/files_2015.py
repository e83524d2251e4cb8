"""Network files of 2015 (v1.0): the positions of parameters, and BatchNorm's statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from brainstorm.errors import FileFormatError
from brainstorm.utils import product


def arrays_of_2015(
    layers: Mapping[str, Any], flat: np.ndarray, filename: str
) -> dict[str, np.ndarray]:
    """Return the parameters and running statistics in the flat parameters of a file of 2015.

    Its layers are sorted by name. `BatchNorm` has two more parameters, ``mu`` and ``sigma``: the
    mean, negated, and an average of ``sqrt(variance + epsilon)``.

    Args:
        layers: The layers of the network.
        flat: The parameters of the file.
        filename: The file, for the message.

    Returns:
        Dotted path to values.

    Raises:
        FileFormatError: Their number is not that of the layers.
    """
    wanted = list(_places(layers))
    expected = sum(product(shape) for _, _, shape in wanted)
    if flat.shape != (expected,):
        raise FileFormatError(
            f"{filename!r} is of 2015: expected {expected} parameters for its layers, got an array "
            f"of shape {flat.shape}."
        )
    found, start = {}, 0
    for layer, name, shape in wanted:
        stop = start + product(shape)
        values = flat[start:stop].reshape(shape)
        start = stop
        if name == "mu":
            found[f"{layer.name}.internals.running_mean"] = -values
        elif name == "sigma":
            variance = np.square(values, dtype=float) - layer.epsilon
            found[f"{layer.name}.internals.running_var"] = np.maximum(variance, 0)
        else:
            found[f"{layer.name}.parameters.{name}"] = values
    return found


def _places(layers: Mapping[str, Any]) -> Iterator[tuple[Any, str, tuple[int, ...]]]:
    """Yield layer, parameter and shape, in the order of the file."""
    for _, layer in sorted(layers.items(), key=lambda item: f"{item[0]}."):
        for name, structure in layer.parameter_shapes.items():
            yield layer, name, structure.feature_shape
        if layer.type_name == "BatchNorm":
            channels = layer.parameter_shapes["gamma"].feature_shape
            yield layer, "mu", channels
            yield layer, "sigma", channels
