"""Parameter groups: learning rate, decay and freezing of some of the parameters.

A stepper treats each group as a stepper of its own would: `GroupedParameters` gives it one part of
the flat arrays after another, and keeps the numbers of all groups in memory.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from typing import Any, NamedTuple

import numpy as np

from brainstorm.constraints import Constraint, instance, several
from brainstorm.describable import Describable
from brainstorm.errors import TrainingError, unknown
from brainstorm.training.hyperparameters import NON_NEGATIVE
from brainstorm.training.update_rule import check_order, replaced
from brainstorm.utils import Array

_PATHS = several(instance(str), "a list of paths")


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
            stands for anything, including dots; the name of a layer stands for all its parameters,
            except those that it shares with another layer, which have that one's name. One or a
            list.
        learning_rate_factor: Factor of the stepper's learning rate; schedules and hooks that change
            the learning rate affect all groups.
        weight_decay: For `AdamWStepper` in place of its own. For other steppers ``weight_decay *
            w`` is added to the gradients before the update (and not limited by
            ``max_gradient_norm``). `None`: as the stepper does without groups.
        frozen: Whether the stepper leaves these parameters and their state unchanged; their
            gradients are set to zero. (Weight modifiers change what their references name.)
        keep_statistics: Whether layers with a parameter in the group, shared ones included, keep
            their running statistics, and use them in training too, e.g. a pretrained `BatchNorm`;
            with ``frozen`` or without. They do so in all passes, until another stepper starts or
            makes a step, or the groups change: a new list in ``stepper.groups`` counts at once, a
            change of this attribute from the next step on. (PyTorch's ``requires_grad = False`` is
            ``frozen``, ``eval()`` is this.)
    """

    paths: str | Sequence[str]
    learning_rate_factor: float = 1.0
    weight_decay: float | None = None
    frozen: bool = False
    keep_statistics: bool = False

    __default_values__ = {"learning_rate_factor", "weight_decay", "frozen", "keep_statistics"}
    __argument_error__ = TrainingError
    __constraints__ = {
        "paths": Constraint(
            "a path such as 'Hidden.parameters.W', or a list of them",
            lambda v: isinstance(v, str) or v in _PATHS,
            convert=lambda v: v if isinstance(v, str) else list(v),
        ),
        "learning_rate_factor": NON_NEGATIVE,
        "weight_decay": NON_NEGATIVE.or_none(),
    }

    @property
    def patterns(self) -> list[str]:
        """The paths as a list."""
        return [self.paths] if isinstance(self.paths, str) else list(self.paths)


#: Stands for the group of the parameters that are in no group; it is the last.
_NO_GROUP = ParameterGroup(())


def _matching(pattern: str, paths: Sequence[str]) -> list[str]:
    match = re.compile(translate(pattern)).match
    return [path for path in paths if match(path) or match(path.partition(".")[0])]


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


class Part(NamedTuple):
    """Adjacent parameters of one group that have been updated alike."""

    first: int  # the index of the first one
    rows: slice  # of the flat arrays
    group: int


