"""Convolutions by cuDNN: a stand-in with its C interface, which computes with NumPy.

It shows that arguments come in the order of cudnn_cnn.h and with the right shapes. That NVIDIA's
library does the same is seen on a GPU, by the properties.
"""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from brainstorm.errors import DeviceError
from brainstorm.handlers import NumpyHandler, PyCudaHandler
from brainstorm.handlers.pycuda import cudnn
from brainstorm.handlers.pycuda.cudnn import Cudnn
from brainstorm.testing import check_handler


def _at(address, shape):
    """The array (N, H, W, C) for sizes (N, C, H, W), in the memory of the CPU driver."""
    n, c, h, w = shape
    values = (ctypes.c_float * (n * c * h * w)).from_address(address.value)
    return np.ctypeslib.as_array(values).reshape(n, h, w, c)


class StandIn:
    """cuDNN's functions, as ctypes would call them."""

    def __init__(self, refused=()):
        self.known, self.refused, self.calls = {}, refused, []
        self.cudnnGetVersion = type("F", (), {"__call__": lambda self: 91002})()
        for kind in ("Tensor", "Filter", "Convolution"):
            setattr(self, f"cudnnCreate{kind}Descriptor", self._create)
            setattr(self, f"cudnnDestroy{kind}Descriptor", self._destroy)
        for name in ("Forward", "BackwardData", "BackwardFilter"):
            setattr(self, f"cudnnGetConvolution{name}WorkspaceSize", self._size)

    def cudnnCreate(self, handle):
        handle._obj.value = 1
        return 0

    def cudnnSetStream(self, handle, stream):
        return 0

    def cudnnDestroy(self, handle):
        self.calls.append(("destroyed", handle.value))

    def _create(self, handle):
        handle._obj.value = max(self.known, default=0) + 1
        self.known[handle._obj.value] = None
        return 0

    def _destroy(self, handle):
        del self.known[handle.value]

    def cudnnSetTensorNdDescriptor(self, handle, kind, axes, sizes, steps):
        n, c, h, w = sizes
        assert (kind.value, axes.value) == (0, 4)
        assert list(steps) == [h * w * c, 1, w * c, c]
        self.known[handle.value] = ("tensor", n, c, h, w)
        return 0

    def cudnnSetFilterNdDescriptor(self, handle, kind, format_, axes, sizes):
        assert (kind.value, format_.value, axes.value) == (0, 1, 4)
        self.known[handle.value] = ("filter", *sizes)
        return 0

    def cudnnSetConvolutionNdDescriptor(self, handle, axes, padding, stride, dilation, mode, kind):
        assert (axes.value, mode.value, kind.value) == (2, 1, 0)
        self.known[handle.value] = {
            "padding": tuple(padding),
            "stride": tuple(stride),
            "dilation": tuple(dilation),
        }
        return 0

    def cudnnSetConvolutionGroupCount(self, handle, groups):
        self.known[handle.value]["groups"] = groups.value
        return 0

    def cudnnSetConvolutionMathType(self, handle, math):
        self.math = math.value
        return 0

    def _size(self, handle, first, second, convolution, target, algorithm, size):
        size._obj.value = 40
        return 3000 if algorithm.value in self.refused else 0

    def _run(self, name, kinds, arguments):
        (_, alpha, first, a, second, b, convolution, algorithm, _, size, beta, third, c) = arguments
        described = [self.known[d.value] for d in (first, second, third)]
        assert tuple(d[0] for d in described) == kinds
        assert (alpha._obj.value, size.value) == (1.0, 40)
        arrays = [_at(p, d[1:]) for p, d in zip((a, b, c), described, strict=True)]
        self.calls.append((name, algorithm.value))
        return *arrays, beta._obj.value, self.known[convolution.value]

    def cudnnConvolutionForward(self, *arguments):
        kinds = ("tensor", "filter", "tensor")
        x, w, y, beta, how = self._run("forward", kinds, arguments)
        numpy.conv2d_forward_batch(x, w, None, y, **how, add_outputs=beta == 1)
        return 0

    def cudnnConvolutionBackwardData(self, *arguments):
        w, dy, dx, beta, how = self._run("data", ("filter", "tensor", "tensor"), arguments)
        numpy.conv2d_backward_batch(
            None, w, in_deltas=dx, out_deltas=dy, weight_deltas=None, bias_deltas=None,
            add_in_deltas=beta == 1, **how,
        )  # fmt: skip
        return 0

    def cudnnConvolutionBackwardFilter(self, *arguments):
        x, dy, dw, beta, how = self._run("filters", ("tensor", "tensor", "filter"), arguments)
        numpy.conv2d_backward_batch(
            x, dw.copy(), in_deltas=None, out_deltas=dy, weight_deltas=dw, bias_deltas=None,
            add_gradients=beta == 1, **how,
        )  # fmt: skip
        return 0


