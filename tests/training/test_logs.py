"""Logs: nesting, paths, and the three file formats."""

from __future__ import annotations

import csv
import json
import math

import h5py
import numpy as np
import pytest

from brainstorm.errors import FileFormatError, TrainingError, UnknownPathError
from brainstorm.training import Logs


@pytest.fixture
def logs():
    logs = Logs()
    for epoch in range(3):
        logs.append("validation", {"total_loss": 3.0 - epoch, "Accuracy": np.float32(epoch)})
        logs.append("lr", epoch)
    logs.append("validation", {"total_loss": math.nan, "deep": {"a/b%": 1}})
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
    assert logs["validation.deep"] == {"a/b%": [1]}
    assert "validation.Accuracy" in logs
    assert "validation.Akkuracy" not in logs
    assert 3 not in logs
    assert logs.get("validation.x") is None
    assert logs.get("lr.x", 7) == 7
    assert logs.paths() == [
        "validation.total_loss", "validation.Accuracy", "validation.deep.a/b%", "lr", "Stopper",
    ]  # fmt: skip


def test_a_score_may_have_a_dot_in_its_name():
    logs = Logs()
    logs.append("scores", {"top1.5": 3.0})
    assert logs["scores.top1.5"] == [3.0]


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
    logs.append("a", None)
    logs.append("b", {"c": None})
    logs.append("d", {})
    assert "a" not in logs
    assert "d" not in logs
    assert logs.paths() == []


def test_values_and_mappings_do_not_mix(logs):
    with pytest.raises(TrainingError, match=r"log 'validation': expected a mapping as before"):
        logs.append("validation", 3.0)
    with pytest.raises(TrainingError, match=r"log 'lr': expected a value as before, got \{'a': 1"):
        logs.append("lr", {"a": 1})
    with pytest.raises(TrainingError, match=r"log 'validation.Accuracy': expected a value"):
        logs.append("validation", {"Accuracy": {"a": 1}})


def test_sliced_copies(logs):
    part = logs.sliced(1, 3)
    assert part["validation.total_loss"] == [2.0, 1.0]
    assert part["Stopper"] == []
    part["lr"].append(9)
    assert logs["lr"] == [0, 1, 2]


def test_json_is_strict(logs, tmp_path):
    text = logs.to_json(tmp_path / "logs.json")
    assert (tmp_path / "logs.json").read_text() == text
    data = json.loads(text, parse_constant=pytest.fail)
    assert data["validation"]["total_loss"] == [3.0, 2.0, 1.0, None]
    assert data["Stopper"] == ["reached max_epochs=3"]


def test_json_of_arrays_and_other_objects():
    logs = Logs()
    logs.append("a", np.array([1.0, math.inf]))
    logs.append("b", 1j)
    assert json.loads(logs.to_json()) == {"a": [[1.0, None]], "b": ["1j"]}


def test_csv_has_a_column_per_path(logs, tmp_path):
    logs.to_csv(tmp_path / "logs.csv")
    with open(tmp_path / "logs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["lr"] for row in rows] == ["0", "1", "2", ""]
    assert [row["validation.Accuracy"] for row in rows] == ["0.0", "1.0", "2.0", ""]
    assert rows[0]["Stopper"] == "reached max_epochs=3"


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
    assert again["validation"]["deep"] == {"a/b%": [1]}
    assert again["lr"] == [0, 1, 2]
    assert again["Stopper"] == ["reached max_epochs=3"]
    assert again["rows"] == [[0, 1, 2], [0, 1, 2]]
    np.testing.assert_array_equal(again["validation.total_loss"], logs["validation.total_loss"])


@pytest.mark.parametrize("values", [[1.0, "a"], [[1, 2], [3]], [1j], [object()]], ids=str)
def test_hdf5_names_the_log_that_cannot_be_saved(values, tmp_path):
    file = tmp_path / "logs.hdf5"
    file.write_bytes(b"old")
    logs = Logs(scores={"odd": values})
    with pytest.raises(TrainingError, match=r"log 'scores.odd': expected numbers, or texts"):
        logs.save_as_hdf5(file)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_broken_and_foreign_files(logs, tmp_path):
    (tmp_path / "text").write_text("no HDF5")
    logs.save_as_hdf5(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "half").write_bytes(content[: len(content) // 2])
    for name in ("text", "half"):
        with pytest.raises(FileFormatError, match=rf"{name}: it is truncated or no HDF5 file"):
            Logs.load_hdf5(tmp_path / name)
    with h5py.File(tmp_path / "other", "w") as file:
        file.attrs["format"] = b"Network file v1.0"
    with pytest.raises(
        FileFormatError, match=r"expected the format 'Logs file v1.0', got 'Network file v1.0'"
    ):
        Logs.load_hdf5(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        Logs.load_hdf5(tmp_path / "nothing")
