"""Devices that are lost, missing or of another kind."""

import contextlib
import ctypes

import numpy as np
import pytest

from tests import cudashim
from tests.handlers.running import in_process

KERNEL = "__global__ void kernel(float *x) { x[0] = 1; }"


def test_a_failed_kernel_fails_all_that_comes_after(cuda):
    x = cuda.empty(1)
    kernel = cuda.kernel("__global__ void kernel(float *x) { x[9999] = 1; }", "kernel", "P")
    with pytest.raises(cuda.driver.Error, match="cuLaunchKernel failed: an illegal memory access"):
        kernel.prepared_call((1, 1), (1, 1, 1), int(x))
    with pytest.raises(cuda.driver.Error, match="cuMemcpyDtoH failed: an illegal memory access"):
        x.get()
    cudashim.reset()
    assert np.isnan(x.get())


def test_even_what_is_given_up_says_that_a_kernel_failed(cuda, capfd):
    things = [cuda.driver.Event(), cuda.driver.Stream(), cuda.empty(1)]
    things += [cuda.kernel(KERNEL, "kernel", "P"), cuda.driver.pagelocked_empty(4, np.float32)]
    cudashim.lose_device()
    capfd.readouterr()
    things.clear()
    said = capfd.readouterr().err
    assert said.count("PyCUDA WARNING: a clean-up operation failed") == 5


@contextlib.contextmanager
def foreign():
    """A context that another library makes."""
    driver, handle = cudashim.installed(), ctypes.c_void_p()
    assert driver.cuCtxCreate_v4(ctypes.byref(handle), None, 0, 0) == 0
    try:
        yield
    finally:
        driver.cuCtxDestroy_v2(handle)


INVALID_VALUE, INVALID_HANDLE, ILLEGAL_ADDRESS = 1, 400, 700


def test_what_belongs_to_another_context_is_refused(cuda):
    x, kernel = cuda.array([3]), cuda.kernel(KERNEL, "kernel", "P")
    call, event, theirs = cudashim.installed(), ctypes.c_void_p(), ctypes.c_void_p()
    assert call.cuEventCreate(ctypes.byref(event), 0) == 0
    with foreign():
        memory = ctypes.c_uint64(int(x)), 0, ctypes.c_size_t(1)
        assert call.cuMemsetD32_v2(*memory) == INVALID_VALUE
        assert call.cuStreamCreate(ctypes.byref(theirs), 0) == 0
        assert call.cuEventRecord(event, theirs) == INVALID_HANDLE
        with pytest.raises(cuda.driver.LogicError, match="invalid resource handle"):
            kernel.prepared_call((1, 1), (1, 1, 1), int(x))
        with pytest.raises(cuda.driver.Error, match="illegal memory access"):
            cuda.kernel(KERNEL, "kernel", "P").prepared_call((1, 1), (1, 1, 1), int(x))
        assert call.cuCtxSynchronize() == ILLEGAL_ADDRESS
    assert x.get() == 3  # ours goes on


@pytest.mark.parametrize("launches", [0, 2])
def test_a_device_is_lost_at_once_or_after_some_launches(launches, cuda):
    x, kernel = cuda.array([3]), cuda.kernel(KERNEL, "kernel", "P")
    if launches:
        cudashim.set_option("lose_after", launches)
    else:
        cudashim.lose_device()

    def launch():
        kernel.prepared_call((1, 1), (1, 1, 1), int(x))

    for _ in range(launches):
        launch()
    for call in (launch, x.get, lambda: cuda.empty(1), cuda.driver.Context.synchronize):
        with pytest.raises(cuda.driver.LaunchError, match="unspecified launch failure"):
            call()
    cudashim.reset()
    assert x.get() == (1 if launches else 3)


def test_modules_of_another_architecture_and_what_is_none_and_an_unknown_kernel(cuda):
    from pycuda.compiler import compile

    load = cuda.driver.module_from_buffer
    module = load(compile(KERNEL, arch="sm_90"))
    for architecture in ("sm_80", "sm_100"):
        image = compile(KERNEL, arch=architecture)
        with pytest.raises(cuda.driver.Error, match="no kernel image is available"):
            load(image)
    with pytest.raises(cuda.driver.LogicError, match="kernel image is invalid"):
        load(b"// .version 9.0" * 10)
    with pytest.raises(cuda.driver.LogicError, match="named symbol not found"):
        module.get_function("colonel")


def test_a_kernel_takes_so_many_bytes_and_no_more(cuda, capfd):
    source = "struct Many {{ float x[{0}]; }}; __global__ void kernel(const Many many) {{}}"
    for bytes_, limit, fits in ((4096, 4096, 1), (4100, 4096, 0), (32764, 32764, 1)):
        cudashim.set_option("parameters", limit)
        kernel = cuda.kernel(source.format(bytes_ // 4), "kernel", f"{bytes_}s")
        arguments = (1, 1), (1, 1, 1), bytes(bytes_)
        if fits:
            kernel.prepared_call(*arguments)
        else:
            with pytest.raises(cuda.driver.LogicError, match="invalid argument"):
                kernel.prepared_call(*arguments)
            text = "kernel kernel takes 4100 bytes of arguments, of which a device takes 4096 at"
            assert text in capfd.readouterr().err
    with pytest.raises(cuda.driver.CompileError, match="Formal parameter space overflowed"):
        cuda.kernel(source.format(8192), "kernel", "P")


@pytest.mark.parametrize("multiprocessors", [4, 132])
def test_how_many_multiprocessors_and_how_many_blocks_they_take(multiprocessors, cuda):
    cudashim.set_option("multiprocessors", multiprocessors)
    attribute = cuda.driver.device_attribute.MULTIPROCESSOR_COUNT
    assert cuda.driver.Device(0).get_attribute(attribute) == multiprocessors
    found = ctypes.c_int()
    for threads, shared, expected in ((256, 0, 8), (1, 0, 32), (33, 0, 32), (96, 100_000, 2)):
        status = cudashim.installed().cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(found), ctypes.c_void_p(0), threads, ctypes.c_size_t(shared)
        )
        assert (status, found.value) == (0, expected)


def test_an_unknown_option(cuda):
    with pytest.raises(ValueError, match="no option 'speed'"):
        cudashim.set_option("speed", 2)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CUDASHIM_DEVICES": "0"}, "cuInit failed: no CUDA-capable device is detected"),
        ({"CUDASHIM_DEVICES": "3", "CUDASHIM_MEMORY": "1000"}, "3 devices of 1000 bytes"),
    ],
)
def test_options_are_environment_variables_too(variables, expected, cuda):
    script = (
        "from tests import cudashim; cudashim.install(); import pycuda.driver as d\n"
        "try:\n"
        "  d.init()\n"
        "  print(d.Device.count(), 'devices of', d.Device(0).total_memory(), 'bytes')\n"
        "except d.Error as error: print(error)"
    )
    assert in_process(script, **variables)[0].strip() == expected


def test_contexts_that_are_given_up_keep_what_others_hold(cuda):
    x = cuda.array([3])
    other = cuda.driver.Device(0).retain_primary_context()
    del other
    assert x.get() == 3
