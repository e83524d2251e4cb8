"""Runs that are interrupted and resumed equal those that are not, bit for bit."""

from __future__ import annotations

import functools
import json
import operator
import re
import subprocess
import sys
import zlib
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

import brainstorm as bs
from brainstorm.errors import (
    FileFormatError,
    IteratorValidationError,
    TrainingError,
    UnknownTypeError,
    ValidationError,
)
from brainstorm.files import read_run_file
from brainstorm.hooks import (
    AverageWeights,
    ModifyStepperAttribute,
    SaveBestNetwork,
    SaveCheckpoint,
    WithAverages,
)
from brainstorm.training import (
    GradientAccumulation,
    Linear,
    LossScaling,
    ParameterGroup,
    Trainer,
)
from tests.runs import (
    HANDLERS,
    HIDDEN,
    ITERATORS,
    make_network,
    make_trainer,
    make_validation,
    outcome,
    resumed_run,
    train,
    whole_run,
)
from tests.trainings import LEARNING, STEPPERS, Call, refused


@pytest.fixture(autouse=True)
def _own_global_state():
    kept = bs.global_rnd.__getstate__()
    yield
    bs.global_rnd.__setstate__(kept)


# -- the property --------------------------------------------------------------------------------

FLAT = [name for name in HIDDEN if name != "conv"]
CASES = [
    *zip(cycle(FLAT), [n for n in ITERATORS if n != "images"], cycle(HANDLERS)),
    ("conv", "images", "float32"),
    ("conv", "images", "native"),
    *(("lstm", "chunks", handler) for handler in HANDLERS if handler != "native"),
    *((hidden, "chunks", "native") for hidden in FLAT),
]


