"""Reducers: what lets a stepper learn from the batches of all ranks.

The gradients of all layers are one flat array, so that one Allreduce over the memory where the
backward pass has left them is all that an update needs.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from brainstorm.errors import TrainingError
from brainstorm.ext.mpi.slices import GradientSlices
from brainstorm.ext.mpi.transports import choose_transport
from brainstorm.ext.mpi.world import World, agreed, name_ranks
from brainstorm.handlers import Handler
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.utils import Array

__all__ = ["Reducer"]


@formula
def scaled(g: Any, share: Any) -> Any:
    """The gradients of the mean loss over a part of a batch, as a summand of that over all.

    Those of a part without sequences, whose share is 0, count for nothing, whatever they are.
    """
    return fn.where(share, g * share, 0.0)


class Reducer:
    """Makes the gradients of each rank those of the mean loss over the sequences of all.

    At the start, parameters, persistent buffers and the state of the stepper become those of rank
    0. As all ranks then do the same updates they stay equal, which a digest checks.

    Args:
        world: The ranks.
        check_every: Compare digests every so many updates; 0 never does.
        slice_bytes: If given, gradients are summed in slices of about that size, each of which
            starts as soon as the backward pass has finished it.

    Attributes:
        sequences: How many sequences of each rank were in the last update, (ranks,).
        signal: The number of a signal that this rank has received, 0 for none.
        signals: Those of all ranks at the last update, (ranks,).
    """

    def __init__(self, world: World, check_every: int = 100, slice_bytes: int | None = None):
        self.world = world
        self.check_every = check_every
        self.slice_bytes = slice_bytes
        self.sequences = np.zeros(world.size)
        self.signals = np.zeros(world.size)
        self.signal = 0
        self._slices: GradientSlices | None = None

    def __repr__(self) -> str:
        return f"Reducer: rank {self.world.rank} of {self.world.size}"

    def start(self, stepper: Any) -> None:
        """Take over a stepper that has its network; `TrainingStepper.start` calls it."""
        self.stepper = stepper
        net = stepper.net
        self.transport = choose_transport(self.world, net.handler)
        self._share = net.handler.zeros((1,))
        self._refuse_other_sizes()
        paths = [net.buffer[path] for path in net.persistent_paths]
        for array in (stepper.parameters, *stepper.state.values(), *paths):
            self.transport.broadcast(array)
        self._updates = 0
        if self.slice_bytes is not None:
            self._slices = GradientSlices(self, self.slice_bytes)

    def _refuse_other_sizes(self) -> None:
        sizes = [
            dict(parts) for parts in self.world.gather([(n, a.size) for n, a in self._arrays()])
        ]
        if wrong := [rank for rank, own in enumerate(sizes) if own != sizes[0]]:
            raise agreed(
                TrainingError(
                    f"Reducer.start: expected the same network and stepper on all ranks, got on "
                    f"rank 0 {sizes[0]}, on rank {wrong[0]} {sizes[wrong[0]]}."
                )
            )

    @property
    def is_in_step(self) -> bool:
        """Whether gradients are summed within a step, so that a trace of the step repeats it.

        Slices are, and so is what is queued in the stream of a GPU.
        """
        return self._slices is not None or self.transport.is_queued

    def begin(self, sequences: int) -> None:
        """Let every rank know how many sequences the others have, and the share of the own."""
        own = np.array([sequences, self.signal], float)
        self.sequences, self.signals = self.world.gather_numbers(own).T
        share = sequences / self.sequences.sum()
        self.stepper.handler.set_from_numpy(self._share, np.array([share]))

    def reduce(self, gradients: Array, sequences: int) -> None:
        """Let the gradients be those of all ranks, at once.

        Args:
            gradients: Those of the mean loss over the sequences of this rank.
            sequences: How many these are; with 0 the gradients count for nothing.

        Raises:
            TrainingError: Another rank died, failed, or does not come; or the ranks have diverged.
        """
        self.begin(sequences)
        self.scale(self.stepper.handler, gradients)
        self.transport.sum(gradients)
        self.finish()

    def reduce_in_step(self, handler: Handler) -> None:
        """Do the same by operations of `handler`, behind the passes, between `begin` and `finish`.

        Args:
            handler: The network's, or one that records.
        """
        if self._slices is not None:
            handler.call(self._slices.finish, self.transport.is_queued)
        else:
            gradients = self.stepper.gradients
            self.scale(handler, gradients)
            handler.call(partial(self.transport.sum, gradients), is_queued=True)

    def finish(self) -> None:
        """Count the update, and see whether all ranks are well and alike.

        Raises:
            TrainingError: A sum has failed, or the ranks have diverged.
        """
        self.transport.check()
        self._updates += 1
        if self.check_every and self._updates % self.check_every == 0:
            self.check()

    def scale(self, handler: Handler, gradients: Array) -> None:
        """Multiply gradients with the share of this rank."""
        handler.compute(scaled, [gradients, self._share], [gradients])

    # -- the same on all ranks --------------------------------------------------------------------

    def check(self) -> None:
        """Compare parameters, the state of the stepper and its hyperparameters on all ranks.

        Raises:
            TrainingError: They differ; it names what, and the ranks.
        """
        get = self.stepper.handler.get_numpy_copy
        digests = {name: zlib.crc32(get(array).tobytes()) for name, array in self._arrays()}
        for name in self.stepper.hyperparameters:
            digests[name] = zlib.crc32(repr(getattr(self.stepper, name)).encode())
        everyone = self.world.gather_numbers(np.array(list(digests.values()), np.uint32))
        columns = dict(zip(digests, everyone.T.tolist(), strict=True))
        if found := describe_diverging(columns):
            raise agreed(
                TrainingError(
                    f"update {self._updates}: expected the same on all ranks, but {found} differ "
                    f"from the others. Whatever changes the network or the stepper, a hook say, "
                    f"must do the same on all ranks; random numbers must not decide what it does."
                )
            )

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        yield "parameters", self.stepper.parameters
        yield from self.stepper.state.items()


def describe_diverging(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return what differs on some ranks, given the digests of it on all; empty if nothing does."""
    wrong = {name: _find_diverging(digests) for name, digests in columns.items()}
    return "; ".join(f"{name} on {name_ranks(ranks)}" for name, ranks in wrong.items() if ranks)


def _find_diverging(digests: Sequence[Any]) -> list[int]:
    """Return the ranks that have another digest than most have, or than rank 0 has."""
    count: Counter[Any] = Counter(digests)
    usual = max(count, key=lambda digest: (count[digest], digest == digests[0]))
    return [rank for rank, digest in enumerate(digests) if digest != usual]
