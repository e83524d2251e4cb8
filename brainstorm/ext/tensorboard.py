"""Logs and histograms of buffers for TensorBoard, by the library tensorboardX.

    trainer.add_hook(TensorBoardWriter("runs/first", histograms=["*.parameters.*"]))

Then ``tensorboard --logdir runs`` shows them. Tags are the paths, with slashes in place of dots.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.hooks import Hook
from brainstorm.hooks.base import Iterators
from brainstorm.optional import require
from brainstorm.utils import flatten_items, is_number

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter(Hook):
    """Write the last value of each log, and histograms of buffers, as events for TensorBoard.

    A step is an epoch or an update, depending on the timescale. Of a log with several new values
    only the last is written; a log without new values is left out.

    Args:
        folder: The folder of the event files; each training writes a new one.
        histograms: Patterns of dotted paths such as ``'*.gradients.*'``.
        timescale: ``'epoch'`` or ``'update'``.
        interval: Write every so many epochs or updates.
        name: The name in the logs.
    """

    __undescribed__ = {"_writer": None, "_lengths": {}}
    __default_values__ = {"histograms": ()}

    role = "reader"
    writes = "folder"
    endings = ("",)

    def __init__(
        self,
        folder: str | os.PathLike[str],
        histograms: str | Sequence[str] = (),
        timescale: str = "epoch",
        interval: int = 1,
        name: str | None = None,
    ) -> None:
        super().__init__(name, timescale, interval)
        self.folder = os.fspath(folder)
        self.histograms = [histograms] if isinstance(histograms, str) else list(histograms)
        self._writer: Any = None
        self._lengths: dict[str, int] = {}

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Open an event file.

        Raises:
            MissingDependencyError: tensorboardX is not installed.
            UnknownPathError: A pattern matches no buffer.
        """
        super().start(net, stepper, verbose, named_data_iters)
        for pattern in self.histograms:
            if not net.buffer.paths(pattern):
                self.check_name("buffer", pattern, net.buffer.paths())
        logs = () if self.trainer is None else flatten_items(self.trainer.logs)
        self._lengths = {path: len(values) for path, values in logs}
        writer = require("tensorboardX", "tensorboard").SummaryWriter
        os.makedirs(self.folder, exist_ok=True)
        number = len(os.listdir(self.folder))  # of files; their names have the time in seconds
        self._writer = writer(self.folder, filename_suffix=f".{number}")

    def owns(self, path: str) -> bool:
        """Return whether it is a folder: each training writes a new file into it."""
        return os.path.isdir(path)

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        step = epoch_nr if self.timescale == "epoch" else update_nr
        for path, values in flatten_items(logs):
            if len(values) > self._lengths.get(path, 0) and is_number(values[-1]):
                self._writer.add_scalar(_tag(path), float(values[-1]), step)
            self._lengths[path] = len(values)
        matches = (path for pattern in self.histograms for path in net.buffer.paths(pattern))
        for path in dict.fromkeys(matches):  # each once
            values = net.get(path)
            if (finite := values[np.isfinite(values)]).size:
                self._writer.add_histogram(_tag(path), finite, step)
        self._writer.flush()

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _tag(path: str) -> str:
    return path.replace(".", "/")
