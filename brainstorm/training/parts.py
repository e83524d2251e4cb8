"""Runs of several processes: combining the parts of a run, and dividing it again.

Each process has a part of every batch. `own_slice` divides the sequences of a batch in the order
of the ranks; data about all sequences (states that recurrent layers carry, scores) are combined
again in this order. So a run can be continued by any number of processes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.scorers import merge_scores

State = dict[str, Any]


def own_slice(count: int, rank: int, size: int) -> slice:
    """Return the slice of `count` sequences that belongs to a rank; sizes differ by at most one.

    The first ranks have more; if there are fewer sequences than ranks, the last have none.
    """
    each, more = divmod(count, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


def combine_parts(parts: Sequence[State], statistics: Collection[str]) -> State:
    """Return what `checkpoint.capture_part` would return in a single process, given all parts.

    Persistent buffers are averaged, except `statistics`, the paths of those that are sums.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    data = copy.copy(first["data"])
    if data["epoch"] is not None:
        epochs = [part["data"]["epoch"] for part in parts]
        scores = merge_scores(
            [{name: list(pairs) for name, pairs in e["scores"].items()} for e in epochs]
        )
        carried = zip(*(e["carried"] for e in epochs if not e["is_idle"]), strict=True)
        data["epoch"] = {
            **data["epoch"],
            "scores": {name: np.array(pairs, float) for name, pairs in scores.items()},
            "carried": [None if a[0] is None else np.concatenate(a, axis=1) for a in carried],
        }
    persistent = {}
    for path in first["persistent"]:
        values = [part["persistent"][path] for part in parts]
        merged = np.sum if path in statistics else np.mean
        persistent[path] = merged(values, axis=0)
    accumulated = [part["accumulation"] for part in parts]
    accumulation = first["accumulation"] and {
        "given": accumulated[0]["given"],
        "sequences": sum(state["sequences"] for state in accumulated),
        "total": sum(state["total"] for state in accumulated),
    }
    whole = {"data": data, "persistent": persistent, "accumulation": accumulation}
    return {**first, **whole}


def take_part(data: Mapping[str, Any], rank: int, size: int) -> State:
    """Return the position of a rank in its data, given that of `combine_parts`.

    Rank 0 gets the scores of the epoch so far.
    """
    epoch = data["epoch"]
    if epoch is None:
        return dict(data)
    carried = []
    for array in epoch["carried"]:
        if array is not None:
            rows = own_slice(array.shape[1], rank, size)
            is_empty = rows.start == rows.stop
            array = np.zeros_like(array[:, :1]) if is_empty else array[:, rows]
        carried.append(array)
    scores = {name: pairs[:0] if rank else pairs for name, pairs in epoch["scores"].items()}
    return {**data, "epoch": {**epoch, "carried": carried, "scores": scores}}
