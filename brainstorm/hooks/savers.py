"""Savers: hooks that save networks and logs, and the base of all hooks that write files.

A training goes on if the disk is full for a while: if a file cannot be written, a warning is
logged, the old file stays, and the hook tries again when it is next due. An error is raised at the
end of the training if the last attempt has failed.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from brainstorm.describable import create_from_description, get_description
from brainstorm.disk import FileHold, check_regular, followed
from brainstorm.errors import FileFormatError, TrainingError
from brainstorm.files import is_file_of
from brainstorm.hooks.base import LOG, Hook, Iterators, find_moment
from brainstorm.hooks.criteria import LogJudge
from brainstorm.network import Network
from brainstorm.network.parameters import put_values, take_values
from brainstorm.utils import Array

#: Endings of formats in which other functions and libraries write.
OTHER_FORMATS = {".csv", ".json", ".jpg", ".onnx", ".pdf", ".png", ".safetensors", ".svg"}


class Saver(Hook):
    """Base class of hooks that write a file; see above for failed writes.

    During a training, no other training may write to that file.

    Attributes:
        filename: The file; `None` if everything is kept in memory.
    """

    __undescribed__: Any = {"_failure", "_ends_by_error", "_hold", "_path"}

    _failure: OSError | None = None
    _ends_by_error = False
    _hold: FileHold | None = None
    _path: str | None = None

    role = "reader"
    writes = "filename"
    endings: ClassVar[tuple[str, ...]] = (".hdf5", ".h5")
    #: The kind of its files, see `brainstorm.files.VERSIONS`.
    kind: ClassVar[str] = "Network file"

    def __init__(self, filename: str | os.PathLike[str] | None, *common: Any) -> None:
        super().__init__(*common)
        self.filename: Any = filename

    @property
    def path(self) -> str:
        """The file; during a training it stays the same when the working directory changes."""
        return self._path or self.filename

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Check at the start, not hours later, that the file can be written.

        Raises:
            TrainingError: The folder does not exist or is not writable; another training writes to
                the file; its path comes from a run file and not from the script; or its ending is
                that of another format.
            FileFormatError: The path exists and is not a file.
        """
        super().start(net, stepper, verbose, named_data_iters)
        self._failure, self._ends_by_error = None, False
        if self.filename is None:
            return
        path = Path(self.filename).absolute()
        if path.suffix in OTHER_FORMATS.difference(self.endings):
            expected = f"a file that ends with {' or '.join(self.endings)}, which is its format"
            raise self.fail("filename", expected, self.filename)
        self._path = str(path)
        folder = followed(path).parent
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            expected = "a file in a folder that exists and can be written"
            raise self.fail("filename", expected, self.filename)
        try:
            with contextlib.suppress(FileNotFoundError):
                check_regular(path, os.stat(path))
            self._hold = FileHold(path)
        except FileFormatError:
            raise
        except BlockingIOError as error:
            advice = f"(end that of {error}, or name another file)"
            expected = f"a file that no other training writes {advice}"
            raise self.fail("filename", expected, self.filename) from None
        except (OSError, ValueError) as error:  # the name is too long or not valid
            expected = f"a file that can be written ({error})"
            raise self.fail("filename", expected, self.filename) from error

    def owns(self, path: str) -> bool:
        return is_file_of(path, self.kind)

    def _attempt(self, write: Callable[[], None]) -> bool:
        """Write, and return whether it succeeded.

        Raises:
            TrainingError: This process is a fork of the one that trains and writes the same file.
        """
        if self._hold is not None and self._hold.process != os.getpid():
            raise TrainingError(
                f"{self.place}, filename: expected to be used by "
                f"process {self._hold.process}, which holds the file, got process {os.getpid()}, "
                f"which was forked from it. Begin trainings after the fork, each with files of its "
                f"own."
            )
        try:
            write()
        except OSError as error:
            self._failure = error
            text = "%s: %s could not be written, and will be tried again when it is due: %s"
            LOG.warning(text, self.place, self.filename, error)
            return False
        self._failure = None
        return True

    def on_error(self, net: Any, stepper: Any, logs: Any, error: BaseException) -> None:
        """Do not raise an error about the file: that of the training comes first."""
        self._ends_by_error = True

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        """Raise an error if the newest content is not in the file.

        Raises:
            TrainingError: The last write has failed.
        """
        self._path = None
        if self._hold is not None:
            self._hold.release()
            self._hold = None
        if self._failure is not None and not self._ends_by_error:
            raise TrainingError(
                f"{self.place}: expected to write {self.filename}, got: "
                f"{str(self._failure).rstrip('.')}. The file, if there is one, is older. "
                f"The network is as the training has left it: save it elsewhere with save_as_hdf5."
            ) from self._failure


