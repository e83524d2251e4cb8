"""Devices that are lost, missing or of another kind."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import cudashim

ROOT = Path(__file__).parents[2]
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


def test_a_lost_device(cuda):
    x = cuda.array([3])
    cudashim.lose_device()
    for call in (x.get, lambda: cuda.empty(1), cuda.driver.Context.synchronize):
        with pytest.raises(cuda.driver.LaunchError, match="unspecified launch failure"):
            call()
    cudashim.reset()
    assert x.get() == 3


def test_a_device_is_lost_after_some_launches(cuda):
    x, kernel = cuda.empty(1), cuda.kernel(KERNEL, "kernel", "P")
    cudashim.set_option("lose_after", 2)
    for _ in range(2):
        kernel.prepared_call((1, 1), (1, 1, 1), int(x))
    with pytest.raises(cuda.driver.LaunchError, match="unspecified launch failure"):
        kernel.prepared_call((1, 1), (1, 1, 1), int(x))


@pytest.mark.parametrize(("architecture", "loads"), [(90, True), (80, False), (100, False)])
def test_modules_of_another_architecture(architecture, loads, cuda):
    from pycuda.compiler import compile

    image = compile(KERNEL, arch=f"sm_{architecture}")
    if loads:
        cuda.driver.module_from_buffer(image)
    else:
        with pytest.raises(cuda.driver.Error, match="no kernel image is available"):
            cuda.driver.module_from_buffer(image)


def test_what_is_no_module(cuda):
    with pytest.raises(cuda.driver.LogicError, match="kernel image is invalid"):
        cuda.driver.module_from_buffer(b"// .version 9.0" * 10)


def test_an_unknown_kernel(cuda):
    with pytest.raises(cuda.driver.LogicError, match="named symbol not found"):
        cuda.kernel(KERNEL, "colonel", "P")


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
    command = [sys.executable, "-c", script]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == expected


def test_contexts_that_are_given_up_keep_what_others_hold(cuda):
    x = cuda.array([3])
    other = cuda.driver.Device(0).retain_primary_context()
    del other
    assert x.get() == 3
