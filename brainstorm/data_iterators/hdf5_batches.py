"""Batches from an HDF5 file that may be larger than memory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from brainstorm.constraints import integer
from brainstorm.data_iterators.base_iterator import Batch
from brainstorm.data_iterators.batches import PlannedBatches, find_mask, lengths_from_mask, take
from brainstorm.data_iterators.data_checks import check_data, find_non_finite
from brainstorm.data_iterators.prefetch import read_ahead
from brainstorm.data_iterators.watched_files import WatchedFile
from brainstorm.disk import open_regular
from brainstorm.errors import BrainstormError, FileFormatError, unknown
from brainstorm.files import PathLike


class Hdf5Minibatches(PlannedBatches):
    """Batches of sequences that are read from an HDF5 file during the epoch.

    A window of several batches is in memory while a thread reads the next one: so there are never
    more than ``2 * window`` batches, and those already yielded. The thread ends with the epoch.

    The file is read by h5py, which a damaged file can crash; do not use untrusted files. It is
    opened for each epoch, and must not change as long as the iterator is used.

    Args:
        filename: The file.
        batch_size: Number of sequences in a batch.
        shuffle: True draws a new order of the file's chunks in every epoch (of parts of
            `batch_size` sequences if a data set has no chunks), and mixes the sequences within a
            window; ``'batches'`` shuffles only the order of the batches; False keeps the order.
            Weights draw sequences, see `Minibatches`; each is read separately.
        cut_according_to: The name of a mask (T, B, 1), which cuts each batch after the last
            non-zero of its longest sequence; `None` for no cut. The default has no effect without
            data called ``mask``.
        window: Number of batches that are read, and mixed, together. A chunk with more sequences is
            read again for each window that contains a part of it.
        check_finite: Whether numbers that are not finite are an error.
        per_sequence: Names of the data that are (B, features...), one row for each sequence.
        drop_last: Whether a smaller last batch is left out.
        **named_paths: Data name to the path of a data set in the file, which is
            (T, B, features...) with the same T and B as the others.

    Attributes:
        sample_size: Number of sequences.
        time_size: Number of time steps, before any cut.
        chunk_size: The most sequences in a chunk of a data set; 0 if there are no chunks.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is not an HDF5 file, or there is no such data set; while iterating, if
            the file cannot be read, has changed, or holds a number that is not finite.
        IteratorValidationError: The data sets or arguments are not valid or do not fit together.
    """

    __constraints__ = {"window": integer(1)}
    identity = ("time_size", "window", "chunk_size")

    def __init__(
        self,
        filename: PathLike,
        batch_size: int = 1,
        shuffle: bool | str | Sequence[float] = True,
        cut_according_to: str | None = "mask",
        window: int = 16,
        check_finite: bool = True,
        *,
        per_sequence: Collection[str] = (),
        drop_last: bool = False,
        **named_paths: str,
    ) -> None:
        self.window = window
        self._set_axes(named_paths, per_sequence)
        self.filename = os.path.abspath(filename)
        self.named_paths = named_paths
        with open_regular(self.filename):
            self._file = WatchedFile(self.filename)
        with self._open() as file:
            data = {name: self._find(file, name, path) for name, path in named_paths.items()}
            shapes, self.time_size, sample_size = check_data(self, data)
            self._dtypes = {name: array.dtype.newbyteorder("=") for name, array in data.items()}
            self.chunk_size = max(
                array.chunks[self.batch_axis(name)] if array.chunks else 0
                for name, array in data.items()
            )
        super().__init__(shapes, sample_size, batch_size, shuffle, drop_last)
        self.check_finite = check_finite
        self._cut_by = cut_according_to and find_mask(self, cut_according_to, named_paths)

    # -- the order --------------------------------------------------------------------------------

    def _draw_epoch(self) -> list[np.ndarray]:
        if self.shuffle is not True or self.weights is not None:
            return super()._draw_epoch()
        chunks = self._cut(np.arange(self.sample_size), self.chunk_size or self.batch_size)
        order = np.concatenate(self._shuffle(chunks))
        for part in self._cut(order, self.window * self.batch_size):
            self.rnd.shuffle(part)
        return self._cut(order, self.batch_size)

    # -- reading ----------------------------------------------------------------------------------

    def _make_batches(self, epoch: list[np.ndarray], given: int) -> Iterator[Batch]:
        done, given = divmod(given, self.window)
        windows = self._cut(epoch, self.window)[done:]
        if not windows:
            return
        self._file.check()
        with self._open() as file:
            data = {name: file[path] for name, path in self.named_paths.items()}
            read = functools.partial(self._read, data)
            buffers = itertools.cycle(self._allocate() for _ in windows[:2])
            for window in read_ahead(read, zip(windows, buffers, strict=False)):
                for indices, steps in window.batches[given:]:
                    yield self._take(window, indices, steps)
                given = 0

    def _allocate(self) -> Batch:
        sizes = self.time_size, min(self.window * self.batch_size, self.sample_size)
        return {
            name: np.empty((*sizes[1 - self.batch_axis(name) :], *shape), self._dtypes[name])
            for name, shape in self.data_shapes.items()
        }

    def _read(self, data: Mapping[str, Any], task: tuple[list[np.ndarray], Batch]) -> Window:
        """Read the sequences of a window into a buffer; runs in the thread."""
        batches, buffer = task
        indices = np.sort(np.concatenate(batches))
        time_sizes = [self.time_size] * len(batches)
        if self._cut_by is not None:
            self._read_data(self._cut_by, data[self._cut_by], indices, buffer[self._cut_by])
            lengths = lengths_from_mask(buffer[self._cut_by][:, : len(indices)])
            places = (np.searchsorted(indices, batch) for batch in batches)
            time_sizes = [max(1, int(lengths[batch].max())) for batch in places]
        batches = [self.own(batch) for batch in batches]
        indices = np.sort(np.concatenate(batches))
        for name, array in data.items():
            self._read_data(name, array, indices, buffer[name])
        self._file.check()
        for name, array in buffer.items() if self.check_finite else ():
            part = array[(*[slice(None)] * self.batch_axis(name), slice(len(indices)))]
            if found := find_non_finite(self, name, part, indices):
                raise FileFormatError(
                    f"{self._where(name)}: {found}. Correct the file, or allow it: "
                    f"check_finite=False."
                )
        return Window(list(zip(batches, time_sizes, strict=True)), indices, buffer)

    def _read_data(self, name: str, array: Any, indices: np.ndarray, buffer: np.ndarray) -> None:
        """Read sequences, with increasing indices, to the start of a buffer."""
        steps = (slice(None),) * self.batch_axis(name)
        ends = [*(np.flatnonzero(np.diff(indices) != 1) + 1), len(indices)]
        for start, end in zip([0, *ends], ends, strict=False):
            if start < end:
                source = (*steps, slice(indices[start], indices[end - 1] + 1))
                array.read_direct(buffer, source, (*steps, slice(start, end)))

    def _take(self, window: Window, indices: np.ndarray, steps: int) -> Batch:
        places = np.searchsorted(window.indices, indices)
        return {
            name: take(array, (slice(steps),)[: self.batch_axis(name)], places)
            for name, array in window.buffer.items()
        }

    # -- the file ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            with open_regular(self.filename), h5py.File(self.filename, "r") as file:
                yield file
        except BrainstormError:
            raise
        except (KeyError, OSError, RuntimeError) as error:
            self._file.check()
            raise FileFormatError(
                f"{self.filename!r} cannot be read as a data file: it is truncated or of another "
                f"kind ({error})."
            ) from error

    def _find(self, file: Any, name: str, path: str) -> Any:
        if not isinstance(path, str):
            got = f"got a {type(path).__name__}. {self._if_option(name)}"
            raise self._fail(f"expected the path of a data set, {got}", name)
        if isinstance(found := file.get(path), h5py.Dataset):
            return found
        sets: list[str] = []
        file.visititems(lambda at, item: sets.extend([at] * isinstance(item, h5py.Dataset)))
        raise FileFormatError(f"{self._where(name)}: {unknown('data set', path, sets)}")

    def _where(self, name: str) -> str:
        return f"{self.filename!r}, data {name!r}"


class Window(NamedTuple):
    """Sequences that were read together.

    Attributes:
        batches: The indices of the sequences of each batch, and its number of time steps.
        indices: All indices, increasing: those of the sequences in the buffer.
        buffer: The data; it may be longer.
    """

    batches: list[tuple[np.ndarray, int]]
    indices: np.ndarray
    buffer: Batch
