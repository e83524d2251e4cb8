"""Files on disk: reading regular files only, atomic writing, and locks of trainings.

A path may lead to anything: opening a FIFO without a writer waits forever, a device may be
endless, or take data as commands. So the functions here check what a path is, again after opening.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from brainstorm.errors import UnsupportedFileError
from brainstorm.forks import renew_after_fork

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["FileHold", "UnfailingFile", "atomic_file", "check_regular", "followed", "open_regular"]

#: Kinds of directory entries that are not regular files, and their names.
SPECIAL = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip

#: Flags with which opening neither waits nor makes a terminal the controlling one.
AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
#: Bytes of a file name beyond which names derived from it might be too long (255).
LONG = 200


def check_regular(
    filename: str | os.PathLike[str],
    found: os.stat_result,
    remedy: str = "Copy its content to a file, and use that.",
) -> None:
    """Raise an `UnsupportedFileError` for the status of a folder, FIFO, device or socket."""
    kind = stat.S_IFMT(found.st_mode)
    if kind in SPECIAL:
        raise UnsupportedFileError(
            f"{os.fspath(filename)!r}: expected a file, got {SPECIAL[kind]}. {remedy}"
        )


@contextlib.contextmanager
def open_regular(filename: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file that is open for reading.

    Raises:
        FileNotFoundError: There is no such file.
        UnsupportedFileError: It is not a regular file, or cannot be opened.
    """
    name = os.fspath(filename)
    try:
        check_regular(name, os.stat(name))  # opening a device may have effects
        handle = os.open(name, os.O_RDONLY | AT_ONCE)
    except (FileNotFoundError, ValueError):  # a NUL in the name
        raise FileNotFoundError(f"there is no file {name!r}") from None
    except UnsupportedFileError:
        raise
    except OSError as error:  # link loops, too long names, permissions
        raise UnsupportedFileError(f"{name!r} cannot be opened: {error.strerror}.") from error
    with open(name, "rb", opener=lambda *_: handle) as file:
        check_regular(name, os.fstat(handle))  # it may have been replaced
        yield file


# -- writing --------------------------------------------------------------------------------------


class UnfailingFile(io.FileIO):
    """A file of which HDF5 does not learn that it cannot be written, as on a full disk.

    Otherwise it would never release what it has not written, and crash when the process ends.

    Attributes:
        failure: The first error, or None.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of the data, or nothing more once that has failed."""
        left = whole = memoryview(data).cast("B")
        try:
            while left and self.failure is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.failure = error
        return len(whole)

    def truncate(self, size: int | None = None) -> int:
        """Set the size, if that is possible."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return self.tell() if size is None else size


@contextlib.contextmanager
def atomic_file(
    path: str | os.PathLike[str], copies: Iterable[str | os.PathLike[str]] = ()
) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` at the end.

    The file is flushed to the disk before it is renamed, so that `path` holds either its old or
    its complete new content, whenever the machine stops. On an error the temporary file is removed;
    files left by killed processes are removed when `path` is written again. If `path` is a link,
    the file that it leads to is replaced; links among the copies are replaced themselves.

    Open the temporary path in h5py with ``locking=False``: it is locked already.

    Args:
        path: The file.
        copies: Other files in its folder that get the same content first.

    Raises:
        OSError: The file cannot be written.
        FileFormatError: The path exists and is not a file.
    """
    target = followed(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(target.parent)!r} for {target.name!r}")
    for name in (path, *copies):
        with contextlib.suppress(FileNotFoundError):
            check_regular(name, os.stat(name), "Choose another name.")
    for name in {Path(path), target}:
        _remove_abandoned(name)
    handle, temporary = _locked_temporary(target)
    try:
        yield temporary
        os.fsync(handle)
        for copy in copies:
            _copy(temporary, Path(path), Path(copy))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    _sync_folder(target.parent)


def followed(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file, or of the one that it leads to if it is a link."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def _copy(source: Path, path: Path, copy: Path) -> None:
    """Give `copy` the content of `source` atomically, without using space if possible."""
    temporary = _temporary_path(path)
    try:
        try:
            os.link(source, temporary)
        except OSError:  # a file system without links, or another one
            shutil.copyfile(source, temporary)
        temporary.replace(copy)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary_path(target: Path) -> Path:
    return target.with_name(f"{_hidden(target)}.{secrets.token_hex(4)}.tmp")


def _hidden(target: Path) -> str:
    """Return a prefix for hidden files that belong to a file; it is short enough for endings."""
    name = os.fsencode(target.name)
    return f".{target.name if len(name) <= LONG else hashlib.sha256(name).hexdigest()}"


def _sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _locked_temporary(target: Path) -> tuple[int, Path]:
    """Return a new temporary file, open and locked as long as its process lives."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINK | AT_ONCE
    while True:
        path = _temporary_path(target)
        try:
            handle = os.open(path, flags, 0o666)  # minus the umask
        except FileExistsError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            # Shared, because readers may request a lock of their own before it is closed.
            _flock(handle, exclusive=False)
        if path.exists():  # it was not removed as abandoned before it was locked
            return handle, path
        os.close(handle)


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of `target` whose processes have ended."""
    for path in target.parent.glob(f"{glob.escape(_hidden(target))}.????????.tmp"):
        with contextlib.suppress(OSError):  # it is locked or removed
            check_regular(path, path.lstat())
            with path.open("rb+") as file:  # some network drives only lock writable files
                _flock(file.fileno(), exclusive=True)
                path.unlink()


def _flock(handle: int, exclusive: bool) -> None:
    if fcntl is None:
        raise OSError("there are no locks")
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    fcntl.flock(handle, kind | fcntl.LOCK_NB)


# -- one writer -----------------------------------------------------------------------------------


class FileHold:
    """The exclusive right to write a file repeatedly.

    It is a lock on ``.NAME.lock`` beside the file, which names the holder. It ends with `release`,
    and when the process ends. On file systems without locks the right is not exclusive.

    Args:
        path: The file.

    Raises:
        BlockingIOError: It is held by another one, which the text names.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        #: The process that holds it; a forked child does not.
        self.process = os.getpid()
        target = followed(Path(path).absolute())
        self._lock = target.with_name(f"{_hidden(target)}.lock")
        self._handle: int | None = None
        renew_after_fork(self)
        about = f"{_this_process()}, since {time.ctime()}"
        try:
            while (handle := self._acquire()) is None:
                pass
            os.ftruncate(handle, 0)
            os.pwrite(handle, about.encode(), 0)
        except BlockingIOError:
            raise
        except OSError:  # no locks, or the lock file cannot be written
            return

    def _acquire(self) -> int | None:
        """Return the lock; `None` if the previous holder has just removed the lock file."""
        handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | NO_LINK | AT_ONCE, 0o666)
        self._handle = handle
        with contextlib.ExitStack() as unless_held:
            unless_held.callback(self.renew)
            check_regular(self._lock, os.fstat(handle))
            try:
                _flock(handle, exclusive=True)
            except BlockingIOError:
                holder = os.pread(handle, 200, 0).decode(errors="replace")
                if holder.startswith(f"{_this_process()},"):
                    holder = "another hook or training of this process"
                raise BlockingIOError(holder) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(self._lock), os.fstat(handle)):
                    unless_held.pop_all()
                    return handle
        return None

    def release(self) -> None:
        """Release the file."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                self._lock.unlink()
        self.renew()

    def renew(self) -> None:
        """Close the lock without removing it: in a forked process, which may outlive this one."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
