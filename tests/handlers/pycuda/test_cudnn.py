"""Convolutions by cuDNN: a C library with its interface, which computes on the CPU.

It shows that arguments come in the order of NVIDIA's header files, with the numbers that stand
there and the right shapes; and that a convolution goes through the stream. That NVIDIA's library
computes the same is seen on a GPU, by the properties.
"""

import ctypes
import gc
import os
import re
import subprocess
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from brainstorm.errors import DeviceError
from brainstorm.handlers import NumpyHandler, PyCudaHandler
from brainstorm.handlers.pycuda import cudnn
from brainstorm.handlers.pycuda.cudnn import Cudnn
from brainstorm.handlers.pycuda.libraries import load_library
from brainstorm.testing import HANDLER_PROPERTIES, check_handler
from brainstorm.testing.handler_harness import HandlerHarness
from tests import cudashim
from tests.cudashim import building
from tests.handlers.running import graph_of, on

CONVOLUTIONS = ["conv2d_forward_batch", "conv2d_backward_batch"]
PROPERTIES = ["results equal the reference", "what is overwritten may be garbage"]
NOT_SUPPORTED, FAILED = 3000, 5000
PASSES = ("Forward", "BackwardData", "BackwardFilter")


def with_stand_in(compute="f32", refused=()):
    """Return a handler with the cuDNN of the tests, that library, and the algorithms that run."""
    with mock.patch.dict(os.environ, BRAINSTORM_CUDNN="off"):  # NVIDIA's, where it is here
        handler = PyCudaHandler(seed=1, compute=compute)
    library, calls = cudashim.cudnn(), []
    size_of = library.cudnnGetConvolutionForwardWorkspaceSize

    def size(*arguments):
        return NOT_SUPPORTED if arguments[5].value in refused else size_of(*arguments)

    def noting(name, function):
        def run(*arguments):
            calls.append((name, arguments[7].value))
            return function(*arguments)

        return run

    library.cudnnGetConvolutionForwardWorkspaceSize = size
    for name in PASSES:
        function = f"cudnnConvolution{name}"
        setattr(library, function, noting(name, getattr(library, function)))
    handler._cudnn = Cudnn(library, handler._device, compute)
    return handler, library, calls


@pytest.mark.parametrize("late", [0, 1])
def test_convolutions_obey_their_properties(late, shim):
    shim.set_option("late", late)
    handler, _, calls = with_stand_in()
    check_handler(handler, CONVOLUTIONS, properties=PROPERTIES)
    assert {name for name, _ in calls} == {"Forward", "BackwardData"}
    assert handler.info()["convolutions"].startswith("cuDNN 9.10, or cuBLAS")


def images(handler):
    """Return images, filters and outputs that fit together."""
    return [handler.ones(shape) for shape in ((1, 3, 3, 1), (1, 2, 2, 1), (1, 2, 2, 1))]


@pytest.mark.parametrize(("compute", "expected"), [("f32", 4 * (1 + 2.0**-12)), ("tf32", 4.0)])
def test_factors_are_rounded_where_that_was_chosen(compute, expected, shim):
    handler, *_ = with_stand_in(compute)
    x, w, y = images(handler)
    handler.fill(x, 1 + 2.0**-12)
    handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1))
    np.testing.assert_array_equal(y.get(), np.full(y.shape, expected))


#: Sizes of images and filters, filters, padding, stride, dilation, groups.
GEOMETRIES = {
    "plain": ((5, 6, 3), (3, 2), 5, 0, (1, 1), (1, 1), 1),
    "padded, in strides": ((7, 5, 8), (3, 3), 8, 1, (2, 1), (1, 1), 1),
    "dilated": ((7, 7, 2), (2, 3), 3, 2, (1, 2), (2, 3), 1),
    "in groups": ((4, 4, 6), (2, 2), 4, 1, (1, 1), (1, 1), 2),
    "one element": ((2, 2, 1), (2, 2), 1, 0, (1, 1), (1, 1), 1),
}


