"""What the ranks of `benchmarks.mpi` measure: ``mpiexec -n 2 python -m benchmarks.mpi_job FILE``.

Everything that is compared takes turns. A time is the longest of all ranks, and of many repeats
the shortest.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ours import build
from benchmarks.workloads import LEARNING_RATE, WORKLOADS
from brainstorm.ext import mpi
from brainstorm.handlers.native import NativeHandler
from brainstorm.training import SgdStepper

__all__ = ["SIZES", "main", "measure_steps", "measure_sums"]

#: How many values a network has, and in how many arrays others keep them.
SIZES = ((1_000, 6), (10_000, 6), (100_000, 10), (648_010, 6), (1_000_000, 20), (4_000_000, 60))

REPEATS = 400

#: The size of slices.
SLICE_BYTES = 1 << 18


def fastest(world: mpi.World, calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return for each call the seconds in which the slowest rank has done it, at best."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for i, call in enumerate(calls):
            world.comm.Barrier()
            start = time.perf_counter()
            call()
            longest = world.comm.allreduce(time.perf_counter() - start, world.mpi.MAX)
            best[i] = min(best[i], longest)
    return best


def measure_sums(world: mpi.World) -> list[dict[str, float]]:
    """Time the gradients' way: ours in place, and that of whoever has to pack them first."""
    rows = []
    for size, arrays in SIZES:
        flat = np.zeros(size, np.float32)
        parts = [part.copy() for part in np.array_split(flat, arrays)]
        packed, share = np.empty_like(flat), np.float32(1 / world.size)

        def ours(flat: Any = flat, share: Any = share) -> None:
            np.multiply(flat, share, out=flat)
            world.sum(flat)

        def pack(parts: Any = parts, packed: Any = packed, share: Any = share) -> None:
            np.concatenate(parts, out=packed)
            world.sum(packed)
            start = 0
            for part in parts:
                np.multiply(packed[start : start + part.size], share, out=part)
                start += part.size

        def one_by_one(parts: Any = parts, share: Any = share) -> None:
            for part in parts:
                world.sum(part)
                np.multiply(part, share, out=part)

        def alone(flat: Any = flat) -> None:
            world.sum(flat)

        repeats = max(15, min(REPEATS, 60_000_000 // size))
        times = fastest(world, [ours, pack, one_by_one, alone], repeats)
        names = ("ours", "packed", "one by one", "sum")
        rows.append({"values": size, "arrays": arrays, **dict(zip(names, times, strict=True))})
    return rows


def measure_steps(world: mpi.World) -> list[dict[str, Any]]:
    """Time training steps of many ranks, each with the batch of the table, and of ranks alone."""
    rows = []
    for workload in WORKLOADS[:5]:
        steppers = []
        for slice_bytes in (None, SLICE_BYTES, 0):
            stepper = SgdStepper(LEARNING_RATE)
            if slice_bytes != 0:  # else alone
                mpi.distribute(stepper, slice_bytes=slice_bytes, world=world, check_every=0)
            stepper.start(build(workload, NativeHandler(threads=1)))
            steppers.append(stepper)
        repeats = 30 if workload.T > 1 or len(workload.features) > 1 else 150
        step, sliced, alone = fastest(world, [stepper.run for stepper in steppers], repeats)
        size = steppers[0].net.parameters_size
        times = {"step": step, "sliced": sliced, "alone": alone}
        rows.append({"key": workload.key, "values": size, **times})
    return rows


def main(file: str) -> None:
    """Measure, and let rank 0 write what was found."""
    world = mpi.World()
    found = {"sums": measure_sums(world), "steps": measure_steps(world)}
    if world.rank == 0:
        Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
