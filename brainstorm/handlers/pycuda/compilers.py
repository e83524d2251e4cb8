"""From CUDA C to GPU code: by NVRTC, called through ctypes, or by nvcc.

NVRTC is a library. It comes with PyTorch, needs no C++ compiler and starts no process.

The numbers in this module are those of nvrtc.h.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import warnings
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers.pycuda.driver import load_driver
from brainstorm.handlers.pycuda.libraries import load_library

#: For both. Products and sums are fused as on the CPU; division and roots are exact.
OPTIONS = ("--std=c++17",)
_EMPTY = 'extern "C" __global__ void empty() {}'


class RefusedError(Exception):
    """A compiler does not accept a text; the message has its output."""


class Nvrtc:
    """NVIDIA's compiler as a library, versions 12 and 13; its name has the version.

    Raises:
        OSError: It is not found, or cannot be loaded.
    """

    def __init__(self) -> None:
        self._library = load_library("nvrtc", (13, 12))
        self._library.nvrtcGetErrorString.restype = c_char_p
        version = c_int(), c_int()
        self._library.nvrtcVersion(*map(byref, version))
        self.name = "NVRTC {}.{}".format(*(number.value for number in version))

    def compile(self, text: str, arch: str, *options: str) -> tuple[bytes, str]:
        """Compile CUDA C without includes for e.g. ``'sm_90'``; return code and remarks.

        Raises:
            RefusedError: It does not accept the text, or it cannot work here.
        """
        library, program = self._library, c_void_p()
        words = [f"--gpu-architecture={arch}".encode(), *map(str.encode, (*OPTIONS, *options))]
        source, name = c_char_p(text.encode()), c_char_p(b"kernels.cu")
        status = library.nvrtcCreateProgram(byref(program), source, name, c_int(0), None, None)
        try:
            status = status or library.nvrtcCompileProgram(
                program, c_int(len(words)), (c_char_p * len(words))(*words)
            )
            said = self._content("ProgramLog", program).rstrip(b"\0\n").decode()
            if status:
                raise RefusedError(said or library.nvrtcGetErrorString(c_int(status)).decode())
            return self._content("CUBIN", program), said
        finally:
            library.nvrtcDestroyProgram(byref(program))

    def _content(self, kind: str, program: c_void_p) -> bytes:
        size = c_size_t()
        getattr(self._library, f"nvrtcGet{kind}Size")(program, byref(size))
        content = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{kind}")(program, content)
        return content.raw


class Nvcc:
    """The compiler of the CUDA toolkit, run by PyCUDA; its name has the version.

    Raises:
        Exception: It cannot be run.
    """

    def __init__(self) -> None:
        self._compiler: Any = importlib.import_module("pycuda.compiler")
        said = str(self._compiler.get_nvcc_version("nvcc"))
        self.name = f"nvcc ({said.strip().splitlines()[-1]})"

    def compile(self, text: str, arch: str) -> tuple[bytes, str]:
        """Compile CUDA C; see `Nvrtc.compile`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's remarks about unused variables
                return self._compiler.compile(
                    text, options=list(OPTIONS), no_extern_c=True, arch=arch, cache_dir=False
                ), ""
        except load_driver().CompileError as error:
            raise RefusedError(str(error.stderr or error)) from error


@functools.cache
def find_compiler(arch: str) -> Nvrtc | Nvcc:
    """Return the compiler for an architecture: NVRTC if it is found and works, else nvcc.

    Raises:
        MissingDependencyError: Neither is available.
    """
    try:
        found = Nvrtc()
        found.compile(_EMPTY, arch)
        return found
    except (OSError, RefusedError) as error:
        problem = error
    try:
        return Nvcc()
    except Exception as error:  # pytools' ExecError, of which there are two
        raise MissingDependencyError(
            f"PyCudaHandler compiles kernels with NVRTC, which cannot be used ({problem}), or with "
            f"nvcc, which cannot be run ({error}). Install one of them: pip install "
            f"nvidia-cuda-nvrtc, or the CUDA toolkit, and put the folder of nvcc on PATH."
        ) from error
