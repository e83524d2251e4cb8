"""Checkpoints: the hook that saves whole runs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brainstorm.constraints import number, whole
from brainstorm.describable import get_description
from brainstorm.hooks.base import Iterators, StoredPath, check_counts
from brainstorm.hooks.criteria import LogJudge
from brainstorm.hooks.savers import FileSaver
from brainstorm.utils import is_number


class SaveCheckpoint(LogJudge, FileSaver):
    """Save the whole run at intervals, so that `Trainer.resume` continues it exactly.

    The file is written after everything else of the update (and of the epoch, after its last
    update). It replaces the previous file atomically. It is also written when a signal ends the
    training (see `Trainer.train`). The hook does nothing before the first update.

    Args:
        filename: The file; it always holds the newest state.
        name, timescale, interval: See `Hook`.
        minutes: Save every so many minutes (at the end of an update) instead.
        keep: How many states are kept. If more than one, each also gets a file of its own with the
            number of updates: ``run-1200.hdf5`` beside ``run.hdf5``.
        best: Dotted path of a log, e.g. ``'validation.total_loss'``: of all saved states, the one
            at which its last value was best is kept as ``run-best.hdf5``.
        criterion: ``'min'`` or ``'max'``: which values of that log are better; `None`: as its name
            or its scorer says.
        verbose: See `Hook`.

    Attributes:
        best_so_far: The best value at a save, `None` before the first.
    """

    state_names = ("_kept", "best_so_far")
    __undescribed__ = {"_saved_at"}
    __constraints__ = {"minutes": number(0).or_none(), "keep": whole()}
    __default_values__ = {"minutes": None, "keep": 1, "best": None, "criterion": None}

    kind = "Run file"
    best_so_far: float | None = None
    _kept: Sequence[int] = []  # the update numbers of the kept states
    _saved_at = 0.0

    def __init__(
        self,
        filename: str | os.PathLike[str],
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        minutes: float | None = None,
        keep: int = 1,
        best: str | None = None,
        criterion: str | None = None,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(filename, name, timescale, interval, verbose)
        self.minutes = minutes
        self.keep = keep
        self.best = best
        self.criterion = criterion

    @property
    def log_name(self) -> str:  # type: ignore[override]
        """That of `best`."""
        return self.best or ""

    @property
    def kept(self) -> list[str]:
        """Names of the kept files beside `filename`, oldest first."""
        return [self._name(number) for number in self._kept]

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Check at the start, not hours later, that the run can be saved.

        Raises:
            TrainingError: An iterator has no state, or the folder does not exist or is not
                writable; or it is unknown which values of `best` are better.
            DescriptionError: A hook, the stepper or a scorer cannot be described.
        """
        super().start(net, stepper, verbose, named_data_iters)
        if isinstance(self.filename, StoredPath) or self.keep > 1 or self.best is not None:
            self._check_copies()
        for name, iterator in named_data_iters.items():
            if not (hasattr(iterator, "get_state") and hasattr(iterator, "resume_epoch")):
                raise self.fail(name, "a DataIterator, which can be continued", iterator)
        get_description(self.trainer)
        self._saved_at = time.monotonic()

    def _check_copies(self) -> None:
        """Check that copies will not overwrite foreign files, if the path is from a run file."""
        path = Path(self.path)
        for found in path.parent.iterdir():
            what = found.name.removeprefix(f"{path.stem}-").removesuffix(path.suffix)
            is_copy = found.name == f"{path.stem}-{what}{path.suffix}"
            if is_copy and (what.isdecimal() or what == "best") and not self.owns(str(found)):
                expected = f"run files where its copies go, not {found.name!r} (move that)"
                raise self.fail("filename", expected, self.filename)

    def is_due(self, ended: Mapping[str, int]) -> bool:
        """Return whether it is time to save.

        Args:
            ended: The number of the epoch, the update, or both, that have just ended.
        """
        if self.minutes is not None:
            return time.monotonic() - self._saved_at >= 60 * self.minutes
        return self.timescale in ended and ended[self.timescale] % self.interval == 0

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Save the run, and delete all but the last `keep` states."""
        before = self.get_state()
        # The state in the file must list its copies: a continued run has to delete them later.
        copies = []
        if self.keep > 1:
            copies.append(self._name(update_nr))
            self._kept = [*(nr for nr in self._kept if nr != update_nr), update_nr]
        if self.best is not None:
            value = self.last_value(update_nr, logs)
            if self.is_better(value, self.best_so_far, net):
                self.best_so_far = value
                copies.append(self._name("best"))
        is_saved = False
        try:
            is_saved = self._attempt(lambda: self._save(copies))
        finally:
            if not is_saved:
                self.set_state(before)
        self._saved_at = time.monotonic()

    def _save(self, copies: list[str]) -> None:
        # The copies are written first, so that what the file says about them is true at once.
        self.trainer.save_run(self.path, copies)
        while len(self._kept) > self.keep:
            oldest, *self._kept = self._kept
            if self.owns(name := self._name(oldest)):
                Path(name).unlink()

    def _name(self, what: Any) -> str:
        path = Path(self.path)
        return str(path.with_name(f"{path.stem}-{what}{path.suffix}"))

    def set_state(self, state: Mapping[str, Any]) -> None:
        kept, best = state["kept"], state["best_so_far"]
        if not isinstance(kept, list):
            raise self.fail("kept", "a list of numbers of updates", kept)
        for update in kept:
            check_counts(self.place, kept=update)
        if not (best is None or is_number(best)):
            raise self.fail("best_so_far", "a number or None", best)
        super().set_state(state)
