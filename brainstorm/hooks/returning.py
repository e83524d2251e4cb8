"""Returning to the last good checkpoint when values are no longer finite."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from brainstorm.constraints import number, whole
from brainstorm.errors import FileFormatError, see
from brainstorm.files import RunFile, read_run_file
from brainstorm.hooks.base import Iterators, check_counts
from brainstorm.hooks.checkpoints import SaveCheckpoint
from brainstorm.hooks.stoppers import StopOnNan
from brainstorm.network.parameters import put_values


class ReturnToCheckpoint(StopOnNan):
    """Go back to the last good checkpoint when values, such as the loss, are NaN or infinite.

    It looks at what `StopOnNan` does. Parameters, running statistics, averages (`AverageWeights`)
    and the stepper's state are read from the newest file of the trainer's `SaveCheckpoint` hooks in
    which all parameters and statistics are finite, and the learning rate is reduced, including that
    of schedules; hooks of your own go back by `Hook.go_back`. Counts, logs and data go on;
    recurrent layers start anew.
    The training stops after too many returns, or if there is no good checkpoint. Each return is
    logged as a text with the reason, the update of the checkpoint and the learning rate.

    Args:
        factor: The learning rate is multiplied by it; above 0 and at most 1.
        most_returns: Maximum number of returns in the whole training.
        logs_to_check: Dotted path or paths of logs whose last value is checked.
        check_parameters: Whether to check all parameters and running statistics.
        check_training_loss: Whether to check the training loss, see `StopOnNan`.
        name, timescale, interval, verbose: See `Hook`.

    Attributes:
        returns: How often the hook has gone back.
    """

    state_names = ("returns",)
    __undescribed__ = {"_existing"}
    __constraints__ = {"factor": number(0, 1, low_open=True), "most_returns": whole()}

    returns = 0
    _existing: Mapping[Path, tuple[int, int]] = {}  # files to their times, and the last update

    role = "editor"

    def __init__(
        self,
        factor: float = 0.5,
        most_returns: int = 3,
        logs_to_check: Collection[str] = (),
        check_parameters: bool = True,
        check_training_loss: bool = True,
        name: str | None = None,
        timescale: str = "update",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(
            logs_to_check, check_parameters, check_training_loss, name, timescale, interval, verbose
        )
        self.factor = factor
        self.most_returns = most_returns

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Check that there will be checkpoints, and a learning rate.

        Raises:
            TrainingError: The trainer has no `SaveCheckpoint`, or the stepper no learning rate.
        """
        super().start(net, stepper, verbose, named_data_iters)
        if not self._savers():
            raise self.fail("trainer", "one with a SaveCheckpoint hook", list(self.trainer.hooks))
        if not hasattr(stepper, "learning_rate"):
            raise self.fail("stepper", "one with a learning_rate", type(stepper).__name__)
        self._note_files(self.trainer.current_update_nr)

    def begin_anew(self, logs: Mapping[str, Any]) -> None:
        """Reset the count, and ignore the checkpoints that exist now."""
        super().begin_anew(logs)
        self._existing = {}
        self._note_files(-1)

    def _note_files(self, last: int) -> None:
        """Note that files that exist now are not of this run if they are of later updates."""
        names = [name for saver in self._savers() for name in _files_of(saver)]
        found = {name: (_time_of(name), last) for name in names}
        known = {name: old for name, old in self._existing.items() if old[0] == _time_of(name)}
        self._existing = {**found, **known}

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> Any:
        """Go back if a value is not finite; all processes of a team do if one has such a value."""
        team = self.trainer.team
        wrong = next(filter(None, team.gather(self.find_wrong(update_nr, net, logs))), None)
        if wrong is None:
            return None
        remedy = see("the-loss-is-nan-or-infinite")
        if self.returns >= self.most_returns:
            raise StopIteration(f"{wrong}, after {self.returns} returns. {remedy}")
        good = team.share(self._find_good() if team.rank == 0 else None)
        if good is None:
            raise StopIteration(f"{wrong}, and there is no good checkpoint. {remedy}")
        self.returns += 1
        self._go_back(good, net, stepper)
        return f"{wrong}: back to update {_updates(good)}, learning rate {stepper.learning_rate:g}"

    def _savers(self) -> list[SaveCheckpoint]:
        return [h for h in self.trainer.hooks.values() if isinstance(h, SaveCheckpoint)]

    def _find_good(self) -> RunFile | None:
        """Return the newest checkpoint whose values are all finite; only rank 0 has one."""
        found = [good for saver in self._savers() if (good := self._find_good_of(saver))]
        return max(found, key=_updates, default=None)

    def _find_good_of(self, saver: SaveCheckpoint) -> RunFile | None:
        for name in _files_of(saver):
            try:
                content = read_run_file(name)
            except (FileNotFoundError, FileFormatError):
                continue
            time, last = self._existing.get(name, (None, 0))
            is_own = time != _time_of(name) or _updates(content) <= last
            arrays = content.network.arrays.values()
            if is_own and all(np.isfinite(array).all() for array in arrays):
                return content
        return None

    def _go_back(self, good: RunFile, net: Any, stepper: Any) -> None:
        rate = stepper.learning_rate * self.factor
        stepper.set_state(good.state["trainer"]["stepper"])
        stepper.learning_rate = rate
        part = self.trainer.team.own_part({"parts": [], **good.state}, stepper)
        put_values(net, {**good.network.arrays, **part.get("persistent", {})})
        stepper.start(net)
        states = good.state["trainer"]["hooks"]
        for name, hook in self.trainer.hooks.items():
            hook.go_back(states.get(name), self.factor, net, stepper)
        self.trainer.restart_sequences()
        moments = self.trainer.logs.moments
        moments |= {name: moment._replace(is_discarded=True) for name, moment in moments.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        check_counts(self.place, returns=state["returns"])
        super().set_state(state)


def _files_of(saver: SaveCheckpoint) -> list[Path]:
    """Return the checkpoints of a hook, newest first."""
    return [Path(name).absolute() for name in (saver.path, *reversed(saver.kept))]


def _updates(content: RunFile) -> int:
    """Return the number of updates before the file was written."""
    return int(content.state["trainer"]["current_update_nr"])


def _time_of(filename: Path) -> int:
    """Return the time when a file was written, in nanoseconds; -1 if it does not exist."""
    try:
        return os.stat(filename).st_mtime_ns
    except OSError:
        return -1
