"""Savers: hooks that keep networks, logs and whole runs."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError, UnknownPathError
from brainstorm.hooks.base import Hook, find_log, is_number
from brainstorm.network import Network
from brainstorm.utils import Array, atomic_file

__all__ = ["SaveBestNetwork", "SaveCheckpoint", "SaveLogs", "SaveNetwork"]


class _FileSaver(Hook):
    """Base of hooks that write one file again and again."""

    role = "reader"

    def __init__(
        self,
        filename: str | os.PathLike[str],
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
    ) -> None:
        super().__init__(name, timescale, interval)
        self.filename = os.fspath(filename)


class SaveNetwork(_FileSaver):
    """Save the network as HDF5, every time over the last file.

    Args:
        filename: The file.
        name: The name in the logs.
        timescale: ``'epoch'`` or ``'update'``.
        interval: Save every so many epochs or updates.
    """

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Save the network."""
        net.save_as_hdf5(self.filename)

    def load_network(self) -> Network:
        """Return the network that was saved last."""
        return Network.from_hdf5(self.filename)


class SaveLogs(_FileSaver):
    """Save all logs as HDF5, and once more when the training ends, however it ends.

    Args:
        filename: The file.
        name: The name in the logs.
        timescale: ``'epoch'`` or ``'update'``.
        interval: Save every so many epochs or updates.
    """

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Save the logs."""
        logs.save_as_hdf5(self.filename)

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        """Save the logs with their last entries."""
        logs.save_as_hdf5(self.filename)


class SaveBestNetwork(Hook):
    """Keep the network of the moment when a log was best; NaN is never best.

    Args:
        log_name: Dotted path of the log, e.g. ``'validation.Accuracy'``; its last value counts.
        filename: Where to save the network; `None` keeps its parameters in memory.
        criterion: ``'max'`` or ``'min'``: which values are better.
        name: The name in the logs.
        timescale: ``'epoch'`` or ``'update'``.
        interval: Look every so many epochs or updates.
        verbose: Whether the hook prints; `None` does as the trainer does.

    Attributes:
        parameters: The kept parameters, a flat NumPy array; `None` with a file.
        best_so_far: The best value, `None` before the first.
        best_t: The epoch or update (by the timescale) of the best value.
    """

    __undescribed__ = {
        "parameters": None,
        "best_so_far": None,
        "best_t": None,
        "_persistent": {},
        "_net": None,
        "_kept": False,
    }

    role = "reader"

    def __init__(
        self,
        log_name: str,
        filename: str | os.PathLike[str] | None = None,
        criterion: str = "max",
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(name, timescale, interval, verbose)
        self.check_choice("criterion", criterion, ("max", "min"))
        self.log_name = log_name
        self.filename = None if filename is None else os.fspath(filename)
        self.criterion = criterion
        self.parameters: Array = None
        self.best_so_far: float | None = None
        self.best_t: int | None = None
        self._persistent: dict[str, Array] = {}
        self._net: Any = None
        self._kept = False

    def start(
        self, net: Any, stepper: Any, verbose: bool, named_data_iters: Mapping[str, Any]
    ) -> None:
        """Remember whose parameters will be kept."""
        super().start(net, stepper, verbose, named_data_iters)
        self._net = net

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Keep the network if the log's last value is the best, and at the first call."""
        value = self._last_value(logs, update_nr)
        if _is_better(value, self.best_so_far, self.criterion):
            if self.best_so_far is not None:
                self.message(f"{self.log_name} improved from {self.best_so_far} to {value}")
            self.best_so_far = value
            self.best_t = epoch_nr if self.timescale == "epoch" else update_nr
        elif self._kept:
            self.message(f"best {self.log_name} is {self.best_so_far}, at {self.best_t}")
            return
        self._keep(net)

    def _last_value(self, logs: Mapping[str, Any], update_nr: int) -> float:
        try:
            return find_log(logs, self.log_name)[-1]
        except UnknownPathError:
            if update_nr > 0:
                raise
            return math.nan

    def _keep(self, net: Any) -> None:
        self._net = net
        self._kept = True
        if self.filename is not None:
            net.save_as_hdf5(self.filename)
            return
        self.parameters = net.handler.get_numpy_copy(net.buffer.parameters)
        self._persistent = {path: net.get(path) for path in _persistent_paths(net)}

    def load_best_network(self) -> Network:
        """Return a new network as it was at the best value (at the first call, without one).

        Raises:
            TrainingError: The hook was never called.
        """
        if not self._kept:
            raise TrainingError(
                f"hook {self.__name__!r} (SaveBestNetwork): there is no best network yet. Train "
                f"with this hook first."
            )
        if self.filename is not None:
            return Network.from_hdf5(self.filename)
        net = self.trainer.net if self._net is None else self._net
        best = create_from_description(get_description(net))
        best.handler.set_from_numpy(best.buffer.parameters, self.parameters)
        for path, values in self._persistent.items():
            best.handler.set_from_numpy(best.buffer[path], values)
        return best

    def get_state(self) -> dict[str, Any]:
        """Return what was kept, and how good it was."""
        names = ("parameters", "best_so_far", "best_t", "_persistent", "_kept")
        return {name.lstrip("_"): getattr(self, name) for name in names}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.parameters = state["parameters"]
        self.best_so_far = state["best_so_far"]
        self.best_t = state["best_t"]
        self._persistent = dict(state["persistent"])
        self._kept = bool(state["kept"])


