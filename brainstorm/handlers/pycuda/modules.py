"""Kernels: from CUDA C source to functions on a GPU, compiled once and cached on disk."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brainstorm.errors import DeviceError, KernelError
from brainstorm.handlers.kernel_cache import cache_directory, find_files, hash_of, write_file
from brainstorm.handlers.pycuda.driver import Device, load_driver, pushed
from brainstorm.handlers.pycuda.nvrtc import OPTIONS, RefusedError, find_nvrtc
from brainstorm.optree.cuda_structure import Structure
from brainstorm.optree.render_cuda import CUDA_HEAD, render_cuda

#: The files beside this one with kernels that are written by hand.
FILES = ("images", "products", "rows", "sequences", "alignment", "random")

#: Stands for the name of a kernel in its text, where other names begin with it.
NAME = "KERNEL"


class Kernel(NamedTuple):
    """A kernel: its name, and its source behind the content of some of `FILES`, which may have it.

    What stands in front of all kernels is no part of it.
    """

    name: str
    files: Collection[str]
    source: str = ""


@functools.cache
def file_source(file: str) -> str:
    """Return the content of one of `FILES`."""
    return (Path(__file__).parent / f"{file}.cu").read_text()


@functools.cache
def file_with(function: str) -> str:
    """Return which of `FILES` has a function, given its type and name."""
    return next(file for file in FILES if f" {function}(" in file_source(file))


def named_kernel(kind: str, files: Collection[str], text: str) -> Kernel:
    """Return a kernel with a name that only kernels of its text have, for which `NAME` stands."""
    name = f"{kind}_{hash_of(text)[:24]}"
    return Kernel(name, files, text.replace(NAME, name))


@functools.lru_cache(maxsize=4096)
def loop_kernel(structure: Structure) -> Kernel:
    """Return the kernel of some loops; see `render_cuda`."""
    files = {loop.file for loop in structure.loops if loop.file}
    return named_kernel("loop", files, render_cuda(structure, NAME))


def source_of(kernels: Collection[Kernel]) -> str:
    """Return the source of kernels that are compiled together."""
    files = {file for kernel in kernels for file in kernel.files}
    sources = {kernel.source for kernel in kernels}
    return "\n".join([CUDA_HEAD, *map(file_source, sorted(files)), *sorted(sources)])


class Modules:
    """The kernels loaded on a GPU."""

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._lock = threading.Lock()

    def load(self, device: Device, kernels: Iterable[Kernel]) -> Mapping[str, Any]:
        """Load kernels; all new ones are compiled together, as one module.

        Returns:
            PyCUDA's functions by the names of kernels, of all that are loaded.

        Raises:
            KernelError: The compiler does not accept one of them.
            MissingDependencyError: There is no compiler.
        """
        with self._lock:
            missing = {k.name: k for k in kernels if k.name not in self._functions}
            if missing:
                module = _loaded(source_of(missing.values()), device)
                self._modules.append(module)
                self._functions |= {name: module.get_function(name) for name in missing}
        return self._functions


@functools.cache
def modules_of(device: int) -> Modules:
    """Return the modules of a GPU, by its number: for all handlers, as long as the process."""
    return Modules()


def _loaded(text: str, device: Device) -> Any:
    driver, image = load_driver(), _cached(text, device.arch)
    try:
        with pushed(device.context):
            return driver.module_from_buffer(image)
    except driver.Error as error:
        raise DeviceError(
            f"kernels for {device.arch} cannot be loaded on {device.name} ({error}). Is the driver "
            f"older than {find_nvrtc().name}? Look at nvidia-smi, and delete "
            f"{cache_directory()}."
        ) from error


def _cached(text: str, arch: str) -> bytes:
    """Return compiled text, from the cache on disk if possible."""
    key = "\n".join([find_nvrtc().name, arch, *OPTIONS, text])
    name = f"{hash_of(key)}.cubin"
    for _, known in find_files(name):
        return known
    image = compile_text(text, arch)
    with contextlib.suppress(OSError):  # without a cache it is compiled again next time
        write_file(name, image)
    return image


def compile_text(text: str, arch: str) -> bytes:
    """Return CUDA C compiled for an architecture.

    Raises:
        KernelError: The compiler does not accept it.
        MissingDependencyError: There is no compiler.
    """
    compiler = find_nvrtc()
    try:
        return compiler.compile(text, arch)[0]
    except RefusedError as error:
        numbered = "\n".join(f"{n:>5} {line}" for n, line in enumerate(text.splitlines(), 1))
        raise KernelError(
            f"a kernel for {arch} does not compile. {compiler.name} says:\n{error}\nIf it does not "
            f"know {arch}, install a newer CUDA toolkit. The source:\n{numbered}"
        ) from error
