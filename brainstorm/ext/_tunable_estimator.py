"""Estimators of scikit-learn whose stepper and spec have numbers that a search may vary."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import numbers
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from brainstorm.errors import NetworkValidationError, ValidationError, shown, unknown
from brainstorm.optional import require
from brainstorm.tools.building import DEFAULT_NUMBERS, parse_spec
from brainstorm.training import AdamWStepper, Trainer, TrainingStepper
from brainstorm.training.running_hooks import INTERRUPTED

_base: Any = require("sklearn.base", "sklearn")

E = TypeVar("E", bound="TunableEstimator")
P = ParamSpec("P")


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
            params |= {f"spec__{name}": number for name, (number, _) in self._numbers().items()}
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

    def _numbers(self) -> dict[str, tuple[float, tuple[int, int]]]:
        """Return the first number of each layer and its span; none if the spec is not valid."""
        found: dict[str, tuple[float, tuple[int, int]]] = {}
        counts: Counter[str] = Counter()
        with contextlib.suppress(NetworkValidationError):
            for layer in parse_spec(self.spec):
                counts[layer.letter] += 1
                number = layer.number or DEFAULT_NUMBERS.get(layer.letter)
                if number is not None:
                    value = int(layer.number) if layer.number.isdigit() else float(number)
                    found[f"{layer.letter}{counts[layer.letter]}"] = value, layer.span
        return found

    def _set_number(self, name: str, value: Any) -> None:
        if not isinstance(value, numbers.Real):
            where = f"{type(self).__name__}.set_params, spec__{name}"
            raise ValidationError(f"{where}: expected a number, got {shown(value)}.")
        _, (start, end) = self._numbers()[name]
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


def complete(trainer: Trainer, net: Any, data: Any) -> None:
    """Train; a signal that ended the training goes on to its handler, which may raise an error."""
    trainer.train(net, data)
    for entry in trainer.logs.get(INTERRUPTED, ()):
        signal.raise_signal(signal.Signals[entry.split()[-1]])


def _arguments(stepper: Any) -> Iterator[tuple[str, Any]]:
    """Yield the constructor arguments of a stepper, and its limit of the gradients."""
    if isinstance(stepper, TrainingStepper):
        for name in (*inspect.signature(type(stepper)).parameters, "max_gradient_norm"):
            yield name, getattr(stepper, name)