class GroupedParameters:
    """The parameters of a stepper, group by group, and the numbers of each in memory.

    Where the stepper has a bias correction (`TrainingStepper.correction`), a parameter that was
    frozen for a while has had fewer updates than the others. So each `Part` has weights of its own;
    those at the beginning are the result of `get_weights` of the previous groups.

    Raises:
        TrainingError: A group has no parameters, or all parameters are frozen.

    Attributes:
        numbers: The values of the stepper's `scalars` for parameters in no group, by name:
            one-element arrays on the handler.
        memory_of_parts: For each parameter, weights and the numbers corrected by them; a part uses
            those of its first one.
    """

    def __init__(
        self, stepper: Any, groups: Sequence[ParameterGroup], weights: Mapping[str, Array]
    ) -> None:
        self._groups = [*groups, _NO_GROUP]
        self._handler = stepper.handler
        self._learns = stepper.learns
        self._weight_names = tuple(stepper.weight_names)
        self._names = *self._weight_names, *stepper.corrected_names
        with replaced(stepper, {"steps": stepper.steps + 1}):  # in a step it is never 0
            names = tuple(stepper.scalars())
        check_order(stepper, names)
        size = len(self._groups) * len(names)
        self._memory: Array = stepper.handler.zeros((size + len(groups),))
        each = [self._memory[i : i + 1] for i in range(self._memory.size)]
        self._numbers = [
            dict(zip(names, each[i * len(names) :], strict=False)) for i in range(len(self._groups))
        ]
        self.numbers = self._numbers[-1]
        self._decays = each[size:]
        has_parts = bool(groups or self._weight_names)
        slices = stepper.net.parameter_slices.items() if has_parts else ()
        self._places: list[tuple[str, slice]] = sorted(slices, key=lambda item: item[1].start)
        self.memory_of_parts: Array = stepper.handler.zeros((len(slices) * len(self._names),))
        self._normalizing = [
            layer for layer in stepper.net.layers.values() if hasattr(layer, "keeps_statistics")
        ]
        self._shared = {
            name: {path.partition(".")[0] for path in layer.shared_parameters.values()}
            for name, layer in stepper.net.layers.items()
        }
        zeros = np.zeros(len(slices))
        self._divide({name: np.asarray(weights.get(name, zeros)) for name in self._weight_names})
        self._set_layers()

    def are(self, groups: Sequence[ParameterGroup]) -> bool:
        """Return whether they are parameters of these groups, in this order."""
        return self._groups[:-1] == list(groups)

    @property
    def _revision(self) -> list[Any]:
        """A value that changes when a group changes."""
        return [
            (*g.patterns, g.frozen, g.weight_decay is None, g.keep_statistics) for g in self._groups
        ]

    @property
    def purpose(self) -> tuple[Any, ...]:
        """A value that changes when the operations of an update change."""
        parts = self._find_parts()
        return (*self._found_at, *((part.rows.start, part.group) for part in parts))

    def _find_parts(self) -> list[Part]:
        if self._found_at != self._revision:
            self._divide(self.get_weights())
        return self._parts

    def _divide(self, weights: Mapping[str, Array]) -> None:
        """Find the parts, given the weights of each parameter."""
        owners = find_owners(self._groups, [path for path, _ in self._places], self._shared)
        parts = find_parts(owners, self._places, weights)
        if self._learns and parts and all(self._groups[part.group].frozen for part in parts):
            raise TrainingError(
                "ParameterGroup, frozen: expected parameters to train, got none: all are in frozen "
                "groups. ForwardStepper(use_training_pass=True) computes running statistics only."
            )
        self._parts, self._found_at = parts, self._revision
        if weights:
            each = np.zeros((len(self._places), len(self._names)))
            each[:, : len(weights)] = np.transpose(list(weights.values()))
            self._handler.set_from_numpy(self.memory_of_parts, each.ravel())
        kept = {
            path.partition(".")[0]
            for (path, _), owner in zip(self._places, owners, strict=True)
            if self._groups[owner].keep_statistics
        }
        self._keeps = [
            not kept.isdisjoint({layer.name, *self._shared[layer.name]})
            for layer in self._normalizing
        ]

    def _set_layers(self) -> None:
        """Tell the layers whether they keep their statistics: other steppers may have done so."""
        for layer, keeps in zip(self._normalizing, self._keeps, strict=True):
            if layer.keeps_statistics is not keeps:
                layer.keeps_statistics = keeps

    def get_weights(self) -> dict[str, Array]:
        """Return the weights of each parameter, in the order of the flat array."""
        if not self._weight_names:
            return {}
        values = self._handler.get_numpy_copy(self.memory_of_parts)
        firsts = np.array([part.first for part in self._parts], int)
        own_row = np.repeat(firsts, np.diff([*firsts, len(self._places)]))
        each = values.reshape(len(self._places), len(self._names))[own_row]
        return {name: each[:, i] for i, name in enumerate(self._weight_names)}

    def refresh(self, stepper: Any) -> None:
        """Write the numbers of this step to the arrays that `parts` read."""
        self._find_parts()
        self._set_layers()  # before the passes, which depend on it
        values: list[float] = []
        for group in self._groups:
            own = stepper
            if group is not _NO_GROUP:  # a copy: other threads may set these attributes meanwhile
                own = object.__new__(type(stepper))
                vars(own).update(vars(stepper))
                if group.learning_rate_factor != 1.0:
                    own.learning_rate *= group.learning_rate_factor
                if group.weight_decay is not None and "weight_decay" in stepper.hyperparameters:
                    own.weight_decay = group.weight_decay
            values += own.scalars().values()
        values += [group.weight_decay or 0.0 for group in self._groups[:-1]]
        if values:
            stepper.handler.set_from_numpy(self._memory, np.array(values))

    def parts(self, stepper: Any) -> Iterator[dict[str, Any]]:
        """Yield the attributes of the stepper for each part; none if all are treated alike."""
        if not self._places:
            yield {}
        for first, rows, group in self._find_parts():
            if self._groups[group].frozen:
                continue
            begin = first * len(self._names)
            own = {
                name: self.memory_of_parts[i : i + 1]
                for i, name in enumerate(self._names, start=begin)
            }
            weights = {name: own.pop(name) for name in self._weight_names}
            yield {
                "_rows": rows,
                "state": {name: array[rows] for name, array in stepper.state.items()},
                "scratch": {name: array[rows] for name, array in stepper.scratch.items()},
                "weights": weights,
                "uncorrected": self._numbers[group],
                "numbers": {**self._numbers[group], **own},
            }

    def freeze(self, stepper: Any) -> None:
        """Set the gradients of frozen parameters to zero."""
        for _, rows, group in self._find_parts():
            if self._groups[group].frozen:
                stepper.handler.fill(stepper.gradients[rows], 0.0)

    def add_decays(self, stepper: Any) -> None:
        """Add the decays to the gradients, unless the stepper has a decay of its own."""
        if "weight_decay" in stepper.hyperparameters:
            return
        for _, rows, group in self._find_parts():
            if self._groups[group].weight_decay is not None and not self._groups[group].frozen:
                given = self._decays[group], stepper.parameters[rows], stepper.gradients[rows]
                stepper.handler.mult_add_st(*given)


