"""Training on several ranks is training on one: real jobs, started by ``mpiexec``."""

import functools
import shutil

import numpy as np
import pytest

from brainstorm import optional
from tests.ext.mpi.ranks import needs_mpi, run_job

pytestmark = needs_mpi

#: Trainings whose result must not depend on the number of ranks.
SAME = ("whole", "slices", "accumulated", "clipped", "masked")


@functools.cache
def alone(name, *arguments):
    """What a process gets that was started without ``mpiexec``."""
    return run_job(None, name, *arguments).values[0]


def assert_close(logs, expected):
    """Compare nested logs; texts (why a training ended) must be equal."""
    assert logs.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_close(logs[name], value)
        elif isinstance(value[0], str):
            assert logs[name] == value
        else:
            np.testing.assert_allclose(logs[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 4])
def test_losses_do_not_depend_on_the_number_of_ranks(ranks):
    """Batches are divided evenly, unevenly, and into fewer parts than there are ranks."""
    results, expected = run_job(ranks, "trainings").values, alone("trainings")
    for name in SAME:
        assert all(result[name] == results[0][name] for result in results)
        for what in ("logs", "evaluated"):
            assert_close(results[0][name][what], expected[name][what])
        np.testing.assert_allclose(results[0][name]["W"], expected[name]["W"], rtol=1e-3, atol=1e-5)
    if ranks == 1:
        assert results[0] == expected
    else:  # each rank normalizes by the statistics of its own part of a batch
        local, whole = (expected["local"]["W"], results[0]["local"]["W"])
        assert np.abs(np.subtract(local, whole)).max() > 1e-3
        assert all(result["local"] == results[0]["local"] for result in results)
    for result in results:
        np.testing.assert_allclose(result["own loop"], expected["own loop"], atol=1e-6)


def test_steppers_that_are_set_later_or_by_a_hook_learn_from_all_ranks():
    results, expected = run_job(3, "other_steppers").values, alone("other_steppers")
    assert results[0] == results[1] == results[2]
    for result, whole in zip(results[0], expected, strict=True):
        assert_close(result["logs"], whole["logs"])


@pytest.mark.parametrize(
    "options", [{"synchronize_batch_norm": True}, {"slice_bytes": 64}], ids=str
)
def test_a_network_is_left_as_if_no_team_had_trained_it(options):
    (found, expected), nothing = run_job(2, "alone_after", options).values
    assert found == expected
    assert nothing == []


def test_the_example_trains_as_one_process_and_speaks_on_rank_0():
    kinds = ("mlp", "cnn", "lstm")
    results, expected = run_job(2, "example", *kinds).values, alone("example", *kinds)
    for result in results:
        for kind in kinds:
            assert_close(result["logs"][kind], expected["logs"][kind])
    assert "Epoch 1" in results[0]["printed"]
    assert results[1]["printed"] == ""


def test_what_layers_draw_differs_between_ranks_and_what_changes_parameters_does_not():
    ranks = run_job(2, "repeated", "random_numbers", (), ()).values
    assert all(once == again for once, again in ranks)  # from rank 0's seed
    (first, _), (second, _) = ranks
    for name in first:
        assert (first[name] != second[name]) == name.startswith("layers."), name
    assert "layers.Dropout.stream" in first
    assert "weight_modifiers.Projection.W.0" in first


def test_rank_0_decides_reads_and_speaks(tmp_path):
    first, second = run_job(2, "early_stopping", str(tmp_path / "run.hdf5")).values
    assert first["logs"] == second["logs"]
    assert first["updates"] == second["updates"] < 50
    assert first["logs"]["score"] == [0.0]  # that of rank 0
    assert first["logs"]["stopper"][0].startswith("rolling_training.total_loss was best")
    assert (first["ran"], second["ran"]) == (["reader"], [])
    assert "Epoch 1" in first["printed"]
    assert second["printed"] == ""
    assert first["shared"] == second["shared"] == ["of rank", 0]
    assert first["refused"] == (
        "Trainer.save_run: expected to be called by a SaveCheckpoint, because 2 processes train "
        "together, each with a part of the run."
    )


def test_a_resumed_run_of_as_many_ranks_is_the_uninterrupted_one(tmp_path):
    whole, part = (str(tmp_path / f"{name}.hdf5") for name in ("whole", "part"))
    # A signal to the last rank ends all of them in the middle of an epoch, with a checkpoint.
    ranks = run_job(2, "repeated", "resume", (whole, 4), (part, 4, 3)).values
    expected, begun = zip(*ranks, strict=True)
    assert [result["updates"] for result in begun] == [4, 4]
    assert begun[1]["logs"]["interrupted"] == ["received SIGTERM"]
    resumed = run_job(2, "resume", part, 4).values
    assert resumed == list(expected)


def test_a_run_is_resumed_with_another_number_of_ranks(tmp_path):
    whole, begun = (tmp_path / f"{name}.hdf5" for name in ("whole", "begun"))
    assert run_job(2, "carry", str(begun), 3).values[1]["updates"] == 4
    copied = str(shutil.copy(begun, tmp_path / "copied.hdf5"))
    ((expected, alone),) = run_job(1, "repeated", "carry", (str(whole),), (str(begun),)).values
    for result in (alone, *run_job(3, "carry", copied).values):
        assert_close(result["logs"], expected["logs"])


def test_a_run_is_resumed_between_the_batches_of_an_update(tmp_path):
    expected = run_job(2, "accumulate", str(tmp_path / "run.hdf5")).values
    middle = tmp_path / "run-1.hdf5"  # three batches: one is left, of two for the second update
    for ranks in (2, 3):
        copied = str(shutil.copy(middle, tmp_path / f"{ranks}.hdf5"))
        resumed = run_job(ranks, "accumulate", copied).values
        if ranks == 2:
            assert resumed == expected
        for result in resumed:
            assert_close(result["logs"], expected[0]["logs"])


@pytest.mark.skipif(not optional.has("optuna"), reason="no optuna: pip install optuna")
def test_the_trials_of_a_search_are_spread_over_the_ranks():
    first, second = run_job(2, "search", 6).values
    assert len(first["tried"]) == len(second["tried"]) == 3
    assert set(first["tried"]) != set(second["tried"])
    smallest = min(first["tried"] + second["tried"])
    assert first["best"] == second["best"]
    assert first["best"][0] == first["best"][1]["size"] == smallest
