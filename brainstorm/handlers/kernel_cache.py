"""Files of compiled code, which no other user can write.

They are in the directory in BRAINSTORM_CACHE_DIR, or ``brainstorm`` in the user's cache directory.
Their content is executed. So the folder, its parent folders and its files must belong to this user
or the system, and no other user may write to any of them, except for parent folders like ``/tmp``,
where files of others cannot be replaced. (Many systems have a group for each user; such a group
counts as the user.) So the content is trusted. If the folder cannot be trusted or written, new
files go to a folder of this process, which is removed when the process ends.

The name of a file is the hash of everything that its content depends on, so it is found at once
however many there are. It is created by renaming, and ends with the hash of its name and content
(which loaders of libraries ignore). So processes need no locks, and truncated or foreign files are
no files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from brainstorm.disk import open_regular

try:
    import grp
    import pwd
except ImportError:  # Windows
    grp = pwd = None  # type: ignore[assignment]

LOG = logging.getLogger("brainstorm")


def cache_directory() -> Path:
    """Return the directory for compiled code; it may not exist, or belong to others."""
    chosen = os.environ.get("BRAINSTORM_CACHE_DIR")
    if not chosen:
        home = os.environ.get("XDG_CACHE_HOME", "")
        chosen = os.path.join(home if os.path.isabs(home) else "~/.cache", "brainstorm")
    found = os.path.expanduser(chosen)
    return Path(found) if found.startswith("~") else _absolute(found)


@functools.cache
def _absolute(path: str) -> Path:
    """Return an absolute path, fixed at its first use: programs may change their directory."""
    with contextlib.suppress(FileNotFoundError):  # the present folder was removed
        return Path(path).absolute()
    return Path(path)


def trusted_directory() -> Path:
    """Return the folder for new files: the cache directory, or one of this process.

    Raises:
        OSError: Others can write to all possible folders.
    """
    directory = cache_directory()
    problem = _make(directory) or _problem(directory)
    if not problem:
        return Path(os.path.realpath(directory))
    _warn(
        f"compiled code is cached only for this process, because {problem}. Set "
        f"BRAINSTORM_CACHE_DIR to a folder that only you can write to."
    )
    return _private_directory()


def hash_of(content: str | bytes) -> str:
    """Return the hash of a text or bytes."""
    content = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:32]


def _seal(name: str, content: bytes) -> bytes:
    return hash_of(name.encode() + content).encode()


def find_files(name: str) -> Iterator[tuple[Path, bytes]]:
    """Yield the paths and contents of complete files of a name, which no other user can write."""
    size = len(_seal(name, b""))
    for directory in (cache_directory(), *_private):
        if directory.is_absolute() and not _problem(directory):
            path = directory / name
            with contextlib.suppress(OSError):
                if path.is_symlink():
                    continue
                with open_regular(path) as file:
                    sealed = file.read()
                    is_trusted = not _others(os.fstat(file.fileno()))
                content = sealed[:-size]
                if is_trusted and sealed[-size:] == _seal(name, content):
                    yield path, content


def write_file(name: str, content: bytes) -> Path:
    """Write a file to the folder for new files, and return its path.

    Raises:
        OSError: There is no folder or no space for it.
    """
    path = trusted_directory() / name
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix="build-", delete=False) as file:
        try:
            file.write(content + _seal(name, content))
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    return path


def _make(directory: Path) -> str:
    """Create a private folder and its parents; return why that is not possible, or ''."""
    if not directory.is_absolute():
        return f"{directory} is not an absolute path"
    try:
        for path in (*reversed(directory.parents), directory):
            if not path.is_dir():
                path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return f"{directory} cannot be created ({error})"
    return "" if os.access(directory, os.W_OK | os.X_OK) else f"{directory} cannot be written"


def _problem(directory: Path) -> str:
    """Return why others could change the content of a folder; '' if they cannot."""
    real = Path(os.path.realpath(directory))
    try:
        for path in dict.fromkeys((*directory.parents, directory, *real.parents)):
            if path != real and (why := _others(os.lstat(path), is_above=True)):
                return f"{path} {why}"
        why = _others(os.lstat(real))
    except OSError as error:
        return f"{directory} cannot be examined ({error})"
    return why and f"{real} {why}"


def _others(found: os.stat_result, is_above: bool = False) -> str:
    """Return how others can change a file or folder; `is_above` for parent folders."""
    if not hasattr(os, "geteuid"):  # Windows: folders of users are private
        return ""
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {found.st_uid}"
    keeps = stat.S_ISLNK(found.st_mode) or (is_above and found.st_mode & stat.S_ISVTX)
    writers = found.st_mode & stat.S_IWOTH
    if found.st_mode & stat.S_IWGRP and not _is_alone_in(found.st_gid):
        writers = True
    if writers and not keeps:
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


@functools.cache
def _is_alone_in(group: int) -> bool:
    """Return whether a group is the user's own: it has the user's name and no other members."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = group == user.pw_gid != 0 and found.gr_name == user.pw_name
    return own and set(found.gr_mem) <= {user.pw_name}


@functools.cache
def _warn(text: str) -> None:
    LOG.warning(text)


#: The last folder of this process, or of its parent before a fork.
_private: list[Path] = []


def _private_directory() -> Path:
    if not _private or _problem(_private[-1]):
        from multiprocessing.util import Finalize  # slow to import, and rarely needed

        path = Path(tempfile.mkdtemp(prefix="brainstorm-"))
        # At the end of the process that created it, also of a worker, which runs no `atexit`.
        Finalize(None, shutil.rmtree, (path, True), exitpriority=-1)
        if problem := _problem(path):
            raise PermissionError(f"there is no folder for compiled code: {problem}")
        _private[:] = [path]
    return _private[-1]
