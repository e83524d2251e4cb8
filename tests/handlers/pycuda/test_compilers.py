"""Who compiles kernels: NVRTC, or nvcc where that is missing or of no use."""

import pytest

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import compilers
from brainstorm.handlers.pycuda.compilers import Nvcc, Nvrtc, RefusedError, find_compiler

KERNEL = 'extern "C" __global__ void kernel(float *x) { *x = 1.0f; }'


@pytest.fixture
def fresh(monkeypatch):
    """Forget who compiles, before and after."""
    find_compiler.cache_clear()
    yield monkeypatch
    find_compiler.cache_clear()


def _missing(*arguments):
    raise FileNotFoundError("libnvrtc.so.13 or libnvrtc.so.12 was not found")


def test_nvrtc_comes_first(fresh, handler):
    fresh.setattr(compilers, "Nvcc", None)
    assert isinstance(find_compiler(handler._device.arch), Nvrtc)


@pytest.mark.parametrize("compiler", [Nvrtc, Nvcc])
def test_both_compile_and_say_what_is_wrong(compiler, handler):
    made = compiler()
    assert made.compile(KERNEL, handler._device.arch)[0]
    with pytest.raises(RefusedError, match="(?s)oops.*error|error.*oops"):
        made.compile("oops", handler._device.arch)


def test_what_nvrtc_refuses_without_a_word_is_named(handler):
    with pytest.raises(RefusedError, match="INVALID_OPTION|invalid value"):
        Nvrtc().compile(KERNEL, "sm_none")
    with pytest.raises(RefusedError, match="error: .*(header|could not open source)"):
        Nvrtc().compile(f"#include <cstddef>\n{KERNEL}", handler._device.arch)


def _useless(*arguments):
    raise RefusedError("failed to open libnvrtc-builtins.so.13.0")


@pytest.mark.parametrize(
    ("owner", "name", "fail"), [(compilers, "load_library", _missing), (Nvrtc, "compile", _useless)]
)
def test_without_an_nvrtc_that_works_nvcc_compiles(fresh, handler, owner, name, fail):
    fresh.setattr(owner, name, fail)
    assert isinstance(find_compiler(handler._device.arch), Nvcc)
    assert "compiled by nvcc (Build " in PyCudaHandler(seed=1).info()["op-trees"]


def test_with_neither_both_are_named(fresh, handler):
    def no_nvcc(nvcc):
        raise OSError(f"error invoking '{nvcc} --version': No such file or directory")

    fresh.setattr(compilers, "load_library", _missing)
    fresh.setattr("pycuda.compiler.get_nvcc_version", no_nvcc)
    expected = "libnvrtc.so.12 was not found.*error invoking 'nvcc.*pip install nvidia-cuda-nvrtc"
    with pytest.raises(MissingDependencyError, match=expected):
        find_compiler(handler._device.arch)
