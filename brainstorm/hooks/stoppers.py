"""Stoppers: hooks that end the training."""

from __future__ import annotations

import math
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from brainstorm.constraints import number, whole
from brainstorm.errors import see
from brainstorm.hooks.base import Hook, Iterators, check_counts, find_moment, find_values
from brainstorm.hooks.criteria import LogJudge
from brainstorm.network.parameters import put_values, take_values


class _Stopper(Hook):
    """A hook that only stops, and so may be called twice."""

    role = "reader"
    idempotent = True

    def is_turn(self, timescale: str, count: int) -> bool:
        """Return whether it is the hook's turn: again at the end of an epoch, which has logs."""
        if timescale == "epoch" and self.timescale == "update" and self.ran_on == self.occasion:
            timescale, count = "update", self.trainer.current_update_nr
        return super().is_turn(timescale, count)


class StopAfterEpoch(_Stopper):
    """Stop once this many epochs are done.

    Args:
        max_epochs: The number of epochs, over all calls of ``train``.
        timescale: ``'epoch'`` or ``'update'``; in both cases the hook checks at the end of epochs.
        interval: Check every so many epochs.
        name, verbose: See `Hook`.
    """

    __constraints__ = {"max_epochs": number(0, math.inf)}

    def __init__(
        self,
        max_epochs: int,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(name, timescale, interval, verbose)
        self.max_epochs = max_epochs

    def is_turn(self, timescale: str, count: int) -> bool:
        """Return whether an epoch has ended: there is nothing to check within one."""
        return timescale == "epoch" and (self.timescale == "update" or count % self.interval == 0)

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        if epoch_nr >= self.max_epochs:
            raise StopIteration(f"reached max_epochs={self.max_epochs}")


class _LogStopper(LogJudge, _Stopper):
    """A stopper with a criterion, which ignores values that were logged of another network."""

    state_names: ClassVar[tuple[str, ...]] = ("_ignored",)

    _ignored = 0  # number of values at the beginning of the log

    def __init__(self, log_name: str, criterion: str | None, *common: Any) -> None:
        super().__init__(*common)
        self.log_name = log_name
        self.criterion = criterion

    def begin_anew(self, logs: Mapping[str, Any]) -> None:
        """Ignore values that were logged of another network."""
        super().begin_anew(logs)
        self._ignored = len(find_values(self.place, logs, self.log_name, may_lack=True))

    def set_state(self, state: Mapping[str, Any]) -> None:
        check_counts(self.place, ignored=state["ignored"])
        super().set_state(state)


class EarlyStopper(_LogStopper):
    """Stop when a log has not improved for some time; NaN is never an improvement.

    Args:
        log_name: Dotted path of the log, e.g. ``'validation.Accuracy'``.
        patience: Stop when this many values follow the best one.
        criterion: ``'min'`` or ``'max'``: which values are better; `None`: as the log's name or its
            scorer says.
        timescale: when the hook may stop, ``'epoch'`` or ``'update'``, for logs of either.
        interval: Stop only every so many epochs or updates; values in between are not missed.
        name, verbose: See `Hook`.
        min_delta: The least improvement over the best value that counts.
        first_epoch: Values from before this epoch do not count; 1 excludes those from before the
            training.
        restore_best: Whether parameters and running statistics are those of the best value at the
            end of a training, whatever ends it, except an error; a later one continues from there.
            Until then hooks see the last ones. Values from before the hook was added then do not
            count.
    """

    __default_values__ = {
        "patience": 1, "min_delta": 0.0, "first_epoch": 1, "restore_best": False,
    }  # fmt: skip
    __constraints__ = {
        "patience": number(1, math.inf),
        "min_delta": number(0),
        "first_epoch": whole(),
    }
    state_names = ("_seen", "_best", "_kept")
    __undescribed__ = {"_has_failed"}

    _seen = 0  # number of values
    _best = -1  # the index of the best value, or of the last one that does not count
    _kept: Mapping[str, Any] = {}  # the network at the best value
    _has_failed = False  # whether this training ends by an error

    def __init__(
        self,
        log_name: str,
        patience: int = 1,
        criterion: str | None = None,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
        min_delta: float = 0.0,
        first_epoch: int = 1,
        restore_best: bool = False,
    ) -> None:
        super().__init__(log_name, criterion, name, timescale, interval, verbose)
        self.patience = patience
        self.min_delta = min_delta
        self.first_epoch = first_epoch
        self.restore_best = restore_best

    def begin_anew(self, logs: Mapping[str, Any]) -> None:
        super().begin_anew(logs)
        self._seen, self._best, self._kept = self._ignored, self._ignored - 1, {}

    @property
    def role(self) -> str:  # type: ignore[override]
        """The role: a hook that changes the network runs in all processes."""
        return "editor" if self.restore_best else "reader"

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        values, best = self.values(update_nr, logs), self._best
        last = find_moment(logs, self.log_name)
        is_present = last is None or last.is_of(update_nr)
        sign = -1.0 if self.prefers_high(net) else 1.0
        self._look_at(values, epoch_nr, sign, is_present)
        if self.restore_best and best != self._best:
            self._kept = take_values(net) if self._best >= self._ignored else {}
        age = len(values) - 1 - self._best
        if self._is_turn and age >= self.patience:
            raise StopIteration(f"{self.log_name} was best {age} values ago")

    def on_error(self, net: Any, stepper: Any, logs: Any, error: BaseException) -> None:
        self._has_failed = True

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        if self.restore_best and not self._has_failed:
            put_values(net, self._kept)
        self._has_failed = False

    def _look_at(
        self, values: Sequence[float], epoch_nr: int, sign: float, is_present: bool
    ) -> None:
        """Find the best value, including the new ones; of equal values the first counts.

        `is_present`: whether the last value is that of the present network.
        """
        for index in range(self._seen, len(values)):
            is_late = self.restore_best and (index < len(values) - 1 or not is_present)
            if epoch_nr < self.first_epoch or is_late:
                self._ignored = index + 1
            best = sign * values[self._best]
            best = (math.inf if math.isnan(best) else best) - self.min_delta
            if index <= self._ignored or sign * values[index] < best:
                self._best = index
        self._seen = len(values)

    def set_state(self, state: Mapping[str, Any]) -> None:
        check_counts(self.place, seen=state["seen"])
        super().set_state({**state, "best": int(state["best"]), "kept": dict(state["kept"])})


class StopAfterThresholdReached(_LogStopper):
    """Stop when a value of a log has reached a threshold.

    Args:
        log_name: Dotted path of the log.
        threshold: The value to reach.
        criterion: ``'min'``: values at or below it reach it; ``'max'``: at or above; `None`: as the
            log's name or its scorer says.
        name, timescale, interval, verbose: See `Hook`.
    """

    is_turn = _Stopper.is_turn  # all values are looked at, also those before the last

    def __init__(
        self,
        log_name: str,
        threshold: float,
        criterion: str | None = None,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(log_name, criterion, name, timescale, interval, verbose)
        self.threshold = threshold

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        values = self.values(update_nr, logs)
        reached = np.greater_equal if self.prefers_high(net) else np.less_equal
        if reached(np.asarray(values[self._ignored :], float), self.threshold).any():
            raise StopIteration(f"{self.log_name} reached {self.threshold}")


class StopOnNan(_Stopper):
    """Stop when parameters, running statistics, the training loss or logs are NaN or infinite.

    Args:
        logs_to_check: Dotted path or paths of logs whose last value is checked.
        check_parameters: Whether to check all parameters and running statistics.
        check_training_loss: Whether to check the training loss of every batch.
        name, timescale, interval, verbose: See `Hook`.
    """

    __undescribed__: Any = {"_looked_at"}

    _looked_at = (0, 0)  # an epoch, and the number of its batches checked

    def __init__(
        self,
        logs_to_check: Collection[str] = (),
        check_parameters: bool = True,
        check_training_loss: bool = True,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(name, timescale, interval, verbose)
        self.logs_to_check = logs_to_check
        self.check_parameters = check_parameters
        self.check_training_loss = check_training_loss

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Reset the list of checked batches: an epoch begins, perhaps again."""
        super().start(net, stepper, verbose, named_data_iters)
        if self.trainer is None or not self.trainer.batch_losses:
            self._looked_at = (0, 0)

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        wrong = self.find_wrong(update_nr, net, logs)
        if wrong is not None:
            raise StopIteration(f"{wrong}. {see('the-loss-is-nan-or-infinite')}")

    def find_wrong(self, update_nr: int, net: Any, logs: Any) -> str | None:
        """Return a text about values that are not finite; `None` if all are."""
        for path in ("parameters", *net.persistent_paths) if self.check_parameters else ():
            if not net.handler.is_fully_finite(net.buffer[path]):
                return f"{path} are not finite"
        if self.check_training_loss and update_nr > 0:
            for loss in self._new_losses(net):
                if not math.isfinite(loss):
                    return f"the training loss is {loss}"
        for path in self.logs_to_check:
            last = find_moment(logs, path)
            for value in find_values(self.place, logs, path, may_lack=update_nr == 0)[-1:]:
                if not (math.isfinite(value) or (last is not None and last.is_discarded)):
                    return f"{path} is {value}"
        return None

    def _new_losses(self, net: Any) -> Sequence[float]:
        """Return the losses of the batches since the last call; without trainer, the last loss."""
        if self.trainer is None:
            return [net.get_loss_values()["total_loss"]]
        losses, epoch = self.trainer.batch_losses, self.trainer.current_epoch_nr
        start = self._looked_at[1] if self._looked_at[0] == epoch else 0
        self._looked_at = epoch, len(losses)
        return losses[start:]


class StopOnSigQuit(_Stopper):
    r"""Stop soon after the signal SIGQUIT (Ctrl-\ in a terminal).

    The signal's handler only sets a flag; the previous handler is restored after the training.
    Only the main thread can receive signals, and Windows has no SIGQUIT; there, the hook prints a
    message and does nothing.
    """

    __undescribed__ = {"quit", "_previous"}

    quit = False
    _previous: tuple[Any] | None = None

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        super().start(net, stepper, verbose, named_data_iters)
        self.quit = False
        if not hasattr(signal, "SIGQUIT"):
            self.message("this system has no SIGQUIT; there will be no stop by signal")
            return
        try:
            self._previous = (signal.signal(signal.SIGQUIT, self._receive),)
        except ValueError:  # Python's words are "main thread of the main interpreter"
            self.message("not in the main thread; there will be no stop by signal")

    def _receive(self, number: int, frame: Any) -> None:
        self.quit = True

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        if self.quit:
            raise StopIteration("received SIGQUIT")

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        if self._previous is not None:
            # Python cannot restore a handler that was not set from Python.
            signal.signal(signal.SIGQUIT, self._previous[0] or signal.SIG_DFL)
            self._previous = None
