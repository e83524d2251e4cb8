"""Logs: the values that hooks recorded, as nested dicts of lists, with dotted paths."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import math
import os
from array import array
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import h5py
import numpy as np

from brainstorm.disk import atomic_file
from brainstorm.errors import TrainingError, UnknownPathError, shown
from brainstorm.files import hdf5_file, read_file
from brainstorm.hdf5 import Group, MalformedError
from brainstorm.hooks.base import check_counts, find_log
from brainstorm.tools.plotting import places_of
from brainstorm.training.number_list import NumberList
from brainstorm.utils import Named, flatten_items, flatten_keys

#: From how many floats or ints on a list becomes a `NumberList`.
LONG = 4096


class Moment(NamedTuple):
    """When something was recorded, and how often: every so many epochs or updates."""

    epoch: int  # so far
    update: int
    timescale: str
    interval: int
    is_discarded: bool = False  # whether training has left that network for a checkpoint since

    def is_of(self, update_nr: int) -> bool:
        """Return whether it was recorded of the network as it is after this update."""
        return self.update == update_nr and not self.is_discarded


class Logs(dict[str, Any]):
    """Nested dicts whose leaves are lists: one value per recording.

    ``logs['validation']['Accuracy']`` and ``logs['validation.Accuracy']`` are the same list. From
    4096 floats or ints on, a list becomes a `NumberList`, which can be read in the same ways.

    Attributes:
        moments: Name (of a hook) to the `Moment` of its last entry, in the logs of a trainer; run
            files keep them.
        places: Name to the epochs and the updates so far at each entry, likewise.
        expected: Names of the hooks that may write logs, and of what the trainer itself records.
        scorers: The scorers of the trainer and its hooks by the name in the logs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.moments: dict[str, Moment] = {}
        self.places: dict[str, tuple[array[int], array[int]]] = {}
        self.expected: Collection[str] = ()
        self.scorers: Mapping[str, Sequence[Any]] = {}

    def __missing__(self, path: str) -> Any:
        return find_log(dict(self), path)

    def __contains__(self, path: object) -> bool:
        return super().__contains__(path) or (isinstance(path, str) and self.get(path) is not None)

    def get(self, path: str, default: Any = None) -> Any:
        """Return the list or logs under a name or dotted path, else `default`."""
        with contextlib.suppress(UnknownPathError):
            return self[path]
        return default

    def append(self, name: str, entry: Any, moment: Moment | None = None) -> None:
        """Append a value to the list `name`; a mapping appends each of its values below `name`.

        `None` and empty mappings are not recorded. NumPy scalars become Python numbers.

        Raises:
            TrainingError: The name holds values and gets a mapping, or vice versa, or is empty.
        """
        _append(self, name, entry, name)
        if entry is not None and moment is not None:
            self.moments[name] = moment
            if not isinstance(entry, Mapping) or entry:
                epochs, updates = self.places.setdefault(name, (array("q"), array("q")))
                epochs.append(moment.epoch)
                updates.append(moment.update)

    def paths(self) -> list[str]:
        """Return the dotted paths of all lists."""
        return flatten_keys(self)

    def sliced(self, start: int | None = None, stop: int | None = None) -> Logs:
        """Return copies of all lists from entry `start` up to, not including, `stop`."""
        return Logs(_map_lists(self, lambda values: values[start:stop]))

    def get_state(self) -> dict[str, Any]:
        """Return copies of all lists, as arrays where they are long."""
        return _map_lists(self, _stored)

    def get_moments(self) -> dict[str, Any]:
        """Return `moments` and `places`, by name, in the form of `from_state`."""
        found: dict[str, Any] = {name: moment._asdict() for name, moment in self.moments.items()}
        for name, counts in self.places.items():
            found[name]["places"] = np.array(counts, np.int64)
        return found

    @classmethod
    def from_state(cls, state: Mapping[str, Any], moments: Mapping[str, Any] | None = None) -> Logs:
        """Return logs from what `get_state` and `get_moments` returned.

        Raises:
            TrainingError: A moment has no counts.
        """
        logs = cls(_map_lists(state, _restored))
        for name, values in (moments or {}).items():
            values = dict(values)
            places = np.asarray(values.pop("places", np.zeros((2, 0), int)))  # not in older files
            logs.moments[name] = moment = Moment(**values)
            where = f"moment of log {name!r}"
            check_counts(where, epoch=moment.epoch, update=moment.update)
            check_counts(where, 1, interval=moment.interval)
            if places.ndim != 2 or len(places) != 2 or places.dtype.kind not in "iu":
                raise TrainingError(
                    f"{where}, places: expected two rows of integers, got {shown(places)}. Is the "
                    f"file damaged?"
                )
            epochs, updates = places.tolist()
            logs.places[name] = array("q", epochs), array("q", updates)
        return logs

    def to_json(self, file: str | os.PathLike[str] | None = None) -> str:
        """Return the logs as strict JSON (NaN and infinity as null); also write it to `file`."""
        text = json.dumps(_map_lists(self, _jsonable), indent=2, allow_nan=False)
        if file is not None:
            with atomic_file(file) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return text

    def to_csv(self, file: str | os.PathLike[str]) -> None:
        """Write a table: the epoch (0 is before the training), then one column per dotted path.

        Entries by updates lie between epochs, as in `plot_logs`. If epochs are unknown, as before
        the end of the first one, or for values that were not in all entries of a hook, rows are
        numbered by entry. Lists without a value in a row have gaps.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        lists = dict(flatten_items(self))
        places, unit = places_of(self, {path: len(values) for path, values in lists.items()})
        columns: list[dict[float, Any]] = [
            dict(zip(places[path].round(9).tolist(), values, strict=True))
            for path, values in lists.items()
        ]
        writer.writerow([unit, *lists])
        for place in sorted(set().union(*columns)):
            writer.writerow([f"{place:.12g}", *(column.get(place, "") for column in columns)])
        with atomic_file(file) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")

    def save_as_hdf5(self, file: str | os.PathLike[str]) -> None:
        """Write the logs as nested groups with one data set per list.

        Raises:
            TrainingError: A list holds something that a data set cannot; the message names it.
        """
        with hdf5_file(file, kind="Logs file", track_order=True) as out:
            _write_group(out, self, "")

    @classmethod
    def load_hdf5(cls, file: str | os.PathLike[str]) -> Logs:
        """Read a file of `save_as_hdf5`.

        Raises:
            FileNotFoundError: There is no such file.
            FileFormatError: It is damaged, not a logs file, or of a newer version.
        """
        return cls(read_file(file, ("Logs file",), _read_group))


def _append(logs: dict[str, Any], name: str, entry: Any, path: str) -> None:
    nested = isinstance(entry, Mapping)
    if entry is None or (nested and not entry):
        return
    if not isinstance(name, str) or not name:
        raise TrainingError(f"log {path!r}: expected a name that is not empty, got {shown(name)}.")
    known = dict.get(logs, name)  # not by path
    if known is not None and isinstance(known, dict) != nested:
        raise TrainingError(
            f"log {path!r}: expected {'a mapping' if not nested else 'a value'} as before, got "
            f"{entry!r}. A log holds either values or further logs."
        )
    if nested:
        below = logs.setdefault(name, Named())
        for key, value in entry.items():
            _append(below, str(key), value, f"{path}.{key}")
    else:
        value = entry.item() if isinstance(entry, np.generic) else entry
        value = float(value) if isinstance(value, np.longdouble) else value  # which is no float
        if isinstance(value, (np.ndarray, list, tuple)):
            value = copy.deepcopy(value)  # it may change later, as buffers do
        _append_value(logs, name, value)


def _append_value(logs: dict[str, Any], name: str, value: Any) -> None:
    values = logs.setdefault(name, [])
    try:
        values.append(value)
    except (TypeError, OverflowError):  # it does not fit into a NumberList
        values = logs[name] = [*values, value]
    if len(values) == LONG and type(values) is list:
        with contextlib.suppress(TypeError, OverflowError):
            logs[name] = NumberList(values)


def _stored(values: Any) -> Any:
    return np.asarray(values) if isinstance(values, NumberList) else list(values)


def _restored(values: Any) -> Any:
    return NumberList(values) if isinstance(values, np.ndarray) else list(values)


def _map_lists(logs: Mapping[str, Any], function: Any) -> dict[str, Any]:
    return Named(
        (key, _map_lists(value, function) if isinstance(value, Mapping) else function(value))
        for key, value in logs.items()
    )


def _jsonable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _jsonable(value.tolist())
    if isinstance(value, (list, tuple, NumberList)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (bool, int, str)) else str(value)


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
    return array.astype(np.float64) if array.dtype == np.longdouble else array  # files have none


def _read_group(group: Group) -> dict[str, Any]:
    logs: dict[str, Any] = Named()
    for name, item in group.items():
        if isinstance(item, Group):
            logs[unquote(name)] = _read_group(item)
        elif item.shape and (item.dtype is None or item.dtype.kind in "biuf"):
            values = item.read()
            logs[unquote(name)] = values if item.dtype is None else values.tolist()
        else:
            raise MalformedError(f"{name}: expected a list of numbers or texts")
    return logs
