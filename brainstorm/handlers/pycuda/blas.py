"""Matrix products by cuBLAS, called through ctypes.

The numbers in this module are those of cublas_api.h and library_types.h.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_longlong, c_size_t, c_void_p
from typing import Any, NamedTuple

from brainstorm.errors import DeviceError, MissingDependencyError
from brainstorm.handlers.pycuda.driver import Device, destroy_with
from brainstorm.handlers.pycuda.libraries import load_library

#: Bytes of workspace for cuBLAS, which must not allocate while a graph is captured; results depend
#: on their number, with which it chooses its algorithms.
WORKSPACE = 32 << 20
#: Likewise for products of few rows and terms: with more, cuBLAS 13.1 chooses what takes up to
#: twenty times as long on an H100 (16 x 100 x 400: 52 us, with these 6 us).
SMALL_WORKSPACE, FEW_ROWS, FEW_TERMS = 4 << 20, 16, 512

_VERSIONS = (13, 12)

#: math modes: products of exact float32, and in TensorFloat32.
_DEFAULT_MATH, _TF32_MATH = 0, 3
_FLOAT32, _BFLOAT16 = 0, 14
_COMPUTE_32F, _DEFAULT_ALGORITHM = 68, -1


class Product(NamedTuple):
    """out (m, n) = a (m, k) @ b (k, n), for matrices in rows, `batch` times.

    Attributes:
        a: Address of the first matrix, (k, m) if `transa`; likewise `b` and `out`.
        lda: Elements between rows of a; likewise `ldb`, and `ldc` of out.
        add: Whether to add to what is there.
        steps: Elements between successive a, b and out.
        half: Whether a and b are bfloat16 and not float32.
    """

    a: int
    b: int
    out: int
    transa: bool
    transb: bool
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    add: bool
    batch: int = 1
    steps: tuple[int, int, int] = (0, 0, 0)
    half: bool = False


def _load_cublas() -> ctypes.CDLL:
    try:
        return load_library("cublas", _VERSIONS)
    except OSError as error:
        raise MissingDependencyError(
            f"PyCudaHandler needs cuBLAS, which cannot be loaded ({error}). Install the CUDA "
            f"toolkit, or: pip install nvidia-cublas"
        ) from error


class Cublas:
    """cuBLAS, called through its C API; products of 'f32', 'tf32' or 'bf16'."""

    def __init__(self, device: Device, compute: str) -> None:
        self._library = _load_cublas()
        self._workspace = device.scratch("cuBLAS", WORKSPACE)
        mode = _TF32_MATH if compute == "tf32" else _DEFAULT_MATH
        self._small, self._large = (
            self._handle(device, mode, size) for size in (SMALL_WORKSPACE, WORKSPACE)
        )
        version = c_int()
        self._library.cublasGetVersion_v2(self._large, byref(version))
        self.version = f"{version.value // 10000}.{version.value // 100 % 100}"

    def _handle(self, device: Device, mode: int, workspace: int) -> c_void_p:
        """Return a handle of the library that uses so many bytes of the workspace."""
        device.enter()
        handle = c_void_p()
        self._do("cublasCreate_v2", byref(handle))
        destroy_with(self, device, self._library.cublasDestroy_v2, handle)
        self._do("cublasSetStream_v2", handle, c_void_p(device.stream.handle))
        place = c_void_p(self._workspace.address), c_size_t(workspace)
        self._do("cublasSetWorkspace_v2", handle, *place)
        self._do("cublasSetMathMode", handle, c_int(mode))
        return handle

    def call(self, p: Product) -> Any:
        """Return a function that puts a product into the stream."""
        # Matrices stored by rows are transposed matrices stored by columns: out.T = b.T @ a.T.
        sizes = (c_int(p.transb), c_int(p.transa), c_int(p.n), c_int(p.m), c_int(p.k))
        is_stack = p.batch > 1

        def matrix(address: int, kind: int, rows: int, step: int) -> tuple[Any, ...]:
            kinds, steps = [c_int(kind)] * p.half, [c_longlong(step)] * is_stack
            return (c_void_p(address), *kinds, c_int(rows), *steps)

        name = {
            (False, False): "cublasSgemm_v2",
            (False, True): "cublasSgemmStridedBatched",
            (True, False): "cublasGemmEx",
            (True, True): "cublasGemmStridedBatchedEx",
        }[p.half, is_stack]
        function = getattr(self._library, name)
        is_small = p.m <= FEW_ROWS and p.k <= FEW_TERMS
        arguments = (
            self._small if is_small else self._large,
            *sizes,
            byref(c_float(1.0)),
            *matrix(p.b, _BFLOAT16, p.ldb, p.steps[1]),
            *matrix(p.a, _BFLOAT16, p.lda, p.steps[0]),
            byref(c_float(float(p.add))),
            *matrix(p.out, _FLOAT32, p.ldc, p.steps[2]),
            *[c_int(p.batch)] * is_stack,
            *(c_int(_COMPUTE_32F), c_int(_DEFAULT_ALGORITHM))[: 2 * p.half],
        )

        def run() -> None:
            if status := function(*arguments):
                raise _failure(function.__name__, status, p)

        return run

    def _do(self, name: str, *arguments: Any) -> None:
        """Call a function of the library that prepares it."""
        if status := getattr(self._library, name)(*arguments):
            raise DeviceError(
                f"{name.removesuffix('_v2')} failed with status {status}. Is there memory left on "
                f"the GPU, and is the driver new enough for this cuBLAS? Look at nvidia-smi."
            )


def _failure(function: str, status: Any, p: Product) -> DeviceError:
    return DeviceError(
        f"{function} failed with status {status} for ({p.m}, {p.k}) @ ({p.k}, {p.n}), {p.batch} "
        f"times. Start a new process and continue from a checkpoint; if it happens again, report "
        f"this text."
    )
