"""Signals that come while oneDNN computes."""

import subprocess
import sys

import pytest

#: Products of the gradients of weights, whose scratch memory is the stack on processors with
#: AVX-512, with a thousand signals a second. Under pytest, faulthandler gives them a stack, so this
#: is a process of its own.
CODE = """
import signal, sys, threading, time
import numpy as np
from brainstorm.handlers import NativeHandler

kind, threads, size, is_main = sys.argv[1], *map(int, sys.argv[2:])
received = []
signal.signal(getattr(signal, f"SIG{kind}"), lambda *_: received.append(1))
timer = signal.ITIMER_PROF if kind == "PROF" else signal.ITIMER_REAL
handler, rnd = NativeHandler(threads=threads), np.random.RandomState(0)
a, b = (rnd.standard_normal((1600 * size, n * size)).astype(np.float32) for n in (8, 32))
expected = a.T.astype(float) @ b

def compute():
    out = np.zeros((a.shape[1], b.shape[1]), np.float32)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        out.fill(0)
        handler.dot_mm(a, b, out, transa=True)
        assert np.allclose(out, expected, 1e-3, 1e-3 * size)
        [bytes(37 * n) for n in range(200)]  # finds a broken heap
    print("whole")

signal.setitimer(timer, 0.001, 0.001)
if is_main:
    compute()
else:
    for _ in range(3):
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
signal.setitimer(timer, 0)
assert received
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the stack of signal handlers is set on Linux")
@pytest.mark.parametrize(
    ("kind", "threads", "size", "is_main"),
    [("ALRM", 1, 1, True), ("PROF", 2, 3, True), ("PROF", 2, 3, False), ("PROF", 1, 1, False)],
)
def test_signals_leave_memory_whole(kind, threads, size, is_main):
    words = [sys.executable, "-c", CODE, kind, *map(str, (threads, size, int(is_main)))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    said = "whole\n" * (1 if is_main else 3)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


TEAMS = """
import os, signal, threading
import numpy as np
from brainstorm.handlers import NativeHandler

def open_to_signals():
    found = set()
    for thread in os.listdir("/proc/self/task"):
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
    done = subprocess.run(
        [sys.executable, "-c", TEAMS], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
