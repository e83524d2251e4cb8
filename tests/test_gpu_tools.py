"""The benchmark on GPUs, and the compilation of all kernels, without a GPU."""

import importlib.util
import json
import sys
from unittest import mock

import pytest

from benchmarks import gpu, gpu_report, gpu_workloads, report
from benchmarks.contestants import FLOAT32
from brainstorm.handlers.pycuda.nvrtc import RefusedError
from tests import cudashim
from tests.handlers.running import in_process
from tools import gpu_compile
from tools.gpu_results import Results

needs_cuda = pytest.mark.skipif(bool(cudashim.available()), reason=cudashim.available())


@needs_cuda
@pytest.mark.parametrize("workload", gpu_workloads.GPU_WORKLOADS, ids=lambda w: w.key)
def test_workloads_run_traced_and_eagerly(workload):
    from benchmarks import gpu_ours

    for timed in gpu_ours.contestants(gpu_workloads.shrunk(workload), FLOAT32).values():
        start = timed.clock.record()
        timed.call()
        assert timed.clock.milliseconds(start, timed.clock.record()) > 0


@pytest.fixture
def alone(monkeypatch):
    """Without PyTorch."""
    monkeypatch.setattr("benchmarks.gpu_timing.SAMPLE", 0.01)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "benchmarks.gpu_torch", raising=False)
    monkeypatch.delitem(sys.modules, "benchmarks.torch_peer", raising=False)


@needs_cuda
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("part", ["2", "3"])
def test_rows_are_on_disk_when_they_are_measured_and_known_afterwards(part, tmp_path, capsys):
    command = [part, str(tmp_path / "part.jsonl"), "--smoke", "--only", "tiny_mlp"]
    gpu.main(command)
    said = capsys.readouterr()
    assert "NO PYTORCH WITH CUDA HERE" in said.err
    assert said.out.count("MLP 784-32-32-10") == 3
    content = (tmp_path / "part.jsonl").read_text()
    assert len(content.splitlines()) == 1 + 2 * 3  # the machine; limits and rows
    gpu.main(command)
    assert "measuring" not in capsys.readouterr().err
    assert (tmp_path / "part.jsonl").read_text() == content


@needs_cuda
@pytest.mark.usefixtures("alone")
def test_a_row_that_fails_is_noted_and_ends_the_program(tmp_path, monkeypatch):
    failure, file = RuntimeError("an illegal memory access"), tmp_path / "part.jsonl"
    monkeypatch.setattr(gpu, "take_turns_on_gpu", mock.Mock(side_effect=failure))
    with pytest.raises(RuntimeError, match="illegal"):
        gpu.main(["2", str(file), "--smoke", "--only", "tiny_mlp"])
    error = "RuntimeError: an illegal memory access"
    assert Results(file).lines["limit float32"] == {"what": "limit float32", "error": error}


@needs_cuda
@pytest.mark.usefixtures("alone")
def test_no_row_begins_after_the_budget(tmp_path, capsys):
    gpu.main(["2", str(tmp_path / "part.jsonl"), "--smoke", "--budget", "0"])
    assert "THE TIME IS OVER" in capsys.readouterr().out
    assert not Results(tmp_path / "part.jsonl").lines


def _line(part, **times):
    values = {name.replace("_", " "): {"minimum": t, "median": t} for name, t in times.items()}
    ways = {"traced": "ours, traced", "graph": "PyTorch, CUDA graph", "compiled": "torch.compile"}
    times = {ways.get(name, name): value for name, value in values.items()}
    what = {"what": part, "workload": "MLP", "precision": "float32", "flop": 80e9}
    return {**what, "times": times}


