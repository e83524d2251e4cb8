"""Networks as safetensors files: named arrays without code, which any framework can read.

    save_safetensors(net, "net.safetensors")
    same = load_safetensors("net.safetensors")

A file has one tensor for each parameter and running statistic, under its path
(``Hidden.parameters.W``), and the description of the network as JSON in its metadata.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from brainstorm.disk import atomic_file
from brainstorm.errors import FileFormatError
from brainstorm.files import NetworkFile, PathLike, opened, read_description
from brainstorm.handlers import Handler
from brainstorm.network import Network
from brainstorm.network.network import check_network
from brainstorm.optional import require

__all__ = ["load_safetensors", "save_safetensors"]

#: The entry of the metadata with the description of the network.
ENTRY = "brainstorm.network"


def save_safetensors(net: Network, filename: PathLike) -> None:
    """Write the description, all parameters and running statistics of a network.

    The file is replaced atomically.

    Raises:
        MissingDependencyError: safetensors is not installed.
        OSError: The file cannot be written.
    """
    check_network("save_safetensors", net)
    safetensors = require("safetensors", "safetensors")
    numpy = require("safetensors.numpy", "safetensors")
    description = json.dumps(net.__describe__(), allow_nan=False)
    # Arrays that are not contiguous would be written in a wrong order, without an error.
    paths = (*net.parameter_slices, *net.persistent_paths)
    with net.alone():  # all of one update
        tensors = {path: np.ascontiguousarray(net.get(path)) for path in paths}
    with atomic_file(filename) as temporary:
        try:
            numpy.save_file(tensors, temporary, {"format": "np", ENTRY: description})
        except safetensors.SafetensorError as error:
            raise OSError(f"{os.fspath(filename)!r} cannot be written: {error}") from error


def load_safetensors(filename: PathLike, handler: Handler | None = None) -> Network:
    """Return the network from a file that `save_safetensors` wrote.

    Args:
        filename: The file.
        handler: Use this handler instead of the one named in the file.

    Raises:
        MissingDependencyError: safetensors is not installed.
        FileNotFoundError: There is no such file.
        FileFormatError: The file is truncated, of another kind, or does not fit its description.
        UnknownTypeError: It needs a class that has not been imported.
    """
    safetensors = require("safetensors", "safetensors")
    with opened(filename, "safetensors file of a network"):
        try:
            description, tensors = _read(safetensors, filename)
        except safetensors.SafetensorError as error:
            raise ValueError(error) from error
    return Network.from_file_content(NetworkFile(description, tensors, {}, ""), filename, handler)


def _read(safetensors: Any, filename: PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description and all tensors."""
    with safetensors.safe_open(filename, "np") as file:
        metadata = file.metadata() or {}
        if ENTRY not in metadata:
            raise FileFormatError(
                f"{os.fspath(filename)!r} was not written by save_safetensors. Build the network, "
                f"and take the tensors with brainstorm.ext.state_dicts.load_state_dict."
            )
        description = read_description(ENTRY, metadata[ENTRY])
        return description, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
