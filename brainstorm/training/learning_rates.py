"""Search for a learning rate: a short training in which it grows until the loss grows, too."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError, shown
from brainstorm.network.network import check_network
from brainstorm.randomness import global_rnd
from brainstorm.tools.evaluation import check_iterator
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.training.checkpoint import DataProgress
from brainstorm.utils import is_number, is_whole

#: The weight of the previous smoothed loss when a new one is averaged in.
SMOOTHING = 0.9

#: The search ends where the smoothed loss is this many times the lowest.
DIVERGENCE = 4.0


@dataclass(frozen=True)
class LearningRateSearch:
    """The result of a search.

    Raises:
        TrainingError: The lists are empty, or of different lengths.

    Attributes:
        rates: The learning rates, in growing order.
        losses: The loss of the (last) batch before the update with each.
        smoothed: The running average of the losses.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.rates, self.losses, self.smoothed)}
        if len(lengths) > 1 or 0 in lengths:
            raise TrainingError("LearningRateSearch: expected lists of equal length, not empty.")

    def __repr__(self) -> str:
        first, last = self.rates[0], self.rates[-1]
        return f"LearningRateSearch: {len(self.rates)} rates from {first:.3g} to {last:.3g}"

    @property
    def suggestion(self) -> float:
        """A tenth of the highest learning rate before the smoothed loss rose above its start.

        Raises:
            TrainingError: It did so from the beginning.
        """
        first, *others = self.smoothed
        kept = [number for number, loss in enumerate(others, 1) if loss <= first]
        if not kept:
            raise TrainingError(
                f"find_learning_rate: expected a loss that falls at first, got one that rises from "
                f"{first:.4g} on, with learning rates from {self.rates[0]:.3g}. Begin lower, or "
                f"look at the data and the wiring."
            )
        return self.rates[kept[-1]] / 10


def find_learning_rate(
    net: Any,
    stepper: TrainingStepper,
    training_data_iter: Any,
    lowest: float = 1e-5,
    highest: float = 100.0,
    updates: int = 100,
) -> LearningRateSearch:
    """Train a copy of a network with a learning rate that grows from update to update.

        search = find_learning_rate(net, MomentumStepper(momentum=0.9), Minibatches(100, **data))
        stepper.learning_rate = search.suggestion

    The network, the stepper and all random numbers stay unchanged; so does the data iterator, if
    it has ``get_state`` and ``set_state``. (L. N. Smith, arXiv:1506.01186, section 3.3.)

    Args:
        net: The network, initialized.
        stepper: A stepper with a learning rate.
        training_data_iter: Yields batches; started again when they end.
        lowest: The first learning rate.
        highest: The last one; the search ends earlier where the loss explodes.
        updates: Number of updates; the ratio of successive learning rates is constant.

    Raises:
        TrainingError: An argument is not valid, there is no batch, or the first loss is not
            finite.
    """
    check_network("find_learning_rate", net)
    _check(stepper, lowest, highest, updates)
    check_iterator("find_learning_rate", training_data_iter)
    updates = int(updates)
    kept = global_rnd.__getstate__()
    has_state = hasattr(training_data_iter, "get_state")
    state = copy.deepcopy(training_data_iter.get_state()) if has_state else None
    try:
        with net.copy() as trained:
            stepper = create_from_description(get_description(stepper))
            progress = DataProgress(trained, {"training_data_iter": training_data_iter})
            ratio = (highest / lowest) ** (1 / (updates - 1))
            return _search(stepper, progress, [lowest * ratio**i for i in range(updates)])
    finally:
        global_rnd.__setstate__(kept)
        if has_state:
            training_data_iter.set_state(state)


def _search(stepper: Any, progress: DataProgress, rates: list[float]) -> LearningRateSearch:
    losses: list[float] = []
    smoothed: list[float] = []
    stepper.start(progress.net)
    progress.net.start_weight_modifiers()
    average = 0.0
    while True:
        progress.begin_epoch()
        for _ in progress.batches():
            progress.begin_step()
            stepper.learning_rate = rates[len(losses)]
            stepper.run()
            if stepper.is_within_update:
                continue
            progress.net.apply_weight_modifiers()
            loss = progress.net.get_loss_values()["total_loss"]
            if not losses and not math.isfinite(loss):
                raise TrainingError(
                    f"find_learning_rate: expected a finite first loss, got {loss}. Check the data "
                    f"and the initialization."
                )
            average = SMOOTHING * average + (1 - SMOOTHING) * loss
            losses.append(loss)
            smoothed.append(average / (1 - SMOOTHING ** len(losses)))
            exploded = not smoothed[-1] <= DIVERGENCE * abs(min(smoothed))  # NaN too
            if exploded or len(losses) == len(rates):
                count = len(losses) - (not math.isfinite(smoothed[-1]))
                return LearningRateSearch(rates[:count], losses[:count], smoothed[:count])
        if progress.given == 0:
            raise TrainingError(
                f"find_learning_rate: the training_data_iter "
                f"({type(progress.iters['training_data_iter']).__name__}) gave no batch."
            )


def _check(stepper: Any, lowest: Any, highest: Any, updates: Any) -> None:
    if isinstance(stepper, type) or "learning_rate" not in getattr(stepper, "hyperparameters", ()):
        raise TrainingError(
            f"find_learning_rate: expected a stepper with a learning_rate, got {shown(stepper)}."
        )
    if not (is_number(lowest) and is_number(highest) and 0 < lowest < highest < math.inf):
        raise TrainingError(
            f"find_learning_rate: expected 0 < lowest < highest, got {lowest!r} and {highest!r}."
        )
    if not is_whole(updates, least=2):
        raise TrainingError(
            f"find_learning_rate, updates: expected an integer >= 2, got {updates!r}."
        )
