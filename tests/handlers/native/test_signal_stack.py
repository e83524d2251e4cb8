"""Signals that come while oneDNN computes."""

import sys

import pytest

from brainstorm.handlers.native.signal_stack import SignalStack
from tests.handlers.running import in_process

#: Products of the gradients of weights, whose scratch memory is the stack on processors with
#: AVX-512, with a thousand signals a second. Under pytest, faulthandler gives them a stack, so this
#: is a process of its own.
CODE = """
import signal, sys, threading
import numpy as np
from brainstorm.handlers import NativeHandler

received = []
for kind in ("ALRM", "PROF"):
    signal.signal(getattr(signal, f"SIG{kind}"), lambda *_: received.append(1))

def compute(threads, size):
    handler, rnd = NativeHandler(threads=threads), np.random.RandomState(0)
    a, b = (rnd.standard_normal((1600 * size, n * size)).astype(np.float32) for n in (8, 32))
    expected = a.T.astype(float) @ b
    out = np.zeros(expected.shape, np.float32)
    end = len(received) + SIGNALS
    while len(received) < end:
        out.fill(0)
        handler.dot_mm(a, b, out, transa=True)
        assert np.allclose(out, expected, 1e-3, 1e-3 * size)
        [bytes(37 * n) for n in range(200)]  # finds a broken heap
    print(f"whole with {threads}")

signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
compute(1, 1)
signal.setitimer(signal.ITIMER_REAL, 0)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
compute(2, 3)
for given in [(2, 3), (1, 1)] * 2:
    thread = threading.Thread(target=compute, args=given)
    thread.start()
    while thread.is_alive():
        thread.join(1e-3)  # here signals are received
signal.setitimer(signal.ITIMER_PROF, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the stack of signal handlers is set on Linux")
def test_signals_leave_memory_whole():
    said, problems = in_process(CODE.replace("SIGNALS", "30"))
    assert (said, problems) == ("".join(f"whole with {n}\n" for n in (1, 2, *[2, 1] * 2)), "")


TEAMS = """
import contextlib, os, signal
import numpy as np
from brainstorm.handlers import NativeHandler

def open_to_signals():
    found = set()
    for thread in os.listdir("/proc/self/task"):
        # A smaller team has ended threads of the larger one, maybe only now.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/self/task/{thread}/status") as file:
                words = dict(line.split(":", 1) for line in file)
            if not int(words["SigBlk"], 16) & 1 << signal.SIGINT - 1:
                found.add(thread)
    return found

before = open_to_signals()
handlers = {n: NativeHandler(threads=n) for n in (2, 3, 4)}
a, out = np.ones((2, 512, 512), np.float32)
for n in (3, 2, 4, 2, 4, 3):
    handlers[n].dot_mm(a, a, out)
    assert open_to_signals() <= before, n
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals are blocked on Linux")
def test_no_thread_of_a_team_gets_signals():
    assert in_process(TEAMS) == ("", "")


def test_one_whose_constructor_was_interrupted_is_deleted_silently():
    SignalStack.__new__(SignalStack)
