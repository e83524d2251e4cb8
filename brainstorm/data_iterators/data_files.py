"""Data files: arrays for the iterators in HDF5 files, which may be untrusted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.errors import FileFormatError, ValidationError, unknown
from brainstorm.files import PathLike, hdf5_file, opened
from brainstorm.hdf5 import DataSet, Group, open_hdf5
from brainstorm.utils import as_array

CHUNK_BYTES = 1 << 18
#: How deep groups may be nested, far from the limit of recursion: h5py keeps its lock if it is hit.
MOST_LEVELS = 100


def load_data(filename: PathLike, group: str = "") -> dict[str, np.ndarray]:
    """Return the arrays in a group of an HDF5 file by name.

        training = Minibatches(100, **load_data("MNIST.hdf5", "normalized_full/training"))

    Contiguous data sets are memory-mapped, read-only: parts are read when they are used.
    Chunked (e.g. compressed) ones are read now.

    Args:
        filename: The file.
        group: Path of the group, with slashes; empty for the root. Subgroups are ignored.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is damaged or not an HDF5 file, it uses features that `brainstorm.hdf5`
            does not support, or there is no such group.
    """
    with opened(filename, "data file") as stream:
        found = open_hdf5(stream)
        for name in filter(None, group.split("/")):
            if not isinstance(found.get(name), Group):
                groups = [key for key, item in found.items() if isinstance(item, Group)]
                raise FileFormatError(
                    f"{os.fspath(filename)!r}, group {group!r}: {unknown('group', name, groups)}"
                )
            found = found[name]
        return {name: item.map() for name, item in found.items() if isinstance(item, DataSet)}


def save_data(filename: PathLike, data: Mapping[str, Any]) -> None:
    """Write arrays to an HDF5 file; the file is replaced atomically.

        save_data("MNIST.hdf5", {"training": {"default": images, "targets": classes}})

    Arrays of sequences (T above 1) are written in chunks of whole sequences, as `Hdf5Minibatches`
    reads them; others contiguously, so that `load_data` can map them.

    Args:
        filename: The file.
        data: Names to arrays, or to dictionaries of the same kind, which become groups.

    Raises:
        OSError: The file cannot be written; its previous content is kept.
        ValidationError: A name is no text, a value neither numbers (of at most 64 bits, or two
            such) nor bytes, or a dictionary contains itself; the file is not changed.
    """
    if not isinstance(data, Mapping):
        raise ValidationError(
            f"save_data: expected a dict from names to arrays, got {type(data).__name__}."
        )
    with hdf5_file(filename) as file:
        _write_group(file, data)


def _write_group(group: Any, data: Mapping[str, Any], level: int = 1) -> None:
    if level > MOST_LEVELS:
        raise ValidationError(
            f"save_data: expected at most {MOST_LEVELS} dictionaries in each other, got more. Does "
            f"one contain itself?"
        )
    for name, value in data.items():
        if not isinstance(name, str) or "/" in name or name in ("", "."):
            raise ValidationError(
                f"save_data: expected a text without slashes as name, got {name!r}. A dictionary "
                f"becomes a group."
            )
        if isinstance(value, Mapping):
            _write_group(group.create_group(name), value, level + 1)
        else:
            array = as_array(value, f"save_data, {name!r}")
            if array.dtype.kind not in "biufcS" or array.dtype.char in "gG":
                raise ValidationError(
                    f"save_data, {name!r}: expected an array of numbers, got dtype {array.dtype}. "
                    f"Convert it, texts to bytes with numpy.char.encode."
                )
            group.create_dataset(name, data=array, chunks=_get_chunks(array))


def _get_chunks(array: np.ndarray) -> tuple[int, ...] | None:
    """Return chunks of whole sequences of about `CHUNK_BYTES`, or `None` for contiguous data."""
    if array.ndim < 3 or len(array) == 1 or array.size == 0:
        return None
    sequences = max(1, CHUNK_BYTES * array.shape[1] // array.nbytes)
    return (len(array), min(sequences, array.shape[1]), *array.shape[2:])
