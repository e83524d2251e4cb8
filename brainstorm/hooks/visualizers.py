"""Visualizers: hooks that show the progress of the training."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib
import io
import os
import sys
import time
from collections.abc import Collection
from typing import Any

from brainstorm import optional, tools
from brainstorm.disk import atomic_file, open_regular
from brainstorm.errors import FileFormatError
from brainstorm.hooks.base import OUTPUT, Hook, Iterators, is_to_come, write_line
from brainstorm.hooks.savers import Saver
from brainstorm.utils import flatten_keys

#: The first bytes of PNG files.
PNG = b"\x89PNG\r\n\x1a\n"


class ProgressBar(Hook):
    """Show the progress of each epoch: a bar on a terminal, otherwise a line at its end."""

    __undescribed__ = {"length", "_shown", "_ends_epoch", "_bar", "_begin"}

    length: int | None = None
    _shown = 0  # number of batches of this epoch
    _ends_epoch = False
    _bar: Any = None
    _begin = 0.0  # of this epoch

    role = "reader"

    def __init__(self) -> None:
        super().__init__(timescale="update")

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Find the number of batches in an epoch."""
        super().start(net, stepper, verbose, named_data_iters)
        self.length = getattr(named_data_iters.get("training_data_iter"), "length", None)
        self._shown = self.trainer.batches_given  # where the epoch goes on
        self._begin = time.perf_counter()

    def is_turn(self, timescale: str, count: int) -> bool:
        """Return whether to show progress: also at the end of an epoch, after its last batch."""
        self._ends_epoch = timescale == "epoch"
        return self._ends_epoch or super().is_turn(timescale, count)

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        given = self.trainer.batches_given
        if given > self._shown:
            if self._bar is None:
                self._bar = _open_bar(f"Epoch {epoch_nr}", self.length, self._shown, self._begin)
            self._bar.update(given - self._shown)
        self._shown = 0 if self._ends_epoch else given
        if self._ends_epoch or given == self.length:
            self._close()
        if self._ends_epoch:
            self._begin = time.perf_counter()

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _open_bar(title: str, length: int | None, shown: int, begin: float) -> Any:
    if not OUTPUT.isatty():
        return _Line(title, begin)
    from tqdm.auto import tqdm  # here, because the import takes longer than a small training

    bar = tqdm(
        total=length,
        desc=title,
        unit=" batches",
        file=OUTPUT,
        dynamic_ncols=True,
        initial=shown,
    )
    bar.start_t -= time.perf_counter() - begin  # the first batch is done
    return bar


class _Line:
    """Replaces the bar where there is no terminal."""

    def __init__(self, title: str, begin: float) -> None:
        self.title, self.begin = title, begin
        self.count = 0

    def update(self, batches: int) -> None:
        self.count += batches

    def close(self) -> None:
        seconds = time.perf_counter() - self.begin
        write_line(f"{self.title}: {self.count} batches in {seconds:.2f} s")


class LogPlotter(Saver):
    """Draw logs as curves, renewed each time. Needs the extra ``plot``.

    In a notebook one picture below the cell is updated; elsewhere a PNG file is written.

    Args:
        log_names: Dotted path or paths of the logs, or patterns with ``*``.
        filename: The file; `None`: the name of the hook with ``.png``, or no file if the hook is
            created in a notebook.
        timescale, interval, name, verbose: See `Hook`.
    """

    __undescribed__ = {"_shown"}
    endings = (".png",)
    _shown: Any = None  # the picture in a notebook

    def __init__(
        self,
        log_names: Collection[str],
        filename: str | os.PathLike[str] | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        name: str | None = None,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(filename, name, timescale, interval, verbose)
        if filename is None and _find_notebook() is None:
            self.filename = f"{self.__name__}.png"
        self.log_names = log_names

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        super().start(net, stepper, verbose, named_data_iters)
        optional.require("matplotlib.figure", "plot")
        self._shown = None

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        """Draw the curves, except of logs that do not exist yet."""
        known = flatten_keys(logs)
        late = {n for n in self.log_names if update_nr == 0 or is_to_come(logs, n)}
        names = [n for n in self.log_names if n not in late or fnmatch.filter(known, n)]
        png = io.BytesIO()
        tools.plot_logs(logs, names).savefig(png, format="png")
        notebook = _find_notebook()
        if notebook is not None:
            self._show(notebook, png.getvalue())
        if self.filename is not None:
            self._attempt(lambda: self._write(png.getvalue()))

    def owns(self, path: str) -> bool:
        with contextlib.suppress(OSError, FileFormatError), open_regular(path) as file:
            return file.read(8) == PNG
        return False

    def _show(self, notebook: Any, png: bytes) -> None:
        picture = notebook.Image(data=png)
        if self._shown is None:
            self._shown = notebook.display(picture, display_id=True)
        else:
            self._shown.update(picture)

    def _write(self, png: bytes) -> None:
        with atomic_file(self.path) as temporary:
            temporary.write_bytes(png)


def _find_notebook() -> Any:
    """Return the module `IPython.display` in a notebook; `None` elsewhere."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return importlib.import_module("IPython.display") if hasattr(shell, "kernel") else None


#: The name of 2015, when a Bokeh server drew the curves.
BokehVisualizer = LogPlotter