@pytest.mark.parametrize("names", CASES, ids="-".join)
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, names):
    expected = outcome(*whole_run(*names))
    updates = int(expected["updates"])
    rnd = np.random.RandomState(zlib.crc32(repr(names).encode()))
    first = rnd.randint(max(1, updates // 4), updates)  # files take as long as the training
    save = SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", interval=first, keep=1000)
    assert outcome(*whole_run(*names, hooks=[save])) == expected  # saving changes nothing
    for update in {first, (updates - 1) // first * first}:
        assert outcome(*resumed_run(tmp_path / f"run-{update}.hdf5", names[1])) == expected


def with_averages():
    best = SaveBestNetwork("rolling_training.total_loss", criterion="min", name="averaged")
    return [AverageWeights(0.9), WithAverages(best)]


#: What a stepper can be given, and functions that make hooks beside it.
PARTS = {
    "averages": lambda: ({}, with_averages()),
    "groups and a schedule": lambda: (
        {"groups": [ParameterGroup("*.bias", frozen=True), ParameterGroup("*", 0.5)]},
        [ModifyStepperAttribute(Linear(0.05, 0.01, 9), timescale="update", name="rate")],
    ),
    "scaling": lambda: ({"loss_scaling": LossScaling(16, 3), "max_gradient_norm": 0.1}, []),
    "accumulation": lambda: ({"accumulation": GradientAccumulation(3)}, []),
}
COMBINED = [(stepper, tuple(PARTS) if stepper in LEARNING else ()) for stepper in STEPPERS]
COMBINED += [("MomentumStepper", (part,)) for part in PARTS]


@pytest.mark.parametrize(("name", "parts"), COMBINED)
def test_so_does_one_of_every_stepper_with_its_parts(tmp_path, name, parts):
    names, hooks = ("dense", "minibatches", "float32"), []
    stepper = STEPPERS[name]()
    if name == "ForwardStepper":
        stepper.use_training_pass = True  # which writes the mask that is watched
    for part in parts:
        attributes, more = PARTS[part]()
        hooks += more
        for attribute, value in attributes.items():
            setattr(stepper, attribute, value)
    interval = 3 if "accumulation" in parts else 7  # in the middle of an epoch
    save = SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", interval=interval)
    epochs = SaveCheckpoint(tmp_path / "epoch.hdf5", keep=9, name="epochs")
    whole = whole_run(*names, stepper, [save, epochs, *hooks])
    expected = outcome(*whole)
    for file in (tmp_path / "run.hdf5", *epochs.kept[:2]):
        again = resumed_run(file, names[1])
        assert outcome(*again) == expected
        if "averages" in parts:
            for trainer, _ in (whole, again):
                assert trainer.hooks["averaged"].hook.trainer is trainer
            found = [trainer.hooks["AverageWeights"].average for trainer, _ in (whole, again)]
            assert np.array_equal(*found)
    if "accumulation" in parts:  # of the four batches of each epoch
        states = [read_run_file(file).state["trainer"]["stepper"] for file in epochs.kept]
        assert [state["accumulation"]["given"] for state in states[:2]] == [1, 2]
    if parts == ("scaling",):
        assert stepper.loss_scaling.scale == 16 * 2**4


@pytest.mark.parametrize("iterator", ["cut", "replayed", "prefetched replay"])
def test_a_run_can_be_resumed_in_turn_and_that_again(tmp_path, iterator):
    names = "dense", iterator, "float64"
    expected = outcome(*whole_run(*names))
    save = SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", keep=1000)
    trainer, _ = whole_run(*names, hooks=[save])
    for update in range(1, trainer.current_update_nr, 2):
        # the files behind this one were written anew, by the run that was resumed before
        again = resumed_run(tmp_path / f"run-{update}.hdf5", names[1], saves=True)
        assert outcome(*again) == expected


def test_in_a_fresh_process_that_a_signal_has_ended(tmp_path):
    names = "lstm", "noisy chunks", "float32"
    file = tmp_path / "run.hdf5"
    code = f"""if True:
        import os, signal, sys
        from brainstorm.hooks import Hook, SaveCheckpoint
        from tests.runs import outcome, resumed_run, whole_run

        class Kill(Hook):
            def __call__(self, epoch_nr, update_nr, *rest):
                if update_nr in (4, 9):
                    os.kill(os.getpid(), signal.SIGTERM)

        if sys.argv[1] == "whole":
            trainer, net = whole_run(*{names!r})
        elif sys.argv[1] == "first":
            hooks = [Kill(timescale="update"), SaveCheckpoint({str(file)!r}, interval=100)]
            trainer, net = whole_run(*{names!r}, hooks=hooks)
        else:
            trainer, net = resumed_run({str(file)!r}, {names[1]!r})
        print(trainer.current_update_nr, trainer.logs.get("interrupted"))
        print({{name: hash(value) for name, value in outcome(trainer, net).items()}})
    """
    printed = [
        subprocess.run(
            [sys.executable, "-c", code, which],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for which in ("first", "second", "third", "whole")
    ]
    assert printed[2][1] == printed[3][1]
    assert [lines[0] for lines in printed[:3]] == [
        "4 ['received SIGTERM']", "9 ['received SIGTERM']", "27 None",
    ]  # fmt: skip


def test_a_run_that_had_ended_ends_again_and_can_be_prolonged(tmp_path):
    """Stoppers are asked again, as whenever a training is continued."""
    file, names = tmp_path / "run.hdf5", ("dense", "minibatches", "float32")
    trainer, net = whole_run(*names, hooks=[SaveCheckpoint(file)])
    again, again_net = resumed_run(file, names[1])
    assert again.logs.pop("end") == [*trainer.logs.pop("end"), "reached max_epochs=3"]
    assert outcome(again, again_net) == outcome(trainer, net)
    longer = Trainer.resume(file)
    longer.hooks["end"].max_epochs = 4
    train(longer, longer.net, ITERATORS[names[1]]())
    assert longer.current_epoch_nr == 4


def test_input_deltas_are_still_kept_and_a_handler_can_be_given(tmp_path):
    net, trainer = make_network("lstm", "float64"), make_trainer(epochs=1)
    net.keep_input_deltas = True
    trainer.add_hook(SaveCheckpoint(tmp_path / "run.hdf5"))
    train(trainer, net, ITERATORS["chunks"]())
    handler = HANDLERS["debug"]()
    again = Trainer.resume(tmp_path / "run.hdf5", handler)
    assert again.net.keep_input_deltas
    assert again.net.handler is handler
    best, same = (t.hooks["SaveBestNetwork"].load_best_network() for t in (trainer, again))
    np.testing.assert_array_equal(best.get("parameters"), same.get("parameters"))


def test_resuming_leaves_global_numbers_alone_until_training(tmp_path):
    whole_run("dense", "minibatches", "float32", hooks=[SaveCheckpoint(tmp_path / "run.hdf5")])
    bs.global_rnd.set_seed(8)
    expected = bs.global_rnd.random_sample()
    bs.global_rnd.set_seed(8)
    Trainer.resume(tmp_path / "run.hdf5")
    assert bs.global_rnd.random_sample() == expected


# -- errors ---------------------------------------------------------------------------------------


def train_on(trainer):
    train(trainer, trainer.net, ITERATORS["minibatches"]())


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    """The file of a run in the middle of its second epoch."""
    file = tmp_path_factory.mktemp("run") / "run.hdf5"
    net, trainer = make_network(), make_trainer(epochs=2)
    trainer.add_hook(SaveCheckpoint(file, timescale="update", interval=6))
    train(trainer, net, ITERATORS["minibatches"]())
    return file


def test_what_was_refused_can_be_tried_again(run_file):
    expected, again = Trainer.resume(run_file), Trainer.resume(run_file)
    train_on(expected)
    good, other = ITERATORS["minibatches"], ITERATORS["chunks"]
    for name in ("training_data_iter", "valid"):
        iters = {"training_data_iter": good(), "valid": make_validation(), name: other()}
        text = f"Trainer.train, data iterator {name!r}: SequenceChunks: expected a "
        with refused(text, IteratorValidationError):
            again.train(again.net, **iters)
    for missing in ({}, {"valid": lambda handler=None: iter(())}):
        with refused(
            "Trainer.train: expected the data iterators training_data_iter, valid as in the run "
            "that is continued, got no valid.",
            is_whole=True,
        ):
            again.train(again.net, good(), **missing)
    again.hooks["SaveCheckpoint"].filename = str(run_file / "nowhere" / "run.hdf5")
    with refused("filename: expected a file in a folder that exists"):
        train_on(again)
    again.hooks["SaveCheckpoint"].filename = str(run_file)
    again.stepper.reducer = SimpleNamespace(start=lambda stepper: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train_on(again)
    again.stepper.reducer = None
    train_on(again)
    assert outcome(again, again.net) == outcome(expected, expected.net)


def test_another_network(run_file):
    with refused("expected the network that was read with the run (trainer.net), got"):
        train(Trainer.resume(run_file), make_network(), ITERATORS["minibatches"]())


def test_saving_by_hand(tmp_path):
    def save(epoch_nr, update_nr, net):
        if update_nr == 2:
            hook.trainer.save_run(file)

    names, file = ("lstm", "noisy chunks", "float32"), str(tmp_path / "run.hdf5")
    hook = Call(save, role="reader")
    expected = outcome(*whole_run(*names, hooks=[hook]))
    assert outcome(*resumed_run(file, names[1])) == expected
    with refused("save_run: expected to be called by a hook while"):
        make_trainer().save_run("run.hdf5")


def change_state(name, value=None):
    def change(file):
        state = json.loads(file["state"][()])
        *path, last = name.split("/")
        place = functools.reduce(operator.getitem, path, state)
        place.pop(last, None)
        if value is not None:
            place[last] = value
        replace("state", json.dumps(state).encode())(file)

    return change


def replace(name, value):
    def change(file):
        del file[name]
        file[name] = value

    return change


NO_RUN = "holds no run that can be continued: "
SGD = b'{"@type": "SgdStepper", "learning_rate": 0.1}'


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (replace("parameters", np.zeros(3)), FileFormatError, "parameters: expected shape (50,)"),
        (replace("trainer", SGD), FileFormatError, "'{file}': expected a Trainer, got a SgdSt"),
        (
            replace("trainer", b'{"@type": "Nothing"}'),
            UnknownTypeError,
            "unknown class in '@type' 'Nothing'",
        ),
        (replace("trainer", b"[1]"), FileFormatError, "(trainer: expected a dict)"),
        (change_state("global_rnd/seed"), FileFormatError, f"{NO_RUN}KeyError('seed')"),
        (
            change_state("generators/network/state/state/pos", 1 << 20),
            ValidationError,
            "RandomState: expected a position from 0 to 624, got 1048576",
        ),
        (
            change_state("generators/handler.stream/buffer_pos", -5),
            ValidationError,
            "NumpyStream: expected a position from 0 to 4, got -5",
        ),
        (change_state("trainer"), FileFormatError, f"{NO_RUN}KeyError"),
        (change_state("data"), FileFormatError, f"{NO_RUN}KeyError"),
        (
            change_state("generators/network"),
            FileFormatError,
            "expected the generators network, handler, handler.stream, ",
        ),
        (
            change_state("generators/layers.Dropout.stream", {}),
            FileFormatError,
            f"{NO_RUN}KeyError('state')",
        ),
        (
            change_state("generators/network", {"@array": "nothing"}),
            FileFormatError,
            "cannot be read as a run file: it is truncated",
        ),
        (
            change_state("trainer/stepper/velocity", 3.0),
            TrainingError,
            "MomentumStepper.start, state 'velocity': expected shape (50,) like the parameters, "
            "got (). Is it the state of another network?",
        ),
        (change_state("data/epoch/given", "x"), FileFormatError, f"the run file {NO_RUN}"),
    ],
)
def test_damaged_files(run_file, tmp_path, change, error, text):
    file = tmp_path / "run.hdf5"
    file.write_bytes(run_file.read_bytes())
    with h5py.File(file, "r+") as opened:
        change(opened)
    with pytest.raises(error, match=re.escape(text.replace("{file}", str(file)))):
        train_on(Trainer.resume(file))


def test_a_subclass_resumes_its_own_runs(run_file):
    class Other(Trainer):
        pass

    with pytest.raises(FileFormatError, match="expected a Other, got a Trainer"):
        Other.resume(run_file)
