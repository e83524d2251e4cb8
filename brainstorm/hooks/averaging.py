"""Averages of the weights over the updates, and hooks that use the network with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from brainstorm.constraints import number
from brainstorm.errors import TrainingError, shown
from brainstorm.hooks.base import Hook, Iterators, check_counts
from brainstorm.hooks.checkpoints import SaveCheckpoint
from brainstorm.hooks.kept_state import KeptState
from brainstorm.hooks.stoppers import EarlyStopper
from brainstorm.optree import formula
from brainstorm.utils import Array


@formula
def moved(average: Any, p: Any, share: Any) -> Any:
    """Return the average, moved by `share` of the way to the parameters."""
    return average + share * (p - average)


class AverageWeights(KeptState, Hook):
    """Keep an exponential moving average of all parameters, which is often the better network.

        averages = AverageWeights(0.999)
        trainer.add_hook(averages)
        trainer.add_hook(WithAverages(MonitorScores("validation", [Accuracy()])))
        trainer.train(net, ...)
        averages.network(net).save_as_hdf5("averaged.hdf5")

    ``a += (1 - d) * (p - a)`` after every update, where d grows towards `decay` at the start: it is
    ``min(decay, (1 + n) / (10 + n))`` after n steps. Running statistics are not averaged.
    (Polyak and Juditsky, SIAM J. Control Optim. 30, 1992.)

    Args:
        decay: Fraction of the average that remains, in [0, 1).
        name: The name by which `WithAverages` finds it.
        timescale, interval: See `Hook`.

    Attributes:
        average: The average of the flat parameters on the network's handler, during training and
            after it; `None` before.
    """

    __undescribed__ = {"average", "_handler", "_share", "_count"}
    __constraints__ = {"decay": number(0, 1, high_open=True)}

    average: Array = None
    _handler: Any = None
    _share: Array = None
    _count = 0

    role = "editor"

    def __init__(
        self,
        decay: float = 0.999,
        name: str | None = None,
        timescale: str = "update",
        interval: int = 1,
    ) -> None:
        super().__init__(name, timescale, interval)
        self.decay = decay

    def begin_anew(self, logs: Mapping[str, Any]) -> None:
        self.average, self._count, self._waiting = None, 0, None

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Start with the present parameters, or with the averages of the last training.

        Raises:
            TrainingError: The averages so far belong to another network.
        """
        super().start(net, stepper, verbose, named_data_iters)
        parameters, state = net.buffer.parameters, self.get_state()
        if state["average"] is not None and np.shape(state["average"]) != tuple(parameters.shape):
            expected = f"averages of {net.parameters_size} parameters"
            raise self.fail("average", expected, f"{np.size(state['average'])} of another network")
        self._handler = net.handler
        self._share = net.handler.zeros((1,))
        self.average = net.handler.zeros(tuple(parameters.shape))
        self._count = state["count"]
        if state["average"] is None:
            net.handler.copy_to(parameters, self.average)
        else:
            net.handler.set_from_numpy(self.average, state["average"])
        self.started()

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Move the averages towards the parameters, if these were updated."""
        if update_nr == 0:
            return
        decay = min(self.decay, (1 + self._count) / (10 + self._count))
        net.handler.set_from_numpy(self._share, np.array([1.0 - decay]))
        inputs = [self.average, net.buffer.parameters, self._share]
        net.handler.compute(moved, inputs, [self.average])
        self._count += 1

    @contextlib.contextmanager
    def applied(self, net: Any) -> Iterator[None]:
        """Use the averages as the network's parameters in a ``with`` block; other threads wait.

        Raises:
            TrainingError: There are no averages yet.
        """
        with net.alone():
            parameters = net.buffer.parameters
            kept = net.handler.zeros(tuple(parameters.shape))
            net.handler.copy_to(parameters, kept)
            try:
                self._write(net)
                yield
            finally:
                net.handler.copy_to(kept, parameters)

    def network(self, net: Any) -> Any:
        """Return a copy of the network with the averages as its parameters."""
        copied = net.copy()
        self._write(copied)
        return copied

    def _write(self, net: Any) -> None:
        values = self.get_state()["average"]
        if values is None:
            raise TrainingError(f"{self.place}: nothing was averaged yet. Train with it.")
        net.handler.set_from_numpy(net.buffer.parameters, values)

    def read_state(self) -> dict[str, Any]:
        if self.average is None:
            return {"count": 0, "average": None}
        return {"count": self._count, "average": self._handler.get_numpy_copy(self.average)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        check_counts(self.place, count=state["count"])
        super().set_state({"count": state["count"], "average": state["average"]})


class WithAverages(Hook):
    """Run another hook while the network has the averages of `AverageWeights` as its parameters.

    For hooks that read the network: monitors, savers and stoppers. It has the name, the interval
    and the log of that hook.

    Args:
        hook: The other hook.
        averages: The name of the `AverageWeights`.
    """

    __default_values__ = {"averages": "AverageWeights"}

    def __init__(self, hook: Hook, averages: str = "AverageWeights") -> None:
        changes = getattr(hook, "role", "") == "editor" and not isinstance(hook, EarlyStopper)
        if not isinstance(hook, Hook) or isinstance(hook, SaveCheckpoint) or changes:
            expected = "a monitor, a saver of networks or a stopper"
            raise TrainingError(f"WithAverages, hook: expected {expected}, got {shown(hook)}.")
        super().__init__(hook.__name__, hook.timescale, hook.interval, hook.verbose)
        self.hook = hook
        self.averages = averages
        self.role, self.idempotent = hook.role, hook.idempotent

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Find the averages, and start the other hook.

        Raises:
            UnknownPathError: The trainer has no hook of that name.
            TrainingError: It is not an `AverageWeights`.
        """
        super().start(net, stepper, verbose, named_data_iters)
        self.check_name("hook", self.averages, self.trainer.hooks)
        if not isinstance(self._averages, AverageWeights):
            raise self.fail("averages", "the name of an AverageWeights", self.averages)
        self.hook.trainer = self.trainer
        self.hook.start(net, stepper, verbose, named_data_iters)

    def begin_anew(self, logs: Mapping[str, Any]) -> None:
        self.hook.begin_anew(logs)

    def is_turn(self, timescale: str, count: int) -> bool:
        self.hook.trainer, self.hook.ran_on = self.trainer, self.ran_on
        return self.hook.is_turn(timescale, count)

    @property
    def _averages(self) -> Any:
        return self.trainer.hooks[self.averages]

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> Any:
        """Run the other hook with the averages as parameters.

        Raises:
            TrainingError: The averages belong to another network.
        """
        if self.trainer.net not in (None, net):
            raise self.fail("net", "the network whose parameters were averaged", net)
        with self._averages.applied(net):
            return self.hook(epoch_nr, update_nr, net, stepper, logs)

    def on_error(self, net: Any, stepper: Any, logs: Any, error: BaseException) -> None:
        self.hook.on_error(net, stepper, logs, error)

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        self.hook.finalize(net, stepper, logs)

    def get_state(self) -> dict[str, Any]:
        return self.hook.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.hook.set_state(state)
