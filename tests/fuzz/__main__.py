"""Run many changed inputs in worker processes; count, and keep what fails."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

from tests.fuzz import guided
from tests.fuzz.kinds import KINDS, make_input
from tests.fuzz.worker import outcome_of, work

FOLDER = Path("output/fuzz")

#: An input that says nothing for so many seconds hangs, however busy the machine is.
PATIENCE = 60

#: How many inputs a worker process gets at most.
MOST = 2500

#: Workers are forked from a process that has imported everything.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.fuzz.worker"])
#: Processes start and are waited for by one thread at a time: a start asks all others whether they
#: have ended, and what it is told is lost to the thread that waits for them.
ALONE = threading.Lock()


def run_part(kind, seed, start, stop, work=work):
    """Run inputs `start` to `stop` of a kind; return number to outcome."""
    outcomes = {}
    while start < stop:
        receiver, sender = CONTEXT.Pipe(duplex=False)
        worker = CONTEXT.Process(target=work, args=(sender, kind, seed, start, stop))
        with ALONE:
            worker.start()
        sender.close()
        try:
            while receiver.poll(PATIENCE):
                number, outcome = receiver.recv()
                outcomes[number] = outcome
            worker.kill()
        except EOFError:
            pass
        with ALONE:  # it is about to end
            worker.join()
        if worker.exitcode:
            last = max(outcomes, default=-1)
            if last < start:
                raise RuntimeError(f"the worker for {kind!r} does not start")
            outcomes[last] = f"the worker ended with {worker.exitcode}"
            start = last + 1
        else:
            start = stop
    return outcomes


def keep(kind, seed, number, outcome):
    """Write an input that failed, and why."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{kind}-{seed}-{number}"
    value = make_input(kind, seed, number)
    if isinstance(value, bytes):
        path.write_bytes(value)
    path.with_suffix(".txt").write_text(f"--kind {kind} --seed {seed} --number {number}\n{outcome}")


def run(count, seed, workers):
    """Run `count` inputs of all kinds; return kind to counts."""
    parts = []
    for kind, (share, *_) in KINDS.items():
        numbers = round(share * count)
        size = min(MOST, -(-numbers // workers))
        parts += [(kind, seed, i, min(i + size, numbers)) for i in range(0, numbers, size)]
    counts = {kind: collections.Counter() for kind in KINDS}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        done = pool.map(lambda part: run_part(*part), parts)
        for part, outcomes in zip(parts, done, strict=True):
            for number, outcome in outcomes.items():
                known = outcome in ("accepted", "refused")
                counts[part[0]][outcome if known else "failed"] += 1
                if not known:
                    keep(part[0], seed, number, outcome)
    return counts


def main():
    """Print how many inputs of each kind were accepted, refused, and failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--number", type=int)
    args = parser.parse_args()
    if args.kind is not None:
        print(outcome_of(args.kind, make_input(args.kind, args.seed, args.number)))
        return 0
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # of the workers
    begin = time.monotonic()
    counts = run(args.count, args.seed, args.workers)
    row = "{:<14}{:>10}{:>10}{:>10}{:>10}".format
    print(row("kind", "inputs", "accepted", "refused", "failed"))
    for kind, count in [*counts.items(), ("all", sum(counts.values(), collections.Counter()))]:
        print(row(kind, count.total(), count["accepted"], count["refused"], count["failed"]))
    failed = sum(count["failed"] for count in counts.values())
    print(f"{time.monotonic() - begin:.0f} s; failures are in {FOLDER}" if failed else
          f"{time.monotonic() - begin:.0f} s")  # fmt: skip
    return max(bool(failed), guided.run(args.count // 10, FOLDER))


if __name__ == "__main__":
    sys.exit(main())
