"""Long sequences in chunks, for truncated back-propagation through time."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import integer
from brainstorm.data_iterators.base_iterator import Batch
from brainstorm.data_iterators.batches import Minibatches
from brainstorm.describable import Describable, checking
from brainstorm.errors import IteratorValidationError
from brainstorm.utils import Array

#: Name of the data that mark the sequences that end in a chunk.
ENDS = "ends"


class Chunk(dict[str, Array]):
    """A batch that is a part of longer sequences.

    Args:
        data: Data name to array.
        continues: Whether the sequences continue those of the previous batch.

    Raises:
        IteratorValidationError: An argument is of another type.
    """

    __argument_error__ = IteratorValidationError
    fail = Describable.fail

    @checking
    def __init__(self, data: Mapping[str, Any], continues: bool) -> None:
        super().__init__(data)
        self.continues = continues


class SequenceChunks(Minibatches):
    """Batches of sequences, cut into consecutive chunks of `chunk_length` time steps.

    A network that runs over them (in `Trainer.train`, `tools.evaluate` or `tools.run_network`)
    carries the state of its recurrent layers from each chunk to the next, and starts from zeros
    where sequences begin. Gradients end at the borders: truncated back-propagation through time.

    Data of whole sequences (`per_sequence`) are in every batch. Then there are also data
    called ``ends`` (B, 1): True for the sequences whose last step is in this chunk. A loss that is
    multiplied by it (`Mask`), and a scorer with it as its mask, count each sequence once, when all
    of it has been seen.

    Args:
        chunk_length: Number of time steps in a chunk; the last one may be shorter.
        batch_size: See `Minibatches`, as for the other arguments.
        shuffle: Whether and how the sequences are shuffled; their chunks stay in order.
        cut_according_to: See `Minibatches`; it gives the lengths of the sequences.
        per_sequence: See `Minibatches`.
        drop_last: See `Minibatches`.
        **named_data: Arrays (T, B, features...) with the same T and B.

    Raises:
        IteratorValidationError: The arrays or arguments are not valid or do not fit together.
    """

    __constraints__ = {"chunk_length": integer(1)}
    identity = ("chunk_length",)
    gives_sequences = True

    def __init__(
        self,
        chunk_length: int,
        batch_size: int = 1,
        shuffle: bool | str | Sequence[float] = True,
        cut_according_to: str | Sequence[int] | None = "mask",
        *,
        per_sequence: Collection[str] = (),
        drop_last: bool = False,
        **named_data: Array,
    ) -> None:
        self.chunk_length = chunk_length
        super().__init__(
            batch_size,
            shuffle,
            cut_according_to,
            per_sequence=per_sequence,
            drop_last=drop_last,
            **named_data,
        )
        self._says_ends = bool(self.per_sequence)
        if self._says_ends:
            if ENDS in named_data:
                raise self._fail("expected another name: this one is that of the ends", ENDS)
            self._set_axes({*named_data, ENDS}, {*self.per_sequence, ENDS})
            self.data_shapes[ENDS] = (1,)

    @property  # type: ignore[misc]
    def length(self) -> int:
        """Number of chunks in one epoch; an upper limit if batches are cut."""
        return super().length * -(-self.time_size // self.chunk_length)

    def _make_batches(self, epoch: list[np.ndarray], given: int) -> Iterator[Batch]:
        return itertools.starmap(self._get_part, itertools.islice(self._plan(epoch), given, None))

    def _plan(self, epoch: list[np.ndarray]) -> Iterator[tuple[np.ndarray, slice]]:
        """Yield for each chunk the indices of its sequences and its time steps."""
        for indices in epoch:
            steps = self._count_steps(indices)
            for start in range(0, steps, self.chunk_length):
                yield indices, slice(start, min(start + self.chunk_length, steps))

    def _get_part(self, indices: np.ndarray, steps: slice) -> Chunk:
        part = super()._get_part(indices, steps)
        if self._says_ends:
            lengths = np.full(self.sample_size, self.time_size)
            lengths = lengths if self.seq_lens is None else np.maximum(self.seq_lens, 1)
            lengths = lengths[self.own(indices), None]
            part[ENDS] = (steps.start < lengths) & (lengths <= steps.stop)
        return Chunk(part, continues=steps.start > 0)
