"""Parameter groups: learning rate, decay and freezing of some of the parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from brainstorm.describable import Describable
from brainstorm.errors import TrainingError, unknown
from brainstorm.handlers.plan import Watched
from brainstorm.hooks.base import is_number

__all__ = ["ParameterGroup", "find_members"]


class ParameterGroup(Watched, Describable):
    """Parameters that a stepper treats in their own way.

        stepper = AdamWStepper(0.001, weight_decay=0.01)
        stepper.groups = [
            ParameterGroup("Embedding", frozen=True),
            ParameterGroup("Conv*", learning_rate_factor=0.1),
            ParameterGroup("*.bias", weight_decay=0),
        ]

    A parameter belongs to the first group that names it. Attributes may be changed, and
    ``stepper.groups`` be set anew, while training.

    Args:
        paths: Parameters by dotted path, ``'Conv1.parameters.W'``, or patterns of it in which
            ``*`` stands for anything, dots included; the name of a layer stands for all its
            parameters. One or a list.
        learning_rate_factor: What the learning rate of the stepper is multiplied with; schedules
            and hooks that change it reach all groups.
        weight_decay: For `AdamWStepper` in place of its own. For other steppers ``weight_decay *
            w`` is added to the gradients before the update (and not limited by
            ``max_gradient_norm``). `None` is what the stepper does without groups.
        frozen: Whether these parameters and their state stay as they are. Their gradients are set
            to zero.
    """

    __default_values__ = {"learning_rate_factor": 1.0, "weight_decay": None, "frozen": False}

    def __init__(
        self,
        paths: str | Sequence[str],
        learning_rate_factor: float = 1.0,
        weight_decay: float | None = None,
        frozen: bool = False,
    ) -> None:
        self.paths = paths
        self.learning_rate_factor = learning_rate_factor
        self.weight_decay = weight_decay
        self.frozen = frozen

    def __setattr__(self, name: str, value: object) -> None:
        number = name == "learning_rate_factor" or (name == "weight_decay" and value is not None)
        if number and not (is_number(value) and 0 <= value < math.inf):  # type: ignore[operator]
            raise TrainingError(
                f"ParameterGroup.{name}: expected a finite number >= 0, got {value!r}."
            )
        super().__setattr__(name, value)

    @property
    def patterns(self) -> list[str]:
        """The paths as a list."""
        return [self.paths] if isinstance(self.paths, str) else list(self.paths)

    def has(self, path: str) -> bool:
        """Return whether it names the parameter with this path."""
        return any(_matches(path, pattern) for pattern in self.patterns)


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path.partition(".")[0], pattern)


def find_members(
    groups: Sequence[ParameterGroup], slices: Mapping[str, slice]
) -> list[tuple[slice, int | None]]:
    """Return the parts of the flat parameters, each with the number of its group or `None`.

    Args:
        groups: The groups.
        slices: Path of each parameter to its place among all.

    Raises:
        TrainingError: A path of a group fits no parameter.
    """
    for group in groups:
        for pattern in group.patterns:
            if not any(_matches(path, pattern) for path in slices):
                text = unknown("path of a parameter", pattern, sorted(slices))
                raise TrainingError(f"ParameterGroup({group.paths!r}): {text}")
    numbered = (
        (place, next((i for i, group in enumerate(groups) if group.has(path)), None))
        for path, place in sorted(slices.items(), key=lambda item: item[1].start)
    )
    return [
        (_join(place for place, _ in members), number)
        for number, members in itertools.groupby(numbered, key=lambda item: item[1])
    ]


def _join(places: Iterable[slice]) -> slice:
    first, *_, last = [place for place in places for _ in (0, 1)]
    return slice(first.start, last.stop)
