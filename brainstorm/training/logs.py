"""Logs: what the hooks recorded, as nested dicts of lists, with dotted paths and three formats."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import h5py
import numpy as np

from brainstorm.errors import FileFormatError, TrainingError, UnknownPathError
from brainstorm.hooks.base import find_log
from brainstorm.utils import atomic_file, flatten_keys, get_brainstorm_info

__all__ = ["Logs"]

FORMAT = "Logs file v1.0"


class Logs(dict[str, Any]):
    """Nested dicts whose leaves are lists: one value per time that something was recorded.

    ``logs['validation']['Accuracy']`` and ``logs['validation.Accuracy']`` are the same list.
    """

    def __missing__(self, path: str) -> Any:
        return find_log(dict(self), path)

    def __contains__(self, path: object) -> bool:
        return super().__contains__(path) or (isinstance(path, str) and self.get(path) is not None)

    def get(self, path: str, default: Any = None) -> Any:
        """Return what lies under a name or dotted path, else `default`."""
        with contextlib.suppress(UnknownPathError):
            return self[path]
        return default

    def append(self, name: str, entry: Any) -> None:
        """Append a value to the list `name`; a mapping appends each of its values below `name`.

        `None` and empty mappings are not recorded. NumPy's numbers become Python's.

        Raises:
            TrainingError: Under this name lie values where now comes a mapping, or vice versa.
        """
        _append(self, name, entry, name)

    def paths(self) -> list[str]:
        """Return the dotted paths of all lists."""
        return flatten_keys(self)

    def sliced(self, start: int | None = None, stop: int | None = None) -> Logs:
        """Return copies of all lists from entry `start` up to, not including, `stop`."""
        return Logs(_map_lists(self, lambda values: values[start:stop]))

    def to_json(self, file: str | os.PathLike[str] | None = None) -> str:
        """Return the logs as strict JSON (NaN and infinity as null); also write it to `file`."""
        text = json.dumps(_map_lists(self, _jsonable), indent=2, allow_nan=False)
        if file is not None:
            _write_text(file, text)
        return text

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write a table: one column per dotted path, one row per entry, gaps at shorter ends."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.paths())
        columns = [find_log(dict(self), path) for path in self.paths()]
        writer.writerows(zip_longest(*columns, fillvalue=""))
        _write_text(file, text.getvalue())

    def save_as_hdf5(self, file: str | os.PathLike[str]) -> None:
        """Write the logs as nested groups with one data set per list.

        Raises:
            TrainingError: A list holds what no data set can; the message names it.
        """
        with atomic_file(file) as temporary, h5py.File(temporary, "w", track_order=True) as out:
            out.attrs["info"] = get_brainstorm_info()
            out.attrs["format"] = FORMAT.encode()
            _write_group(out, self, "")

    @classmethod
    def load_hdf5(cls, file: str | os.PathLike[str]) -> Logs:
        """Read a file of `save_as_hdf5`.

        Raises:
            FileFormatError: The file is broken or no logs file of this version.
        """
        try:
            with h5py.File(file, "r") as source:
                _check_format(file, source.attrs.get("format", "none"))
                return cls(_read_group(source))
        except (FileFormatError, FileNotFoundError):
            raise
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise FileFormatError(
                f"{os.fspath(file)}: it is truncated or no HDF5 file ({error})."
            ) from error


def _append(logs: dict[str, Any], name: str, entry: Any, path: str) -> None:
    nested = isinstance(entry, Mapping)
    if entry is None or (nested and not entry):
        return
    known = dict.get(logs, name)  # not by path
    if known is not None and isinstance(known, dict) != nested:
        raise TrainingError(
            f"log {path!r}: expected {'a mapping' if not nested else 'a value'} as before, got "
            f"{entry!r}. A log holds either values or further logs."
        )
    if nested:
        below = logs.setdefault(name, {})
        for key, value in entry.items():
            _append(below, str(key), value, f"{path}.{key}")
    else:
        value = entry.item() if isinstance(entry, np.generic) else entry
        logs.setdefault(name, []).append(value)


def _map_lists(logs: Mapping[str, Any], function: Any) -> dict[str, Any]:
    return {
        key: _map_lists(value, function) if isinstance(value, Mapping) else function(value)
        for key, value in logs.items()
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _jsonable(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str)) else str(value)


def _write_text(file: str | os.PathLike[str], text: str) -> None:
    with atomic_file(file) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


# -- HDF5: a slash would open a group, so it is quoted in names ----------------------------------


def _write_group(group: Any, logs: Mapping[str, Any], path: str) -> None:
    for key, value in logs.items():
        name = key.replace("%", "%25").replace("/", "%2F")
        if isinstance(value, Mapping):
            _write_group(group.create_group(name, track_order=True), value, f"{path}{key}.")
        elif all(isinstance(item, str) for item in value) and value:
            group.create_dataset(name, data=value, dtype=h5py.string_dtype())
        else:
            group.create_dataset(name, data=_as_array(value, path + key))


def _as_array(values: list[Any], path: str) -> np.ndarray:
    try:
        array = np.array(values)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise TrainingError(
            f"log {path!r}: expected numbers, or texts, or arrays of one shape, got {values!r}. "
            f"They cannot be saved as HDF5; to_json can."
        )
    return array


def _read_group(group: Any) -> dict[str, Any]:
    logs: dict[str, Any] = {}
    for name, item in group.items():
        if isinstance(item, h5py.Group):
            logs[unquote(name)] = _read_group(item)
        else:
            is_text = h5py.check_string_dtype(item.dtype) is not None
            logs[unquote(name)] = (item.asstr()[()] if is_text else item[()]).tolist()
    return logs


def _check_format(file: str | os.PathLike[str], found: str | bytes) -> None:
    text = found.decode() if isinstance(found, bytes) else str(found)
    if text != FORMAT:
        raise FileFormatError(
            f"{os.fspath(file)}: expected the format {FORMAT!r}, got {text!r}. Was it written by "
            f"Logs.save_as_hdf5?"
        )