def passes(handler, geometry, add):
    """Return the results of both passes, added to ones, for whole numbers that bfloat16 holds."""
    size, cells, count, padding, stride, dilation, groups = GEOMETRIES[geometry]
    rng = np.random.default_rng(3)
    axes = zip(size, cells, stride, dilation, strict=False)
    places = [(n + 2 * padding - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes]
    shapes = (2, *size), (count, *cells, size[2] // groups), (2, *places, count)
    x, w, dy = (on(handler, rng.integers(-2, 3, shape)) for shape in shapes)
    y, dx, dw = (handler.ones(shape) for shape in (shapes[2], shapes[0], shapes[1]))
    more = {"dilation": dilation, "groups": groups}
    handler.conv2d_forward_batch(x, w, None, y, padding, stride, add_outputs=add, **more)
    handler.conv2d_backward_batch(
        x, w, padding, stride, dx, dy, dw, None, add_gradients=add, add_in_deltas=add, **more
    )
    return [handler.get_numpy_copy(array) for array in (y, dx, dw)]


def check_passes(handler, geometry, add):
    expected = passes(NumpyHandler(float), geometry, add)
    for got, value in zip(passes(handler, geometry, add), expected, strict=True):
        np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize(
    ("compute", "geometry", "by_cudnn"),
    [("f32", "plain", 0), ("tf32", "plain", 0), ("bf16", "plain", 1), ("f32", "in groups", 1)],
)
def test_who_computes_the_gradient_of_filters(compute, geometry, by_cudnn, shim):
    handler, _, calls = with_stand_in(compute)
    check_passes(handler, geometry, True)
    assert ("BackwardFilter" in {name for name, _ in calls}) == by_cudnn


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_bfloat16_in_all_passes(geometry, add, late, shim):
    shim.set_option("late", late)
    handler, _, calls = with_stand_in("bf16")
    check_passes(handler, geometry, add)
    assert {name for name, _ in calls} == set(PASSES)


@pytest.mark.parametrize("compute", ["f32", "tf32", "bf16"])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_small_whole_numbers_are_exact_with_the_library_that_is_here(geometry, add, compute):
    check_passes(PyCudaHandler(seed=1, compute=compute), geometry, add)


def test_bfloat16_obeys_the_properties(shim):
    handler, *_ = with_stand_in("bf16")
    harness = HandlerHarness(handler, CONVOLUTIONS, 0)
    harness.epsilon = 2.0**-8 / 10  # 20 roundings of numbers of size 1
    for name in PROPERTIES:
        HANDLER_PROPERTIES[name](harness)


@pytest.mark.parametrize("add", [False, True])
def test_results_in_bfloat16_are_rounded_before_they_are_added(add, shim):
    handler, *_ = with_stand_in("bf16")
    x, w, y = images(handler)
    handler.fill(x, 1 + 2.0**-7)
    handler.fill(w, 1 + 2.0**-7)
    handler.fill(y, 2.0**-20)
    handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1), add_outputs=add)
    expected = np.float32(4 + 2.0**-4 + (2.0**-20 if add else 0))  # exactly 4 + 2**-4 + 2**-12
    np.testing.assert_array_equal(y.get(), np.full(y.shape, expected))


def test_gpus_without_bfloat16_and_other_refusals_make_columns(shim):
    shim.set_option("capability", 75)
    handler, _, calls = with_stand_in("bf16")
    check_passes(handler, "in groups", True)
    assert not calls


def test_a_graph_rounds_what_convolutions_read_once(shim):
    handler, *_ = with_stand_in("bf16")
    x, w, y = images(handler)
    dx, dw = handler.zeros(x.shape), handler.zeros(w.shape)

    def passes():
        handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1), activation="tanh")
        handler.conv2d_backward_batch(x, w, 0, (1, 1), dx, y, dw, None)

    graph = graph_of(handler, passes)
    # x and w are rounded, y by the kernel that widens it; then the gradients are widened.
    assert len(graph.launches) == 2 + (1 + 1) + 2 * (1 + 1)


def test_they_are_nodes_of_a_graph(shim):
    handler, *_ = with_stand_in()
    x, w, y = images(handler)
    trace = handler.trace(lambda: handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1)))
    trace.replay()
    handler.fill(x, 3.0)
    shim.reset()
    trace.replay()
    assert (shim.counters()["graph_launches"], shim.counters()["launches"]) == (1, 0)
    np.testing.assert_array_equal(y.get(), np.full(y.shape, 12.0))


def test_the_next_algorithm_is_taken_or_none(shim):
    for refused, expected in (((1,), {("Forward", 0)}), ((0, 1), set())):
        handler, _, calls = with_stand_in(refused=refused)
        check_handler(handler, CONVOLUTIONS[:1], properties=PROPERTIES)
        assert set(calls) == expected


def test_an_algorithm_that_does_not_run_is_not_taken(shim):
    handler, library, _ = with_stand_in()
    library.cudnnConvolutionForward = lambda *arguments: NOT_SUPPORTED
    check_handler(handler, CONVOLUTIONS[:1], properties=PROPERTIES)


def test_descriptions_go_with_calls_and_the_library_with_the_handler(shim):
    gc.collect()
    living = cudashim.cudnn().cudashim_cudnn_living  # handles and descriptions
    before = living()
    handler, *_ = with_stand_in()
    assert living() == before + 1
    x, w, y = images(handler)
    handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1))
    assert living() == before + 5
    handler.new_lane().clear()
    assert living() == before + 1
    del handler, x, w, y
    gc.collect()
    assert living() == before


