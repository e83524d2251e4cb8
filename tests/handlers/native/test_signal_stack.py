"""Signals that come while oneDNN computes."""

import subprocess
import sys

import pytest

#: Products of the gradients of weights, whose scratch memory is the stack on processors with
#: AVX-512, with a thousand signals a second. Under pytest, faulthandler gives them a stack, so this
#: is a process of its own.
CODE = """
import signal
import numpy as np
from brainstorm.handlers import NativeHandler

received = []
signal.signal(signal.SIGALRM, lambda *_: received.append(1))
handler, rnd = NativeHandler(threads=1), np.random.RandomState(0)
a, b = (rnd.standard_normal((1600, n)).astype(np.float32) for n in (8, 32))
out, expected = np.zeros((2, 8, 32), np.float32)
handler.dot_mm(a, b, expected, transa=True)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
while len(received) < 400:
    out.fill(0)
    handler.dot_mm(a, b, out, transa=True)
    assert np.array_equal(out, expected)
    [bytes(37 * n) for n in range(200)]  # finds a broken heap
signal.setitimer(signal.ITIMER_REAL, 0)
print("whole")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the stack of signal handlers is set on Linux")
def test_signals_leave_memory_whole():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "whole\n", "")
