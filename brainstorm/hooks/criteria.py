"""Criteria: whether low or high values of a log are better."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from brainstorm.constraints import one_of
from brainstorm.errors import TrainingError, unknown
from brainstorm.hooks.base import Hook, Iterators, find_moment, find_values
from brainstorm.scorers import Scorer

CRITERIA = ("min", "max")

#: The name in the logs of the averages over the training batches of each epoch.
ROLLING = "rolling_training"

#: Criterion by the last word of a log's name, unless another word reverses it.
_WORDS = {"loss": "min", "error": "min", "accuracy": "max"}
_TURNING = {"free", "inverse", "neg", "negative", "non", "one", "minus"}


class LogJudge(Hook):
    """A hook that decides which values of a log are better, by its `criterion` or the log's.

    Attributes:
        log_name: The dotted path of the log; '' for none.
    """

    __undescribed__: Any = {"_is_turn"}
    __constraints__: Any = {"criterion": one_of(*CRITERIA).or_none()}

    log_name: str
    criterion: str | None

    _is_turn = True  # whether it would be called in any case, and not only for a value of the log

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Check that it is known which values are better.

        Raises:
            TrainingError: Neither the hook nor the log has a criterion.
        """
        super().start(net, stepper, verbose, named_data_iters)
        if self.log_name:
            self.prefers_high(net)

    def is_turn(self, timescale: str, count: int) -> bool:
        """Return whether it is the hook's turn, or the log may have a new value of this network.

        Writers log at the same time, after this.
        """
        self._is_turn = super().is_turn(timescale, count)
        last = find_moment(self.trainer.logs, self.log_name)
        return self._is_turn or last is None or last.timescale == timescale

    def prefers_high(self, net: Any) -> bool:
        """Return whether high values are better.

        Raises:
            TrainingError: Neither the hook nor the log has a criterion.
        """
        return find_criterion(self, net, scorers_of(self.trainer)) == "max"

    def values(self, update_nr: int, logs: Mapping[str, Any]) -> Sequence[float]:
        """Return the values of the log; none if it is missing but need not be there yet."""
        may_lack = update_nr == 0 or not self._is_turn
        return find_values(self.place, logs, self.log_name, may_lack)

    def last_value(self, update_nr: int, logs: Mapping[str, Any]) -> float:
        """Return the last value; NaN if there is none, or its network was discarded."""
        values, last = self.values(update_nr, logs), find_moment(logs, self.log_name)
        is_discarded = last is not None and last.is_discarded
        return values[-1] if len(values) and not is_discarded else math.nan

    def is_better(self, value: float, best: float | None, net: Any) -> bool:
        """Return whether a value of the log is better than the best so far; NaN never is."""
        prefers_high = self.prefers_high(net)
        if math.isnan(value) or best is None:
            return not math.isnan(value)
        return value > best if prefers_high else value < best


def find_criterion(judge: Any, net: Any, scorers: Mapping[str, Sequence[Scorer]]) -> str:
    """Return the criterion of a hook or schedule, or that of its log.

    A log has one by its scorer (`Scorer.criterion`), because it is the loss of a Loss layer, or by
    a name whose last word is ``loss``, ``error`` (or ``error rate``) or ``accuracy``.

    Args:
        judge: The hook or schedule.
        net: The network.
        scorers: The scorers by the name of what logs them, see `scorers_of`.
    """
    if judge.criterion is not None:
        return str(judge.criterion)
    log_name = judge.log_name
    every = [scorer for group in scorers.values() for scorer in group]
    own = scorers.get(log_name.partition(".")[0], every)  # a log of no hook is an error later
    for scorer in own:
        if scorer.criterion is not None and f".{log_name}".endswith(f".{scorer.__name__}"):
            return scorer.criterion
    name = log_name.rpartition(".")[2]
    if name in getattr(net, "loss_layers", ()):
        return "min"
    if said := criterion_of(log_name):
        return said
    expected = f"'min' or 'max', because it is unknown which values of {log_name!r} are better"
    names = sorted({scorer.__name__ for scorer in own})
    if names and name not in names:
        place = getattr(judge, "place", type(judge).__name__)
        raise TrainingError(
            f"{place}, log_name: {unknown('scorer', name, names)} For any other log, give "
            f"criterion='min' or criterion='max'."
        )
    raise judge.fail("criterion", expected, None)


def criterion_of(log_name: str) -> str | None:
    """Return the criterion that the name of a log implies, or `None`."""
    name = log_name.rpartition(".")[2].removesuffix("_per_step")
    words = [w.lower() for w in re.findall(r"[A-Z]?[a-z]+", name)]
    if words[-2:] == ["error", "rate"]:
        words.pop()
    return None if not words or _TURNING.intersection(words) else _WORDS.get(words[-1])


def scorers_of(trainer: Any) -> dict[str, list[Scorer]]:
    """Return the scorers of a trainer by the name in the logs: its hooks', and its own."""
    if trainer is None:
        return {}
    found = {name: getattr(hook, "scorers", ()) for name, hook in trainer.hooks.items()}
    found[ROLLING] = trainer.train_scorers
    return {name: [s for s in group if isinstance(s, Scorer)] for name, group in found.items()}
