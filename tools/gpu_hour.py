"""The first hour on a machine with a GPU, in four parts of under ten minutes.

    python -m tools.gpu_hour PART [--results FOLDER] [--budget SECONDS] [--processes N] [--smoke]

1: the available libraries, the smoke test, the properties of the handler and of all layers. 2:
training steps in float32, bfloat16 and TF32, compared with PyTorch, eager and as a CUDA graph. 3:
compared with torch.compile. 4: our kernels under NVIDIA's sanitizers, one after the other.

Results are in FOLDER: `partN.jsonl`, from which an interrupted part continues, and `partN.log`.
Failures are retried. With ``--smoke`` everything is tiny, for the CPU driver of the tests.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from brainstorm.handlers.pycuda.modules import FILES, file_source
from brainstorm.interrupts import uninterrupted
from tools.gpu_results import Results

__all__ = ["main"]

#: Of compute-sanitizer, with arguments of the program that it looks at: racecheck fails in kernels
#: of NVIDIA's libraries for tensor cores.
SANITIZERS = {"memcheck": (), "racecheck": ("--precision", "float32"), "synccheck": ()}
PROPERTY_TESTS = ("tests/handlers", "-k", "pycuda")
#: What is small enough for the tests' driver, which is a thousand times slower.
SMALL_TESTS = ("tests/handlers/pycuda/test_nvrtc.py", "tests/handlers/pycuda/test_transfers.py")


class Hour:
    """A part, the time that is left for it, and where its results go.

    Args:
        arguments: Of the program.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        folder = arguments.results
        self.path = folder / f"part{arguments.part}.jsonl"
        self.results = Results(self.path)
        self.results.forget_failures()
        self.log = folder / f"part{arguments.part}.log"
        self.end = time.monotonic() + arguments.budget
        self.is_smoke, self.processes = arguments.smoke, arguments.processes

    def run(self, *command: str) -> int | None:
        """Run a program, whose output goes to the log too.

        Returns:
            Its exit status; None: the time was over, and it was ended with all that it started.
        """
        where = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a") as log:
            print("$", " ".join(command), file=log, flush=True)
            process = None
            try:
                with uninterrupted():  # a signal while it starts would leave it without a name
                    process = subprocess.Popen(
                        command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=os.setpgrp
                    )
                status = process.wait(max(0.0, self.end - time.monotonic()))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self.said = self.log.read_bytes()[where:].decode(errors="replace")
        return status

    def step(self, what: str, *command: str) -> None:
        """Run a program, unless it is known how it ended, and add how it did."""
        if what in self.results:
            return
        start = time.monotonic()
        status = self.run(*command)
        if status is None:
            print(f"{what}: THE TIME WAS OVER")
            return
        error = f"exit status {status}: {self.said[-2000:]}" if status else ""
        seconds = round(time.monotonic() - start, 1)
        self.results.add(what, seconds=seconds, said=self.said[-4000:], error=error)


def check(hour: Hour) -> None:
    """Part 1: is everything there, and does it compute what it should?"""
    python = (sys.executable, "-m")
    hour.step("smoke test", *python, "tests.gpu_smoke")
    print(hour.results.lines.get("smoke test", {}).get("said", ""))
    properties = SMALL_TESTS if hour.is_smoke else PROPERTY_TESTS
    # Warnings of packages that are there in other versions than ours are no errors.
    options = ("-n", str(hour.processes), "--timeout", "600", "-o", "filterwarnings=default")
    options += ("-p", "no:cacheprovider", "-p", "tools.gpu_properties", "--gpu-results")
    status = hour.run(*python, "pytest", *options, str(hour.path), *properties)
    print(hour.said[-2000:])
    hour.results = Results(hour.path)
    if status not in (0, 1, 5, None):  # passed, failed, nothing left, out of time
        hour.results.add("pytest", error=f"exit status {status}: {hour.said[-2000:]}")


def measure(hour: Hour, part: int) -> None:
    """Parts 2 and 3; a process that fails has lost its GPU, and another one goes on."""
    options = ("--smoke",) if hour.is_smoke else ()
    known = -1
    while len(hour.results.lines) > known:
        known = len(hour.results.lines)
        left = f"{hour.end - time.monotonic():.0f}"
        command = (sys.executable, "-m", "benchmarks.gpu", str(part), str(hour.path))
        status = hour.run(*command, "--budget", left, *options)
        print(hour.said[-6000:])
        hour.results = Results(hour.path)
        if not status:
            return


def sanitize(hour: Hour) -> None:
    """Part 4: illegal accesses, races and wrong barriers, of our kernels alone."""
    if shutil.which("compute-sanitizer") is None:
        print("NO compute-sanitizer HERE: NOBODY LOOKED FOR RACES AND ILLEGAL ACCESSES")
        return
    names = [name for file in FILES for name in re.findall(r"void (\w+)\(", file_source(file))]
    ours = f"--kernel-name=regex=^((loop|steps|few_rows)_[0-9a-f]+|{'|'.join(names)})$"
    alone = ("--target-processes", "application-only")
    without_cudnn = ("env", "BRAINSTORM_CUDNN=off")  # racecheck fails in some of its kernels, too
    for tool, precision in SANITIZERS.items():
        sanitizer = ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9", ours, *alone)
        program = (sys.executable, "-m", "tests.gpu_kernels", *precision)
        smoke = ("--smoke",) * hour.is_smoke
        hour.step(tool, *without_cudnn, *sanitizer, *program, *smoke)
        print(tool, json.dumps(hour.results.lines.get(tool, {})), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", type=int, choices=(1, 2, 3, 4))
    parser.add_argument("--results", type=Path, default=Path("output/gpu"), metavar="FOLDER")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--smoke", action="store_true", help="everything tiny")
    arguments = parser.parse_args(argv)
    hour = Hour(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what it has started, too
    if arguments.part == 1:
        check(hour)
    elif arguments.part == 4:
        sanitize(hour)
    else:
        measure(hour, arguments.part)
    failed = [what for what, line in hour.results.lines.items() if line.get("error")]
    print(f"part {arguments.part}: {len(hour.results.lines)} results, {len(failed)} failed")
    for what in failed:
        print(f"FAILED {what}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
