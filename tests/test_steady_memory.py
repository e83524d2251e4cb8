"""Training on batches of changing size below the largest: nothing grows, nothing is allocated."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from brainstorm.handlers import compiler
from brainstorm.handlers.native.library import load

ROOT = Path(__file__).parent.parent

#: A view of an array is a header of some hundred bytes; the smallest batch has 1 kB of inputs, the
#: largest 41 kB.
VIEWS = 24_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is Linux's")
def test_many_steps_with_changing_sizes_allocate_nothing(tmp_path):
    file = tmp_path / "steady.json"
    is_native = compiler.is_available() and load()[0] is not None
    steps = ["--steps", "2000"] if is_native else ["--steps", "120", "--warm-up", "60"]
    command = [sys.executable, "-m", "benchmarks.steady", *steps, "--json", file]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    before, after = found["resident"]
    assert after - before < 1_000_000
    before, after = found["objects"]
    assert before == after > 0
    if is_native:  # else NumPy allocates what it needs
        assert found["traced"] < VIEWS