class FileSaver(Saver):
    """Base class of hooks that write one file repeatedly."""

    def __init__(
        self,
        filename: str | os.PathLike[str],
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(filename, name, timescale, interval, verbose)

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        if self.filename is None:
            raise self.fail("filename", "a path", None)
        super().start(net, stepper, verbose, named_data_iters)


class SaveNetwork(FileSaver):
    """Save the network as HDF5, each time to the same file.

    Args:
        filename: The file.
        name, timescale, interval, verbose: See `Hook`.
    """

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        self._attempt(lambda: net.save_as_hdf5(self.path))

    def load_network(self) -> Network:
        """Return the network that was saved last."""
        return Network.from_hdf5(self.path)


class SaveLogs(FileSaver):
    """Save all logs as HDF5, also when the training ends, even by an error.

    `Logs.to_csv` and `Logs.to_json` write other formats.

    Args:
        filename: The file.
        name, timescale, interval, verbose: See `Hook`.
    """

    kind = "Logs file"

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        self._attempt(lambda: logs.save_as_hdf5(self.path))

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        """Save the logs with their last entries, unless `start` raised an error."""
        try:
            if self._hold is not None:
                self._attempt(lambda: logs.save_as_hdf5(self.path))
        finally:
            super().finalize(net, stepper, logs)


class SaveBestNetwork(LogJudge, Saver):
    """Keep the network for which a log was best; NaN is never best.

    Each value is checked when it comes, while the network belongs to it; with a multiple of the
    log's interval, only every so many.

    Args:
        log_name: Dotted path of the log, e.g. ``'validation.Accuracy'``.
        filename: Where to save the network; `None` keeps its parameters in memory.
        criterion: ``'max'`` or ``'min'``: which values are better; `None`: as the log's name or its
            scorer says.
        name, timescale, interval, verbose: See `Hook`.

    Attributes:
        parameters: The kept parameters, a flat NumPy array; `None` with a file.
        best_so_far: The best value; `None` before the first.
        best_t: The epoch or update (by the timescale) of the best value.
    """

    state_names = ("parameters", "best_so_far", "best_t", "_persistent", "_kept")
    __undescribed__ = {"_net"}

    parameters: Array = None
    best_so_far: float | None = None
    best_t: int | None = None
    _persistent: Mapping[str, Array] = {}
    _net: Any = None
    _kept = False

    def __init__(
        self,
        log_name: str,
        filename: str | os.PathLike[str] | None = None,
        criterion: str | None = None,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(filename, name, timescale, interval, verbose)
        self.log_name = log_name
        self.criterion = criterion

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        super().start(net, stepper, verbose, named_data_iters)
        self._net = net

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Keep the network if the log has a new value that is the best, and at the first call."""
        value = self.last_value(update_nr, logs)
        if not self._has_new_value(update_nr, logs):
            if self._kept:
                return
            value = math.nan
        better = self.is_better(value, self.best_so_far, net)
        best = math.nan if self.best_so_far is None else self.best_so_far
        if self._kept and not better:
            self.message(f"best {self.log_name} is {best:.6g}, at {self.best_t}")
        elif self._attempt(lambda: self._keep(net)) and better:
            if self.best_so_far is not None:
                self.message(f"{self.log_name} improved from {best:.6g} to {value:.6g}")
            self.best_so_far = value
            self.best_t = epoch_nr if self.timescale == "epoch" else update_nr

    def _has_new_value(self, update_nr: int, logs: Mapping[str, Any]) -> bool:
        """Return whether the last value is to be checked, and is that of this network."""
        last = find_moment(logs, self.log_name)
        if last is None:
            return self._is_turn
        is_part = last.timescale == self.timescale and self.interval % last.interval == 0
        return bool(last.is_of(update_nr) and (self._is_turn or not is_part))

    def _keep(self, net: Any) -> None:
        self._net = net
        if self.filename is not None:
            net.save_as_hdf5(self.path)
        else:
            values = take_values(net)
            self.parameters, self._persistent = values.pop("parameters"), values
        self._kept = True

    def load_best_network(self) -> Network:
        """Return a new network with the best parameters (those of the first call if none is best).

        Raises:
            TrainingError: The hook was never called.
        """
        if not self._kept:
            raise TrainingError(
                f"{self.place}: there is no best network yet. Train with this hook first."
            )
        if self.filename is not None:
            return Network.from_hdf5(self.path)
        net = self.trainer.net if self._net is None else self._net
        best = create_from_description(get_description(net))
        put_values(best, {"parameters": self.parameters, **self._persistent})
        return best

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state({**state, "persistent": dict(state["persistent"])})
