"""Making the next batch in a thread, while the present one is used.

An epoch that is left may be closed by the garbage collector, in any thread and in the middle of
anything. So nothing waits for a thread then: what it has changed is undone at the next use.
"""

from __future__ import annotations

import concurrent.futures
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from brainstorm.data_iterators.base_iterator import Batch, DataIterator, Wrapper
from brainstorm.errors import IteratorValidationError
from brainstorm.forks import count_forks

In = TypeVar("In")
Out = TypeVar("Out")

#: A batch, or None after the last one, and the state after it.
Made: TypeAlias = tuple[Batch | None, Mapping[str, Any]]

#: The beginning of the names of the threads.
THREAD = "brainstorm-read-ahead"


@dataclass(eq=False)
class _Epoch:
    """An epoch of which a thread makes the next batch."""

    begin: Mapping[str, Any]  # the state of the iterator before its first batch
    present: Mapping[str, Any]  # the state after the batch that was given last
    future: Future[Made]  # the next batch
    forks: int = field(default_factory=count_forks)
    is_left: bool = False  # whether no further batch is wanted


class Prefetch(Wrapper):
    """Let a thread make the next batch while the network computes with the present one.

        training = Prefetch(Flip(RandomCrop(Pad(images, {"default": 4}), {"default": (32, 32)})))

    It is for batches that take long to make, by augmentation, decoding or a data set of your own,
    and is the outermost wrapper. Batches and states are those of the wrapped iterator, also if this
    one is used for something else in the middle of an epoch; then the rest of the epoch is begun
    anew, as after an interruption. The thread ends with the epoch; its errors are raised when their
    batch is due.

    Use the wrapped iterator only through this one as long as an epoch runs or was left in the
    middle, and in one thread. It must make new arrays for each batch, and draw its random numbers
    from its own ``rnd``.

    Args:
        iter: The iterator to wrap.
    """

    _epoch: _Epoch | None = None

    def __init__(self, iter: DataIterator) -> None:
        super().__init__(iter, {})

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        return self.resume_epoch(0, handler)

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Batch]:
        """Return the batches after the first `given` ones."""
        self._go_back()
        begin = self._copy_state()
        return self._read(self.iter.resume_epoch(given, handler), begin, given, handler)

    def _read(
        self, source: Iterator[Batch], begin: Mapping[str, Any], given: int, handler: Any
    ) -> Iterator[Batch]:
        thread = ThreadPoolExecutor(1, THREAD)
        epoch: _Epoch | None = None
        try:
            while True:
                if epoch is None or epoch is not self._epoch:
                    self._go_back()
                    present: Mapping[str, Any] = self._copy_state()
                    if epoch is not None:  # it was used for something else
                        super().set_state(_with_options(begin, present))
                        source = self.iter.resume_epoch(given, handler)
                        super().set_state(present)
                    following = thread.submit(self._make, source)
                    epoch = self._epoch = _Epoch(begin, present, following)
                batch, present = self._result(epoch)
                if batch is None:
                    self._epoch = None
                    return
                given, epoch.present = given + 1, present
                epoch.future = thread.submit(self._make, source)
                yield batch
        finally:
            if epoch is not None:
                epoch.is_left = True
            thread.shutdown(wait=False)

    def _make(self, source: Iterator[Batch]) -> Made:
        return next(source, None), self._copy_state()

    def _copy_state(self) -> Mapping[str, Any]:
        """Return the state, for later: a user's `get_state` may return a list that grows."""
        return copy.deepcopy(super().get_state())

    def _result(self, epoch: _Epoch) -> Made:
        check_not_forked(epoch.forks)
        try:
            return epoch.future.result()
        except Exception:
            self._epoch = None  # the state is that of the wrapped iterator
            raise

    def _go_back(self) -> None:
        """Leave the wrapped iterator as if no batch had been made ahead."""
        if self._epoch is None:
            return
        if self._epoch.forks != count_forks() and not self._epoch.future.done():
            raise self._fail(
                "expected an iterator of which no batch was being made when the process was "
                "forked: that would never end here. Create it in this process"
            )
        concurrent.futures.wait([self._epoch.future])
        epoch, self._epoch = self._epoch, None
        present = _with_options(epoch.present, super().get_state())
        super().set_state(_after_epoch(present, epoch.begin) if epoch.is_left else present)

    def get_state(self) -> dict[str, Any]:
        if self._epoch is not None and not self._epoch.is_left:
            return dict(self._epoch.present)
        self._go_back()
        return super().get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._go_back()
        super().set_state(state)

    def __getstate__(self) -> dict[str, Any]:
        self._go_back()
        return vars(self)


def _with_options(state: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the identity that the iterator has now: options may have changed."""
    found = dict(state)
    if "identity" in present:
        found["identity"] = present["identity"]
    if "iter" in state:
        found["iter"] = _with_options(state["iter"], present["iter"])
    return found


def _after_epoch(state: Mapping[str, Any], begin: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without what wrappers keep within an epoch, for chunks of the same sequences.

    They leave what an epoch has begun with, see `Wrapper`.
    """
    if "iter" not in state:
        return dict(state)
    inner = _after_epoch(state["iter"], begin["iter"])
    return {**state, "drawn_from": begin.get("drawn_from"), "iter": inner}


def read_ahead(read: Callable[[In], Out], tasks: Iterable[In]) -> Iterator[Out]:
    """Yield the results of `read` for each task, while a thread is one task ahead.

    So at most two results are in use. The thread ends after its task if this generator is left;
    errors of `read` are raised here.

    Raises:
        IteratorValidationError: The process was forked since: the thread exists in the parent only.
    """
    forks = count_forks()
    thread = ThreadPoolExecutor(1, THREAD)
    try:
        submitted = (thread.submit(read, task) for task in tasks)
        pending = next(submitted, None)
        while pending is not None:
            following = next(submitted, None)
            check_not_forked(forks)
            yield pending.result()
            pending = following
    finally:
        thread.shutdown(wait=False)


def check_not_forked(forks: int) -> None:
    """Raise an error if the process was forked since, as `count_forks` tells."""
    if forks != count_forks():
        raise IteratorValidationError(
            "an epoch that began before the process was forked cannot go on in the forked one. "
            "Begin another: next(iterator())."
        )
