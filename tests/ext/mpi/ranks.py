"""Jobs of several ranks for tests: each function of `jobs` can be run by a real ``mpiexec``."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from brainstorm import optional

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")

needs_mpi = pytest.mark.skipif(
    not (MPIEXEC and optional.has("mpi4py")),
    reason="no mpi4py or no mpiexec: pip install 'brainstorm[mpi]' mpich",
)

ROOT = Path(__file__).parents[3]


@dataclass
class Job:
    """What came of a job: its exit status, what was printed, and what each rank has returned."""

    status: int
    printed: str
    results: list

    @property
    def errors(self):
        """The message of the error that ended each rank, `None` for those that had none."""
        return [(result or {}).get("error") for result in self.results]

    @property
    def values(self):
        assert self.status == 0, self.printed
        return [result["value"] for result in self.results]


def run_job(ranks, name, *arguments, timeout=60):
    """Run a function of `jobs` on so many ranks.

    Args:
        ranks: How many; `None`: one process without ``mpiexec``.
        name: The function.
        *arguments: What JSON can hold.
        timeout: Seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = f'exec "$0" -m tests.ext.mpi.jobs "$@" > {folder}/${{PMI_RANK:-0}}.txt 2>&1'
        launcher = [MPIEXEC, "-launcher", "fork", "-n", str(ranks)] if ranks else []
        done = subprocess.run(
            [*launcher, "bash", "-c", script, sys.executable, name, folder, json.dumps(arguments)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        files = [Path(folder) / f"{rank}.json" for rank in range(ranks or 1)]
        results = [json.loads(f.read_text()) if f.exists() else None for f in files]
        printed = [Path(folder, f"{rank}.txt").read_text() for rank in range(ranks or 1)]
        return Job(done.returncode, done.stdout + "\n".join(printed), results)