def test_the_page_gets_the_tables_of_both_parts(tmp_path, monkeypatch):
    lines = {
        "part2": [
            {"what": "machine", "device": "a GPU"},
            {"what": "limit float32", "precision": "float32", "limit": 50e12},
            {"what": "other", "error": "failed"},
            _line("part2", traced=2.0, PyTorch=5.0, graph=2.5),
        ],
        "part3": [{"what": "machine", "device": "a GPU"}, _line("3", traced=4.0, compiled=6.0)],
    }
    for part, content in lines.items():
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in content))
    page = tmp_path / "page.md"
    page.write_text(gpu_report.PAGE.read_text())
    monkeypatch.setattr(gpu_report, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "none"), "--gpu", str(tmp_path)])
    report.main()
    assert "a GPU. Rate of products: 50.0 TFLOP/s float32." in page.read_text()
    row = next(line for line in page.read_text().splitlines() if line.startswith("| MLP |"))
    cells = "float32 | 2.00 (2.00) |  | 5.00 (5.00) | 2.50 (2.50) | 6.00 (6.00) | 2.50 | 1.25"
    assert row == f"| MLP | {cells} | 1.50 | 80 % |"


def test_times_of_the_tests_driver_are_no_times_of_a_gpu(tmp_path):
    (tmp_path / "a").write_text('{"what": "machine", "device": "cudashim 0 (CPU)"}\n')
    with pytest.raises(ValueError, match="expected times of a GPU, got those of cudashim"):
        gpu_report.read_lines([tmp_path / "a"])


def test_without_figures_there_is_nothing_to_report(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path), "--gpu", str(tmp_path)])
    with pytest.raises(SystemExit, match="nothing was measured"):
        report.main()


@pytest.mark.parametrize(
    ("script", "fine", "text"),
    [
        ("exit 0", True, ""),
        ("echo 'a.cu(3): warning: odd'", True, "a.cu(3): warning: odd"),
        ("echo 'a.cu(3): error: wrong' >&2; exit 1", False, "a.cu(3): error: wrong"),
        ("echo 'ptxas info    : Function properties for big'\n"
         "echo '    40 bytes stack frame, 24 bytes spill stores, 8 bytes spill loads'", False,
         "big spills 24 bytes of registers"),
        ("echo 'ptxas info    : Function properties for small'\n"
         "echo '    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads'", True, ""),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize("nvrtc", [None, SmallNvrtc()])
def test_a_compiler_that_is_not_here_is_named_and_a_kernel_that_fails_fails_the_program(
    nvrtc, capsys, monkeypatch
):
    monkeypatch.setattr(gpu_compile, "kernel_sources", lambda: {"a": "fine", "b": "wrong"})
    monkeypatch.setattr(gpu_compile, "find_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(gpu_compile, "find_nvcc", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_compile", "sm_90"])
    with pytest.raises(SystemExit) as ended:
        gpu_compile.main()
    assert ended.value.code == bool(nvrtc)
    said = capsys.readouterr().out
    assert "NO nvcc HERE" in said
    assert ("NO NVRTC HERE" in said) == (nvrtc is None)
    for line in ("a for sm_90: FAILED\nbig spills 24 bytes of registers",
                 "b for sm_90: FAILED\na.cu(3): error: wrong",
                 "NVRTC: 2 sources for 1 GPUs: 2 failures"):  # fmt: skip
        assert (line in said) == bool(nvrtc)


@pytest.mark.skipif(importlib.util.find_spec("nvidia") is None, reason="NO NVIDIA WHEELS HERE")
def test_every_kernel_that_is_written_by_hand_compiles_with_the_real_nvrtc():
    """In a process of its own: in this one the tests' library has the name."""
    script = (
        "from brainstorm.handlers.pycuda.nvrtc import Nvrtc\n"
        "from tools.gpu_sources import kernel_sources\n"
        "try: nvrtc = Nvrtc()\n"
        "except OSError: print('no NVRTC'); raise SystemExit\n"
        "for name, text in kernel_sources().items():\n"
        "    if 'op_trees' not in name: nvrtc.compile(text, 'sm_90')\n"
    )
    said, _ = in_process(script)
    if "no NVRTC" in said:
        pytest.skip(
            "NO NVRTC HERE (pip install nvidia-cuda-nvrtc): KERNELS WERE NOT COMPILED BY IT"
        )
