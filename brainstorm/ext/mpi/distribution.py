"""Distributing a trainer or a stepper over many ranks."""

from __future__ import annotations

from brainstorm.errors import TrainingError
from brainstorm.ext.mpi.reducer import Reducer
from brainstorm.ext.mpi.team import MpiTeam
from brainstorm.ext.mpi.world import World, find_world
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.training.team import Team
from brainstorm.training.trainer import Trainer


def distribute(
    trainer: Trainer | TrainingStepper,
    synchronize_batch_norm: bool = False,
    slice_bytes: int | None = None,
    check_every: int = 100,
    timeout: float = 600.0,
    world: World | None = None,
) -> Team:
    """Let all ranks of this MPI job train together; call it before the training, on all ranks.

    A process that runs alone needs no MPI, and nothing changes in it.

    Args:
        trainer: A trainer: its iterators give the same batches on all ranks, and each rank takes
            its part of them. Or a stepper, for your own loop: then every rank has its own data, and
            an update uses the data of all ranks.
        synchronize_batch_norm: Whether batch normalization uses the statistics of whole batches
            and not of each rank's part; only for a trainer.
        slice_bytes: If given, gradients are summed in slices of about that size during the backward
            pass; else all at once.
        check_every: Check every so many updates that the parameters on all ranks are equal; 0:
            never.
        timeout: Seconds to wait for a rank before the job fails. It must exceed the time that one
            rank works alone, e.g. to write a checkpoint.
        world: The ranks; `None`: those of this job.

    Returns:
        The ranks: ``rank`` and ``size``, `Team.share` and `Team.gather`.

    Raises:
        MissingDependencyError: There are several processes, but mpi4py is not installed.
        TrainingError: It is neither a trainer nor a stepper.
    """
    is_trainer = isinstance(trainer, Trainer)
    if not is_trainer and not isinstance(trainer, TrainingStepper):
        raise TrainingError(f"distribute: expected a Trainer or a stepper, got {trainer!r}.")
    world = world or find_world(timeout)
    if world is None:
        return Team()
    reducer = Reducer(world, check_every, slice_bytes)
    team = MpiTeam(reducer, synchronize_batch_norm)
    if isinstance(trainer, Trainer):
        trainer.stepper.reducer = reducer
        trainer.team = team
        trainer.verbose = trainer.verbose and team.rank == 0
    else:
        trainer.reducer = reducer
    return team
