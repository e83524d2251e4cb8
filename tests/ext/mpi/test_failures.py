"""A rank that dies, hangs, fails or diverges ends the job, and the others say which it was."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from brainstorm.files import read_run_file
from tests.ext.mpi.ranks import needs_mpi, run_job

pytestmark = needs_mpi

CONTINUE = (
    "Continue from the last checkpoint (Trainer.resume), with the same or another number of ranks."
)


def saved_updates(file):
    return read_run_file(file).state["trainer"]["current_update_nr"]


def test_a_rank_that_does_not_come_is_named(tmp_path):
    cases = {"hangs": 1, "stops": 2}

    def run(how):
        return run_job(3, "lose", str(tmp_path / how), how, cases[how], 5.0, timeout=120)

    with ThreadPoolExecutor() as pool:  # at once, as they mostly wait
        jobs = list(pool.map(run, cases))
    for (how, lost), job in zip(cases.items(), jobs, strict=True):
        assert job.status != 0
        texts = [
            f"TrainingError: rank {rank} of 3 ends: rank {lost} did not come within 5 s. {CONTINUE}"
            for rank in range(3)
            if rank != lost
        ]
        assert set(job.errors) - {None} <= set(texts)
        assert any(job.errors)  # who says it first ends the job
        assert saved_updates(tmp_path / how) == 3


@pytest.mark.parametrize(("how", "lost"), [("dies", 0), ("dies", 1), ("fails", 0), ("fails", 1)])
def test_a_rank_that_dies_or_fails_ends_the_job_at_once(tmp_path, how, lost):
    file = tmp_path / "run.hdf5"
    job = run_job(2, "lose", str(file), how, lost, 600.0)
    assert job.status != 0
    assert set(job.errors) - {None} == (
        {"ZeroDivisionError: in a hook"} if how == "fails" else set()
    )
    assert saved_updates(file) == 3
    if (how, lost) == ("dies", 1):
        first, *others = run_job(3, "go_on", str(file)).values
        assert others == [first] * 2
        assert first["updates"] == 15
        assert first["logs"]["StopAfterEpoch"] == ["reached max_epochs=5"]


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_rank_that_leaves_before_a_training_ends_the_job(how):
    job = run_job(2, "leave_before", how)
    assert job.status != 0
    if how == "raises":
        assert job.errors == [None, "KeyError: 'before'"]
    else:
        waits = "TrainingError: rank 0 of 2 ends: rank 1 did not come within 0.5 s."
        assert job.errors == [f"{waits} {CONTINUE}", None]


def test_ranks_that_all_wait_say_so():
    errors = set(run_job(2, "wait_for_nothing").errors) - {None}
    text = f"ends: an operation of all ranks has not ended within 1 s. {CONTINUE}"
    assert errors
    assert errors <= {f"TrainingError: rank {rank} of 2 {text}" for rank in (0, 1)}


def test_ranks_that_diverge_are_named(tmp_path):
    job = run_job(3, "lose", str(tmp_path / "run.hdf5"), "diverges", 1, 600.0)
    assert job.status != 0
    assert job.errors == 3 * [
        "TrainingError: update 6: expected the same on all ranks, but parameters on rank 1 differ "
        "from the others. Everything that changes the network or the stepper, e.g. hooks, must "
        "do the same on all ranks, whatever their random numbers."
    ]


#: What differs on some ranks, and how it is named.
DIFFERENCES = {
    ("data", 1): "the data 'training_data_iter' on rank 1",
    ("wrapped data", 0): "the data 'valid' on rank 0",
    ("missing hook", 2): "the hook 'monitor' on rank 2; the order of the hooks on rank 2",
    ("interval", 1): "the hook 'monitor' on rank 1",
    ("order", 1): "the hook 'first' on rank 1; the hook 'second' on rank 1; the order of the "
    "hooks on rank 1",
}


def different(found):
    return (
        f"TrainingError: Trainer: expected the same on all ranks, but {found} differ from the "
        f"others. Every rank runs the same script: it adds the same hooks in the same order, and "
        f"gives the whole data, of which each rank takes its part."
    )


def test_ranks_with_other_data_hooks_or_networks_are_named_at_the_start():
    """All ranks say so, and may go on; files of other names are no difference."""
    calls = *DIFFERENCES, ("networks", 1), ("failed",), ("files", 1)
    networks = (
        "TrainingError: Reducer.start: expected the same network and stepper on all ranks, got on "
        "rank 0 {'parameters': 99, 'velocity': 99}, on rank 1 {'parameters': 111, 'velocity': 111}."
    )
    values = run_job(3, "repeated", "differ", *calls).values
    assert values == 3 * [[*map(different, DIFFERENCES.values()), networks, 3, 3]]
