"""Fixtures of the handler tests: every handler, in every dtype that it has."""

import shlex

import numpy as np
import pytest

from brainstorm.handlers import (
    DebugHandler,
    Handler,
    NativeHandler,
    NumpyHandler,
    PyCudaHandler,
    compiler,
    kernel_cache,
)
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


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12345)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and nothing that this process has loaded before."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(directory))
    monkeypatch.setattr(compiler, "_known", {})
    monkeypatch.setattr(compiler, "_failures", {})
    monkeypatch.setattr(kernel_cache, "_private", [])
    return directory


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Make a shell script the compiler, which writes down what it is asked for.

    It ends with the compiler's own call, `$COMPILER "$@"`, unless the text does something else.
    """

    def make(text='exec $COMPILER "$@"', command=None):
        words = shlex.join(command or compiler.found_commands()[0])
        file, log = tmp_path / "compiler.sh", tmp_path / "calls"
        file.write_text(f"COMPILER={shlex.quote(words)}\necho \"$*\" >> '{log}'\n{text}\n")
        log.write_text("")
        monkeypatch.setenv("CC", f"sh '{file}'")
        return lambda: log.read_text().splitlines()

    return make
