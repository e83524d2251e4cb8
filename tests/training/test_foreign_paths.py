"""Run files that somebody else has made: neither what they name nor what they count is believed."""

from __future__ import annotations

import json
import os
import re
from functools import reduce
from operator import getitem
from pathlib import Path

import h5py
import numpy as np
import pytest

from brainstorm.data_iterators import Minibatches, save_data
from brainstorm.errors import DescriptionError, TrainingError
from brainstorm.ext.tensorboard import TensorBoardWriter
from brainstorm.hooks import (
    AverageWeights,
    LogPlotter,
    ReturnToCheckpoint,
    SaveBestNetwork,
    SaveCheckpoint,
    SaveLogs,
    SaveNetwork,
    StopAfterEpoch,
    WithAverages,
)
from brainstorm.hooks.savers import FileSaver
from brainstorm.tools import create_net_from_spec
from brainstorm.training import AdamStepper, GradientAccumulation, Trainer
from tests.trainings import given, make_trainer, refused


def data():
    return Minibatches(5, default=np.ones((1, 10, 3)), targets=np.zeros((1, 10, 1)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a run file, and the present one; beside it there is something else."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter").write_text("dear aunt")
    monkeypatch.chdir(tmp_path / "runs")
    return tmp_path / "runs"


def run(*hooks, **parts):
    save, stepper = SaveCheckpoint("run.hdf5", keep=2), given(AdamStepper(), **parts)
    trainer = make_trainer(save, *hooks, stepper=stepper, epochs=1)
    trainer.train(create_net_from_spec("classification", 3, 2, "F2"), data())


def change(part, function):
    """Change the trainer or the state in the run file."""
    with h5py.File("run.hdf5", "r+") as file:
        content = json.loads(file[part][()])
        function(content)
        del file[part]
        file[part] = json.dumps(content).encode()


def change_hook(name, **options):
    change("trainer", lambda trainer: trainer["hooks"][name].update(options))


def change_kept(kept):
    change("state", lambda s: s["trainer"]["hooks"]["SaveCheckpoint"].update(kept=kept))


def go_on(file="run.hdf5", **paths):
    trainer = Trainer.resume(file)
    for name, path in paths.items():
        trainer.hooks[name].filename = path
    trainer.hooks["StopAfterEpoch"].max_epochs = 2
    trainer.train(trainer.net, data())


def test_what_a_file_says_to_be_kept_is_no_path(folder):
    run()
    for kept in (["../mine/letter"] * 3, [[1]], [-1], [True], [1.5], [10**50]):
        change_kept(kept)
        with refused(f"kept: expected an integer >= 0, got {kept[0]!r}"):
            Trainer.resume("run.hdf5")
    for kept in (None, "12", {"a": 1}):
        change_kept(kept)
        with refused(f"kept: expected a list of numbers of updates, got {kept!r}"):
            Trainer.resume("run.hdf5")
    assert os.listdir("../mine") == ["letter"]


@pytest.mark.parametrize("name", ["kept", "_kept"])
def test_a_description_does_not_say_what_is_kept(folder, name):
    run()
    change_hook("SaveCheckpoint", **{name: ["../mine/letter"]})
    with refused(f"SaveCheckpoint.{name}]: no description can", DescriptionError):
        Trainer.resume("run.hdf5")


@pytest.mark.parametrize("hook", ["SaveCheckpoint", "SaveNetwork", "SaveLogs"])
def test_a_stored_path_that_leads_elsewhere_is_refused(folder, hook):
    os.symlink("../mine", "link")
    os.mkdir("below")
    os.symlink("../mine/letter", "letter.hdf5")
    run(SaveNetwork("net.hdf5"), SaveLogs("logs.hdf5"))
    before = sorted(os.listdir())
    for path in (
        "../mine/letter", f"{folder.parent}/mine/letter", "link/letter", "below/net.hdf5",
        "./../runs/../mine/letter", "../mine/", "/", "..", ".", "", ".bashrc", "a\nb", "a\0b",
        "letter.hdf5",
    ):  # fmt: skip
        change_hook(hook, filename=path)
        with refused(
            f"hook {hook!r} ({hook}), filename: expected a file in the folder of the run file, or "
            f"one that this script names (trainer.hooks[{hook!r}].filename = ...), got {path!r}."
        ):
            go_on()
    assert (folder.parent / "mine/letter").read_text() == "dear aunt"
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "hook",
    [
        SaveNetwork("net.hdf5"),
        SaveLogs("logs.hdf5"),
        SaveBestNetwork("rolling_training.total_loss", "best.hdf5"),
        LogPlotter("*", "plot.png"),
        SaveCheckpoint("run.hdf5"),
    ],
    ids=lambda hook: hook.__name__,
)
def test_what_a_hook_has_not_written_is_not_overwritten(folder, hook):
    is_saver = not isinstance(hook, SaveCheckpoint)
    run(hook if is_saver else SaveNetwork("net.hdf5"))
    kind, new = hook.__name__, ".png" if isinstance(hook, LogPlotter) else ".hdf5 or .h5"
    save_data("data.hdf5", {"x": np.ones((1, 2, 3))})
    for name in ("train.py", "data.png", ".hdf5"):
        Path(name).write_text("mine")
    others = ("run.hdf5", "run-2.hdf5") if is_saver else ("net.hdf5",)
    for name in ("train.py", "data.hdf5", "data.png", *others, "Makefile"):
        change_hook(kind, filename=name)
        before = {name: Path(name).read_bytes() for name in os.listdir()}
        with refused(
            f"hook {kind!r} ({kind}), filename: expected a file of a {kind}, or a new {new} "
            f"file, or one that this script names (trainer.hooks[{kind!r}].filename = ...), got "
            f"{name!r}."
        ):
            go_on()
        assert {name: Path(name).read_bytes() for name in os.listdir()} == before
    go_on(**{kind: "train.py"})
    assert Path("train.py").read_bytes()[1:4] in (b"HDF", b"PNG")


