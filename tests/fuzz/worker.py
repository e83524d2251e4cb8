"""Runs inputs of one kind under limits, and writes what became of each."""

from __future__ import annotations

import argparse
import json
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


def main():
    """Run a range of inputs; one line of JSON for each: before it runs, and after."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    for name in ("seed", "start", "stop"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    outcome_of(args.kind, make_input(args.kind, args.seed, -1))  # imports and caches
    if sys.platform == "linux":
        limit_memory()
    for number in range(args.start, args.stop):
        value = make_input(args.kind, args.seed, number)
        print(json.dumps([number, "begun"]), flush=True)
        signal.alarm(60)  # where the parent process is gone
        print(json.dumps([number, outcome_of(args.kind, value)]), flush=True)


if __name__ == "__main__":
    main()