def test_failures(shim):
    handler, library, _ = with_stand_in()
    x, w, y = images(handler)
    statuses = iter((0, FAILED))  # the trial succeeds
    library.cudnnConvolutionForward = lambda *arguments: next(statuses)
    with pytest.raises(DeviceError, match="cudnnConvolutionForward failed with status 5000"):
        handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1))


SOURCE = """
#include <cudnn.h>
#include <type_traits>
namespace ours {
#include "ours.h"
}
// Enumerations are integers in ours, and structures have other names.
template <class A, class B> constexpr bool alike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <class A, class B> struct Same : std::false_type {};
template <class A, class... As, class B, class... Bs> struct Same<A(As...), B(Bs...)> {
  template <bool... each> static constexpr bool all = (true && ... && each);
  static constexpr bool pairs() {
    if constexpr (sizeof...(As) == sizeof...(Bs)) return all<alike<As, Bs>...>;
    else return false;
  }
  static constexpr bool value = alike<A, B> && pairs();
};
"""


def test_the_prototypes_are_nvidias(tmp_path, shim):
    """Each function has as many arguments, of such types; each number is the same."""
    if building.folder_of("cudnn.h") is None:
        pytest.skip("NVIDIA'S cudnn.h IS NOT HERE (pip install nvidia-cudnn-cu13): NOT COMPARED")
    folder = Path(building.__file__).parent / "src"
    ours = (folder / "cudnn_prototypes.h").read_text()
    functions = set(re.findall(r"\b(cudnn[A-Z]\w+)\(", ours))
    numbers = set(re.findall(r"\b(CUDNN_\w+) =", ours))
    assert (len(functions), len(numbers)) == (21, 16)
    checks = [f"(Same<decltype(::{n}), decltype(ours::{n})>::value)" for n in functions]
    checks += [f"((int)::{n} == (int)ours::{n})" for n in numbers]
    (tmp_path / "ours.h").write_text(ours.replace('extern "C"', "inline namespace functions"))
    lines = "".join(f'static_assert({check}, "");\n' for check in checks)

    def compiled(text):
        options = ["-fsyntax-only", "-w", "-std=c++17", *building.includes_cudnn()]
        (tmp_path / "a.cpp").write_text(text)
        return subprocess.run(["g++", *options, str(tmp_path / "a.cpp")], capture_output=True)

    assert compiled(SOURCE + lines).stderr == b""
    for wrong in ("Same<int(int, int), int(int)>::value", "Same<int(int*), int(int)>::value"):
        assert b"static assertion failed" in compiled(f"{SOURCE}static_assert({wrong});").stderr
    assert cudashim.cudnn().cudashim_cudnn_is_nvidias() == 1


class OfNvidia:
    """NVIDIA's library for all that needs no GPU; it says that it has no algorithm.

    Attributes:
        outputs: The sizes that were given for outputs, and those that the library finds.
    """

    def __init__(self, library):
        self.library, self.outputs = library, []
        self.cudnnCreate = self.cudnnDestroy = self.cudnnSetStream = lambda *arguments: 0

    def __getattr__(self, name):
        return getattr(self.library, name)

    def cudnnGetConvolutionForwardWorkspaceSize(self, handle, x, w, convolution, y, *rest):
        given, found, _ = sizes = [(ctypes.c_int * 4)() for _ in range(3)]
        one = ctypes.byref(ctypes.c_int())
        assert self.library.cudnnGetTensorNdDescriptor(y, 4, one, one, given, sizes[2]) == 0
        status = self.library.cudnnGetConvolutionNdForwardOutputDim(convolution, x, w, 4, found)
        assert status == 0
        self.outputs.append((tuple(given), tuple(found)))
        return NOT_SUPPORTED


def test_nvidias_library_takes_the_descriptions(shim):
    try:
        library = OfNvidia(load_library("cudnn", (9, 8)))
    except OSError:
        pytest.skip("NVIDIA'S cuDNN IS NOT HERE (pip install nvidia-cudnn-cu13): NOT ASKED")
    handler = PyCudaHandler(seed=1)
    handler._cudnn = Cudnn(library, handler._device, "f32")
    check_handler(handler, CONVOLUTIONS[:1], properties=PROPERTIES[:1])
    assert len(library.outputs) > 5
    for given, found in library.outputs:
        assert given == found


def _no_library():
    raise OSError("libcublasLt.so.13: undefined symbol: x")


def _old():
    return types.SimpleNamespace(
        cudnnGetVersion=mock.Mock(return_value=91000), cudnnCreate=lambda handle: 1001
    )


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


def test_it_is_not_looked_for_where_it_is_off(handler, monkeypatch):
    monkeypatch.setattr(cudnn, "load_library", missing := mock.Mock(side_effect=FileNotFoundError))
    assert Cudnn.found(handler._device, "tf32") is None
    monkeypatch.setenv("BRAINSTORM_CUDNN", "off")
    assert Cudnn.found(handler._device, "f32") is None
    missing.assert_called_once_with("cudnn", (9, 8))
