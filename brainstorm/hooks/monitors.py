"""Monitors: hooks that write statistics of the network, losses and scores to the logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from brainstorm import tools
from brainstorm.errors import NullBufferError, located
from brainstorm.hooks.base import Hook, Iterators
from brainstorm.scorers import check_scorers
from brainstorm.utils import Array


class _LayerMonitor(Hook):
    """Statistics of the buffers of one layer, in one or several categories."""

    prefix = ""
    categories: tuple[str, ...] = ()

    def __init__(
        self,
        layer_name: str,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        default = f"{self.prefix}_{layer_name}".replace(".", "_")  # no layer has dots: see start
        super().__init__(default if name is None else name, timescale, interval, verbose)
        self.layer_name = layer_name

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        super().start(net, stepper, verbose, named_data_iters)
        self.check_name("layer", self.layer_name, net.layers)

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> Any:
        """Return ``{category: {name: statistics}}``, or only the inner dict of a single category.

        Buffers without content (before the first pass, deltas that are not computed) have none.
        """
        found = {category: self.summarize(net, category) for category in self.categories}
        if len(found) == 1:
            return found.popitem()[1]
        return {category: buffers for category, buffers in found.items() if buffers}

    def summarize(self, net: Any, category: str) -> dict[str, dict[str, float]]:
        """Return the statistics of each buffer in a category, by its name."""
        layer = net.layers[self.layer_name]
        result = {}
        for name in net.buffer[self.layer_name][category].keys():  # noqa: SIM118  (a list)
            try:
                values = net.get(f"{self.layer_name}.{category}.{name}")
            except NullBufferError:
                continue
            if category.startswith("output") and layer.out_shapes[name].context_size:
                values = values[: -layer.out_shapes[name].context_size]
            if values.size:
                result[name] = self.statistics(values)
        return result

    def statistics(self, values: Array) -> dict[str, float]:
        """Return minimum, average and maximum of a buffer."""
        return _min_avg_max(values)


def _min_avg_max(values: Array, suffix: str = "") -> dict[str, float]:
    return {
        f"min{suffix}": float(values.min()),
        f"avg{suffix}": float(values.mean(dtype=float)),
        f"max{suffix}": float(values.max()),
    }


class MonitorLayerParameters(_LayerMonitor):
    """Log min, avg and max of each parameter of a layer, and of the L2 norms of its rows.

    The norms are of parameters with more than one dimension, over all dimensions but the first.
    """

    prefix = "MonitorParameters"
    categories = ("parameters",)

    def statistics(self, values: Array) -> dict[str, float]:
        """Return the statistics of the values and of the norms."""
        result = _min_avg_max(values)
        if values.ndim > 1:
            rows = values.reshape(len(values), -1).astype(float)  # squares could be 0 or infinite
            norms = np.linalg.norm(rows, axis=1)
            result.update(_min_avg_max(norms, "_L2_norm"))
        return result


class MonitorLayerGradients(_LayerMonitor):
    """Log min, avg and max of each gradient of a layer, as the update uses them.

    That is after gradient modifiers, `max_gradient_norm` and frozen groups of the stepper.
    """

    prefix = "MonitorGradients"
    categories = ("gradients",)


class MonitorLayerDeltas(_LayerMonitor):
    """Log min, avg and max of the deltas at the inputs and outputs of a layer.

    Those at outputs are as the layer's backward pass leaves them, often before its activation.
    Deltas that are not needed (e.g. those of the Input layer) are not computed and not logged;
    ``net.keep_input_deltas = True`` keeps them. With `LossScaling` they are those of the multiplied
    loss. Add this hook before monitors that run the network on other data, which leave zeros or the
    deltas of another batch.
    """

    prefix = "MonitorDeltas"
    categories = ("input_deltas", "output_deltas")


class MonitorLayerInOuts(_LayerMonitor):
    """Log min, avg and max of the inputs and outputs of a layer after the last pass.

    Add it before monitors that run the network on other data.
    """

    prefix = "MonitorInOuts"
    categories = ("inputs", "outputs")


class MonitorScores(Hook):
    """Log losses and scores on one of the data iterators that were given to the trainer.

    Args:
        iter_name: The name under which ``train`` received the iterator.
        scorers: The scorers, each with the names of its data, such as ``mask_name``; see
            `brainstorm.scorers`.
        name, timescale, interval, verbose: See `Hook`.
    """

    __undescribed__: Any = {"iter"}

    iter: Any = None

    def __init__(
        self,
        iter_name: str,
        scorers: Iterable[Any],
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(name, timescale, interval, verbose)
        self.iter_name = iter_name
        self.scorers: Sequence[Any] = check_scorers(scorers)

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        super().start(net, stepper, verbose, named_data_iters)
        remedy = f"Give it to the training: trainer.train(net, data, {self.iter_name}=...)."
        self.check_name("data iterator", self.iter_name, named_data_iters, remedy)
        self.iter = named_data_iters[self.iter_name]

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> Any:
        """Return ``{loss or score: value}``."""
        with located(f"{self.place}, data {self.iter_name!r}"):
            return tools.evaluate(net, self.iter, self.scorers)


class MonitorLoss(MonitorScores):
    """Log the losses on one of the data iterators that were given to the trainer."""

    __undescribed__ = {"scorers": []}

    def __init__(
        self,
        iter_name: str,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(iter_name, (), name, timescale, interval, verbose)
