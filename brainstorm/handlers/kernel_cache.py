"""The folder of compiled code, to which no other user can write.

Its content is executed. So the folder and its files must belong to this user, and its parent
folders to this user or the system, and no other user may write to any of them, except for folders
like ``/tmp``, where files of others cannot be replaced. (Many systems have a group for each user;
such a group counts as the user.) So the content is trusted. Otherwise a folder of this process is
used, which is removed when the process ends.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import stat
import tempfile
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
    return Path(path).absolute()


def trusted_directory() -> Path:
    """Return the folder for compiled code: the cache directory, or one of this process.

    Raises:
        OSError: Others can write to all possible folders.
    """
    directory = cache_directory()
    if directory.is_absolute():
        problem = _make(directory) or _problem(directory)
    else:
        problem = f"{directory} is not an absolute path"
    if not problem:
        return Path(os.path.realpath(directory))
    _warn(
        f"compiled code is cached only for this process, because {problem}. Set "
        f"BRAINSTORM_CACHE_DIR to a folder that only you can write to."
    )
    return _private_directory()


def read_trusted(path: Path) -> bytes | None:
    """Return the content of a file in the folder, if it belongs to this user; else `None`."""
    with contextlib.suppress(OSError):
        if not path.is_symlink():
            with open_regular(path) as file:
                if not _others(os.fstat(file.fileno())):
                    return file.read()
    return None


def _make(directory: Path) -> str:
    """Create a private folder and its parents; return why that is not possible, or ''."""
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
    if found.st_uid != os.geteuid() and not (is_above and found.st_uid == 0):
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
