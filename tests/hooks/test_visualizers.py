"""Progress bars with and without a terminal, and plots."""

from __future__ import annotations

import io
import re
import sys
import time
import types
from contextlib import nullcontext, redirect_stdout

import numpy as np
import pytest

from brainstorm import utils
from brainstorm.data_iterators import Undivided
from brainstorm.errors import UnknownPathError
from brainstorm.hooks import BokehVisualizer, LogPlotter, MonitorLoss, ProgressBar, base
from brainstorm.training import GradientAccumulation, SgdStepper
from tests.trainings import Call, fail_after, make_trainer


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Slotted:
    __slots__ = ("texts",)
    __hash__ = None

    def write(self, text):
        return len(text)


class Gone(Terminal):
    def write(self, text):
        raise OSError(5, "Input/output error")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    ("stream", "cause"),
    [
        (None, None),
        (closed(), "I/O operation on closed file"),
        (Gone(), "[Errno 5] Input/output error"),
        (io.TextIOWrapper(io.BytesIO(), "ascii"), None),
        (Slotted(), None),
    ],
    ids=["none", "closed", "terminal is gone", "ascii", "it only writes"],
)
def test_an_output_that_takes_no_text_does_not_end_a_training(train, caplog, stream, cause):
    utils._warnings_given.pop(base.OUTPUT, None)
    with redirect_stdout(stream):
        trainer = train(ProgressBar(), MonitorLoss("valid", name="gefühlt"), verbose=True)
    assert len(trainer.logs["gefühlt"]["total_loss"]) > 1
    found = [text for text in caplog.messages if "standard output" in text]
    assert len(found) == (cause is not None)
    assert all(
        text.startswith(f"the standard output takes no more text ({cause}") for text in found
    )


def final_bars(stream):
    """Return the last state of every bar that was drawn."""
    return [line.rpartition("\r")[2] for line in stream.getvalue().split("\n") if line.strip()]


def test_the_time_of_an_epoch_is_that_of_all_its_batches(train, capsys):
    def slow(*args):
        time.sleep(0.1)

    train(Call(slow, timescale="update"), ProgressBar(), epochs=2)
    times = [float(line.split()[-2]) for line in capsys.readouterr().out.splitlines()]
    assert all(seconds >= 0.4 for seconds in times)


def test_a_bar_per_epoch_on_a_terminal_complete_before_logs_are_printed(train):
    with redirect_stdout(Terminal()) as terminal:
        train(ProgressBar(), epochs=3, verbose=True)
    text = terminal.getvalue()
    bars = [bar for bar in final_bars(terminal) if " batches" in bar]
    assert [(bar[:13], " 4/4 " in bar) for bar in bars] == [
        (f"Epoch {number}: 100%", True) for number in (1, 2, 3)
    ]
    assert text.index("4/4") < text.index("rolling_training")


@pytest.mark.parametrize("epochs", [0, 1])
def test_epochs_of_one_batch_also_after_others(train, net, batches, epochs, monkeypatch):
    trainer = train(ProgressBar(), epochs=epochs)
    trainer.hooks["end"].max_epochs = 2
    monkeypatch.setattr(type(batches), "length", None)
    x = np.zeros((1, 4, 3))
    with redirect_stdout(Terminal()) as terminal:
        trainer.train(net, Undivided(default=x, targets=x[:, :, :1]), valid=batches)
    bars = [bar.partition("%")[0] for bar in final_bars(terminal)]
    assert bars == [f"Epoch {number}: 100" for number in range(epochs + 1, 3)]


@pytest.mark.parametrize("length", [None, 2, 9])
def test_iterators_that_do_not_know_their_length(train, batches, capsys, length, monkeypatch):
    monkeypatch.setattr(type(batches), "length", length)
    train(ProgressBar(), epochs=2)
    counts = [int(n) for n in re.findall(r"(\d+) batches", capsys.readouterr().out)]
    assert sum(counts) == 8


@pytest.mark.parametrize("error", [StopIteration(), RuntimeError("broken")])
def test_an_interrupted_epoch_closes_its_bar(train, capsys, error):
    def interrupt(epoch_nr, update_nr, net):
        if update_nr == 6:
            raise error

    is_raised = isinstance(error, RuntimeError)
    with pytest.raises(RuntimeError, match="broken") if is_raised else nullcontext():
        train(ProgressBar(), Call(interrupt))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Epoch 1: 4 batches")
    assert lines[1].startswith(f"Epoch 2: {1 if is_raised else 2} batches")
    assert len(lines) == 2


def test_epochs_that_end_within_an_update_are_shown_as_a_whole(train, capsys):
    stepper = SgdStepper(0.1)
    stepper.accumulation = GradientAccumulation(3)
    train(ProgressBar(), epochs=3, stepper=stepper)
    counts = re.findall(r"(\d+) batches", capsys.readouterr().out)
    assert counts == ["4", "4", "4"]


def test_the_bar_of_an_epoch_that_goes_on_begins_where_it_is(net, batches):
    trainer = make_trainer(ProgressBar(), fail_after(6), epochs=2)
    with pytest.raises(RuntimeError):
        trainer.train(net, batches)
    with redirect_stdout(Terminal()) as terminal:
        trainer.train(net, batches)
    (bar,) = final_bars(terminal)
    assert bar.startswith("Epoch 2: 100%")
    assert " 4/4 " in bar


# -- plots ---------------------------------------------------------------------------------------

PNG = b"\x89PNG\r\n"


def test_plot_of_one_log_into_a_file_named_like_the_hook(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(BokehVisualizer("rolling_training.total_loss", name="curves"), epochs=1)
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_plot_of_patterns(train, tmp_path):
    drawn = []
    file = tmp_path / "curves.png"
    plotter = LogPlotter(["*.total_loss", "late.*"], file)
    plotter._write = lambda png: drawn.append(png)
    with pytest.raises(UnknownPathError, match=r"unknown log 'late\.\*'"):
        train(plotter)
    assert len(drawn) == 1  # before the training nothing has to be there


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
