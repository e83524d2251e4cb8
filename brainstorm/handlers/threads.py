"""The number of threads of an operation, and how long threads wait for work.

The number is OMP_NUM_THREADS, or else the number of processors that the system allows this process
to use: those of its affinity mask, limited by the quota of its control groups, as in containers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from brainstorm.forks import count_forks

#: More than that in OMP_NUM_THREADS is a mistake.
MOST_THREADS = 4096


def default_threads() -> int:
    """Return OMP_NUM_THREADS, or the number of processors for this process; 1 after a fork."""
    if count_forks():
        return 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isdecimal() and 0 < int(wanted) <= MOST_THREADS:
        return int(wanted)
    bound = _at_import if any(map(os.environ.get, _BINDING)) else _affinity()
    return max(1, math.ceil(min(bound, cpu_quota())))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


#: With one of these OpenMP binds the main thread to one processor when it is loaded.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")
_at_import = _affinity()


@functools.cache
def cpu_quota(root: Path = Path("/")) -> float:
    """Return the number of processors that the control groups of this process allow.

    Args:
        root: Root of the file system.

    Returns:
        The least quota of its groups and their parents; infinity if there is none.
    """
    least = math.inf
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, names, path = [*line.split(":", 2), "", ""][:3]
            if names == "" or "cpu" in names.split(","):
                least = min(least, _least_quota(root / "sys/fs/cgroup", names, path))
    return least


def _least_quota(mounts: Path, names: str, path: str) -> float:
    """Return the least quota along the path of a group, wherever its hierarchy is mounted."""
    # A container may see its own group as the root, and yet have the path that the host sees.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    places = [mounts / names, mounts / "cpu"] if names else [mounts, mounts / "unified"]
    groups = (place.joinpath(*parts[:n]) for place in places for n in range(len(parts) + 1))
    files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if names else ("cpu.max",)
    return min(
        _quota([word for file in files for word in _words(group / file)]) for group in groups
    )


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []


def _quota(words: Sequence[str]) -> float:
    """Return time per period: processors; -1, 'max' and anything but numbers mean no quota."""
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return math.inf
    return int(words[0]) / int(words[1])


#: How long threads wait for work before they sleep: turns of GNU's OpenMP, milliseconds of LLVM's.
#: With GNU's default, two programs on the same processors take many times as long as in turn.
_BRIEFLY = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "0"}


def load_library(path: str) -> ctypes.CDLL:
    """Load a library; if it loads OpenMP, limit the waiting time of its threads.

    Unless the user has set how they wait, or OpenMP is already loaded.

    Args:
        path: File, or name for the system's loader.

    Raises:
        OSError: It cannot be loaded.
    """
    with _waiting_briefly():
        library = ctypes.CDLL(path)
        # GNU's reads the environment when loaded, LLVM's when first used.
        with contextlib.suppress(AttributeError, UnicodeDecodeError):  # ctypes decodes the path
            library.omp_get_max_threads()
    return library


@contextlib.contextmanager
def _waiting_briefly() -> Iterator[None]:
    """Set the environment variables temporarily; other code should not see them."""
    wanted = {} if "OMP_WAIT_POLICY" in os.environ else _BRIEFLY
    given = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]
