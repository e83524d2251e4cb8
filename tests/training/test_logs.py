"""Logs: nesting, paths, and the three file formats."""

from __future__ import annotations

import csv
import json
import math
import re

import h5py
import numpy as np
import pytest

from brainstorm.errors import FileFormatError, TrainingError, UnknownPathError
from brainstorm.hooks.base import find_moment
from brainstorm.tools.plotting import places_of
from brainstorm.training import Logs
from brainstorm.training.logs import LONG, Moment
from brainstorm.training.number_list import NumberList
from tests.trainings import refused


@pytest.fixture
def logs():
    logs = Logs()
    for epoch in range(3):
        logs.append("validation", {"total_loss": 3.0 - epoch, "Accuracy": np.float32(epoch)})
        logs.append("lr", epoch)
    logs.append("validation", {"total_loss": math.nan, "deep": {"a/b%2F": 1}})
    logs.append("Stopper", "reached max_epochs=3")
    return logs


def test_logs_are_nested_dicts_of_lists(logs):
    assert logs["lr"] == [0, 1, 2]
    assert logs["validation"]["Accuracy"] == [0.0, 1.0, 2.0]
    assert type(logs["validation"]["Accuracy"][0]) is float
    assert isinstance(logs, dict)
    assert isinstance(logs["validation"]["total_loss"], list)


def test_dotted_paths(logs):
    assert logs["validation.total_loss"] is logs["validation"]["total_loss"]
    assert logs["validation.deep"] == {"a/b%2F": [1]}
    assert "validation.Accuracy" in logs
    assert "validation.Akkuracy" not in logs
    assert 3 not in logs
    assert logs.get("validation.x") is None
    assert logs.get("lr.x", 7) == 7
    assert logs.paths() == [
        "validation.total_loss", "validation.Accuracy", "validation.deep.a/b%2F", "lr", "Stopper",
    ]  # fmt: skip


def test_unknown_path_lists_what_there_is(logs):
    with pytest.raises(
        UnknownPathError,
        match=r"unknown log 'validation.Acuracy'. Choices are: validation.total_loss, .*lr, "
        r"Stopper. Did you mean 'validation.Accuracy'",
    ):
        logs["validation.Acuracy"]
    with pytest.raises(KeyError):
        logs["nothing"]


def test_none_is_not_recorded():
    logs = Logs()
    for name, entry in (("a", None), ("b", {"c": None}), ("d", {})):
        logs.append(name, entry)
    assert not {"a", "d"} & set(logs)
    assert logs.paths() == []


@pytest.mark.parametrize("change", [np.array([1.0, 2.0]), [1.0, 2.0]])
def test_what_changes_later_is_recorded_as_it_was(change):
    logs = Logs()
    logs.append("hook", change)
    logs.append("more", {"inner": change})
    change[0] = 9.0
    assert [list(value) for value in (*logs["hook"], *logs["more.inner"])] == [[1.0, 2.0]] * 2


def test_values_and_mappings_do_not_mix(logs):
    with refused("log 'validation': expected a mapping as before"):
        logs.append("validation", 3.0)
    with refused("log 'lr': expected a value as before, got {'a': 1"):
        logs.append("lr", {"a": 1})
    with refused("log 'x.': expected a name that is not empty, got ''.", is_whole=True):
        logs.append("x", {"": 1})
    with refused("log 'validation.Accuracy': expected a value"):
        logs.append("validation", {"Accuracy": {"a": 1}})


def test_sliced_copies(logs):
    part = logs.sliced(1, 3)
    assert part["validation.total_loss"] == [2.0, 1.0]
    assert part["Stopper"] == []
    part["lr"].append(9)
    assert logs["lr"] == [0, 1, 2]


def test_json_is_strict(logs, tmp_path):
    logs.append("a", np.array([1.0, math.inf]))
    logs.append("b", 1j)
    text = logs.to_json(tmp_path / "logs.json")
    assert (tmp_path / "logs.json").read_text() == text
    data = json.loads(text, parse_constant=pytest.fail)
    assert data["validation"]["total_loss"] == [3.0, 2.0, 1.0, None]
    assert (data["a"], data["b"], data["lr"]) == ([[1.0, None]], ["1j"], [0, 1, 2])
    assert data["Stopper"] == ["reached max_epochs=3"]


