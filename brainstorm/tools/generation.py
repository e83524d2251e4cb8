"""Generation: a network draws the next class, and gets it as its next input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.constraints import integer, number
from brainstorm.errors import MissingDataError, ValidationError, shown
from brainstorm.network.network import Network, check_network
from brainstorm.network.prediction import Prediction
from brainstorm.network.steps import StepByStep, has_steps
from brainstorm.randomness import RandomState
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_structure import BufferStructure, format_shape
from brainstorm.utils import as_array


def generate(
    net: Network,
    start: Any,
    steps: int,
    temperature: float = 1.0,
    seed: int | None = None,
) -> np.ndarray:
    """Continue sequences of classes, such as characters, step by step.

    The prediction (`Network.output_name`, or the only output called ``predictions``) must be the
    probabilities of the next class, which is drawn from them and is the input of the next step.
    Only one new step is computed each time: recurrent layers carry on their state, causal attention
    its keys and values, from the first step of `start` on. The present batch is replaced.

        written = generate(net, codes_of("Once upon "), 200, temperature=0.7)

    Args:
        net: The network. Its input takes class numbers, or one-hot vectors if it has as many
            features as there are classes.
        start: Class numbers (T,), (T, B) or (T, B, 1), as (T,) for one sequence; or a dict from
            input names to arrays with such numbers for ``default``. Other inputs ('T', 'B', ...),
            such as masks, must cover all steps that are read: T + steps - 1. Inputs over S, such as
            a text to translate, are read once.
        steps: Number of steps to generate.
        temperature: Probabilities are raised to the power of 1 / temperature: below 1, probable
            classes become more probable; 0 takes the most probable class.
        seed: Seed of the draws; `None` draws one from `global_rnd`.

    Returns:
        The generated class numbers, shaped like those of `start`, but with T = steps.

    Raises:
        LayerValidationError: A layer does not compute step by step, because it depends on later
            steps (reversal, attention without ``causal=True``), or a class is too large for an
            embedding.
        NetworkValidationError: The data does not fit the network.
        ValidationError: An argument is not valid, or the prediction is not probabilities.
        MissingDataError: A mask that the prediction depends on is missing.
    """
    check_network("generate", net)
    wanted = {"steps": (steps, integer(0)), "temperature": (temperature, number(0))}
    for name, (value, allowed) in wanted.items():
        if value not in allowed:
            raise ValidationError(
                f"generate, {name}: expected {allowed.expected}, got {shown(value)}."
            )
    data = _Data(net, start, steps)
    written: list[np.ndarray] = []
    rnd = RandomState(seed)
    with net.alone():
        writer = StepByStep(net, data.prediction, data.steps)
        probabilities = writer.begin(data.batch(data.classes, 0))
        for t in range(steps):
            written.append(_draw(probabilities, float(temperature), rnd))
            if t < steps - 1:
                drawn = written[t].reshape((1, -1, 1))
                probabilities = writer.go_on(data.batch(drawn, len(data.classes) + t))
    return np.array(written, int).reshape((steps, *data.given_shape[1:]))


class _Data:
    """The inputs of the network: the given classes, then the generated ones."""

    def __init__(self, net: Network, start: Any, steps: int) -> None:
        shapes = net.layers[INPUT].out_shapes
        self.name = next(iter(shapes)) if len(shapes) == 1 else "default"
        data = start if isinstance(start, Mapping) else {self.name: start}
        if self.name not in data or self.name not in shapes:
            raise MissingDataError(
                f"generate, start: expected classes for input {self.name!r} of {list(shapes)}, got "
                f"data for {list(data)}."
            )
        given = as_array(data[self.name], "start")
        self.given_shape = given.shape
        self.classes = given.reshape((*given.shape, *(1,) * (3 - given.ndim)))
        if self.classes.ndim != 3 or self.classes.shape[2] != 1 or not self.classes.size:
            raise ValidationError(
                f"generate, start: expected class numbers (T,), (T, B) or (T, B, 1), at least one, "
                f"got {format_shape(given.shape)}."
            )
        #: Number of steps that are read.
        self.steps = len(self.classes) + max(steps - 1, 0)
        self.prediction = Prediction.of(net.layers, (net.output_name,), tuple(data))
        self._others = {n: as_array(data[n], n) for n in self.prediction.given if n != self.name}
        self._timed = {name for name in self._others if has_steps(shapes[name])}
        for name in self._timed:
            if self._others[name].shape[:1] != (self.steps,):
                raise ValidationError(
                    f"generate, start, {name!r}: expected data for all {self.steps} steps that are "
                    f"read (those of {self.name!r}, and all written but the last), got the shape "
                    f"{format_shape(self._others[name].shape)}."
                )
        self._find_form(shapes[self.name])

    def _find_form(self, structure: BufferStructure) -> None:
        """Find the number of classes, and whether they are read as vectors."""
        features, outputs = structure.feature_shape, self.prediction.structure
        self.is_vector, self.count = features != (1,), outputs.feature_size
        is_read = features in ((1,), (self.count,)) and has_steps(structure)
        if is_read and (has_steps(outputs) or outputs.scaling_shape == ("B",)):
            if self.is_vector and not np.isin(self.classes, np.arange(self.count)).all():
                given = shown(self.classes.ravel().tolist())
                raise ValidationError(
                    f"generate, start: expected whole numbers in [0, {self.count}), because "
                    f"{self.name!r} takes them as vectors, got {given}."
                )
            return
        raise ValidationError(
            f"generate: expected an input {self.name!r} (T, B, 1), or with as many features as "
            f"there are classes, got {format_shape(structure.shape)} and for the prediction "
            f"{self.prediction.path!r} {format_shape(outputs.shape)}."
        )

    def batch(self, classes: np.ndarray, start: int) -> dict[str, np.ndarray]:
        """Return classes (T, B, 1) as data, with the others from a step on."""
        rows = slice(start, start + len(classes))
        values = classes
        if self.is_vector:
            values = (classes == np.arange(self.count)).astype(np.float32)
        others = {n: a[rows] if n in self._timed else a for n, a in self._others.items()}
        return {self.name: values, **others}


def _draw(probabilities: np.ndarray, temperature: float, rnd: RandomState) -> np.ndarray:
    """Return a class for each row of probabilities (B, n)."""
    p = probabilities.reshape(len(probabilities), -1).astype(float)
    if not (p.min() >= 0 and np.allclose(p.sum(axis=1), 1, atol=1e-3)):
        raise ValidationError(
            f"generate: expected probabilities that add up to 1 as the prediction, got "
            f"{p[0, :5]}, the sum of all being {p[0].sum():.4g}. Set net.output_name to the output "
            f"'predictions' of a SoftmaxCE."
        )
    if temperature == 0:
        return p.argmax(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        powers = np.log(p / p.max(axis=1, keepdims=True)) / temperature  # 0 is the largest
    weights = np.exp(powers)
    ends = np.cumsum(weights, axis=1)
    chosen: np.ndarray = (ends <= rnd.random_sample((len(p), 1)) * ends[:, -1:]).sum(axis=1)
    return chosen
