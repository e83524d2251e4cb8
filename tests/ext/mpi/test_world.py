"""Where there is no MPI, and how ranks are named."""

import pytest

import brainstorm as bs
from brainstorm.errors import MissingDependencyError, TrainingError
from brainstorm.ext import mpi
from brainstorm.ext.mpi import world
from brainstorm.ext.mpi.world import name_ranks
from brainstorm.training import SgdStepper
from brainstorm.training.team import Team


@pytest.fixture
def without_mpi4py(monkeypatch):
    monkeypatch.setattr(world, "has", lambda module: False)
    for name in world.LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_a_process_alone_needs_no_mpi(without_mpi4py, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    trainer = bs.Trainer(SgdStepper(), verbose=True)
    team = mpi.distribute(trainer)
    assert (type(team), team.rank, team.size) == (Team, 0, 1)
    assert (team.share("value"), team.gather("value")) == ("value", ["value"])
    assert trainer.stepper.reducer is None
    assert trainer.verbose


def test_one_of_several_processes_needs_mpi4py(without_mpi4py, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(MissingDependencyError) as error:
        mpi.distribute(SgdStepper())
    assert str(error.value) == (
        "this process is one of several (OMPI_COMM_WORLD_SIZE=4), but mpi4py is missing. Install "
        "it with: pip install 'brainstorm[mpi]'"
    )


def test_without_an_mpi_library(monkeypatch):
    def require(module, extra):
        raise RuntimeError("cannot load MPI library")

    monkeypatch.setattr(world, "has", lambda module: True)
    monkeypatch.setattr(world, "require", require)
    for name in world.LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert mpi.find_world() is None
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(MissingDependencyError) as error:
        mpi.find_world()
    assert str(error.value) == (
        "this process is one of several (PMI_SIZE=2), but mpi4py finds no MPI library. Install "
        "one, e.g. with: pip install mpich"
    )


def test_only_trainers_and_steppers_are_distributed():
    with pytest.raises(TrainingError, match=r"^distribute: expected a Trainer or a stepper, got 3"):
        mpi.distribute(3)


def test_names_of_ranks():
    assert name_ranks([2]) == "rank 2"
    assert name_ranks([0, 2]) == "ranks 0, 2"
