"""Shards: the part of a rank of every batch of an epoch that is the same on all ranks.

The order of an epoch is drawn by all ranks from the same seed, so it does not depend on how many
there are. A rank without a sequence of a batch gets two of zeros, which count for nothing.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from brainstorm.data_iterators.base_iterator import DataIterator, Wrapper
from brainstorm.data_iterators.batches import PlannedBatches, Undivided
from brainstorm.ext.mpi.world import World
from brainstorm.training.parts import own_slice

__all__ = ["Part", "Shard", "digest_of_data", "divide"]

T = TypeVar("T")

#: So many sequences of large data are compared between the ranks, from the first one to the last;
#: of smaller ones all of them, up to so many bytes.
SAMPLE, SAMPLE_BYTES = 100, 2**26


class Part(dict[str, Any]):
    """The part of a rank of a batch.

    Attributes:
        is_idle: Whether it is empty: then the data are zeros.
    """

    is_idle = False


class Shard(DataIterator):
    """The part of this rank of every batch of an iterator.

    Iterators that number their sequences make only this part; of others, each rank makes the whole
    batches and takes its part.

    Args:
        source: Gives the same batches on all ranks.
        world: The ranks.
    """

    def __init__(self, source: DataIterator, world: World) -> None:
        self.source = source
        self.world = world
        self.data_shapes, self.length = source.data_shapes, source.length
        self.per_sequence = source.per_sequence
        self.rnd = source.rnd

    def __call__(self, handler: Any = None) -> Iterator[Part]:
        """Yield the parts of the batches of one epoch."""
        return self.resume_epoch(0, handler)

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Part]:
        """Return the parts of the batches behind the first `given` ones."""
        source = self.source
        if isinstance(source, PlannedBatches):
            source = copy.copy(source)
            source.own = self._own
        batches = source.resume_epoch(given, handler) if given else source(handler)
        return map(self._take, batches)

    def _own(self, indices: np.ndarray) -> np.ndarray:
        return indices[own_slice(len(indices), self.world.rank, self.world.size)]

    def _take(self, batch: Mapping[str, Any]) -> Part:
        part = Part()
        vars(part).update(getattr(batch, "__dict__", {}))  # whether sequences go on
        for name, array in batch.items():
            axis = self.batch_axis(name)
            steps = (slice(None),) * axis
            if not isinstance(self.source, PlannedBatches):
                rows = own_slice(array.shape[axis], self.world.rank, self.world.size)
                array = array[(*steps, rows)]
            if array.shape[axis] == 0:
                part.is_idle = True
                # two: batch normalization refuses to train on one
                shape = (*array.shape[:axis], 2, *array.shape[axis + 1 :])
                array = np.zeros(shape, array.dtype)
            part[name] = array
        return part

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks."""
        return self.world.gather(value)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the iterator that is divided."""
        return self.source.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set the state of the iterator that is divided."""
        self.source.set_state(state)


def digest_of_data(iterator: Any) -> int:
    """Return a number that tells iterators apart: by their kind, and by a sample of their data."""
    facts: list[Any] = [
        type(iterator).__name__,
        sorted(getattr(iterator, "data_shapes", {}).items()),
    ]
    batches: Iterable[Mapping[str, Any]] = ()
    if isinstance(iterator, Wrapper):
        facts.append(digest_of_data(iterator.iter))
    elif isinstance(iterator, Undivided):
        batches = [iterator.data]
    elif isinstance(iterator, PlannedBatches):
        first = iterator._make_batches([np.array([0])], 0)
        size = sum(array.nbytes for batch in first for array in batch.values())
        count = max(SAMPLE, SAMPLE_BYTES // max(1, size))
        spread = np.linspace(0, iterator.sample_size - 1, min(count, iterator.sample_size))
        batches = iterator._make_batches([spread.astype(int)], 0)
    digest = zlib.crc32(repr(facts).encode())
    for batch in batches:
        for name in sorted(batch):
            digest = zlib.crc32(np.ascontiguousarray(batch[name]).tobytes(), digest)
    return digest


def divide(iterator: Any, world: World) -> Any:
    """Return an iterator over this rank's part of each batch.

    Iterators that wrap others work on the part, and draw other random numbers on each rank.
    """
    if hasattr(iterator, "get_state"):
        iterator.set_state(world.share(iterator.get_state()))  # rank 0 knows the seed
    if not isinstance(iterator, Wrapper):
        return Shard(iterator, world)
    divided = copy.copy(iterator)
    divided.iter = divide(iterator.iter, world)
    if world.rank:
        divided.rnd = iterator.rnd.child(f"rank/{world.rank}")
    return divided
