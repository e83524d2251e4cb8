"""Reducers: they let a stepper learn from the batches of all ranks.

The gradients of all layers are one flat array, so an update needs only one Allreduce, on the memory
that the backward pass has written.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from brainstorm.ext.mpi.slices import GradientSlices
from brainstorm.ext.mpi.transports import choose_transport
from brainstorm.ext.mpi.world import World, agreed, name_ranks
from brainstorm.handlers import Handler
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.utils import Array


@formula
def scaled(g: Any, share: Any) -> Any:
    """Return the gradients of the mean loss over a part of a batch, as a summand for the whole.

    If the part has no sequences, i.e. its share is 0, the result is 0 for any gradients.
    """
    return fn.where(share, g * share, 0.0)


class Reducer:
    """Turns the gradients of each rank into those of the mean loss over the sequences of all.

    At the start, parameters, persistent buffers and the state of the stepper are copied from rank
    0. As all ranks then do the same updates they stay equal, which is checked by digests.

    Args:
        world: The ranks.
        check_every: Compare digests every so many updates; 0: never.
        slice_bytes: If given, gradients are summed in slices of about that size, each of which
            starts as soon as the backward pass has computed it.

    Attributes:
        sequences: Number of sequences of each rank in the last update, (ranks,).
        signal: The number of a signal that this rank has received, or 0.
        signals: The same for all ranks at the last update, (ranks,).
        stepper: The stepper that started last with this reducer.
    """

    stepper: Any = None

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
        """Attach to a stepper with a network; called by `TrainingStepper.start`."""
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
        sizes = self.world.gather({name: array.size for name, array in self._arrays()})
        if wrong := [rank for rank, own in enumerate(sizes) if own != sizes[0]]:
            raise agreed(
                f"Reducer.start: expected the same network and stepper on all ranks, got on "
                f"rank 0 {sizes[0]}, on rank {wrong[0]} {sizes[wrong[0]]}."
            )

    @property
    def is_in_step(self) -> bool:
        """Whether gradients are summed within a step, so that a trace of the step repeats it.

        True for slices, and for GPUs, where they are queued in the stream.
        """
        return self._slices is not None or self.transport.is_queued

    def begin(self, sequences: int) -> None:
        """Send the number of sequences to all ranks, and compute the share of this rank."""
        own = np.array([sequences, self.signal], float)
        self.sequences, self.signals = self.world.gather_numbers(own).T
        share = sequences / self.sequences.sum()
        self.stepper.handler.set_from_numpy(self._share, np.array([share]))

    def reduce(self, gradients: Array, sequences: int) -> None:
        """Turn the gradients into those of all ranks, at once.

        Args:
            gradients: The gradients of the mean loss over the sequences of this rank.
            sequences: The number of these; if 0, the gradients are ignored.

        Raises:
            TrainingError: Another rank died, failed, or did not come; or the ranks have diverged.
        """
        self.begin(sequences)
        self.scale(self.stepper.handler, gradients)
        self.transport.sum(gradients)
        self.finish()

    def passes(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of the passes of a step, in which slices are sent."""
        if self._slices is None:
            return contextlib.nullcontext()
        return self.stepper.net.following(self._slices.starts, self.transport.is_queued)

    def reduce_in_step(self, handler: Handler) -> None:
        """Do the same by operations of `handler`, after the passes, between `begin` and `finish`.

        Args:
            handler: That of the network, or one that records.
        """
        if self._slices is not None:
            handler.call(self._slices.finish, self.transport.is_queued)
        else:
            gradients = self.stepper.gradients
            self.scale(handler, gradients)
            handler.call(partial(self.transport.sum, gradients), is_queued=True)

    def finish(self) -> None:
        """Count the update, and check that all ranks are running and equal.

        Raises:
            TrainingError: A sum has failed, or the ranks have diverged.
        """
        self.transport.check()
        self._updates += 1
        if self.check_every and self._updates % self.check_every == 0:
            self.check()

    def scale(self, handler: Handler, gradients: Array) -> None:
        """Multiply gradients by the share of this rank."""
        handler.compute(scaled, [gradients, self._share], [gradients])

    # -- equality of all ranks --------------------------------------------------------------------

    def check(self) -> None:
        """Compare parameters, the state of the stepper and its hyperparameters on all ranks.

        Raises:
            TrainingError: They differ; the message names the differences and the ranks.
        """
        get = self.stepper.handler.get_numpy_copy
        digests = {name: zlib.crc32(get(array).tobytes()) for name, array in self._arrays()}
        for name in self.stepper.hyperparameters:
            digests[name] = zlib.crc32(repr(getattr(self.stepper, name)).encode())
        everyone = self.world.gather_numbers(np.array(list(digests.values()), np.uint32))
        columns = dict(zip(digests, everyone.T.tolist(), strict=True))
        if found := describe_diverging(columns):
            raise agreed(
                f"update {self._updates}: expected the same on all ranks, but {found} differ "
                f"from the others. Everything that changes the network or the stepper, e.g. "
                f"hooks, must do the same on all ranks, whatever their random numbers."
            )

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        yield "parameters", self.stepper.parameters
        yield from self.stepper.state.items()


def describe_diverging(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return a text about differences between ranks, given the digests of all; empty if none."""
    wrong = {name: _find_diverging(digests) for name, digests in columns.items()}
    return "; ".join(f"{name} on {name_ranks(ranks)}" for name, ranks in wrong.items() if ranks)


def _find_diverging(digests: Sequence[Any]) -> list[int]:
    """Return the ranks whose digest differs from that of the majority, or of rank 0."""
    count: Counter[Any] = Counter(digests)
    usual = max(count, key=lambda digest: (count[digest], digest == digests[0]))
    return [rank for rank, digest in enumerate(digests) if digest != usual]
