"""Parameter groups: learning rate, decay and freezing of some of the parameters.

A stepper treats each group as a stepper of its own would: `GroupedParameters` makes one for each
part of the flat arrays, and keeps the numbers of all of them in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import numpy as np

from brainstorm.describable import Describable
from brainstorm.errors import TrainingError, unknown
from brainstorm.optree.formula import formula
from brainstorm.utils import Array, is_number


@formula
def decayed(g: Any, p: Any, decay: Any) -> Any:
    """Return the gradients of the loss plus ``decay / 2`` times the squared parameters."""
    return g + decay * p


@dataclass(eq=False, repr=False)
class ParameterGroup(Describable):
    """Parameters with their own learning rate or decay, or that are frozen.

        stepper = AdamWStepper(0.001, weight_decay=0.01)
        stepper.groups = [
            ParameterGroup("Embedding", frozen=True),
            ParameterGroup("Conv*", learning_rate_factor=0.1),
            ParameterGroup("*.bias", weight_decay=0),
        ]

    A parameter belongs to the first group that names it. Attributes and ``stepper.groups`` may be
    changed during training.

    Args:
        paths: Parameters by dotted path, ``'Conv1.parameters.W'``, or patterns in which ``*``
            stands for anything, including dots; the name of a layer stands for all its parameters.
            One or a list.
        learning_rate_factor: Factor of the stepper's learning rate; schedules and hooks that change
            the learning rate affect all groups.
        weight_decay: For `AdamWStepper` in place of its own. For other steppers ``weight_decay *
            w`` is added to the gradients before the update (and not limited by
            ``max_gradient_norm``). `None`: as the stepper does without groups.
        frozen: Whether these parameters and their state stay unchanged. Their gradients are set to
            zero.
        keep_statistics: Whether layers with a parameter in the group keep their running statistics,
            and use them in training too, e.g. a pretrained `BatchNorm`; with ``frozen`` or without.
            (In PyTorch, ``requires_grad = False`` is ``frozen``, ``eval()`` is this.)
    """

    paths: str | Sequence[str]
    learning_rate_factor: float = 1.0
    weight_decay: float | None = None
    frozen: bool = False
    keep_statistics: bool = False

    __default_values__ = {
        "learning_rate_factor": 1.0,
        "weight_decay": None,
        "frozen": False,
        "keep_statistics": False,
    }

    __argument_error__ = TrainingError

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
        """Return whether the group names the parameter with this path."""
        return any(_matches(path, pattern) for pattern in self.patterns)


#: Stands for the group of the parameters that are in no group; it is the last.
_NO_GROUP = ParameterGroup(())


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path.partition(".")[0], pattern)


def checked_groups(stepper: Any, groups: Sequence[ParameterGroup]) -> list[ParameterGroup]:
    """Return groups as a list.

    Raises:
        TrainingError: An element is not a group, or the stepper does not support a setting.
    """
    where = f"{type(stepper).__name__}.groups"
    if not isinstance(groups, Sequence):
        raise TrainingError(f"{where}: expected a list of ParameterGroups, got {groups!r}.")
    for group in groups:
        if not isinstance(group, ParameterGroup):
            raise TrainingError(f"{where}: expected ParameterGroups, got {group!r}.")
        if group.learning_rate_factor != 1.0 and "learning_rate" not in stepper.hyperparameters:
            raise TrainingError(
                f"{where}, ParameterGroup({group.paths!r}): this stepper has no learning_rate for "
                f"its learning_rate_factor."
            )
    return list(groups)


class GroupedParameters:
    """The parameters of a stepper, group by group, and the numbers of each in memory.

    Where the stepper has a bias correction (`TrainingStepper.correction`), a parameter that was
    frozen for a while has had fewer updates than the others. So each *part*, i.e. adjacent
    parameters of one group that have been updated alike, has weights of its own.

    Args:
        stepper: The stepper, attached to a network.
        groups: Its groups.
        weights: The result of `get_weights` of the previous groups.

    Raises:
        TrainingError: A path of a group matches no parameter.

    Attributes:
        numbers: The values of the stepper's `scalars` for parameters in no group, by name:
            one-element arrays on the handler.
        memory_of_parts: The weights of each part, and the numbers corrected by them.
    """

    def __init__(
        self,
        stepper: Any,
        groups: Sequence[ParameterGroup],
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        self._groups = [*groups, _NO_GROUP]
        self._handler = stepper.handler
        self._weight_names = tuple(stepper.weight_names)
        self._corrected_names = tuple(stepper.corrected_names)
        names = tuple(stepper.scalars())
        size = len(self._groups) * len(names)
        self._memory: Array = stepper.handler.zeros((size + len(groups),))
        each = [self._memory[i : i + 1] for i in range(self._memory.size)]
        self._numbers = [
            dict(zip(names, each[i * len(names) :], strict=False)) for i in range(len(self._groups))
        ]
        self.numbers = self._numbers[-1]
        self._decays = each[size:]
        has_parts = bool(groups or self._weight_names)
        self._slices: Mapping[str, slice] = stepper.net.parameter_slices if has_parts else {}
        count = len(self._slices) * len((*self._weight_names, *self._corrected_names))
        self.memory_of_parts: Array = stepper.handler.zeros((count,))
        self._given_weights = weights
        self._normalizing = [
            layer for layer in stepper.net.layers.values() if hasattr(layer, "keeps_statistics")
        ]
        self._members: list[tuple[slice, int]] = []
        self._found_at: Any = None  # the `revision` when the members were found
        self._find_members()

    @property
    def revision(self) -> list[Any]:
        """A value that changes when a group changes."""
        return [
            (*g.patterns, g.frozen, g.weight_decay is None, g.keep_statistics) for g in self._groups
        ]

    @property
    def purpose(self) -> tuple[Any, ...]:
        """A value that changes when the operations of an update change."""
        return (*self.revision, *((rows.start, number) for rows, number in self._find_members()))

    def _find_members(self) -> list[tuple[slice, int]]:
        if self._found_at != self.revision:
            weights = self.get_weights()
            self._members = find_members(self._groups, self._slices, weights)
            self._found_at = self.revision
            self._set_weights(weights)
            self._keep_statistics()
        return self._members

    def get_weights(self) -> dict[str, Array]:
        """Return the weights of each parameter, in the order of the flat array."""
        if not self._weight_names:
            return {}
        if self._given_weights is not None or not self._members:
            zeros = np.zeros(len(self._slices))
            given = self._given_weights or {}
            return {name: np.asarray(given.get(name, zeros)) for name in self._weight_names}
        values = self._handler.get_numpy_copy(self.memory_of_parts)
        places = sorted(self._slices.values(), key=lambda place: place.start)
        starts = [rows.start for rows, _ in self._members]
        part_of = np.searchsorted(starts, [place.start for place in places], side="right") - 1
        each = values.reshape(len(places), -1)
        return {name: each[part_of, i] for i, name in enumerate(self._weight_names)}

    def _set_weights(self, weights: Mapping[str, Array]) -> None:
        """Write the weights of each part, which are those of its first parameter."""
        self._given_weights = None
        if not weights:
            return
        starts = sorted(place.start for place in self._slices.values())
        each = np.zeros((len(starts), self.memory_of_parts.size // max(1, len(starts))))
        for part, (rows, _) in enumerate(self._members):
            first = starts.index(rows.start)
            each[part, : len(weights)] = [values[first] for values in weights.values()]
        self._handler.set_from_numpy(self.memory_of_parts, each.ravel())

    def _keep_statistics(self) -> None:
        """Tell each layer with running statistics whether to keep them."""
        kept = {
            path.partition(".")[0]
            for path in self._slices
            if next((g for g in self._groups if g.has(path)), _NO_GROUP).keep_statistics
        }
        for layer in self._normalizing:
            layer.keeps_statistics = layer.name in kept

    def refresh(self, stepper: Any) -> None:
        """Write the numbers of this step to the arrays that `parts` read."""
        self._find_members()  # before the passes, which may depend on it
        values: list[float] = []
        for group in self._groups:
            own = stepper
            if group is not _NO_GROUP:
                own = _copy(stepper)
                if group.learning_rate_factor != 1.0:
                    own.learning_rate *= group.learning_rate_factor
                if group.weight_decay is not None and "weight_decay" in stepper.hyperparameters:
                    own.weight_decay = group.weight_decay
            values += own.scalars().values()
        values += [group.weight_decay or 0.0 for group in self._groups[:-1]]
        if values:
            stepper.handler.set_from_numpy(self._memory, np.array(values))

    def parts(self, stepper: Any) -> Iterator[Any]:
        """Yield the steppers of all parts; this stepper alone if all parts are treated alike."""
        if not self._slices:
            yield stepper
        for part, (rows, number) in enumerate(self._find_members()):
            if self._groups[number].frozen:
                continue
            names = *self._weight_names, *self._corrected_names
            own = {
                name: self.memory_of_parts[i : i + 1]
                for i, name in enumerate(names, start=part * len(names))
            }
            numbers = self._numbers[number]
            corrected = {name: own[name] for name in self._corrected_names}
            buffer = SimpleNamespace(
                parameters=stepper.parameters[rows], gradients=stepper.gradients[rows]
            )
            yield _copy(
                stepper,
                net=SimpleNamespace(handler=stepper.handler, buffer=buffer),
                state={name: array[rows] for name, array in stepper.state.items()},
                scratch={name: array[rows] for name, array in stepper.scratch.items()},
                weights={name: own[name] for name in self._weight_names},
                uncorrected=numbers,
                numbers={**numbers, **corrected},
            )

    def freeze(self, stepper: Any) -> None:
        """Set the gradients of frozen parameters to zero."""
        for rows, number in self._find_members():
            if self._groups[number].frozen:
                stepper.handler.fill(stepper.gradients[rows], 0.0)

    def add_decays(self, stepper: Any) -> None:
        """Add the decays to the gradients, unless the stepper has a decay of its own."""
        if "weight_decay" in stepper.hyperparameters:
            return
        for rows, number in self._find_members():
            if self._groups[number].weight_decay is not None:
                g = stepper.gradients[rows]
                inputs = [g, stepper.parameters[rows], self._decays[number]]
                stepper.handler.compute(decayed, inputs, [g])


def _copy(stepper: Any, **changed: Any) -> Any:
    """Return a copy of a stepper with some attributes changed."""
    copied = object.__new__(type(stepper))
    vars(copied).update(vars(stepper), **changed)
    return copied


def find_members(
    groups: Sequence[ParameterGroup], slices: Mapping[str, slice], weights: Mapping[str, Array]
) -> list[tuple[slice, int]]:
    """Return the parts of the flat parameters, each with the index of its group.

    Args:
        groups: The groups; the last one has the parameters that are in no other.
        slices: Path of each parameter to its slice of the flat array.
        weights: Values of each parameter that must be equal within a part.

    Raises:
        TrainingError: A path of a group matches no parameter.
    """
    for group in groups:
        for pattern in group.patterns:
            if not any(_matches(path, pattern) for path in slices):
                text = unknown("path of a parameter", pattern, sorted(slices))
                raise TrainingError(f"ParameterGroup({group.paths!r}): {text}")
    in_order = sorted(slices.items(), key=lambda item: item[1].start)
    numbered = (
        (place, next((i for i, group in enumerate(groups) if group.has(path)), -1), *values)
        for (path, place), *values in zip(in_order, *weights.values(), strict=True)
    )
    return [
        (_join(place for place, *_ in members), number)
        for (number, *_), members in itertools.groupby(numbered, key=lambda item: item[1:])
    ]


def _join(places: Iterable[slice]) -> slice:
    first, *_, last = [place for place in places for _ in (0, 1)]
    return slice(first.start, last.stop)
