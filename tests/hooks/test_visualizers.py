"""Progress bars with and without a terminal, and plots."""

from __future__ import annotations

import io
import re
import sys
import types
from contextlib import redirect_stdout

import numpy as np
import pytest

from brainstorm import optional
from brainstorm.data_iterators import Undivided
from brainstorm.errors import MissingDependencyError, UnknownPathError
from brainstorm.hooks import BokehVisualizer, LogPlotter, MonitorLoss, ProgressBar
from tests.trainings import Call


class Terminal(io.StringIO):
    def isatty(self):
        return True


def final_bars(stream):
    """Return the last state of every bar that was drawn."""
    return [line.rpartition("\r")[2] for line in stream.getvalue().split("\n") if line.strip()]


def test_a_line_per_epoch_without_a_terminal(train, capsys):
    train(ProgressBar(), epochs=3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for number, line in enumerate(lines, start=1):
        assert re.fullmatch(rf"Epoch {number}: 4 batches in \d+\.\d\d s", line)


def test_a_bar_per_epoch_on_a_terminal(train):
    with redirect_stdout(Terminal()) as terminal:
        train(ProgressBar(), epochs=3)
    bars = final_bars(terminal)
    assert len(bars) == 3
    for number, bar in enumerate(bars, start=1):
        assert bar.startswith(f"Epoch {number}: 100%")
        assert " 4/4 " in bar


def test_epochs_of_one_batch(train, net, batches):
    trainer = train(ProgressBar(), epochs=0)
    x = np.zeros((1, 4, 3))
    trainer.hooks["end"].max_epochs = 2
    with redirect_stdout(Terminal()) as terminal:
        trainer.train(net, Undivided(default=x, targets=x[:, :, :1]), valid=batches)
    bars = final_bars(terminal)
    assert [bar.partition("%")[0] for bar in bars] == ["Epoch 1: 100", "Epoch 2: 100"]


def test_continuing_with_other_lengths(train, net, batches, capsys):
    trainer = train(ProgressBar(), epochs=1)
    trainer.hooks["end"].max_epochs = 2
    batches.batch_size = batches.length = None
    x = np.zeros((1, 4, 3))
    trainer.train(net, Undivided(default=x, targets=x[:, :, :1]), valid=batches)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" in")[0] for line in lines] == [
        "Epoch 1: 4 batches", "Epoch 2: 1 batches",
    ]  # fmt: skip


@pytest.mark.parametrize("length", [None, 2, 9])
def test_iterators_that_do_not_know_their_length(train, batches, capsys, length):
    batches.length = length
    train(ProgressBar(), epochs=2)
    counts = [int(n) for n in re.findall(r"(\d+) batches", capsys.readouterr().out)]
    assert sum(counts) == 8


@pytest.mark.parametrize("error", [StopIteration(), RuntimeError("broken")])
def test_an_interrupted_epoch_closes_its_bar(train, capsys, error):
    def interrupt(epoch_nr, update_nr, net):
        if update_nr == 6:
            raise error

    hooks = (ProgressBar(), Call(interrupt))
    if isinstance(error, RuntimeError):
        with pytest.raises(RuntimeError, match="broken"):
            train(*hooks)
    else:
        train(*hooks)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Epoch 1: 4 batches")
    assert lines[1].startswith(f"Epoch 2: {1 if isinstance(error, RuntimeError) else 2} batches")
    assert len(lines) == 2


def test_the_bar_is_complete_before_logs_are_printed(train):
    with redirect_stdout(Terminal()) as terminal:
        train(ProgressBar(), epochs=1, verbose=True)
    text = terminal.getvalue()
    assert text.index("4/4") < text.index("rolling_training")


# -- plots ---------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n"


def test_plot(train, tmp_path):
    file = tmp_path / "curves.png"
    plotter = LogPlotter(["valid.total_loss", "rolling_training.total_loss"], file)
    train(plotter, MonitorLoss("valid", name="valid"), epochs=1)
    assert file.read_bytes().startswith(PNG)
    assert list(tmp_path.iterdir()) == [file]


def test_plot_of_one_log_into_a_file_named_like_the_hook(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(BokehVisualizer("rolling_training.total_loss", name="curves"), epochs=1)
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_plot_of_an_unknown_log(train, tmp_path):
    with pytest.raises(
        UnknownPathError,
        match=r"unknown log 'valid.loss'. Choices are: rolling_training.total_loss",
    ):
        train(LogPlotter("valid.loss", tmp_path / "x.png"))


def test_plot_of_patterns(train, tmp_path):
    drawn = []
    file = tmp_path / "curves.png"
    plotter = LogPlotter(["*.total_loss", "late.*"], file)
    plotter._write = lambda png: drawn.append(png)
    with pytest.raises(UnknownPathError, match=r"unknown log 'late\.\*'"):
        train(plotter)
    assert len(drawn) == 1  # before the training nothing has to be there


def test_a_full_disk_does_not_end_the_training(train, tmp_path, caplog):
    plotter = LogPlotter("rolling_training.total_loss", tmp_path / "x.png")
    write, calls = plotter._write, []

    def fail_once(png):
        calls.append(png)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        write(png)

    plotter._write = fail_once
    train(plotter, epochs=3)
    assert len(calls) == 4
    assert "No space left" in caplog.text
    assert (tmp_path / "x.png").read_bytes() == calls[-1]


class Notebook(types.ModuleType):
    """Stands in for IPython, in a notebook, and for its module `display`."""

    version_info = (8, 24)  # matplotlib looks at it

    class Shell:
        kernel = object()

    def __init__(self):
        super().__init__("IPython")
        self.pictures = []

    def get_ipython(self):
        return self.Shell()

    def Image(self, data):
        return data

    def display(self, picture, display_id):
        assert display_id is True
        self.pictures.append([picture])
        return self

    def update(self, picture):
        self.pictures[-1].append(picture)


@pytest.mark.parametrize("filename", [None, "x.png"])
def test_a_picture_in_a_notebook_changes(train, tmp_path, monkeypatch, filename):
    monkeypatch.chdir(tmp_path)
    notebook = Notebook()
    for name in ("IPython", "IPython.display"):
        monkeypatch.setitem(sys.modules, name, notebook)
    plotter = LogPlotter("rolling_training.total_loss", filename)
    train(plotter, epochs=3)
    ((*pictures,),) = notebook.pictures
    assert len(pictures) == 4
    assert all(picture.startswith(PNG) for picture in pictures)
    files = [file.name for file in tmp_path.iterdir()]
    assert files == ([] if filename is None else [filename])


def test_ipython_without_a_notebook_is_a_script(train, tmp_path, monkeypatch):
    notebook = Notebook()
    notebook.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    train(LogPlotter("rolling_training.total_loss", tmp_path / "x.png"), epochs=1)
    assert (tmp_path / "x.png").exists()
    assert notebook.pictures == []


def test_missing_library_is_named_before_training(train, tmp_path, monkeypatch):
    def refuse(module, extra):
        raise MissingDependencyError(f"pip install 'brainstorm[{extra}]'")

    monkeypatch.setattr(optional, "require", refuse)
    with pytest.raises(MissingDependencyError, match=r"brainstorm\[plot\]"):
        train(LogPlotter("a", tmp_path / "x.png"))
    assert list(tmp_path.iterdir()) == []
