"""The first hour on a GPU, on the tests' CUDA driver: what is known stays, the rest is repeated."""

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests import cudashim
from tools import gpu_hour
from tools.gpu_results import Results

ROOT = Path(__file__).parents[1]
needs_cuda = pytest.mark.skipif(bool(cudashim.available()), reason=cudashim.available())


def test_results_are_on_disk_when_they_are_known_and_a_line_that_was_cut_off_is_dropped(tmp_path):
    file = tmp_path / "made" / "part1.jsonl"
    results = Results(file)
    results.add("a", seconds=1.0)
    results.add("b", error="failed")
    assert [json.loads(line)["what"] for line in file.read_text().splitlines()] == ["a", "b"]
    file.write_text(file.read_text() + '{"what": "c", "sec')
    results = Results(file)
    assert "a" in results
    assert "c" not in results
    results.forget_failures()
    assert list(Results(file).lines) == ["a"]


TESTS = """
    import pytest
    from tests import cudashim
    cudashim.available()

    def test_passes():
        pass

    def test_kills_the_gpu():
        import pycuda.driver as driver
        driver.init()
        context = driver.Device(0).retain_primary_context()
        context.push()
        cudashim.lose_device()
        raise RuntimeError("the GPU is lost")

    def test_comes_next():
        pass

    def test_comes_last():
        pass
"""


@needs_cuda
@pytest.mark.skipif(not cudashim.installed_here(), reason="THIS NEEDS THE TESTS' DRIVER")
def test_a_lost_gpu_costs_two_tests_which_run_again(tmp_path):
    (tmp_path / "test_gpu.py").write_text(textwrap.dedent(TESTS))
    file = tmp_path / "part1.jsonl"
    options = f"-n 1 -p no:cacheprovider -p tools.gpu_properties --rootdir {tmp_path}"
    command = [sys.executable, "-m", "pytest", *options.split(), "--gpu-results", file, tmp_path]
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTEST_XDIST_WORKER", None)
    for passed in (["test_comes_last", "test_passes"], ["test_comes_next"]):
        subprocess.run([*map(str, command)], cwd=tmp_path, env=environment, capture_output=True)
        results = Results(file)
        found = [what for what, line in results.lines.items() if line["outcome"] == "passed"]
        new = {what.partition("::")[2] for what in found}
        assert new >= set(passed)
        assert "the GPU is lost" in results.lines["test_gpu.py::test_kills_the_gpu"]["error"]
        results.forget_failures()
        assert set(results.lines) == set(found)


def run_part(part, folder, *options):
    """Run a part in this process; what it says at its end."""
    with pytest.raises(SystemExit) as ended:
        gpu_hour.main([str(part), "--results", str(folder), "--smoke", *options])
    return ended.value.code


@needs_cuda
def test_rows_go_on_where_they_were(tmp_path, capfd):
    file = tmp_path / "part2.jsonl"
    Results(file).add("tiny_mlp, float32, part 2", error="the GPU failed")
    assert run_part(2, tmp_path, "--budget", "0") == 0
    said = capfd.readouterr().out
    assert "part 2: 0 results, 0 failed" in said


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """Make a compute-sanitizer of a script."""

    def make(script):
        program = tmp_path / "compute-sanitizer"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return make


def test_sanitizers_look_at_our_kernels_one_after_the_other(tmp_path, sanitizer, capsys):
    log = tmp_path / "log"
    sanitizer(f'echo "$@" >> {log}; [ "$2" != racecheck ] || {{ echo "RACE"; exit 9; }}')
    for expected in (["memcheck", "racecheck", "synccheck"], ["racecheck"]):
        assert run_part(4, tmp_path) == 1
        commands = log.read_text().splitlines()
        log.unlink()
        assert [command.split()[1] for command in commands] == expected
        ours = re.compile(re.search(r"--kernel-name=regex=(\S+)", commands[0])[1])
        for kernel in ("loop_12af", "random_normal", "scatter_each", "align"):
            assert ours.search(kernel)
        assert not ours.search("cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4")
        assert "FAILED racecheck" in capsys.readouterr().out
    assert "RACE" in Results(tmp_path / "part4.jsonl").lines["racecheck"]["error"]


def test_without_the_sanitizer_it_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert run_part(4, tmp_path) == 0
    assert "NO compute-sanitizer HERE" in capsys.readouterr().out


def test_a_signal_while_a_program_starts_ends_it(tmp_path, monkeypatch):
    started, start = [], subprocess.Popen

    def terminated(*args, **options):
        started.append(start(*args, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    options = {"results": tmp_path, "part": 4, "budget": 99, "smoke": True, "processes": 1}
    hour = gpu_hour.Hour(argparse.Namespace(**options))
    monkeypatch.setattr(subprocess, "Popen", terminated)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with pytest.raises(SystemExit, match="143"):
            hour.run("sleep", "600")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].poll() == -signal.SIGKILL


@pytest.mark.parametrize("ends", ["the time is over", "it is terminated"])
def test_a_part_that_ends_ends_what_it_started(ends, tmp_path, sanitizer):
    os.mkfifo(tmp_path / "held")
    sanitizer(f"exec 3> '{tmp_path}/held'; echo begun >&3; sleep 600 & wait")
    command = [sys.executable, "-m", "tools.gpu_hour", "4", "--results", str(tmp_path)]
    command += ["--budget", "1" if "time" in ends else "99"]
    with open(os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)) as held:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if "terminated" in ends:
            select.select([held], [], [])  # until it has begun
            process.terminate()
        assert process.wait() == (143 if "terminated" in ends else 0)
        assert not Results(tmp_path / "part4.jsonl").lines
        os.set_blocking(held.fileno(), True)
        assert set(held.read().split()) <= {"begun"}  # read when all have ended that could write


@needs_cuda
def test_all_kernels_run():
    """What the sanitizers look at; a few of them here."""
    command = [sys.executable, "-m", "tests.gpu_kernels", "--smoke"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "all kernels ran\n", done.stderr
