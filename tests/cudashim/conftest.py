"""A context of PyCUDA for the tests of the shim."""

import functools

import numpy as np
import pytest

from tests import cudashim

MISSING = cudashim.available()
if not MISSING and not cudashim.installed_here():
    MISSING = "TESTS OF THE SHIM DO NOT RUN BESIDE A CUDA DEVICE"


class Cuda:
    """What the tests need of PyCUDA, within a context of device 0."""

    def __init__(self, driver):
        self.driver = driver

    def other_device(self):
        """Make a second device; return its context."""
        cudashim.set_option("devices", 2)
        return primary_context(1)

    def kernel(self, source, name, types):
        """Compile CUDA C and prepare one kernel for arguments of these types."""
        from pycuda.compiler import SourceModule

        return SourceModule(source).get_function(name).prepare(types)

    def array(self, values):
        """Copy values to the device as float32."""
        return self.empty(np.size(values)).set(np.asarray(values, np.float32))

    def empty(self, size):
        """Allocate `size` float32 on the device."""
        return DeviceArray(self.driver, size)


class DeviceArray:
    """Some float32 on the device."""

    def __init__(self, driver, size):
        self.driver = driver
        self.size = size
        self.memory = driver.mem_alloc(4 * size)

    def __int__(self):
        return int(self.memory)

    def set(self, values):
        self.driver.memcpy_htod(self.memory, np.ascontiguousarray(values, np.float32))
        return self

    def get(self):
        values = np.empty(self.size, np.float32)
        self.driver.memcpy_dtoh(values, self.memory)
        return values


@functools.cache
def primary_context(device):
    """The context of a device; it lives as long as the process, as memory of failed tests may."""
    import pycuda.driver as driver

    driver.init()
    return driver.Device(device).retain_primary_context()


@pytest.fixture
def cuda():
    """PyCUDA within a context; the shim is as at the start before and after."""
    if MISSING:
        pytest.skip(MISSING)
    import pycuda.driver as driver

    cudashim.reset()
    context = primary_context(0)
    context.push()
    yield Cuda(driver)
    cudashim.reset()
    context.pop()
