"""NVIDIA's libraries by ctypes: which copy of each is taken.

Where a process has two copies of a library, functions of one find those of the other. So a copy
that is loaded already, by PyTorch or CuPy, is taken before any other, and what belongs together
comes from one folder.
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

__all__ = ["load_library", "path_of"]

#: What a library needs from its own folder, where it does not look for it.
_NEEDS = {"cublas": "libcublasLt.so.{}", "nvrtc": "libnvrtc-builtins.so.{}.*"}


def load_library(name: str, versions: tuple[int, ...]) -> ctypes.CDLL:
    """Load a shared library.

    Looked for are, in this order, what the process has loaded already, the wheels of NVIDIA,
    LD_LIBRARY_PATH, the toolkit (CUDA_HOME, else /usr/local/cuda), and what the system's loader
    finds.

    Args:
        name: E.g. ``'cublas'``.
        versions: Major versions, the best first.

    Raises:
        FileNotFoundError: It is in none of these places.
        OSError: It is there, and cannot be loaded.
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
    """Yield where libraries may be; first the folder of what is needed, if that is loaded."""
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
    """Return the file that a library of this process was loaded from; None: it has none.

    Args:
        name: E.g. ``'cublas'``.
    """
    with contextlib.suppress(OSError):
        found = re.search(rf"/.*/lib{name}\.so[.\d]*$", Path("/proc/self/maps").read_text(), re.M)
        return found[0] if found else None
    return None
