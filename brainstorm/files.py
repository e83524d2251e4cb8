"""Network files and run files: HDF5, written atomically, read as checked plain data.

A *network file* has the attributes ``format`` ("Network file v2.0"), ``info`` and optionally
``comment``; data sets ``description`` (JSON), ``parameters`` (1-D) and, below ``persistent``, one
data set for each path of running statistics.

A *run file* ("Run file v1.0") has in addition the data sets ``trainer`` (its description, JSON) and
``state`` (JSON): nested dicts of everything that changes during training. Arrays, and long lists of
numbers, are stored below ``arrays``, under their dotted paths. Reading creates no objects and does
not call libhdf5: see `brainstorm.hdf5`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, TypeVar

import h5py
import numpy as np

from brainstorm.disk import UnfailingFile, atomic_file, open_regular
from brainstorm.errors import (
    MALFORMED,
    BrainstormError,
    FileFormatError,
    UnsupportedFileError,
)
from brainstorm.hdf5 import DataSet, Group, MalformedError, open_hdf5
from brainstorm.interrupts import uninterrupted
from brainstorm.packing import Take, pack, pack_description, unpack
from brainstorm.utils import MOST_DIGITS, check_nesting, get_brainstorm_info

__all__ = [
    "NetworkFile",
    "PathLike",
    "RunFile",
    "hdf5_file",
    "intact",
    "is_file_of",
    "opened",
    "read_file",
    "read_network_file",
    "read_run_file",
    "write_network_file",
    "write_run_file",
]

PathLike = str | os.PathLike[str]

#: Kind of file to the major version that is written, which is the newest that can be read.
VERSIONS = {"Network file": 2, "Run file": 1, "Logs file": 1, "Buffers file": 1}

T = TypeVar("T")


class NetworkFile(NamedTuple):
    """The content of a network file.

    Attributes:
        description: The description of the network.
        parameters: All parameters, flat; or by path, in files of other libraries.
        persistent: Path to values of running statistics.
        comment: The comment of the user who wrote the file.
        is_of_2015: Whether the parameters are ordered as in files of Brainstorm 0.5 (v1.0).
    """

    description: dict[str, Any]
    parameters: np.ndarray | Mapping[str, np.ndarray]
    persistent: dict[str, np.ndarray]
    comment: str
    is_of_2015: bool = False

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Path to values of running statistics and of parameters, or ``parameters`` if flat."""
        by_path = isinstance(self.parameters, Mapping)
        parameters: Any = self.parameters if by_path else {"parameters": self.parameters}
        return {**parameters, **self.persistent}


class RunFile(NamedTuple):
    """The content of a run file.

    Attributes:
        network: The network.
        trainer: The description of the trainer.
        state: Nested dicts, lists and tuples of numbers, texts, `None` and NumPy arrays.
    """

    network: NetworkFile
    trainer: dict[str, Any]
    state: dict[str, Any]


@contextlib.contextmanager
def hdf5_file(
    filename: PathLike, copies: Iterable[PathLike] = (), kind: str = "", **options: Any
) -> Iterator[Any]:
    """Yield an HDF5 file that becomes `filename` at the end, atomically.

    Args:
        filename: The file.
        copies: Other files that get the same content, see `atomic_file`.
        kind: One of `VERSIONS`, which is noted in the file; empty for data of the user.
        **options: Of `h5py.File`.

    Signals wait until it is written, except where the block is `interruptible`.

    Raises:
        OSError: The file cannot be written; its previous content is kept.
    """
    with atomic_file(filename, copies) as temporary, UnfailingFile(temporary, "r+") as target:
        try:
            # HDF5 calls methods of the target, and errors of signal handlers there would be lost.
            with uninterrupted(), h5py.File(target, "w", **options) as file:
                if kind:
                    file.attrs["format"] = f"{kind} v{VERSIONS[kind]}.0".encode()
                    file.attrs["info"] = get_brainstorm_info()
                yield file
        finally:
            if target.failure is not None:
                raise target.failure


def write_network_file(filename: PathLike, content: NetworkFile) -> None:
    """Write a network file atomically."""
    with hdf5_file(filename, kind="Network file") as file:
        _write_network(file, content, {}, compression="gzip")


def write_run_file(filename: PathLike, content: RunFile, copies: Iterable[PathLike] = ()) -> None:
    """Write a run file atomically.

    Args:
        filename: The file.
        content: Its content.
        copies: Other files that get the same content, see `atomic_file`.

    Raises:
        TrainingError: The state holds a value that files cannot hold; the message names it.
    """
    arrays: dict[str, np.ndarray] = {}
    state = pack(content.state, "", arrays)
    check_nesting("state", state)  # here and below, as when it is read
    trainer = pack_description(content.trainer, "trainer", arrays)
    with hdf5_file(filename, copies, "Run file") as file:
        _write_network(file, content.network, arrays)
        file["trainer"] = trainer
        file["state"] = json.dumps(state).encode()


def _write_network(
    file: Any,
    content: NetworkFile,
    arrays: dict[str, np.ndarray],
    compression: str | None = None,
) -> None:
    if content.comment:
        file.attrs["comment"] = str(content.comment).encode(errors="replace")
    file["description"] = pack_description(content.description, "description", arrays)
    file.create_dataset("parameters", data=content.parameters, compression=compression)
    for name, array in arrays.items():
        file.create_dataset(f"arrays/{name}", data=array, compression=compression)
    for path, values in content.persistent.items():
        file[f"persistent/{path}"] = values