class SaveCheckpoint(Hook):
    """Save the whole run at intervals, so that `Trainer.resume` continues it exactly.

    The file is written after everything else that belongs to an update (and to an epoch, where
    the update is its last one), over the last one and whole or not at all. A signal that ends the
    training (see `Trainer.train`) has it written too. The hook does nothing before the first
    update.

    Args:
        filename: The file; it always holds the newest state.
        name: The name in the logs.
        timescale: ``'epoch'`` or ``'update'``.
        interval: Save every so many epochs or updates.
        minutes: Save every so many minutes (at the end of an update) instead.
        keep: How many states are kept. More than one: each is kept under a name of its own too,
            with the number of updates: ``run-1200.hdf5`` beside ``run.hdf5``.
        best: Dotted path of a log, e.g. ``'validation.total_loss'``: of all states that were saved,
            the one where its last value was best is kept as ``run-best.hdf5``.
        criterion: ``'min'`` or ``'max'``: which values of that log are better.

    Attributes:
        kept: Names of the kept files beside `filename`, the oldest first.
        best_so_far: The best value at a save, `None` before the first.
    """

    __undescribed__ = {"kept": [], "best_so_far": None, "_saved_at": 0.0}
    __default_values__ = {"minutes": None, "keep": 1, "best": None, "criterion": "min"}

    role = "reader"

    def __init__(
        self,
        filename: str | os.PathLike[str],
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        minutes: float | None = None,
        keep: int = 1,
        best: str | None = None,
        criterion: str = "min",
    ) -> None:
        super().__init__(name, timescale, interval)
        self.check_choice("criterion", criterion, ("min", "max"))
        if minutes is not None and not (is_number(minutes) and 0 <= minutes < math.inf):
            raise self.fail("minutes", "a number >= 0 or None", minutes)
        if not is_number(keep) or not keep >= 1 or keep % 1 != 0:
            raise self.fail("keep", "an integer >= 1", keep)
        self.filename = os.fspath(filename)
        self.minutes = minutes
        self.keep = int(keep)
        self.best = best
        self.criterion = criterion
        self.kept: list[str] = []
        self.best_so_far: float | None = None
        self._saved_at = 0.0

    def start(
        self, net: Any, stepper: Any, verbose: bool, named_data_iters: Mapping[str, Any]
    ) -> None:
        """Check now, and not hours later, that the run can be saved.

        Raises:
            TrainingError: An iterator cannot tell its state, or the folder does not exist.
            DescriptionError: A hook, the stepper or a scorer cannot be described.
        """
        super().start(net, stepper, verbose, named_data_iters)
        for name, iterator in named_data_iters.items():
            if not (hasattr(iterator, "get_state") and hasattr(iterator, "resume_epoch")):
                raise self.fail(name, "a DataIterator, which can be continued", iterator)
        if not Path(self.filename).absolute().parent.is_dir():
            raise self.fail("filename", "a file in a folder that exists", self.filename)
        get_description(self.trainer)
        self._saved_at = time.monotonic()

    def is_due(self, epoch_nr: int, update_nr: int, epoch_ended: bool) -> bool:
        """Return whether it is time to save.

        Args:
            epoch_nr: Epochs so far, the current one included.
            update_nr: Updates so far.
            epoch_ended: Whether the update is the last one of the epoch.
        """
        if self.minutes is not None:
            return time.monotonic() - self._saved_at >= 60 * self.minutes
        if self.timescale == "epoch":
            return epoch_ended and epoch_nr % self.interval == 0
        return update_nr % self.interval == 0

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Save the run now, and delete what is older than the last `keep` states."""
        # The file itself knows of the copies that are made of it: who goes on tidies them up.
        copies = [self._name(update_nr)] if self.keep > 1 else []
        self.kept = [name for name in self.kept if name not in copies] + copies
        if self.best is not None and self._improves(epoch_nr, logs):
            copies.append(self._name("best"))
        self.trainer.save_run(self.filename)
        for copy in copies:
            _copy_file(self.filename, copy)
        while len(self.kept) > self.keep:
            Path(self.kept.pop(0)).unlink(missing_ok=True)
        self._saved_at = time.monotonic()

    def _name(self, what: Any) -> str:
        path = Path(self.filename)
        return str(path.with_name(f"{path.stem}-{what}{path.suffix}"))

    def _improves(self, epoch_nr: int, logs: Mapping[str, Any]) -> bool:
        try:
            value = find_log(logs, self.best or "")[-1]
        except UnknownPathError:
            if epoch_nr > 1:
                raise
            return False  # what is logged at the end of epochs is not there yet
        better = _is_better(value, self.best_so_far, self.criterion)
        if better:
            self.best_so_far = value
        return better

    def get_state(self) -> dict[str, Any]:
        """Return which files are kept, and how good the best one is."""
        return {"kept": list(self.kept), "best_so_far": self.best_so_far}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.kept = list(state["kept"])
        self.best_so_far = state["best_so_far"]


def _is_better(value: float, best_so_far: float | None, criterion: str) -> bool:
    if math.isnan(value) or best_so_far is None:
        return not math.isnan(value)
    return value > best_so_far if criterion == "max" else value < best_so_far


def _copy_file(source: str, target: str) -> None:
    """Make `target` hold what `source` holds, at once, and without taking space where possible."""
    with atomic_file(target) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:  # a file system without links
            shutil.copyfile(source, temporary)


def _persistent_paths(net: Any) -> list[str]:
    """Return the paths of the internals that survive between passes (running statistics)."""
    return [
        f"{layer_name}.internals.{name}"
        for layer_name, layer in net.layers.items()
        for name, structure in layer.internal_shapes.items()
        if structure.persistent
    ]