def _hint(pattern: str, paths: Sequence[str], shared: Mapping[str, set[str]]) -> str:
    """Return what to write in place of a pattern that matches no path, if that is known.

    `shared`: for each layer the ones whose parameters it shares.
    """
    name, _, parameter = pattern.partition(".")
    full = f"{name}.parameters.{parameter}"
    if _matching(full, paths):
        return f" Write {full!r}."
    owners = {owner for layer in shared if fnmatchcase(layer, name) for owner in shared[layer]}
    those = " and ".join(map(repr, sorted(owners)))
    return f" It shares those of {those}. Name that instead." if those else ""


def find_owners(
    groups: Sequence[ParameterGroup], paths: Sequence[str], shared: Mapping[str, set[str]]
) -> list[int]:
    """Return the index of the group of each parameter, or -1.

    Raises:
        TrainingError: A path of a group matches no parameter, or all of its parameters are those of
            groups before it.
    """
    owners = dict.fromkeys(paths, -1)
    for number, group in enumerate(groups):
        named = set[str]()
        for pattern in group.patterns:
            matching = _matching(pattern, paths)
            if not matching:
                text = unknown("path of a parameter", pattern, sorted(paths))
                hint = _hint(pattern, paths, shared)
                raise TrainingError(f"ParameterGroup({group.paths!r}): {text}{hint}")
            named.update(matching)
        own = [path for path in named if owners[path] < 0]
        if named and not own:
            raise TrainingError(
                f"ParameterGroup({group.paths!r}): expected parameters that no group before it "
                f"names. A parameter belongs to the first group that names it: put this one first."
            )
        owners.update(dict.fromkeys(own, number))
    return list(owners.values())


def find_parts(
    owners: Sequence[int], places: Sequence[tuple[str, slice]], weights: Mapping[str, Array]
) -> list[Part]:
    """Return the parts of the parameters, which are equal in their group and their weights."""
    kinds = list(zip(owners, *weights.values(), strict=True))
    parts = []
    for (number, *_), adjacent in itertools.groupby(range(len(places)), kinds.__getitem__):
        indices = list(adjacent)
        rows = slice(places[indices[0]][1].start, places[indices[-1]][1].stop)
        parts.append(Part(indices[0], rows, number))
    return parts
