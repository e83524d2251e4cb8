"""A handler on the GPU, or on the tests' CUDA driver for machines without one."""

import weakref

import pytest

from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import devices
from tests import cudashim

MISSING = cudashim.available()


@pytest.fixture(autouse=True)
def _fresh_driver():
    """Skip where there is no CUDA at all, and leave no option of the driver behind."""
    if MISSING:
        pytest.skip(MISSING)
    if cudashim.installed_here():
        cudashim.reset()
    yield
    if cudashim.installed_here():
        cudashim.reset()


@pytest.fixture
def no_device(monkeypatch):
    """New handlers share no device with those of other tests, and find it as it is then."""
    monkeypatch.setattr(devices, "_devices", weakref.WeakValueDictionary())


@pytest.fixture
def shim(no_device):
    """What only the driver of the tests can do: counting, memory limits, failing."""
    if not cudashim.installed_here():
        pytest.skip("THIS NEEDS THE TESTS' CUDA DRIVER, AND THERE IS A REAL ONE")
    return cudashim


@pytest.fixture(scope="module")
def handler():
    if MISSING:
        pytest.skip(MISSING)
    return PyCudaHandler(seed=7)