def read_network_file(filename: PathLike) -> NetworkFile:
    """Read and check a network file, or the network of a run file.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is not an HDF5 file, not a network file, truncated, or too new.
    """
    return read_file(filename, ("Network file", "Run file"), _network_content)


def read_run_file(filename: PathLike) -> RunFile:
    """Read and check a run file.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is not an HDF5 file, not a run file, truncated, or too new.
    """
    return read_file(filename, ("Run file",), _run_content)


@contextlib.contextmanager
def opened(filename: PathLike, kind: str) -> Iterator[BinaryIO]:
    """Yield a file for reading; errors in the block become errors that name the file.

    Args:
        filename: The file.
        kind: What it should be, e.g. ``'run file'``.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is not a file, or cannot be read.
    """
    try:
        with open_regular(filename) as file:
            yield file
    except (FileFormatError, FileNotFoundError, PermissionError):
        raise
    except (OSError, *MALFORMED) as error:
        raise FileFormatError(
            f"{os.fspath(filename)!r} cannot be read as a {kind}: it is truncated or of another "
            f"kind ({error})."
        ) from error


@contextlib.contextmanager
def intact(where: str, what: str) -> Iterator[None]:
    """Turn errors from malformed content into an error about the file.

    Args:
        where: The file, for the message.
        what: What should be in it, e.g. ``'run that can be continued'``.
    """
    try:
        yield
    except BrainstormError:
        raise
    except MALFORMED as error:
        raise FileFormatError(f"{where} holds no {what}: {error!r}.") from error


def read_file(filename: PathLike, kinds: tuple[str, ...], content: Callable[[Group], T]) -> T:
    """Return the content of a file of this package.

    Args:
        filename: The file.
        kinds: The accepted kinds, see `VERSIONS`.
        content: Creates the content from the root group.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is of another kind or of a newer version, or damaged.
    """
    with opened(filename, kinds[0].lower()) as stream:
        file = open_hdf5(stream)
        _check_format(filename, file.attrs.get("format", ""), kinds)
        return content(file)


def is_file_of(filename: PathLike, kind: str) -> bool:
    """Return whether a path is a file of this package, of one kind in `VERSIONS`."""
    try:
        return read_file(filename, (kind,), lambda root: True)
    except (FileFormatError, FileNotFoundError):
        return False


def _network_content(file: Group, take: Take | None = None) -> NetworkFile:
    return NetworkFile(
        description=_read_description("description", file, take or _array_taker(file)),
        parameters=_read_array("parameters", file["parameters"]),
        persistent=_read_arrays(file.get("persistent", {})),
        comment=file.attrs.get("comment", ""),
        is_of_2015=file.attrs["format"].startswith("Network file v1."),
    )


def _run_content(file: Group) -> RunFile:
    take = _array_taker(file)
    state = json.loads(_read_text("state", file["state"]))
    check_nesting("state", state)
    return RunFile(
        network=_network_content(file, take),
        trainer=_read_description("trainer", file, take),
        state=unpack(state, take),
    )


def _check_format(filename: PathLike, text: str, kinds: tuple[str, ...]) -> None:
    name, _, version = text.rpartition(" v")
    if name not in kinds:
        raise FileFormatError(
            f"{os.fspath(filename)!r}: expected a '{kinds[0]}', got "
            f"{text or 'an HDF5 file without a format'!r}."
        )
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) > VERSIONS[name]:
        raise UnsupportedFileError(
            f"{os.fspath(filename)!r}: format version {version} is newer than the "
            f"{VERSIONS[name]}.x that this brainstorm reads. Install a newer brainstorm."
        )


def _array_taker(file: Group) -> Take:
    """Return a function that reads an array by its name below ``arrays``, each once."""
    items = dict(file.get("arrays", {}))
    return lambda name: _read_array(name, items.pop(name))


def _read_arrays(group: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {path: _read_array(path, item) for path, item in group.items()}


def _read_array(path: str, item: Any) -> np.ndarray:
    if not isinstance(item, DataSet) or item.dtype is None or item.dtype.kind == "S":
        raise MalformedError(f"{path}: expected an array of numbers")
    return item.read()


def _read_text(path: str, item: Any) -> str:
    if not isinstance(item, DataSet) or item.shape or item.dtype is not None:
        raise MalformedError(f"{path}: expected a text")
    return item.read()


def read_description(path: str, text: str) -> dict[str, Any]:
    """Return a description: strict JSON, with integers as `get_description` has them."""

    def refuse(text: str) -> Any:
        raise MalformedError(f"{path}: {text} is not a number that a description can hold")

    def whole(text: str) -> int:
        short = len(text.lstrip("-")) <= MOST_DIGITS
        return int(text) if short else refuse(f"{text[:MOST_DIGITS]}...")

    description = json.loads(text, parse_constant=refuse, parse_int=whole)
    if not isinstance(description, dict):
        raise MalformedError(f"{path}: expected a dict")
    check_nesting(path, description)
    return description


def _read_description(path: str, file: Group, take: Take) -> dict[str, Any]:
    description = read_description(path, _read_text(path, file[path]))
    return unpack(description, take, is_description=True)
