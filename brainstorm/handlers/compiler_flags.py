"""Flags that a C compiler supports: found by compiling and running test programs.

Every compiler gets flags for fast code; if it rejects a group of flags, or a program compiled with
them does not run correctly, only that group is left out.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from brainstorm.errors import MissingDependencyError

#: Time limit of the compiler in seconds.
PATIENCE = 120


class Flags(NamedTuple):
    """Flags before and after a source, separated by spaces."""

    options: str
    libraries: str = ""

    def __add__(self, more: Flags) -> Flags:  # type: ignore[override]
        return Flags(f"{self.options} {more.options}", f"{more.libraries} {self.libraries}")

    @property
    def has_threads(self) -> bool:
        """Whether loops run in several threads."""
        return "-DBS_THREADS" in self.options.split()

    def command(
        self, command: Sequence[str], source: Path, target: Path, extra: str = ""
    ) -> list[str]:
        """Return the command line that builds `target` from `source`."""
        before, after = (*self.options.split(), *extra.split()), self.libraries.split()
        return [*command, *before, str(source), "-o", str(target), *after]


# GCC would use half of AVX-512's registers, because wide ones slowed down processors of 2017.
_WIDE = " -mprefer-vector-width=512" if platform.machine() in ("x86_64", "AMD64") else ""

#: Flags for every compiler.
BASE = Flags("-O3 -w -fPIC", "-lm")
#: Groups of alternatives, of which the first that works is used, or none.
GROUPS = (
    (Flags("-std=gnu11"),),
    # Zig's compiler may insert traps for undefined behaviour unless it is told not to.
    (Flags("-fno-math-errno -fno-trapping-math -ffp-contract=fast -fno-sanitize=all"),),
    # For GCC. Threaded jumps would make masked special cases of clamped values, and partial
    # redundancy elimination would add branches, with which a loop is not vectorised.
    (Flags("-fno-thread-jumps -fno-tree-pre"),),
    # For GCC from 9 on: a loop is written for the strides that are 1, and needs no more versions.
    (Flags("-fno-version-loops-for-strides"),),
    (Flags(f"-march=native{_WIDE}"), Flags("-march=native"), Flags("-mcpu=native")),
    (Flags("-fopenmp -DBS_THREADS"), Flags("-fopenmp-simd")),
    # GCC finds the vector functions of the GNU C library by their declarations, clang by a flag.
    (Flags("-DBS_VECTOR_LIBRARY", "-lmvec"), Flags("-fveclib=libmvec", "-lmvec")),
)

#: A program that returns 0 if vectors and threads work. The vector library has had `tanh`, and more
#: that we use, since version 2.35 of the GNU C library; `exp` is older.
_PROBE = r"""
#ifdef __cplusplus
#error "it compiles C++; name a compiler of C"
#endif
#include <math.h>
#ifdef BS_VECTOR_LIBRARY
#ifdef __clang__
#error "it does not vectorise calls of declared functions"
#endif
#pragma omp declare simd notinbranch
double exp(double);
#pragma omp declare simd notinbranch
double tanh(double);
#endif
int main(int count, char **words) {
  double x[64], y[64], started = 0;
  for (int i = 0; i < 64; i++) x[i] = count + i / 64.0;
#pragma omp simd
  for (int i = 0; i < 64; i++) y[i] = exp(x[i]) * exp(-x[i]) - 1 + tanh(x[i]) + tanh(-x[i]);
  for (int i = 0; i < 64; i++)
    if (!(fabs(y[i]) < 1e-13)) return 2;
#pragma omp parallel num_threads(2)
  {
#pragma omp atomic
    started += 1;
  }
#ifdef BS_THREADS
  if (started != 2) return 3;
#endif
  return 0;
}
"""


def find_flags(command: Sequence[str], work: Path) -> Flags:
    """Return the best flags that a compiler supports.

    Args:
        command: Its command.
        work: A directory for files, which are left there.

    Raises:
        MissingDependencyError: The programs that it builds do not run.
        OSError: The directory cannot be written.
    """
    source, program = work / "probe.c", work / "probe"
    source.write_text(_PROBE)

    def problem(flags: Flags) -> str:
        program.unlink(missing_ok=True)
        return run_compiler(flags.command(command, source, program)) or _run(program)

    flags = BASE
    for group in GROUPS:
        flags += group[0]
    if not problem(flags):  # all groups work with GCC on Linux
        return flags
    flags = BASE
    if refusal := problem(flags):
        raise MissingDependencyError(f"{shlex.join(command)} failed: {refusal}")
    for group in GROUPS:
        better = (flags + more for more in group)
        flags = next((more for more in better if not problem(more)), flags)
    return flags


def run_compiler(words: Sequence[str]) -> str:
    """Run a compiler and return the problem, or an empty text.

    Raises:
        MissingDependencyError: It takes too long.
    """
    try:
        done = run(words)
    except OSError as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return done.stderr.strip()[:1000] or f"it returned {done.returncode}"


def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler; if it takes too long, it is stopped with all processes that it has begun.

    Raises:
        MissingDependencyError: It takes too long.
        OSError: It cannot be run.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdout=pipe, stderr=pipe, text=True, errors="replace", start_new_session=True
    ) as process:
        try:
            output, problems = process.communicate(timeout=PATIENCE)
        except BaseException as error:  # Ctrl-C does not reach another session
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:  # Windows
                process.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise MissingDependencyError(
                f"{shlex.join(words)} was not done after {PATIENCE} seconds"
            ) from None
    return subprocess.CompletedProcess(words, process.returncode, output, problems)


def _run(program: Path) -> str:
    # The user's settings of OpenMP (e.g. fewer threads) are irrelevant for the compiler.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    try:
        done = subprocess.run(
            [str(program)], capture_output=True, timeout=PATIENCE, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its program does not run: {error}"
    return f"its program returns {done.returncode}" if done.returncode else ""
