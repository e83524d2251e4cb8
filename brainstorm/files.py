"""Network files: HDF5 with a description, the flat parameters and named arrays.

Attributes ``format`` ("Network file v2.0"), ``info`` and optionally ``comment``; data sets
``description`` (JSON), ``parameters`` (1-D, gzip) and, below ``persistent``, one data set for each
path of running statistics. Reading builds no object: it returns checked plain data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np

from brainstorm.errors import FileFormatError
from brainstorm.utils import atomic_file, get_brainstorm_info

__all__ = ["NetworkFile", "read_network_file", "write_network_file"]

PathLike = str | os.PathLike[str]

FORMAT_NAME = "Network file"
MAJOR_VERSION = 2


class NetworkFile(NamedTuple):
    """What a network file holds."""

    description: dict[str, Any]
    parameters: np.ndarray
    persistent: dict[str, np.ndarray]
    comment: str


def write_network_file(filename: PathLike, content: NetworkFile) -> None:
    """Write a network file; under its final name it is there whole or not at all."""
    with atomic_file(filename) as temporary, h5py.File(temporary, "w") as file:
        file.attrs["format"] = f"{FORMAT_NAME} v{MAJOR_VERSION}.0".encode()
        file.attrs["info"] = get_brainstorm_info()
        if content.comment:
            file.attrs["comment"] = content.comment.encode()
        text = json.dumps(content.description, allow_nan=False)
        file["description"] = text.encode()
        file.create_dataset("parameters", data=content.parameters, compression="gzip")
        for path, values in content.persistent.items():
            file[f"persistent/{path}"] = values


def read_network_file(filename: PathLike) -> NetworkFile:
    """Read and check a network file.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is no HDF5 file, truncated, no network file, or of a newer version.
    """
    if not os.path.exists(filename):
        raise FileNotFoundError(f"there is no file {os.fspath(filename)!r}")
    try:
        with h5py.File(filename, "r") as file:
            _check_format(filename, _text(file.attrs.get("format", "")))
            return NetworkFile(
                description=json.loads(_text(file["description"][()])),
                parameters=file["parameters"][()],
                persistent=_read_arrays(file.get("persistent", {})),
                comment=_text(file.attrs.get("comment", "")),
            )
    except FileFormatError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise FileFormatError(
            f"{os.fspath(filename)!r} cannot be read as a network file: it is truncated or of "
            f"another kind ({error})."
        ) from error


def _check_format(filename: PathLike, text: str) -> None:
    name, _, version = text.rpartition(" v")
    if name != FORMAT_NAME:
        raise FileFormatError(
            f"{os.fspath(filename)!r}: expected a '{FORMAT_NAME}', got "
            f"{text or 'an HDF5 file without a format'!r}."
        )
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) > MAJOR_VERSION:
        raise FileFormatError(
            f"{os.fspath(filename)!r}: format version {version} is newer than the "
            f"{MAJOR_VERSION}.x that this brainstorm reads. Install a newer brainstorm."
        )


def _read_arrays(group: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {path: dataset[()] for path, dataset in group.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