def test_csv_has_a_column_per_path(logs, tmp_path):
    logs.to_csv(tmp_path / "logs.csv")
    assert (tmp_path / "logs.csv").read_text().splitlines() == [
        "entry,validation.total_loss,validation.Accuracy,validation.deep.a/b%2F,lr,Stopper",
        "0,3.0,0.0,1,0,reached max_epochs=3",
        "1,2.0,1.0,,1,",
        "2,1.0,2.0,,2,",
        "3,nan,,,,",
    ]


def test_a_row_of_csv_is_an_epoch(tmp_path):
    """Although the first epoch has two updates, the second four, and one hook logs now and then."""
    logs = Logs()
    for name, entry, epoch, update in (
        ("validation", 3, 0, 0), ("b.often", 6, 1, 1), ("rolling_training", {"a": 1.0}, 1, 2),
        ("validation", 4, 1, 2), ("b.often", 7, 2, 3), ("rolling_training", {"a": 2.0}, 2, 6),
        ("b.often", 8, 2, 6), ("end", "x", 2, 6), ("rare", {}, 2, 6), ("rare", None, 2, 6),
        ("b.often", 9, 3, 9), ("rare", {"c": 10}, 3, 9),
    ):  # fmt: skip
        timescale = "update" if name in ("b.often", "rare") else "epoch"
        logs.append(name, entry, Moment(epoch, update, timescale, 1))
    logs.to_csv(tmp_path / "logs.csv")
    rows = "epoch,validation,b.often,rolling_training.a,end,rare.c 0,3,,,, 0.5,,6,,, 1,4,,1.0,, "
    rows += "1.25,,7,,, 2,,8,2.0,x, 2.75,,9,,,10"
    assert (tmp_path / "logs.csv").read_text().split() == rows.split()
    again = Logs.from_state(logs.get_state(), logs.get_moments())
    assert (again.places, again.moments) == (logs.places, logs.moments)
    assert find_moment(again, "b.often").update == 9
    held, _ = places_of(logs, {"b.often": 4, "end": 1})  # as by a figure, or by another thread
    logs.append("rare", {"d": 1}, Moment(3, 9, "update", 1))  # so one of c belongs to which entry?
    logs.to_csv(tmp_path / "logs.csv")
    assert (tmp_path / "logs.csv").read_text().startswith("entry,")
    logs.append("end", "y", Moment(3, 9, "epoch", 1))
    assert [place.tolist() for place in held.values()] == [[0.5, 1.25, 2, 2.75], [2]]


def test_hdf5_round_trip(logs, tmp_path):
    logs.append("rows", np.arange(3))
    logs.append("rows", np.arange(3))
    logs["empty"] = []
    logs.save_as_hdf5(tmp_path / "logs.hdf5")
    with h5py.File(tmp_path / "logs.hdf5") as file:
        assert str(np.asarray(file.attrs["format"]).astype(str)) == "Logs file v1.0"
        assert "Created with brainstorm" in str(file.attrs["info"])
        assert file["validation/total_loss"].shape == (4,)
    again = Logs.load_hdf5(tmp_path / "logs.hdf5")
    assert again.paths() == logs.paths()
    assert again["validation"]["deep"] == {"a/b%2F": [1]}
    assert again["lr"] == [0, 1, 2]
    assert again["Stopper"] == ["reached max_epochs=3"]
    assert again["rows"] == [[0, 1, 2], [0, 1, 2]]
    np.testing.assert_array_equal(again["validation.total_loss"], logs["validation.total_loss"])
    Logs(long=[np.longdouble(0.5)]).save_as_hdf5(tmp_path / "logs.hdf5")
    assert Logs.load_hdf5(tmp_path / "logs.hdf5")["long"] == [0.5]


