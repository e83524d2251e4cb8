"""The benchmark on GPUs, and the compilation of all kernels, without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_workloads
from benchmarks.contestants import FLOAT32
from brainstorm.handlers.pycuda.compilers import RefusedError
from tests import cudashim
from tools import gpu_compile

ROOT = Path(__file__).parents[1]

needs_cuda = pytest.mark.skipif(bool(cudashim.available()), reason=cudashim.available())


@needs_cuda
@pytest.mark.parametrize("workload", gpu_workloads.GPU_WORKLOADS, ids=lambda w: w.key)
def test_workloads_run_traced_and_eagerly(workload):
    from benchmarks import gpu_ours

    for timed in gpu_ours.contestants(gpu_workloads.shrunk(workload), FLOAT32).values():
        start = timed.clock.record()
        timed.call()
        assert timed.clock.milliseconds(start, timed.clock.record()) > 0


@needs_cuda
def test_the_program(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu_timing.SAMPLE", 0.01)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "benchmarks.gpu_torch", raising=False)
    monkeypatch.delitem(sys.modules, "benchmarks.torch_peer", raising=False)
    gpu.main(["--smoke", "--only", "tiny_mlp", "--json", str(tmp_path / "gpu.json")])
    said = capsys.readouterr()
    assert "NO PYTORCH WITH CUDA HERE" in said.err
    assert said.out.count("MLP 784-32-32-10") == 3
    assert (tmp_path / "gpu.json").exists()


def test_the_page_gets_the_table():
    times = {"ours, traced": 2.0, "ours, eager": 3.0, "PyTorch": 5.0, "PyTorch, CUDA graph": 2.5}
    result = {
        "device": "a GPU",
        "limits": {"float32": 50e12},
        "workloads": [
            {
                "name": "MLP",
                "flop": 80e9,
                "times": {
                    "float32": {name: {"minimum": t, "median": t} for name, t in times.items()}
                },
            }
        ],
    }
    page = gpu.render_page(gpu.PAGE.read_text(), result)
    assert "a GPU. Rate of products: 50.0 TFLOP/s float32." in page
    row = next(line for line in page.splitlines() if line.startswith("| MLP |"))
    cells = (
        "float32 | 2.00 (2.00) | 3.00 (3.00) | 5.00 (5.00) |  | 2.50 (2.50) | 2.50 | 1.25 | 80 %"
    )
    assert row == f"| MLP | {cells} |"


@pytest.mark.parametrize(
    ("script", "fine", "text"),
    [
        ("exit 0", True, ""),
        ("echo 'a.cu(3): warning: odd'", True, "a.cu(3): warning: odd"),
        ("echo 'a.cu(3): error: wrong' >&2; exit 1", False, "a.cu(3): error: wrong"),
        (
            "echo 'ptxas info    : Function properties for big'\n"
            "echo '    40 bytes stack frame, 24 bytes spill stores, 8 bytes spill loads'",
            False,
            "big spills 24 bytes of registers",
        ),
        (
            "echo 'ptxas info    : Function properties for small'\n"
            "echo '    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'",
            True,
            "",
        ),
    ],
)
def test_what_nvcc_says(script, fine, text, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\n{script}\n")
    nvcc.chmod(0o755)
    assert gpu_compile.compile_one(str(nvcc), tmp_path / "a.cu", "sm_90") == (fine, text)


class SmallNvrtc:
    def compile(self, text, arch, *options):
        if text != "fine":
            raise RefusedError("a.cu(3): error: wrong")
        said = "    40 bytes stack frame, 24 bytes spill stores, 8 bytes spill loads"
        return b"", f"ptxas info    : Function properties for big\nptxas        .{said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [("fine", "big spills 24 bytes of registers"), ("wrong", "a.cu(3): error: wrong")],
)
def test_what_nvrtc_says(text, said, tmp_path):
    path = tmp_path / "a.cu"
    path.write_text(text)
    assert gpu_compile.compile_one(SmallNvrtc(), path, "sm_90") == (False, said)


def test_a_compiler_that_is_not_here_is_named(capsys, monkeypatch):
    for find in ("find_nvcc", "find_nvrtc"):
        monkeypatch.setattr(gpu_compile, find, lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_compile"])
    with pytest.raises(SystemExit) as ended:
        gpu_compile.main()
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "NO NVRTC HERE" in said
    assert "NO nvcc HERE" in said


def test_a_kernel_that_fails_fails_the_program(capsys, monkeypatch):
    monkeypatch.setattr(gpu_compile, "kernel_sources", lambda: {"a": "fine", "b": "wrong"})
    monkeypatch.setattr(gpu_compile, "find_nvrtc", SmallNvrtc)
    monkeypatch.setattr(gpu_compile, "find_nvcc", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_compile", "sm_90"])
    with pytest.raises(SystemExit) as ended:
        gpu_compile.main()
    assert ended.value.code == 1
    assert "NVRTC: 2 sources for 1 GPUs: 2 failures" in capsys.readouterr().out


@pytest.mark.skipif(importlib.util.find_spec("nvidia") is None, reason="NO NVIDIA WHEELS HERE")
def test_every_kernel_that_is_written_by_hand_compiles_with_the_real_nvrtc():
    """In a process of its own: in this one the tests' library has the name."""
    script = (
        "from brainstorm.handlers.pycuda.compilers import Nvrtc\n"
        "from tools.gpu_sources import kernel_sources\n"
        "try: nvrtc = Nvrtc()\n"
        "except OSError: print('no NVRTC'); raise SystemExit\n"
        "for name, text in kernel_sources().items():\n"
        "    if 'op_trees' not in name: nvrtc.compile(text, 'sm_90')\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    if "no NVRTC" in done.stdout:
        pytest.skip(
            "NO NVRTC HERE (pip install nvidia-cuda-nvrtc): KERNELS WERE NOT COMPILED BY IT"
        )
