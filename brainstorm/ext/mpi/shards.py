"""Shards: the parts of batches that belong to a rank, where all ranks have the same batches.

All ranks draw the order of an epoch from the same seed, so it does not depend on the number of
ranks. A rank without sequences in a batch gets two sequences of zeros, which do not count.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from brainstorm.data_iterators.base_iterator import DataIterator, Wrapper, begin_epoch
from brainstorm.data_iterators.batches import PlannedBatches, Undivided
from brainstorm.ext.mpi.world import World
from brainstorm.training.parts import own_slice

T = TypeVar("T")

#: Large data are compared between the ranks by this many sequences, spread from first to last;
#: smaller data completely, up to this many bytes.
SAMPLE, SAMPLE_BYTES = 100, 2**26

#: What a divided wrapper has of its own: random numbers, and the part of the data.
OWN = ("rnd", "_drawn_from", "iter")


class Part(dict[str, Any]):
    """The part of a batch that belongs to a rank.

    Attributes:
        is_idle: Whether it is empty; the data are then zeros.
    """

    is_idle = False


def _of_source(name: str) -> Any:
    """Return a property that is an attribute of the source."""
    return property(lambda shard: getattr(shard.source, name), doc="That of the source.")


class Shard(DataIterator):
    """The part of every batch of an iterator that belongs to this rank.

    Iterators that number their sequences create only this part; for others, each rank creates whole
    batches and takes its part.

    Args:
        source: Yields the same batches on all ranks.
        world: The ranks.
    """

    data_shapes = _of_source("data_shapes")
    length = _of_source("length")
    per_sequence = _of_source("per_sequence")
    over_s = _of_source("over_s")
    gives_sequences = _of_source("gives_sequences")
    padding_masks = _of_source("padding_masks")
    rnd = _of_source("rnd")

    def __init__(self, source: DataIterator, world: World) -> None:
        self.source = source
        self.world = world

    def __call__(self, handler: Any = None) -> Iterator[Part]:
        return self.resume_epoch(0, handler)

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Part]:
        """Return the parts of the batches after the first `given` ones."""
        source = self.source
        if isinstance(source, PlannedBatches):
            source = copy.copy(source)
            source.own = self._own
        batches = source.resume_epoch(given, handler) if given else begin_epoch(source, handler)
        return map(self._take, batches)

    def _own(self, indices: np.ndarray) -> np.ndarray:
        return indices[own_slice(len(indices), self.world.rank, self.world.size)]

    def _take(self, batch: Mapping[str, Any]) -> Part:
        part = Part()
        vars(part).update(getattr(batch, "__dict__", {}))  # e.g. whether sequences continue
        for name, array in batch.items():
            axis = self.batch_axis(name)
            steps = (slice(None),) * axis
            if not isinstance(self.source, PlannedBatches):
                rows = own_slice(array.shape[axis], self.world.rank, self.world.size)
                array = array[(*steps, rows)]
            if array.shape[axis] == 0:
                part.is_idle = True
                # two, because batch normalization cannot train on one
                shape = (*array.shape[:axis], 2, *array.shape[axis + 1 :])
                array = np.zeros(shape, array.dtype)
            part[name] = array
        return part

    def gather(self, value: T) -> list[T]:
        return self.world.gather(value)

    def get_state(self) -> dict[str, Any]:
        return self.source.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.source.set_state(state)


def digest_of_data(iterator: Any) -> int:
    """Return a digest of an iterator: of its kind, and of a sample of its data."""
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


#: By the id of an iterator: the iterator, its shard, and the attributes that the shard has got.
Divided = dict[int, tuple[Any, Any, dict[str, Any]]]


def divide(iterator: Any, world: World, known: Divided | None = None) -> Any:
    """Return an iterator over this rank's part of each batch.

    Wrappers work on the part, and draw other random numbers on each rank.

    Args:
        iterator: Yields the same batches on all ranks.
        world: The ranks.
        known: What was divided before: it gives the same objects again. Wrappers among them get the
            attributes that were set since, also another iterator to wrap.
    """
    known = {} if known is None else known
    if id(iterator) not in known:
        known[id(iterator)] = iterator, _begin(iterator, world), {}
    _, divided, before = known[id(iterator)]
    if isinstance(iterator, Wrapper):
        changed = {
            name: value
            for name, value in vars(iterator).items()
            if name not in OWN and (name not in before or before[name] is not value)
        }
        divided.__dict__.update(changed)
        before.update(changed)
        divided.iter = divide(iterator.iter, world, known)
    return divided


def _begin(iterator: Any, world: World) -> Any:
    if hasattr(iterator, "get_state"):
        iterator.set_state(world.share(iterator.get_state()))  # with the seed of rank 0
    if not isinstance(iterator, Wrapper):
        return Shard(iterator, world)
    divided = copy.copy(iterator)
    if world.rank:
        divided.rnd = iterator.rnd.child(f"rank/{world.rank}")
    return divided


def is_new(iterator: Any, known: Divided) -> bool:
    """Return whether an iterator, or one that it wraps, has not been divided before."""
    if id(iterator) not in known:
        return True
    return isinstance(iterator, Wrapper) and is_new(iterator.iter, known)