@pytest.mark.parametrize("names", [{}, {"SaveCheckpoint": "run.hdf5"}])
def test_no_copy_takes_the_place_of_what_is_none(folder, names):
    run()
    Path("run-5.hdf5").write_text("mine")
    change_kept([5, 2])
    text = "expected run files where its copies go, not 'run-5.hdf5' (move that), got 'run.hdf5'"
    for attempt in (lambda: go_on(**names), run):  # whoever names the file
        with refused(text):
            attempt()
        assert Path("run-5.hdf5").read_text() == "mine"


def test_a_hook_of_ones_own_says_what_is_its_own(folder):
    class Notes(FileSaver):
        endings = (".txt",)

        def owns(self, path):
            return Path(path).read_text().startswith("epochs: ")

        def __call__(self, epoch_nr, *args):
            Path(self.filename).write_text(f"epochs: {epoch_nr}")

    run(Notes("notes.txt"))
    go_on()
    assert Path("notes.txt").read_text() == "epochs: 2"
    Path("notes.txt").write_text("mine")
    with refused("expected a file of a Notes, or a new .txt fi"):
        go_on()


def test_a_script_may_name_any_place_even_the_stored_one(folder):
    path = str(folder.parent / "mine/letter")
    run(SaveNetwork(path))
    os.remove(path)
    with refused("one that this script names"):
        go_on()
    go_on(SaveNetwork=path)
    assert os.listdir("../mine") == ["letter"]
    for bad in (5, None, ["net.hdf5"]):
        text = rf"filename: expected a.* path.*, got {re.escape(str(bad))}"
        with pytest.raises(TrainingError, match=text):
            go_on(SaveNetwork=bad)


def test_whoever_goes_on_from_elsewhere_names_the_same_folder(folder, monkeypatch):
    run(SaveLogs(folder / "logs.hdf5"))
    change_hook("SaveLogs", filename=str(folder / "logs.hdf5"))
    monkeypatch.chdir(folder.parent)
    os.symlink("runs", "linked")
    go_on("linked/run.hdf5")
    assert sorted(os.listdir("runs")) == ["logs.hdf5", "run-2.hdf5", "run-4.hdf5", "run.hdf5"]
    assert sorted(os.listdir()) == ["linked", "mine", "runs"]


def test_a_run_file_that_is_a_link_stays_one_and_its_copies_lie_beside_it(folder):
    os.symlink("../mine/run7", "run.hdf5")
    run()
    go_on()
    assert Trainer.resume("../mine/run7").current_epoch_nr == 2
    assert sorted(os.listdir("../mine")) == ["letter", "run7"]
    assert sorted(os.listdir()) == ["run-2.hdf5", "run-4.hdf5", "run.hdf5"]
    assert os.readlink("run.hdf5") == "../mine/run7"


@pytest.mark.parametrize(
    ("hook", "attribute"),
    [
        (lambda: WithAverages(SaveNetwork("../mine/net")), "filename"),
        (lambda: LogPlotter("*", "../mine/plot.png"), "filename"),
        (lambda: TensorBoardWriter("../mine/events"), "folder"),
    ],
)
def test_every_hook_that_writes_is_asked_where(folder, hook, attribute):
    run(AverageWeights(), hook())
    with refused(f"{attribute}: expected a file in the folder of the"):
        go_on()


def test_the_script_names_the_file_of_a_wrapped_hook(folder):
    run(AverageWeights(), WithAverages(SaveNetwork("../mine/net")))
    os.remove("../mine/net")
    go_on(SaveNetwork="../mine/net")
    assert os.path.exists("../mine/net")


def test_the_default_of_a_hook_is_a_stored_path_too(folder):
    run(LogPlotter("*", name="plot"))
    os.rename("run.hdf5", "../mine/run.hdf5")
    os.remove("plot.png")
    go_on("../mine/run.hdf5", SaveCheckpoint="again.hdf5")
    assert os.path.exists("../mine/plot.png")
    assert not os.path.exists("plot.png")


