"""Data files: arrays for the iterators, read from HDF5 without trusting the file."""

from __future__ import annotations

import os

import numpy as np

from brainstorm.errors import FileFormatError, unknown
from brainstorm.files import PathLike, format_errors
from brainstorm.hdf5 import DataSet, Group, open_hdf5

__all__ = ["load_data"]


def load_data(filename: PathLike, group: str = "") -> dict[str, np.ndarray]:
    """Return the arrays in a group of an HDF5 file by name.

        training = Minibatches(100, **load_data("MNIST.hdf5", "normalized_full/training"))

    What lies in the file in one piece is mapped, read-only: parts are read when they are used.
    Arrays in chunks (compressed ones) are read now.

    Args:
        filename: The file.
        group: Path of the group, with slashes; empty for the root. Groups in it are left out.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is no HDF5 file or damaged, it uses what `brainstorm.hdf5` refuses, or
            there is no such group.
    """
    with format_errors(filename, "data file"), open_hdf5(filename) as found:
        for name in filter(None, group.split("/")):
            if not isinstance(found.get(name), Group):
                groups = [key for key, item in found.items() if isinstance(item, Group)]
                raise FileFormatError(
                    f"{os.fspath(filename)!r}, group {group!r}: {unknown('group', name, groups)}"
                )
            found = found[name]
        return {name: item.map() for name, item in found.items() if isinstance(item, DataSet)}
