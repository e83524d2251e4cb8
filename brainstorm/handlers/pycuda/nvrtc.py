"""From CUDA C to GPU code: by NVRTC, called through ctypes.

NVRTC is a library. It comes with PyTorch and the CUDA toolkit, needs no C++ compiler and starts no
process.

The numbers in this module are those of nvrtc.h.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers.pycuda.libraries import load_library

#: Products and sums are fused as on the CPU; division and roots are exact.
OPTIONS = ("--std=c++17",)


class RefusedError(Exception):
    """The compiler does not accept a text; the message has its output."""


class Nvrtc:
    """NVIDIA's compiler as a library, versions 12 and 13; its name has the version.

    Raises:
        MissingDependencyError: It is not found, or cannot be loaded.
    """

    def __init__(self) -> None:
        try:
            self._library = load_library("nvrtc", (13, 12))
        except OSError as error:
            raise MissingDependencyError(
                f"PyCudaHandler compiles kernels with NVRTC, which cannot be loaded ({error}). "
                f"Install it: pip install nvidia-cuda-nvrtc, or the CUDA toolkit."
            ) from error
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


@functools.cache
def find_nvrtc() -> Nvrtc:
    """Return the compiler, which is loaded once."""
    return Nvrtc()