def test_no_path_is_made_of_the_name_of_a_stored_hook(folder):
    run(LogPlotter("*", "plot.png"))
    path, options = f"{folder.parent}/mine/letter", {"filename": None}
    for options["name"] in (path, "mine"):
        change("trainer", lambda trainer: trainer["hooks"]["LogPlotter"].update(options))
        go_on()
    assert os.listdir("../mine") == ["letter"]
    assert not os.path.exists("mine.png")


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "where"),
    [
        ("stepper/steps", "AdamStepper.set_state, steps"),
        ("stepper/accumulation/given", "GradientAccumulation.set_state, given"),
        ("hooks/AverageWeights/count", "hook 'AverageWeights' (AverageWeights), count"),
        ("hooks/back/returns", "hook 'back' (ReturnToCheckpoint), returns"),
        ("current_update_nr", "Trainer.set_state, current_update_nr"),
    ],
)
def test_what_is_no_count_is_refused_with_its_name(folder, place, where):
    run(AverageWeights(), ReturnToCheckpoint(name="back"), accumulation=GradientAccumulation(2))
    *outer, name = place.split("/")
    for bad in (None, -1, 1.5, "3", [3], True, 2**63):
        change("state", lambda s, bad=bad: reduce(getitem, outer, s["trainer"]).update({name: bad}))
        text = f"{where}: expected an integer >= 0, got {bad!r}. Is the file damaged?"
        with refused(text, is_whole=True):
            Trainer.resume("run.hdf5")


# -- two runs -------------------------------------------------------------------------------------


def test_of_two_runs_with_one_path_the_second_is_told_who_has_it(folder):
    class Second(StopAfterEpoch):
        def start(self, *args):
            with refused(
                "hook 'SaveCheckpoint' (SaveCheckpoint), filename: expected a file that no other "
                "training writes (end that of another hook or training of this process, or name "
                "another file), got 'run.hdf5'."
            ):
                run()

    run(Second(9, name="second"))
    run()  # the first has ended
    assert sorted(os.listdir()) == ["run-2.hdf5", "run.hdf5"]


def test_a_forked_copy_of_a_training_does_not_write_its_files(folder):
    class Fork(StopAfterEpoch):
        def __call__(self, epoch_nr, *args):
            if epoch_nr == 1:
                self.max_epochs = 2 if os.fork() else 10**6
            return super().__call__(epoch_nr, *args)

    parent = os.getpid()
    try:
        run(SaveNetwork("net.hdf5"), SaveLogs("logs.hdf5"), Fork(2, name="fork"))
    except BaseException as error:
        if os.getpid() != parent:  # what the child says; nothing of it may go on here
            Path("../child").write_text(f"{type(error).__name__}: {error}")
            os._exit(0)
        raise
    finally:
        if os.getpid() != parent:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    text = (
        rf"TrainingError: hook '\w+' \(\w+\), filename: expected to be used by process {parent}, "
        r"which holds the file, got process \d+, which was forked from it. Begin trainings after "
        r"the fork, each with files of its own."
    )
    assert re.match(text, (folder.parent / "child").read_text())
    assert Trainer.resume("run.hdf5").current_epoch_nr == 1
    assert sorted(os.listdir()) == ["logs.hdf5", "net.hdf5", "run-2.hdf5", "run.hdf5"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fifo", "fifo': expected a file, got a FIFO"),
        ("x" * 300, "filename: expected a file that can be wr.*File name too long"),
        ("a\0b", "filename: expected a file that can be wr.*null"),
    ],
    ids=["fifo", "long", "null"],
)
def test_names_that_no_file_can_have_are_refused_before_the_first_update(folder, name, text):
    os.mkfifo("fifo")
    with pytest.raises(OSError if name == "fifo" else TrainingError, match=text):
        run(SaveNetwork(name))
    assert os.listdir() == ["fifo"]


def test_a_run_goes_on_where_its_folder_was_moved(folder):
    run(SaveNetwork(str(folder / "net.hdf5")), SaveLogs("logs.hdf5"))
    with h5py.File("run.hdf5") as file:
        hooks = json.loads(file["trainer"][()])["hooks"]
    names = {name: hooks[name]["filename"] for name in ("SaveCheckpoint", "SaveNetwork")}
    assert names == {"SaveCheckpoint": "run.hdf5", "SaveNetwork": "net.hdf5"}
    moved = folder.rename(folder.parent / "moved")
    before = (moved / "net.hdf5").read_bytes()
    os.chdir("/")
    go_on(moved / "run.hdf5")
    assert (moved / "net.hdf5").read_bytes() != before
    assert not folder.exists()


def test_a_training_writes_where_it_began(folder):
    class Move(StopAfterEpoch):
        def __call__(self, *args):
            os.chdir(folder.parent / "mine")

    (folder.parent / "mine/run.hdf5").write_text("another run")
    plotter = LogPlotter("rolling_training.total_loss", "loss.png")
    run(Move(5), SaveNetwork("net.hdf5"), SaveLogs("logs.hdf5"), plotter)
    assert (folder / "loss.png").exists()
    assert (folder.parent / "mine/run.hdf5").read_text() == "another run"
    assert sorted(os.listdir(folder.parent / "mine")) == ["letter", "run.hdf5"]
