"""Estimators of scikit-learn whose stepper and spec have numbers that a search may vary."""

from __future__ import annotations

import copy
import functools
import inspect
import numbers
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from brainstorm.errors import ValidationError, shown, unknown
from brainstorm.optional import require
from brainstorm.training import AdamWStepper, TrainingStepper

_base: Any = require("sklearn.base", "sklearn")

E = TypeVar("E", bound="TunableEstimator")
P = ParamSpec("P")

#: A layer of a spec with a number of its own: its letter, and its size or probability.
_NUMBERED = re.compile(r"([FRLCDP])(?:[\s:/|]*[a-z])?[\s:/|]*(\d+\.?\d*|\.\d+)?")


class TunableEstimator(_base.BaseEstimator):
    """Base of estimators with a stepper and a spec, whose numbers are parameters, too."""

    spec: str
    stepper: TrainingStepper | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Args:
            deep: Whether to include those of the stepper, such as ``stepper__learning_rate``, and
                the numbers in the spec: for ``'F100 D0.2 F50'`` ``spec__F1``, ``spec__D1`` and
                ``spec__F2``.
        """
        params = super().get_params(deep)
        if deep:
            params |= {f"stepper__{name}": value for name, value in _arguments(self.own_stepper())}
            params |= {f"spec__{name}": _number(m[2] or "0.5") for name, m in self._numbers()}
        return params

    def set_params(self: E, **params: Any) -> E:
        """Set arguments of the constructor, of the stepper and of the spec; see `get_params`."""
        prefixes = ("stepper__", "spec__")
        super().set_params(**{k: v for k, v in params.items() if not k.startswith(prefixes)})
        for key, value in params.items():
            if not key.startswith(prefixes):
                continue
            if key not in (known := self.get_params()):
                where = f"{type(self).__name__}.set_params"
                raise ValidationError(f"{where}: {unknown('parameter', key, known)}")
            kind, _, name = key.partition("__")
            if kind == "stepper":
                self.stepper = self.own_stepper()
                setattr(self.stepper, name, value)
            else:
                self._set_number(name, value)
        return self

    def own_stepper(self) -> TrainingStepper:
        """Return a copy of the stepper, or the default one."""
        if self.stepper is None:
            return AdamWStepper(0.003, weight_decay=0.3)
        return copy.deepcopy(self.stepper)

    def _numbers(self) -> Iterator[tuple[str, re.Match[str]]]:
        """Yield the letter with its number, and the match, of each layer with a number."""
        counts: Counter[str] = Counter()
        for match in _NUMBERED.finditer(str(self.spec)):
            counts[match[1]] += 1
            yield f"{match[1]}{counts[match[1]]}", match

    def _set_number(self, name: str, value: Any) -> None:
        if not isinstance(value, numbers.Real):
            where = f"{type(self).__name__}.set_params, spec__{name}"
            raise ValidationError(f"{where}: expected a number, got {shown(value)}.")
        match = dict(self._numbers())[name]
        start, end = match.span(2) if match[2] else (match.end(1), match.end(1))
        number = np.format_float_positional(float(value), trim="-")
        self.spec = f"{self.spec[:start]}{number}{self.spec[end:]}"


def all_or_nothing(train: Callable[Concatenate[E, P], E]) -> Callable[Concatenate[E, P], E]:
    """Let a method train a copy, whose attributes become those of the estimator at the end."""

    @functools.wraps(train)
    def method(self: E, /, *args: P.args, **kwargs: P.kwargs) -> E:
        trained = train(copy.copy(self), *args, **kwargs)
        self.__dict__ = trained.__dict__
        return self

    return method


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


def _arguments(stepper: Any) -> Iterator[tuple[str, Any]]:
    """Yield the constructor arguments of a stepper, and its limit of the gradients."""
    if isinstance(stepper, TrainingStepper):
        for name in (*inspect.signature(type(stepper)).parameters, "max_gradient_norm"):
            yield name, getattr(stepper, name)
