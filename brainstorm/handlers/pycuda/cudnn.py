"""Convolutions of images by cuDNN, if its library is found.

An algorithm is used if it is deterministic, and if a test run on scratch memory succeeded. If
there is none, cuBLAS is used; and without groups, for gradients of filters in 'f32', and of few
channels in 'tf32', for which cuDNN's only deterministic algorithm takes up to five times as long on
an H100. ``BRAINSTORM_CUDNN=off`` in the environment disables cuDNN. It is not used for pooling,
because it does not return the positions of maxima.

With bfloat16, cuDNN's arrays are all of that type (PSEUDO_BFLOAT16_CONFIG): sums are float32, but
results are rounded once to bfloat16, and then widened, or added to what is there, in float32. All
three passes do this, as PyTorch's do: it changes a result by at most 2**-9 of itself, which is
about what the rounding of the factors changes in a sum of random terms, however many there are; and
the sum of the gradients of several calls stays in float32.

The numbers in this module are those of cudnn_ops.h and cudnn_cnn.h, versions 8 and 9.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from typing import Any, NamedTuple

import numpy as np

from brainstorm.errors import DeviceError
from brainstorm.handlers.numpy_convolution import Windows
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.driver import Device, destroy_with
from brainstorm.handlers.pycuda.launches import Launch
from brainstorm.handlers.pycuda.libraries import load_library

LOG = logging.getLogger("brainstorm")

_FLOAT, _BFLOAT16, _NHWC, _CROSS_CORRELATION = 0, 9, 1, 1
#: Math types: exact products, those in TensorFloat32, and those of tensor cores in the given type.
_MATH = {"f32": 3, "tf32": 0, "bf16": 1}
#: For how many channels the gradient of filters is computed by a product.
_FEW_CHANNELS = {"f32": math.inf, "tf32": 64, "bf16": 0}
#: Maximum number of bytes of workspace for an algorithm.
MOST_WORKSPACE = 512 << 20


class _Pass(NamedTuple):
    """One of the three passes.

    Its functions take the descriptors of the two arrays that are read, the descriptor of the
    convolution, and that of the result.

    Attributes:
        name: The name in those of its functions.
        order: Which of images (0), filters (1) and outputs (2) are read, then written.
        algorithms: The deterministic ones.
    """

    name: str
    order: tuple[int, int, int]
    algorithms: tuple[int, ...]


FORWARD = _Pass("ConvolutionForward", (0, 1, 2), (1, 0))
DATA = _Pass("ConvolutionBackwardData", (1, 2, 0), (1,))
FILTERS = _Pass("ConvolutionBackwardFilter", (0, 2, 1), (1,))


class _UnsupportedError(Exception):
    """cuDNN does not support this."""


class _Descriptor:
    """A descriptor of cuDNN, destroyed together with this object."""

    def __init__(self, library: Any, kind: str) -> None:
        self._library, self.handle = library, c_void_p()
        if getattr(library, f"cudnnCreate{kind}Descriptor")(byref(self.handle)):
            raise _UnsupportedError
        destroy = getattr(library, f"cudnnDestroy{kind}Descriptor")
        weakref.finalize(self, destroy, self.handle).atexit = False

    def set(self, function: str, *arguments: Any) -> _Descriptor:
        """Call a function that sets the descriptor."""
        if getattr(self._library, function)(self.handle, *arguments):
            raise _UnsupportedError
        return self


def _ints(values: Sequence[int]) -> Any:
    return (c_int * len(values))(*values)


class Cudnn:
    """The library, with a handle for the stream of a device."""

    def __init__(self, library: Any, device: Device, compute: str) -> None:
        self._library, self._device, self._math = library, device, _MATH[compute]
        self._is_half = compute == "bf16"
        self._few_channels = _FEW_CHANNELS[compute]
        self._handle = c_void_p()
        library.cudnnGetVersion.restype = c_size_t
        number = library.cudnnGetVersion()
        major = number // 10_000 or number // 1000
        minor = number // 100 % (100 if number >= 10_000 else 10)
        self.version = f"{major}.{minor}"
        device.enter()
        status = library.cudnnCreate(byref(self._handle))
        status = status or library.cudnnSetStream(self._handle, c_void_p(device.stream.handle))
        if status:
            raise DeviceError(f"cuDNN {self.version} answers with status {status}")
        destroy_with(self, device, library.cudnnDestroy, self._handle)

    @classmethod
    def found(cls, device: Device, compute: str) -> Cudnn | None:
        """Return cuDNN if it works; log a warning if it fails."""
        if os.environ.get("BRAINSTORM_CUDNN") == "off":
            return None
        try:
            return cls(load_library("cudnn", (9, 8)), device, compute)
        except FileNotFoundError:
            return None
        except (OSError, AttributeError, DeviceError) as error:
            LOG.warning(
                "convolutions are computed without cuDNN, which is slower: %s. Is it made for this "
                "version of CUDA and this driver? BRAINSTORM_CUDNN=off computes without it.",
                error,
            )
            return None

    def convolve(
        self, build: Building, which: _Pass, arrays: Sequence[DeviceArray], windows: Windows,
        add: bool,
    ) -> bool:  # fmt: skip
        """Add one of the passes to a building; return whether cuDNN supports it.

        Args:
            build: Collects launches.
            which: `FORWARD` writes the outputs, `DATA` the images, `FILTERS` the filters.
            arrays: Images (N, H, W, C), filters (F, KH, KW, C / groups) and outputs (N, OH, OW, F),
                all of them contiguous.
            windows: How filters move; the padding is equal on both sides.
            add: Add to the present content.
        """
        if which is FILTERS and windows.groups == 1 and arrays[0].shape[-1] < self._few_channels:
            return False  # a product with the matrix of patches is faster
        *read, written = (arrays[k] for k in which.order)
        self._device.enter()
        for algorithm in which.algorithms:
            try:
                made, workspace = self._made(build, which, algorithm, arrays, windows)
            except _UnsupportedError:
                continue
            result = build.temporary(written.shape, np.uint16 if self._is_half else np.float32)
            if made(read, result, False)():  # a trial on whatever lies there
                continue
            factors, target = read, written
            if self._is_half:
                rows = (array.reshape((1, array.size)) for array in read)  # rounded without gaps
                factors, target = list(map(build.rounded, rows)), result
            call = made(factors, target, add and not self._is_half)
            launch = Launch(None, _checked(call, f"cudnn{which.name}"))
            build.launch(launch, [target, workspace], factors)
            if self._is_half:
                build.widen(result, written, add)
            return True
        return False

    def _described(self, array: DeviceArray, is_filter: bool) -> _Descriptor:
        n, h, w, c = array.shape
        kind = c_int(_BFLOAT16 if self._is_half else _FLOAT)
        axes, sizes = c_int(4), _ints((n, c, h, w))
        if is_filter:
            described = _Descriptor(self._library, "Filter")
            return described.set("cudnnSetFilterNdDescriptor", kind, c_int(_NHWC), axes, sizes)
        described = _Descriptor(self._library, "Tensor")
        steps = _ints((h * w * c, 1, w * c, c))
        return described.set("cudnnSetTensorNdDescriptor", kind, axes, sizes, steps)

    def _made(
        self, build: Building, which: _Pass, algorithm: int, arrays: Sequence[DeviceArray],
        windows: Windows,
    ) -> tuple[Callable[..., Callable[[], int]], DeviceArray]:  # fmt: skip
        """Return what makes the call for some arrays, which returns a status, and its workspace."""
        library, handle = self._library, self._handle
        convolution = _Descriptor(library, "Convolution")
        convolution.set(
            "cudnnSetConvolutionNdDescriptor", c_int(2),
            _ints([before for before, _ in windows.padding]),
            _ints(windows.stride), _ints(windows.dilation), c_int(_CROSS_CORRELATION),
            c_int(_FLOAT),
        )  # fmt: skip
        convolution.set("cudnnSetConvolutionGroupCount", c_int(windows.groups))
        convolution.set("cudnnSetConvolutionMathType", c_int(self._math))
        shapes = [self._described(arrays[k], k == 1) for k in which.order]
        first, second, target = (shape.handle for shape in shapes)
        size, chosen = c_size_t(), c_int(algorithm)
        status = getattr(library, f"cudnnGet{which.name}WorkspaceSize")(
            handle, first, second, convolution.handle, target, chosen, byref(size)
        )
        if status or size.value > MOST_WORKSPACE:
            raise _UnsupportedError
        workspace = build.temporary((max(size.value, 1),), np.uint8)
        build.kept += [convolution, *shapes]
        function, one = getattr(library, f"cudnn{which.name}"), c_float(1.0)

        def made(
            factors: Sequence[DeviceArray], result: DeviceArray, add: bool
        ) -> Callable[[], int]:
            x, y, out, scratch = (
                c_void_p(array.address) for array in (*factors, result, workspace)
            )
            return functools.partial(
                function, handle, byref(one), first, x, second, y, convolution.handle, chosen,
                scratch, size, byref(c_float(float(add))), target, out,
            )  # fmt: skip

        return made, workspace


def _checked(call: Callable[[], int], name: str) -> Callable[[], None]:
    def run() -> None:
        if status := call():
            raise DeviceError(
                f"{name} failed with status {status}. Start a new process and continue from a "
                f"checkpoint; BRAINSTORM_CUDNN=off computes without cuDNN."
            )

    return run
