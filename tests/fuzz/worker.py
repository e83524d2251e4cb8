"""Runs inputs of one kind under limits, and writes what became of each."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback

from brainstorm.errors import BrainstormError
from tests.fuzz.kinds import KINDS, make_input

#: Most seconds of the processor, and bytes beside those of the process, that an input may take.
SECONDS, BYTES = 5.0, 500_000_000


def outcome_of(read, value):
    """Return 'accepted', 'refused', or what went wrong; `read` is a kind or a function."""
    begin = time.process_time()
    try:
        (KINDS[read][2] if isinstance(read, str) else read)(value)
        outcome = "accepted"
    except BrainstormError as error:
        outcome = "refused" if str(error) else "an error without a text"
    except Exception:
        outcome = traceback.format_exc()
    taken = time.process_time() - begin
    return outcome if taken <= SECONDS else f"took {taken:.1f} s"


def limit_memory():
    """Allow this process no more than `BYTES` beside what it has."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))


def work(sender, kind, seed, start, stop):
    """Run a range of inputs; send the number of each with a word before it runs, and after."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outcome_of(kind, make_input(kind, seed, -1))  # caches
    if sys.platform == "linux":
        limit_memory()
    for number in range(start, stop):
        value = make_input(kind, seed, number)
        sender.send((number, "begun"))
        signal.alarm(100)  # where the parent process is gone
        sender.send((number, outcome_of(kind, value)))
