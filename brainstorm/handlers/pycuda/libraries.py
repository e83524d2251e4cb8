"""Loading NVIDIA's libraries by ctypes, and choosing among several copies.

If a process has two copies of a library, functions of one may call those of the other. So a copy
that is already loaded, by PyTorch or CuPy, is preferred, and related libraries come from one
folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

#: Libraries required from the same folder, if the loader would not find them.
_NEEDS = {"cublas": "libcublasLt.so.{}", "nvrtc": "libnvrtc-builtins.so.{}.*"}


def load_library(name: str, versions: tuple[int, ...]) -> ctypes.CDLL:
    """Load a shared library, e.g. ``'cublas'``, of one of some major versions, the best one first.

    The search order is: libraries loaded by the process, NVIDIA's wheels, LD_LIBRARY_PATH, the
    toolkit (CUDA_HOME, else /usr/local/cuda), and the system's loader.

    Raises:
        FileNotFoundError: It is not found.
        OSError: It is found, but cannot be loaded.
    """
    for version in versions:
        with contextlib.suppress(OSError):
            found = ctypes.CDLL(f"lib{name}.so.{version}", os.RTLD_NOLOAD | os.RTLD_NOW)
            _load_needed(name, version, Path(path_of(name) or ".").parent)
            return found
    problem: OSError | None = None
    for folder, version in itertools.product(_folders(name), versions):
        file = folder / f"lib{name}.so.{version}"
        if file.exists():
            try:
                _load_needed(name, version, folder)
                return ctypes.CDLL(str(file))
            except OSError as error:
                problem = problem or error
    for version in versions:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(f"lib{name}.so.{version}")
    files = " or ".join(f"lib{name}.so.{version}" for version in versions)
    raise problem or FileNotFoundError(f"{files} was not found")


def _load_needed(name: str, version: int, folder: Path) -> None:
    if name in _NEEDS:
        for file in folder.glob(_NEEDS[name].format(version)):
            ctypes.CDLL(str(file))


def _folders(name: str) -> Iterator[Path]:
    """Yield folders of libraries; first that of related libraries, if these are loaded."""
    needed = path_of("cublasLt") if name == "cublas" else None
    if needed is not None:
        yield Path(needed).parent
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(place).glob("*/lib"))
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    yield from map(Path, filter(None, folders))
    yield Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda", "lib64")


def path_of(name: str) -> str | None:
    """Return the file of a library that this process has loaded; None: not loaded."""
    with contextlib.suppress(OSError):
        loaded = os.fsdecode(Path("/proc/self/maps").read_bytes())  # paths may not be UTF-8
        found = re.search(rf"/.*/lib{name}\.so[.\d]*$", loaded, re.M)
        return found[0] if found else None
    return None
