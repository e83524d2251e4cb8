"""A model of data-parallel steps: what they cost on many machines, from what one machine tells.

A message of m bytes takes alpha + beta m, and to add its numbers gamma m. An Allreduce over p
ranks takes the shorter of

    recursive doubling       log2(p) (alpha + beta m + gamma m)
    Rabenseifner             2 log2(p) alpha + (p - 1) / p (2 beta + gamma) m

(Thakur, Rabenseifner and Gropp 2005, Optimization of Collective Communication Operations in
MPICH, sections 4.1 and 4.5). A step is the passes and the update on one rank, the Allgather of the
ranks' sequences (log2(p) alpha), the pass over the gradients that weights them, and the Allreduce.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["FABRICS", "Fabric", "allreduce", "efficiency", "fit", "step"]


class Fabric(NamedTuple):
    """What connects the ranks.

    Attributes:
        name: What it is, for people.
        alpha: Seconds before the first byte arrives.
        beta: Seconds per byte.
        gamma: Seconds to add the numbers of a byte.
    """

    name: str
    alpha: float
    beta: float
    gamma: float


#: Usual figures, not measured here: latency of a small message between two MPI processes, and what
#: remains of the nominal rate. The numbers are added by one core at 10 GB/s.
FABRICS = (
    Fabric("10 Gbit/s Ethernet, TCP", 30e-6, 1 / 1.1e9, 1e-10),
    Fabric("100 Gbit/s RoCE or InfiniBand EDR", 2e-6, 1 / 11e9, 1e-10),
    Fabric("400 Gbit/s InfiniBand NDR", 1.5e-6, 1 / 45e9, 1e-10),
)


def allreduce(fabric: Fabric, ranks: int, bytes_: float) -> float:
    """Return the seconds of an Allreduce."""
    rounds, (_, alpha, beta, gamma) = math.log2(ranks), fabric
    doubling = rounds * (alpha + (beta + gamma) * bytes_)
    scattered = 2 * rounds * alpha + (ranks - 1) / ranks * (2 * beta + gamma) * bytes_
    return min(doubling, scattered)


def step(fabric: Fabric, ranks: int, values: int, alone: float, overlaps: bool = False) -> float:
    """Return the seconds of a data-parallel step.

    Args:
        fabric: What connects the ranks.
        ranks: How many there are.
        values: Number of parameters, of four bytes.
        alone: Seconds of the step of a rank alone.
        overlaps: Whether the slices that the backward pass has finished (two thirds of the step)
            are under way while it goes on, at no cost to it: the best case.
    """
    if ranks == 1:
        return alone
    weighting = 2 * 4 * values * fabric.gamma / 2  # read and written, at the rate of memory
    summing = allreduce(fabric, ranks, 4 * values)
    if overlaps:
        summing = max(0.0, summing - 2 / 3 * alone)
    return alone + math.log2(ranks) * fabric.alpha + weighting + summing


def efficiency(fabric: Fabric, ranks: int, values: int, alone: float, overlaps: bool) -> float:
    """Return how much of what `ranks` ranks could do they do, with the same batch on each."""
    return alone / step(fabric, ranks, values, alone, overlaps)


def fit(values: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the latency and the seconds per byte that fit measured sums best, relatively.

    Args:
        values: How many numbers of four bytes each sum had.
        seconds: How long it took.
    """
    seconds_ = np.asarray(seconds)
    columns = np.stack([np.ones(len(values)), 4.0 * np.asarray(values)], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(columns / seconds_[:, None], np.ones(len(values)))
    return float(latency), float(per_byte)
