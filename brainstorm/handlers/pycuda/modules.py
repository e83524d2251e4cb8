"""Kernels: from CUDA C source to functions on a GPU, compiled once and cached on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar

from brainstorm.errors import DeviceError, KernelError
from brainstorm.handlers import kernel_cache
from brainstorm.handlers.pycuda.compilers import OPTIONS, RefusedError, find_compiler
from brainstorm.handlers.pycuda.driver import Device, load_driver, pushed
from brainstorm.optree.cuda_structure import Structure
from brainstorm.optree.render_cuda import CUDA_HEAD, kernel_name, render_cuda

#: The files beside this one with kernels that are written by hand.
FILES = ("images", "rows", "sequences", "alignment", "random")


class Kernel:
    """A kernel and its source.

    Args:
        name: Its name in the source.
        files: Those of `FILES` that stand in front of the source, or have it.
        source: CUDA C, without what stands in front of all kernels.
    """

    __slots__ = ("files", "name", "source")

    def __init__(self, name: str, files: Collection[str], source: str = "") -> None:
        self.name, self.files, self.source = name, files, source


@functools.cache
def file_source(file: str) -> str:
    """Return the content of one of `FILES`."""
    return (Path(__file__).parent / f"{file}.cu").read_text()


@functools.cache
def hand_written(name: str) -> Kernel:
    """Return a handwritten kernel by its name."""
    file = next(f for f in FILES if f"void {name}(" in file_source(f))
    return Kernel(name, [file])


@functools.lru_cache(maxsize=4096)
def loop_kernel(structure: Structure) -> Kernel:
    """Return the kernel of some loops; see `render_cuda`."""
    name = kernel_name(structure)
    files = {loop.file for loop in structure.loops if loop.file}
    return Kernel(name, files, render_cuda(structure, name))


def source_of(kernels: Collection[Kernel]) -> str:
    """Return the source of kernels that are compiled together."""
    files = {file for kernel in kernels for file in kernel.files}
    sources = {kernel.source for kernel in kernels}
    return "\n".join([CUDA_HEAD, *map(file_source, sorted(files)), *sorted(sources)])


class Modules:
    """The kernels loaded on a GPU, for all handlers; it exists as long as the process."""

    _of_devices: ClassVar[dict[int, Modules]] = {}

    @classmethod
    def of(cls, device: Device) -> Modules:
        """Return the modules of a GPU."""
        return cls._of_devices.setdefault(device.index, cls())

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._lock = threading.Lock()

    def load(self, device: Device, kernels: Iterable[Kernel]) -> None:
        """Load kernels; all new ones are compiled together, as one module.

        Args:
            device: The GPU, as seen by one of its handlers.
            kernels: The kernels.

        Raises:
            KernelError: The compiler does not accept one of them.
            MissingDependencyError: There is no compiler.
        """
        with self._lock:
            missing = {k.name: k for k in kernels if k.name not in self._functions}
            if not missing:
                return
            module = _loaded(source_of(missing.values()), device)
            self._modules.append(module)
            for name in missing:
                self._functions[name] = module.get_function(name)

    def function(self, kernel: Kernel) -> Any:
        """Return PyCUDA's function of a kernel that was loaded."""
        return self._functions[kernel.name]


def _loaded(text: str, device: Device) -> Any:
    driver, image = load_driver(), _cached(text, device.arch)
    try:
        with pushed(device.context):
            return driver.module_from_buffer(image)
    except driver.Error as error:
        raise DeviceError(
            f"kernels for {device.arch} cannot be loaded on {device.name} ({error}). Is the driver "
            f"older than {find_compiler(device.arch).name}? Look at nvidia-smi, and delete "
            f"{kernel_cache.cache_directory()}."
        ) from error


def _cached(text: str, arch: str) -> bytes:
    """Return compiled text, from the cache on disk if possible."""
    compiler_name = find_compiler(arch).name
    key = hashlib.sha256("\n".join([compiler_name, arch, *OPTIONS, text]).encode()).hexdigest()
    with contextlib.suppress(OSError):
        path = kernel_cache.trusted_directory() / f"{key[:32]}.cubin"
        if (known := kernel_cache.read_trusted(path)) is not None:
            return known
    image = compile_text(text, arch)
    with contextlib.suppress(OSError):  # without a cache it is compiled again next time
        path = kernel_cache.trusted_directory() / f"{key[:32]}.cubin"
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(image)
        os.replace(file.name, path)
    return image


def compile_text(text: str, arch: str) -> bytes:
    """Return CUDA C compiled for an architecture.

    Raises:
        KernelError: The compiler does not accept it.
        MissingDependencyError: There is no compiler.
    """
    found = find_compiler(arch)
    try:
        return found.compile(text, arch)[0]
    except RefusedError as error:
        raise KernelError(
            f"a kernel for {arch} does not compile. {found.name} says:\n{error}\nIf it does not "
            f"know {arch}, install a newer CUDA toolkit. The source:\n{_numbered(text)}"
        ) from error


def _numbered(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"{number:>5} {line}" for number, line in enumerate(lines, 1))
