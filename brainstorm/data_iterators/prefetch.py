"""Making the next batch in a thread, while the present one is used."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from brainstorm.data_iterators.base_iterator import Batch, DataIterator, Wrapper
from brainstorm.errors import IteratorValidationError
from brainstorm.forks import count_forks

In = TypeVar("In")
Out = TypeVar("Out")


class Prefetch(Wrapper):
    """Let a thread make the next batch while the network computes with the present one.

        training = Prefetch(Flip(RandomCrop(Pad(images, {"default": 4}), {"default": (32, 32)})))

    It is for batches that take long to make, by augmentation, decoding or a data set of your own,
    and is the outermost wrapper. The batches and the states are those of the wrapped iterator, also
    if it is used for something else in the middle of an epoch, which then costs a batch or two. The
    thread ends with the epoch; its errors are raised when their batch is due.

    The wrapped iterator must make new arrays for each batch, and must draw its random numbers from
    its own ``rnd``.

    Args:
        iter: The iterator to wrap.
    """

    #: The batches of the running epoch, of which one is made ahead.
    _batches: Any = None
    #: The state after the batch that was given last, without the one made ahead.
    _present: Any = None

    def __init__(self, iter: DataIterator) -> None:
        super().__init__(iter, {})

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        return self.resume_epoch(0, handler)

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Batch]:
        """Return the batches after the first `given` ones."""
        self._go_back()
        begin = self.iter.get_state()
        return self._read(self.iter.resume_epoch(given, handler), begin, given, handler)

    def _read(
        self, source: Iterator[Batch], begin: Any, given: int, handler: Any
    ) -> Iterator[Batch]:
        while True:
            self._go_back()
            make = functools.partial(self._make, source)
            batches = read_ahead(make, itertools.repeat(None))
            self._batches, self._present = batches, super().get_state()
            try:
                for batch, self._present in batches:
                    if batch is None:
                        return
                    given += 1
                    yield batch
            finally:
                if self._batches is batches:
                    self._go_back()
            # It was used for something else: the rest of the epoch begins anew from there.
            present = self.iter.get_state()
            self.iter.set_state(begin)
            source = self.iter.resume_epoch(given, handler)
            self.iter.set_state(present)

    def _make(self, source: Iterator[Batch], _: None) -> tuple[Batch | None, Mapping[str, Any]]:
        """Return a batch, or None after the last one, and the state after it."""
        return next(source, None), super().get_state()

    def _go_back(self) -> None:
        """Leave the wrapped iterator as if no batch had been made ahead."""
        if self._batches is not None:
            self._batches.close()
            super().set_state(self._present)
            self._batches = self._present = None

    def get_state(self) -> dict[str, Any]:
        return super().get_state() if self._present is None else dict(self._present)

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._go_back()
        super().set_state(state)

    def __getstate__(self) -> dict[str, Any]:
        self._go_back()
        return vars(self)


def read_ahead(read: Callable[[In], Out], tasks: Iterable[In]) -> Iterator[Out]:
    """Yield the results of `read` for each task, while a thread is one task ahead.

    So at most two results are in use. The thread ends with this generator, however it ends;
    errors of `read` are raised here.

    Raises:
        IteratorValidationError: The process was forked since: the thread exists in the parent only.
    """
    pending: Future[Out] | None = None
    forks = count_forks()

    def result(pending: Future[Out]) -> Out:
        if forks != count_forks():
            raise IteratorValidationError(
                "an epoch that began before the process was forked cannot go on in the forked one. "
                "Begin another: next(iterator())."
            )
        return pending.result()

    with ThreadPoolExecutor(1, "brainstorm-read-ahead") as thread:
        for task in tasks:
            following = thread.submit(read, task)
            if pending is not None:
                yield result(pending)
            pending = following
        if pending is not None:
            yield result(pending)
