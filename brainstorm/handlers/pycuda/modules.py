"""Kernels: from CUDA C source to functions of a GPU, compiled once and cached on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import tempfile
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from brainstorm.errors import DeviceError, KernelError, MissingDependencyError
from brainstorm.handlers import kernel_cache
from brainstorm.handlers.pycuda.driver import Device, load_driver, pushed
from brainstorm.optree.loops import Loop
from brainstorm.optree.render_cuda import CUDA_HEAD, kernel_name, render_cuda

__all__ = [
    "FILES",
    "Kernel",
    "Modules",
    "compile_text",
    "file_source",
    "hand_written",
    "loop_kernel",
]

#: Of nvcc. Products and sums are fused as on the CPU; division and roots are exact.
OPTIONS = ["--std=c++17"]

#: The files beside this one with kernels that are written by hand.
FILES = ("images", "sequences", "alignment", "random", "arithmetic")


class Kernel:
    """A kernel, and where its source is.

    Args:
        name: Its name in the source.
        source: CUDA C, without what stands in front of all kernels.

    Kernels that share a source are compiled together.
    """

    __slots__ = ("name", "source")

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source


@functools.cache
def file_source(file: str) -> str:
    """Return the content of one of `FILES`."""
    return (Path(__file__).parent / f"{file}.cu").read_text()


@functools.cache
def hand_written(name: str) -> Kernel:
    """Return a kernel that is written by hand, by its name."""
    file = next(f for f in FILES if f"void {name}(" in file_source(f))
    return Kernel(name, file_source(file))


@functools.lru_cache(maxsize=4096)
def loop_kernel(loop: Loop, index: str) -> Kernel:
    """Return the kernel that does a loop.

    Args:
        loop: The loop.
        index: Type of the indices, see `render_cuda`.
    """
    name = kernel_name(loop, index)
    return Kernel(name, render_cuda(loop, name, index))


class Modules:
    """The kernels that are loaded on a GPU, for all handlers of the process, which it outlives."""

    _of_devices: ClassVar[dict[int, Modules]] = {}

    @classmethod
    def of(cls, device: Device) -> Modules:
        """Return those of a GPU."""
        return cls._of_devices.setdefault(device.index, cls())

    def __init__(self) -> None:
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._lock = threading.Lock()

    def load(self, device: Device, kernels: Iterable[Kernel]) -> None:
        """Make kernels ready; all that are new are compiled together, as one module.

        Args:
            device: The GPU, as one of its handlers sees it.
            kernels: What is needed.

        Raises:
            KernelError: The compiler does not accept one of them.
            MissingDependencyError: There is no compiler.
        """
        with self._lock:
            missing = {k.name: k.source for k in kernels if k.name not in self._functions}
            if not missing:
                return
            text = "\n".join([CUDA_HEAD, *sorted(set(missing.values()))])
            module = _loaded(text, device)
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
            f"older than the CUDA toolkit? Compare `nvidia-smi` and `nvcc --version`, and delete "
            f"{kernel_cache.cache_directory()}."
        ) from error


def _cached(text: str, arch: str) -> bytes:
    """Return compiled text, from the cache on disk if it is there."""
    try:
        version = _nvcc().get_nvcc_version("nvcc")
    except Exception as error:  # pytools' ExecError, of which there are two
        raise MissingDependencyError(
            f"PyCudaHandler compiles kernels with nvcc, which cannot be run ({error}). Install the "
            f"CUDA toolkit and put the folder of nvcc on PATH."
        ) from error
    seal = hashlib.sha256("\n".join([version, arch, *OPTIONS, text]).encode()).hexdigest()
    with contextlib.suppress(OSError):
        path = kernel_cache.trusted_directory() / f"{seal[:32]}.cubin"
        if (known := kernel_cache.read_trusted(path)) is not None:
            return known
    image = compile_text(text, arch)
    with contextlib.suppress(OSError):  # without a cache it is compiled again next time
        path = kernel_cache.trusted_directory() / f"{seal[:32]}.cubin"
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(image)
        os.replace(file.name, path)
    return image


def _nvcc() -> Any:
    return importlib.import_module("pycuda.compiler")


def compile_text(text: str, arch: str) -> bytes:
    """Return what nvcc makes of CUDA C.

    Raises:
        KernelError: It does not accept it.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler remarks about unused variables
            image: bytes = _nvcc().compile(
                text, options=list(OPTIONS), no_extern_c=True, arch=arch, cache_dir=False
            )
    except load_driver().CompileError as error:
        raise KernelError(
            f"a kernel for {arch} does not compile. nvcc says:\n{error.stderr or error}\nIf it "
            f"does not know {arch}, install a newer CUDA toolkit. The source:\n{_numbered(text)}"
        ) from error
    return image


def _numbered(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"{number:>5} {line}" for number, line in enumerate(lines, 1))
