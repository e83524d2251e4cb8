"""What goes wrong on the way to a GPU and on it, and what the messages say."""

import gc
import importlib
import importlib.util
from unittest import mock

import numpy as np
import pytest

from brainstorm.errors import (
    DeviceError,
    HandlerValidationError,
    KernelError,
    MissingDependencyError,
    OutOfMemoryError,
)
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import driver, modules
from brainstorm.handlers.pycuda.modules import Kernel, compile_text
from brainstorm.optree import formula, register_operator
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import build


@pytest.fixture
def unloaded():
    """Forget that PyCUDA was loaded."""
    driver.load_driver.cache_clear()
    yield
    driver.load_driver.cache_clear()


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize(
    ("reason", "error", "text"),
    [
        ("", MissingDependencyError, r"is not installed. .* pip install 'brainstorm\[cuda\]'"),
        ("libcuda.so.1: cannot open", DeviceError, "no NVIDIA driver on this machine.*on the CPU"),
        # Not this package, which pip would take from an index.
        ("undefined symbol: x", MissingDependencyError, "cannot be imported.*--force.* pycuda$"),
    ],
)
def test_pycuda_is_missing_or_cannot_be_imported(reason, error, text, monkeypatch):
    if not reason:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib, "import_module", mock.Mock(side_effect=ImportError(reason)))
    with pytest.raises(error, match=text):
        PyCudaHandler()


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize(
    ("option", "value", "device", "text"),
    [
        ("devices", 0, 0, "finds no GPU that it can use.*CUDA_VISIBLE_DEVICES"),
        ("devices", 1, 3, r"\(device=3\): expected the number .* \(0: .*\)"),
        ("capability", 61, 0, r"compute capability 7.5 or higher .* with 6.1"),
    ],
)
def test_there_is_no_such_device(option, value, device, text, shim):
    gc.collect()  # what other tests left needs the driver to go
    shim.set_option(option, value)
    with pytest.raises(DeviceError, match=text):
        PyCudaHandler(device=device)


def test_out_of_memory(shim):
    handler = PyCudaHandler(seed=1)
    shim.set_option("memory", 100 << 20)
    with pytest.raises(OutOfMemoryError, match=r"190.7 MiB of memory on .* not have enough mem"):
        handler.zeros((50_000_000,))
    assert (handler.ones((3,)).get() == 1).all()  # the handler lives


def test_memory_of_dead_cycles_is_found_before_giving_up(shim):
    handler = PyCudaHandler(seed=1)
    gc.collect()
    free, total = driver.load_driver().mem_get_info()
    shim.set_option("memory", total - free + (70 << 20))
    gc.disable()
    try:
        cycle = [handler.zeros((10 << 20,))]
        cycle.append(cycle)
        del cycle
        assert handler.zeros((12 << 20,)).size == 12 << 20
    finally:
        gc.enable()


def test_a_kernel_that_does_not_compile(handler):
    expected = r"(?s)NVRTC.* says:.*error.*The source:\n +1 \n +2 oops"
    with pytest.raises(KernelError, match=expected):
        compile_text("\noops", handler._device.arch)


@pytest.mark.usefixtures("own_table")
def test_products_in_double_precision_and_steps_without_a_kernel_are_refused(handler):
    x = handler.create_from_numpy(np.eye(2))
    with pytest.raises(HandlerValidationError, match="expected float32 for the operator 'dot'"):
        handler.compute(formula(lambda x: fn.dot(x, x)), [x], [x])
    register_operator("cumprod_test", 1, lambda x, out: np.cumprod(x, 0, out=out), kind="scan")
    text = "expected one of dot, cumsum, .* got 'cumprod_test'. Comp"
    with pytest.raises(HandlerValidationError, match=text):
        handler.compute(formula(lambda x: build("cumprod_test", (x,))), [x], [x])


def test_compiled_kernels_come_from_the_cache_if_there_is_one(handler, tmp_path, monkeypatch):
    text, arch = 'extern "C" __global__ void cached(float *x) { *x = 1.0f; }', handler._device.arch
    (tmp_path / "file").touch()
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path / "file"))
    assert modules._cached(f"{text}\n", arch)
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path / "cache"))
    first = modules._cached(text, arch)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".cubin"]
    monkeypatch.setattr(modules, "compile_text", None)
    assert modules._cached(text, arch) == first


def test_a_damaged_kernel(handler, monkeypatch):
    monkeypatch.setattr(modules, "_cached", lambda text, arch: b"\0" * 100)
    with pytest.raises(DeviceError, match="cannot be loaded on .*driver older than "):
        modules.Modules().load(handler._device, [Kernel("damaged", "")])


def test_a_lost_device(shim):
    handler = PyCudaHandler(seed=1)
    x, lost = handler.ones((3,)), "the GPU failed .* continue from a checkpoint"
    with handler.tracing() as trace:
        handler.add_tt(x, x, x)  # loads its kernel
    trace.replay()
    shim.lose_device()
    for use, text in (
        (lambda: handler.add_tt(x, x, x), lost),
        (x.get, lost),
        (lambda: handler.set_from_numpy(x, np.ones(3)), lost),
        (trace.replay, "launching a CUDA graph failed"),
    ):
        with pytest.raises(DeviceError, match=text):
            use()
    shim.reset()


def test_what_fails_while_it_is_captured(handler):
    def fail():
        driver.load_driver().memset_d8_async(16, 0, 4, handler._device.stream)

    x = handler.ones((3,))
    for fails in (True, False):
        with handler.tracing(runs=False) as trace:
            handler.add_tt(x, x, x)
            if fails:
                handler.call(fail, is_queued=True)
        if fails:
            # An address is looked at by the tests' driver at once, by NVIDIA's afterwards.
            expected = "^(capturing a CUDA graph: the GPU failed|instantiating a CUDA graph failed)"
            with pytest.raises(DeviceError, match=expected):
                trace.replay()
        assert gc.isenabled()
    trace.replay()
    np.testing.assert_array_equal(x.get(), np.full(3, 2.0))
