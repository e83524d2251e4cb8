"""Averages of the weights over the updates, and hooks that use the network with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import number
from brainstorm.errors import TrainingError, shown
from brainstorm.hooks.base import Hook, Iterators, check_counts
from brainstorm.hooks.checkpoints import SaveCheckpoint
from brainstorm.hooks.stoppers import EarlyStopper
from brainstorm.optree import formula
from brainstorm.utils import Array


@formula
def moved(average: Any, p: Any, share: Any) -> Any:
    """Return the average, moved by `share` of the way to the parameters."""
    return average + share * (p - average)


class AverageWeights(Hook):
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

    state_names = ("_count",)
    __undescribed__ = {"average", "_handler", "_share", "_restored"}
    __constraints__ = {"decay": number(0, 1, high_open=True)}

    average: Array = None
    _handler: Any = None
    _share: Array = None
    _count = 0
    _restored: Any = None  # the average with which the next training starts

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
        super().begin_anew(logs)
        self.average = self._restored = None

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Start with the present parameters, or with the averages of the last training.

        Raises:
            TrainingError: The averages so far belong to another network.
        """
        super().start(net, stepper, verbose, named_data_iters)
        parameters, before = net.buffer.parameters, self._average_of(net)
        self._handler = net.handler
        self._share = net.handler.zeros((1,))
        self.average, self._restored = net.handler.zeros(tuple(parameters.shape)), None
        if before is None:
            net.handler.copy_to(parameters, self.average)
        else:
            net.handler.set_from_numpy(self.average, before)

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
            TrainingError: There are no averages yet, or of another network.
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
        """Return a copy of the network with the averages as its parameters.

        Raises:
            TrainingError: As in `applied`.
        """
        copied = net.copy()
        self._write(copied)
        return copied

    def _average_of(self, net: Any) -> np.ndarray | None:
        """Return the averages so far, if there are any, which must fit the network."""
        average = self.get_state()["average"]
        if average is not None and np.shape(average) != tuple(net.buffer.parameters.shape):
            expected = f"averages of {net.parameters_size} parameters"
            raise self.fail("average", expected, f"{np.size(average)} of another network")
        return average

    def _write(self, net: Any) -> None:
        values = self._average_of(net)
        if values is None:
            raise TrainingError(f"{self.place}: nothing was averaged yet. Train with it.")
        net.handler.set_from_numpy(net.buffer.parameters, values)

    def get_state(self) -> dict[str, Any]:
        average = self._restored
        if self.average is not None:
            average = self._handler.get_numpy_copy(self.average)
        return {**super().get_state(), "average": average}

    def set_state(self, state: Mapping[str, Any]) -> None:
        check_counts(self.place, count=state["count"])
        super().set_state(state)
        self.average, self._restored = None, state["average"]

    def go_back(
        self, state: Mapping[str, Any] | None, factor: float, net: Any, stepper: Any
    ) -> None:
        """Go on with the averages of the checkpoint; without any, start with its parameters."""
        self.begin_anew({})
        if state is not None:
            self.set_state(state)
        self.start(net, stepper, self.run_verbosity, {})


def _of_hook(name: str) -> Any:
    """Return a property that is the attribute or method of that name of the other hook."""

    def get(self: Any) -> Any:
        return getattr(self.hook, name)

    def put(self: Any, value: Any) -> None:
        setattr(self.hook, name, value)

    return property(get, put, doc=f"The `{name}` of the other hook.")


class WithAverages(Hook):
    """Run another hook while the network has the averages of `AverageWeights` as its parameters.

    For hooks that read the network: monitors, savers and stoppers. It has the name, the interval,
    the file and the log of that hook.

    Args:
        hook: The other hook.
        averages: The name of the `AverageWeights`.
    """

    __default_values__ = {"averages": "AverageWeights"}

    timescale = _of_hook("timescale")
    interval = _of_hook("interval")
    verbose = _of_hook("verbose")
    run_verbosity = _of_hook("run_verbosity")
    role = _of_hook("role")
    idempotent = _of_hook("idempotent")
    trainer = _of_hook("trainer")
    ran_on = _of_hook("ran_on")
    filename = _of_hook("filename")
    folder = _of_hook("folder")
    begin_anew = _of_hook("begin_anew")
    is_turn = _of_hook("is_turn")
    on_error = _of_hook("on_error")
    finalize = _of_hook("finalize")
    go_back = _of_hook("go_back")
    get_state = _of_hook("get_state")

    def __init__(self, hook: Hook, averages: str = "AverageWeights") -> None:
        changes = getattr(hook, "role", "") == "editor" and not isinstance(hook, EarlyStopper)
        if not isinstance(hook, Hook) or isinstance(hook, SaveCheckpoint) or changes:
            expected = "a monitor, a saver of networks or a stopper"
            raise TrainingError(f"WithAverages, hook: expected {expected}, got {shown(hook)}.")
        self.hook = hook
        super().__init__(hook.__name__, hook.timescale, hook.interval, hook.verbose)
        self.averages = averages

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
        self.hook.start(net, stepper, verbose, named_data_iters)

    @property
    def scorers(self) -> Sequence[Any]:
        """Those of the other hook."""
        return getattr(self.hook, "scorers", ())

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

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.hook.set_state(state)
