"""Training on many machines: the same script under ``mpiexec``.

    trainer = Trainer(MomentumStepper(0.1, 0.9))
    ranks = mpi.distribute(trainer)
    trainer.train(net, Minibatches(256, ...))       # each rank has a part of the 256
    if ranks.rank == 0:
        net.save_as_hdf5("net.hdf5")

Started by ``python`` it is an ordinary training; with ``mpiexec -n 4 python`` four processes train
together, and the updates are those of one process with the same batches. See docs/distributed.md.
"""

from __future__ import annotations

from brainstorm.ext.mpi.reducer import Reducer
from brainstorm.ext.mpi.shards import Part, Shard, divide
from brainstorm.ext.mpi.team import MpiTeam, distribute
from brainstorm.ext.mpi.world import World, find_world

__all__ = ["MpiTeam", "Part", "Reducer", "Shard", "World", "distribute", "divide", "find_world"]
