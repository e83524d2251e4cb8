"""Other users of CUDA in the process: their contexts, their threads, and the end of Python."""

import ctypes
import os

import numpy as np
import pytest

from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda.driver import driver_library
from tests.handlers.running import ROOT, in_process, in_threads


def current():
    """The context that is current in this thread."""
    found = ctypes.c_void_p()
    assert driver_library().cuCtxGetCurrent(ctypes.byref(found)) == 0
    return found.value


@pytest.fixture
def foreign(handler):
    """A context that another library made, as it lies beneath ours."""
    handler._device.enter()
    ours, made = ctypes.c_void_p(current()), ctypes.c_void_p()
    assert driver_library().cuCtxCreate_v4(ctypes.byref(made), None, 0, 0) == 0
    assert driver_library().cuCtxSetCurrent(ours) == 0
    yield made
    handler._device.enter()
    assert driver_library().cuCtxDestroy_v2(made) == 0


def none_current(driver, made):
    """Take away all contexts of this thread."""
    while current():
        assert driver.cuCtxSetCurrent(None) == 0
    return 0


OTHERS_DO = {
    "make theirs current": lambda driver, made: driver.cuCtxSetCurrent(made),
    "put theirs on top": lambda driver, made: driver.cuCtxPushCurrent_v2(made),
    "make none current": none_current,
}


@pytest.mark.parametrize("others_do", OTHERS_DO.values(), ids=OTHERS_DO.keys())
def test_what_is_current_is_asked_of_the_driver(others_do, foreign, handler):
    x = handler.ones((5,))
    with handler.tracing() as trace:
        handler.add_tt(x, x, x)
    uses = (
        trace.replay,
        lambda: handler.mult_st(1.0, x, x),
        lambda: handler.create_from_numpy(np.ones((3000, 3), np.float32)),
        lambda: PyCudaHandler(seed=1).dot_mm(*[handler.ones((2, 2))] * 2, handler.zeros((2, 2))),
        x.get,
    )
    ours = handler._device.context.handle
    for use in uses:
        assert others_do(driver_library(), foreign) == 0
        assert current() != ours
        use()
        assert current() == ours
    np.testing.assert_array_equal(x.get(), np.full(5, 4.0))


@pytest.mark.parametrize("others_do", OTHERS_DO.values(), ids=OTHERS_DO.keys())
def test_what_is_collected_leaves_their_context_current(others_do, foreign, handler, shim):
    x = handler.ones((5,))
    assert others_do(driver_library(), foreign) == 0
    theirs, frees = current(), shim.counters()["frees"]
    del x
    assert shim.counters()["frees"] == frees + 1
    assert current() == theirs


@pytest.mark.parametrize("others_do", OTHERS_DO.values(), ids=OTHERS_DO.keys())
def test_threads_may_end_while_theirs_is_current(others_do, foreign, handler, capfd):
    found = []

    def run(others_do):
        x = handler.ones((5,))
        handler.add_tt(x, x, x)
        found.append(x.get())
        others_do(driver_library(), foreign)

    in_threads(run, [others_do])
    np.testing.assert_array_equal(found[0], np.full(5, 2.0))
    assert "PyCUDA" not in capfd.readouterr().err


ENDINGS = {
    "everything lives": "",
    "it is a cycle": "kept.append(kept); del handler, net, stepper, x, trace",
    "a thread computes": "threading.Thread(target=compute, daemon=True).start(); begun.wait()",
    "a thread has computed": "thread = threading.Thread(target=compute, args=(3,)); thread.start()",
    "theirs is current": "driver_library().cuCtxCreate_v4(byref(made), None, 0, 0)",
    "none is current": "driver_library().cuCtxSetCurrent(None)",
    "it was made in a thread that has ended": "",
    "it is called": "atexit.register(stepper.run)",
}
#: Forks a process for each of the endings, and says how it has ended, behind all that it has said.
SCRIPT = """
import atexit, os, sys, threading
from ctypes import byref, c_void_p
from tests import cudashim
cudashim.install()
import numpy as np
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda.driver import driver_library
from brainstorm.network import Network
from brainstorm.training import SgdStepper
from tests.networks import classifier

for name, ending in ENDINGS.items():
    child = os.fork()
    if not child:
        break
    print(name, os.waitpid(child, 0)[1], flush=True)
else:
    sys.exit()
os.dup2(1, 2)
handlers, made, begun = [], c_void_p(), threading.Event()
maker = threading.Thread(target=lambda: handlers.append(PyCudaHandler(seed=1)))
(maker.start if "made in a thread" in name else maker.run)()
if "made in a thread" in name:
    maker.join()
(handler,) = handlers
net = Network.from_layer(classifier())
net.set_handler(handler)
net.initialize(0.1)
stepper = SgdStepper(0.1)
stepper.start(net)
net.provide_external_data({"default": np.ones((1, 4, 4)), "targets": np.zeros((1, 4, 1))})
for _ in range(3):
    stepper.run()
x = handler.ones((5000,))
with handler.tracing() as trace:
    handler.add_tt(x, x, x)
kept = [handler, net, stepper, x, trace]

def compute(times=10**9):
    y = handler.ones((5,))
    for _ in range(times):
        handler.add_tt(y, y, y)
        begun.set()

exec(ending)
"""


def test_nothing_complains_when_python_ends():
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("CC", None)  # of one that does not work there is a warning
    said, _ = in_process(f"ENDINGS = {ENDINGS}{SCRIPT}", environment)
    assert said.splitlines() == [f"{ending} 0" for ending in ENDINGS]