@pytest.mark.parametrize("values", [[1.0, "a"], [[1, 2], [3]], [1j], [object]], ids=str)
def test_hdf5_names_the_log_that_cannot_be_saved(values, tmp_path):
    file = tmp_path / "logs.hdf5"
    file.write_bytes(b"old")
    logs = Logs(scores={"odd": values})
    with refused("log 'scores.odd': expected numbers, or texts"):
        logs.save_as_hdf5(file)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_files_of_another_kind_and_of_later_versions(logs, tmp_path):
    """How files of all kinds are read is tested with those of networks."""
    path = tmp_path / "logs.hdf5"
    logs.save_as_hdf5(path)
    for version, text in (
        (b"Network file v1.0", "logs.hdf5': expected a 'Logs file', got 'Network file v1.0'"),
        (b"Logs file v2.0", "version 2.0 is newer than the 1.x that this"),
    ):
        with h5py.File(path, "r+") as file:
            file.attrs["format"] = version
        with pytest.raises(FileFormatError, match=text):
            Logs.load_hdf5(path)


def test_long_logs_become_lists_of_numbers_and_read_the_same(tmp_path):
    logs, numbers = Logs(), [i / 3 for i in range(2 * LONG)]
    for number in numbers:
        logs.append("long", {"numbers": number, "mixed": number, "counts": 1})
        logs.append("both", number if number < 1 else 1)
    logs.append("long", {"mixed": "text", "counts": 1 << 70})
    logs.append("texts", "a")
    assert type(logs["long.numbers"]) is NumberList
    assert logs["long"]["numbers"] == numbers
    assert logs["long.mixed"] == [*numbers, "text"]
    assert logs["long.counts"] == [1] * 2 * LONG + [1 << 70]
    assert len(logs["both"]) == 2 * LONG
    assert {type(logs[name]) for name in ("long.mixed", "long.counts", "both")} == {list}
    again = Logs.from_state(logs.get_state())
    assert again == logs
    again.append("long", {"numbers": 1.0})
    again.append("texts", "b")
    assert len(logs["long.numbers"]) == len(numbers)
    assert logs["texts"] == ["a"]
    assert json.loads(logs.to_json())["long"]["numbers"] == numbers
    logs.to_csv(tmp_path / "logs.csv")
    rows = list(csv.reader((tmp_path / "logs.csv").read_text().splitlines()))
    assert [float(row[1]) for row in rows[1 : len(numbers) + 1]] == numbers
    del logs["long"]["mixed"], logs["long"]["counts"]
    logs.save_as_hdf5(tmp_path / "logs.hdf5")
    assert Logs.load_hdf5(tmp_path / "logs.hdf5") == logs


@pytest.mark.parametrize(
    ("name", "value", "least"), [("epoch", -1, 0), ("update", 2.0, 0), ("interval", 0, 1)]
)
def test_moments_are_counts(name, value, least):
    moment = {"epoch": 0, "update": 0, "timescale": "epoch", "interval": 1}
    assert Logs.from_state({"x": [1]}, {"x": moment}).moments["x"].interval == 1
    text = f"moment of log 'x', {name}: expected an integer >= {least}, got {value}."
    with pytest.raises(TrainingError, match=re.escape(text)):
        Logs.from_state({"x": [1]}, {"x": {**moment, name: value}})
    with pytest.raises(TrainingError, match="moment of log 'x', places: expected two rows of int"):
        Logs.from_state({"x": [1]}, {"x": {**moment, "places": np.zeros((2, 1))}})


def test_names_may_contain_dots(tmp_path):
    logs = Logs()
    logs.append("a.b", {"x.y": 1})
    logs.append("a", {"c.d": 2})
    assert (logs["a.b.x.y"], logs["a.c.d"]) == ([1], [2])
    assert [logs[path] for path in logs.paths()] == [[1], [2]]
    logs.to_csv(tmp_path / "logs.csv")
    assert (tmp_path / "logs.csv").read_text() == "entry,a.b.x.y,a.c.d\n0,1,2\n"


@pytest.mark.parametrize("value", [5.0, "text", [b"a", b"b"], [1j]])
def test_what_is_no_list_of_numbers_or_texts(tmp_path, value):
    with h5py.File(tmp_path / "logs.hdf5", "w") as file:
        file.attrs["format"] = b"Logs file v1.0"
        file["loss"] = np.array(value) if isinstance(value, list) else value
    with pytest.raises(FileFormatError, match="loss: expected a list of numbers or texts"):
        Logs.load_hdf5(tmp_path / "logs.hdf5")
