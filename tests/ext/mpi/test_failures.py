"""A rank that dies, hangs, fails or diverges ends the job, and the others say which it was."""

import pytest

from brainstorm.files import read_run_file
from tests.ext.mpi.ranks import needs_mpi, run_job

pytestmark = needs_mpi

CONTINUE = (
    "Continue from the last checkpoint (Trainer.resume), with the same or another number of ranks."
)


def saved_updates(file):
    return read_run_file(file).state["trainer"]["current_update_nr"]


@pytest.mark.parametrize(
    ("how", "lost", "text"),
    [
        ("dies", 1, "rank 1 has died"),
        ("dies", 0, "rank 0 has died"),
        ("hangs", 1, "rank 1 did not come within 1 s"),
        ("stops", 2, "rank 2 did not come within 1 s"),
        ("fails", 1, "rank 1 has failed: ZeroDivisionError: in a hook"),
    ],
)
def test_every_other_rank_names_the_lost_one(tmp_path, how, lost, text):
    file = tmp_path / "run.hdf5"
    job = run_job(3, "lose", str(file), how, lost, 1.0, survives=how == "dies")
    assert job.status != 0
    for rank, error in enumerate(job.errors):
        if rank != lost:
            assert error == f"TrainingError: rank {rank} of 3 ends: {text}. {CONTINUE}"
    own = "ZeroDivisionError: in a hook" if how == "fails" else None
    assert job.errors[lost] == own
    assert saved_updates(file) == 3
    if (how, lost) == ("dies", 1):
        first, second = run_job(2, "go_on", str(file)).values
        assert first == second
        assert first["updates"] == 15
        assert first["logs"]["StopAfterEpoch"] == ["reached max_epochs=5"]


def test_a_launcher_may_end_all_ranks_at_once(tmp_path):
    job = run_job(3, "lose", str(tmp_path / "run.hdf5"), "dies", 1, 1.0)
    assert job.status != 0
    assert saved_updates(tmp_path / "run.hdf5") == 3


def test_ranks_that_diverge_are_named(tmp_path):
    job = run_job(3, "lose", str(tmp_path / "run.hdf5"), "diverges", 1, 1.0)
    assert job.status != 0
    assert job.errors == 3 * [
        "TrainingError: update 6: expected the same on all ranks, but parameters on rank 1 differ "
        "from the others. Whatever changes the network or the stepper, a hook say, must do the "
        "same on all ranks; random numbers must not decide what it does."
    ]


def test_ranks_with_other_networks_are_named():
    job = run_job(2, "other_networks")
    assert job.status != 0
    assert job.errors == 2 * [
        "TrainingError: Reducer.start: expected the same network and stepper on all ranks, got on "
        "rank 0 {'parameters': 12, 'velocity': 12}, on rank 1 {'parameters': 15, 'velocity': 15}."
    ]


@pytest.mark.parametrize(
    ("what", "ranks", "found"),
    [
        ("data", [1], "the data 'training_data_iter' on rank 1"),
        ("wrapped data", [0], "the data 'valid' on rank 0"),
        ("missing hook", [2], "the hook 'monitor' on rank 2; the order of the hooks on rank 2"),
        ("interval", [1], "the hook 'monitor' on rank 1"),
        ("order", [1], "the hook 'first' on rank 1; the hook 'second' on rank 1; the order of the "
         "hooks on rank 1"),
    ],
)  # fmt: skip
def test_ranks_with_other_data_or_hooks_are_named_at_the_start(what, ranks, found):
    job = run_job(3, "differ", what, *ranks, timeout=30)
    assert job.status != 0
    assert job.errors == 3 * [
        f"TrainingError: Trainer: expected the same on all ranks, but {found} differ from the "
        f"others. Every rank runs the same script: it adds the same hooks in the same order, and "
        f"gives the whole data, of which each rank takes its part."
    ]


def test_files_of_other_names_are_no_difference():
    assert run_job(2, "differ", "files", 1).values == [3, 3]


def test_an_uncaught_error_outside_of_a_training_is_told_too():
    job = run_job(2, "fail_before", timeout=30)
    assert job.errors == [
        f"TrainingError: rank 0 of 2 ends: rank 1 has failed: KeyError: 'before'. {CONTINUE}",
        "KeyError: 'before'",
    ]