numpy = NumpyHandler(np.float32, seed=0)
CONVOLUTIONS = ["conv2d_forward_batch", "conv2d_backward_batch"]
PROPERTIES = ["results equal the reference", "what is overwritten may be garbage"]


def with_stand_in(**options):
    handler = PyCudaHandler(seed=1)
    library = StandIn(**options)
    handler._cudnn = Cudnn(library, handler._device, "f32")
    return handler, library


def test_convolutions_obey_their_properties(shim):
    handler, library = with_stand_in()
    check_handler(handler, CONVOLUTIONS, properties=PROPERTIES)
    assert {name for name, _ in library.calls} == {"forward", "data", "filters"}
    assert library.math == 3  # exact
    assert handler.info()["convolutions"].startswith("cuDNN 9.10, or cuBLAS")


def test_the_next_algorithm_is_taken_or_none(shim):
    for refused, expected in (((1,), {("forward", 0)}), ((0, 1), set())):
        handler, library = with_stand_in(refused=refused)
        check_handler(handler, CONVOLUTIONS[:1], properties=PROPERTIES)
        assert set(library.calls) == expected


def test_an_algorithm_that_does_not_run_is_not_taken(shim):
    handler, library = with_stand_in()
    library.cudnnConvolutionForward = lambda *arguments: 3000
    check_handler(handler, CONVOLUTIONS[:1], properties=PROPERTIES)


def test_the_library_goes_with_the_handler(shim):
    handler, library = with_stand_in()
    del handler
    gc.collect()
    assert library.calls == [("destroyed", 1)]


def test_descriptions_are_freed(shim):
    handler, library = with_stand_in()
    x, w, y = (handler.ones(shape) for shape in ((1, 3, 3, 1), (1, 2, 2, 1), (1, 2, 2, 1)))
    handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1))
    assert len(library.known) == 4
    handler.new_lane().clear()
    assert len(library.known) == 0


def test_failures(shim):
    handler, library = with_stand_in()
    x, w, y = (handler.ones(shape) for shape in ((1, 3, 3, 1), (1, 2, 2, 1), (1, 2, 2, 1)))
    statuses = iter((0, 5000))  # the trial succeeds
    library.cudnnConvolutionForward = lambda *arguments: next(statuses)
    with pytest.raises(DeviceError, match="cudnnConvolutionForward failed with status 5000"):
        handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1))


def _no_library():
    raise OSError("libcublasLt.so.13: undefined symbol: x")


def _old():
    library = StandIn()
    library.cudnnCreate = lambda handle: 1001
    return library


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (_no_library, "libcublasLt.so.13: undefined symbol: x"),
        (_old, "cuDNN 9.10 answers with status 1001"),
        (object, "'object' object has no attribute 'cudnnGetVersion'"),
    ],
)
def test_a_library_that_fails_is_a_warning_and_cublas_convolves(load, reason, monkeypatch, caplog):
    monkeypatch.setattr(cudnn, "load_library", lambda name, versions: load())
    handler = PyCudaHandler(seed=1)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"convolutions are computed without cuDNN, which is slower: {reason}")
    assert "cuDNN" not in handler.info()["convolutions"]
    check_handler(handler, CONVOLUTIONS[:1], properties=PROPERTIES)


def test_it_is_looked_for_where_it_is_of_use(handler, monkeypatch):
    asked = []

    def missing(*arguments):
        asked.append(arguments)
        raise FileNotFoundError

    monkeypatch.setattr(cudnn, "load_library", missing)
    assert Cudnn.found(handler._device, "bf16") is None
    assert not asked  # it has no products of bfloat16 that are summed up in float32
    assert Cudnn.found(handler._device, "tf32") is None
    assert asked == [("cudnn", (9, 8))]
    monkeypatch.setenv("BRAINSTORM_CUDNN", "off")
    assert Cudnn.found(handler._device, "f32") is None
    assert len(asked) == 1
