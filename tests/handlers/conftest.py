"""Fixtures of the handler tests: every handler, in every dtype that it has."""

import os
from pathlib import Path

import numpy as np
import pytest

from brainstorm.handlers import DebugHandler, Handler, NativeHandler, NumpyHandler, PyCudaHandler
from tests import cudashim

HANDLERS = {
    "numpy32": lambda: NumpyHandler(np.float32, seed=7),
    "numpy64": lambda: NumpyHandler(np.float64, seed=7),
    "debug32": lambda: DebugHandler(NumpyHandler(np.float32, seed=7)),
    "debug64": lambda: DebugHandler(NumpyHandler(np.float64, seed=7)),
    "pycuda": lambda: PyCudaHandler(seed=7),
    "debug pycuda": lambda: DebugHandler(PyCudaHandler(seed=7)),
}


@pytest.fixture(params=list(HANDLERS))
def handler(request: pytest.FixtureRequest) -> Handler:
    if "pycuda" in request.param and (missing := cudashim.available()):
        pytest.skip(missing)
    return HANDLERS[request.param]()


@pytest.fixture(params=[NumpyHandler, NativeHandler, PyCudaHandler])
def kind(request: pytest.FixtureRequest) -> type[Handler]:
    """The class of a handler, which makes one of float32."""
    if request.param is PyCudaHandler and (missing := cudashim.available()):
        pytest.skip(missing)
    return request.param


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of kernels that is empty at first, one for all processes that run the tests."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernels"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12345)
