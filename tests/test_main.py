"""The command line: what it prints, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import brainstorm as bs
from brainstorm.__main__ import main
from brainstorm.data_iterators import Undivided
from brainstorm.files import write_network_file
from brainstorm.hooks import MonitorLoss, SaveCheckpoint
from brainstorm.initializers import Gaussian
from brainstorm.tools import create_net_from_spec
from brainstorm.training import AdamStepper, Trainer
from tests.trainings import make_trainer


@pytest.fixture
def net():
    net = create_net_from_spec("regression", 3, 2, "B Ft5")
    net.initialize(Gaussian(0.5), seed=1)
    return net


@pytest.fixture
def network_file(net, tmp_path):
    net.save_as_hdf5(tmp_path / "net.hdf5", comment="the first one")
    return str(tmp_path / "net.hdf5")


@pytest.fixture
def run_file(net, tmp_path):
    x = np.random.RandomState(0).normal(size=(1, 9, 3))
    data = Undivided(default=x, targets=x[..., :2])
    hooks = MonitorLoss("validation", name="valid"), SaveCheckpoint(tmp_path / "run.hdf5")
    trainer = make_trainer(*hooks, stepper=AdamStepper(0.01), epochs=3)
    trainer.train(net, data, validation=data)
    return str(tmp_path / "run.hdf5")


def rows(text):
    """Return the facts at the begin of the output of ``info``."""
    lines = text.partition("\n\n")[0].split("\n")
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in lines)}


def test_info_of_a_network(net, network_file, capsys):
    assert main(["info", network_file]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert rows(out) == {
        "file": network_file,
        "format": "Network file v2.0",
        "comment": "the first one",
        "handler": type(net.handler).__name__,
    }
    assert "\nBatchNorm          BatchNorm " in out
    assert "  FullyConnected  FullyConnected(size=5, activation='tanh')  from BatchNorm\n" in out


def test_info_of_a_run(run_file, capsys):
    assert main(["info", run_file]) == 0
    found = rows(capsys.readouterr().out)
    assert (found["format"], found["epochs"], found["updates"]) == ("Run file v1.0", "3", "3")
    assert found["stepper"].startswith("AdamStepper, learning_rate=0.01, ")
    assert found["hooks"] == "valid, SaveCheckpoint, StopAfterEpoch"
    assert float(found["log valid.total_loss"]) > 0
    assert found["log StopAfterEpoch"] == "reached max_epochs=3"


def test_draw(net, network_file, tmp_path, monkeypatch, capsys):
    output = tmp_path / "net.dot"
    assert main(["draw", network_file, str(output)]) == 0
    assert output.read_text() == bs.tools.network_as_dot(net)
    assert capsys.readouterr().out == f"wrote {output}\n"
    monkeypatch.setitem(sys.modules, "graphviz", None)
    assert main(["draw", network_file]) == 2
    assert "pip install 'brainstorm[draw]'" in capsys.readouterr().err


def test_check(network_file, run_file, capsys):
    for file in (network_file, run_file):
        assert main(["check", file]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.endswith(f"{file}: all values are finite\n")
        names = {line.split()[0] for line in out.split("\n")[1:-2]}
        assert {"FullyConnected.parameters.W", "BatchNorm.internals.running_var"} < names


def test_check_names_what_is_not_finite(net, tmp_path, capsys):
    net.buffer.FullyConnected.parameters.W[0, :2] = np.nan, np.inf
    net.buffer.BatchNorm.internals.running_mean[1] = np.nan
    file = str(tmp_path / "bad.hdf5")
    net.save_as_hdf5(file)
    assert main(["check", file]) == 1
    out, err = capsys.readouterr()
    assert "finite" not in out
    assert err == (
        f"brainstorm: {file!r}, FullyConnected.parameters.W: expected finite values, got 1 NaN and "
        f"1 infinite ones.\n"
        f"brainstorm: {file!r}, BatchNorm.internals.running_mean: expected finite values, got 1 "
        f"NaN and 0 infinite ones.\n"
    )


@pytest.mark.parametrize("command", ["info", "draw", "check"])
def test_damaged_and_missing_files(network_file, run_file, tmp_path, capsys, command):
    half, text = tmp_path / "half.hdf5", tmp_path / "text.hdf5"
    text.write_text("this is no network")
    for size, file in ((1400, network_file), (2100, run_file)):
        half.write_bytes(Path(file).read_bytes()[:size])
        assert main([command, str(half)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"brainstorm: '{half}' cannot be read as a network file")
        assert err.count("\n") == 1
    assert main([command, "missing.hdf5"]) == 2
    assert capsys.readouterr().err == "brainstorm: there is no file 'missing.hdf5'\n"
    assert main([command, str(text)]) == 1


def test_check_reads_all_of_a_run(run_file, monkeypatch, capsys):
    def refuse(filename):
        raise bs.errors.FileFormatError(f"{filename}: no stepper")

    monkeypatch.setattr(Trainer, "resume", refuse)
    assert main(["check", run_file]) == 1
    assert capsys.readouterr().err == f"brainstorm: {run_file}: no stepper\n"


OWN = """
from brainstorm.layers import Layer
from brainstorm.structure import BufferStructure, ConstructionWrapper

class CommandLineLayerImpl(Layer):
    def setup(self, kwargs, in_shapes):
        return {"default": BufferStructure(*in_shapes["default"].shape)}, {}, {}

def CommandLine():
    return ConstructionWrapper.create(CommandLineLayerImpl)
"""

SAVE = """
import brainstorm as bs, own_layer
inp = bs.layers.Input({"default": ("T", "B", 2)})
inp >> own_layer.CommandLine()
bs.Network.from_layer(inp).save_as_hdf5("own.hdf5")
"""


def run(folder, *arguments, **options):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, text=True, timeout=60, check=False, **streams
    )
    assert "Traceback" not in (done.stderr or "")
    return done


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_stdout_shows_any_comment(net, tmp_path, encoding):
    net.save_as_hdf5(tmp_path / "net.hdf5", comment="größer →\x1b[2J")
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = run(tmp_path, "-m", "brainstorm", "info", "net.hdf5", env=env, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    expected = "größer →\\x1b[2J".encode(encoding, "backslashreplace").decode(encoding)
    assert rows(done.stdout)["comment"] == expected


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_streams_that_take_nothing_are_told_in_a_line_and_by_the_status(network_file, tmp_path):
    full = "brainstorm: [Errno 28] No space left on device\n"
    for file, where, *expected in (
        (network_file, ">&-", 2, "brainstorm: there is no standard output to write to\n"),
        (network_file, ">/dev/full", 2, full),
        (network_file, "2>&-", 0, ""),
        ("missing", "2>&-", 2, ""),
        ("missing", "2>/dev/full", 2, ""),
    ):
        shell = ["bash", "-c", f'exec "$0" -m brainstorm info "{file}" {where}', sys.executable]
        options = {"capture_output": True, "text": True, "timeout": 60, "check": False}
        done = subprocess.run(shell, cwd=tmp_path, **options)
        assert [done.returncode, done.stderr] == expected
    reader, writer = os.pipe()
    os.close(reader)
    done = run(tmp_path, "-m", "brainstorm", "info", network_file, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, "brainstorm: [Errno 32] Broken pipe\n")


def test_only_damaged_files_are_called_so(network_file, tmp_path, capsys):
    with h5py.File(network_file, "r+") as file:
        file.attrs["format"] = "Network file v99.0"
    for file, text in (
        (str(tmp_path), f"brainstorm: '{tmp_path}': expected a file, got a folder. Copy its"),
        (network_file, f"brainstorm: '{network_file}': format version 99.0 is newer than the"),
    ):
        assert main(["check", file]) == 2
        assert capsys.readouterr().err.startswith(text)


@pytest.mark.parametrize("library", ["onnx", "safetensors"])
def test_convert_there_and_back(net, network_file, tmp_path, capsys, library):
    pytest.importorskip(library)
    there, back = str(tmp_path / f"there.{library}"), str(tmp_path / "back.hdf5")
    x = np.random.RandomState(0).normal(size=(1, 5, 3))
    for source, target in ((network_file, there), (there, back)):
        assert main(["convert", source, target]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert "FullyConnected" in out
        assert out.endswith(f"wrote {target}\n")
    converted = bs.Network.from_hdf5(back)
    np.testing.assert_allclose(converted.predict(x), net.predict(x), 1e-5, 1e-6)


def test_networks_of_a_gpu_are_converted_without_one(net, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    source, target = tmp_path / "gpu.hdf5", tmp_path / "here.hdf5"
    content, handler = net.get_file_content(), {"@type": "PyCudaHandler", "device": 0}
    description = {**content.description, "handler": handler}
    write_network_file(source, content._replace(description=description))
    assert main(["convert", str(source), str(target)]) == 0
    x = np.ones((1, 5, 3))
    np.testing.assert_allclose(bs.Network.from_hdf5(target).predict(x), net.predict(x), 1e-5, 1e-6)


def test_convert_takes_the_axes_of_a_model(tmp_path):
    pytest.importorskip("onnx")
    from brainstorm.ext.onnx_exchange import save_onnx

    net, x = create_net_from_spec("regression", (4, 5, 2), 3, "C3:2 F4"), np.ones((1, 2, 4, 5, 2))
    source, target = tmp_path / "net.onnx", tmp_path / "net.hdf5"
    save_onnx(net, source)
    assert main(["convert", str(source), str(target), "--axes", "default=TBHWC"]) == 0
    np.testing.assert_allclose(bs.Network.from_hdf5(target).predict(x), net.predict(x), 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["net.h5", "net.onnx"], "unknown ending of a file '.h5'. Choices are: .hdf5, .onnx"),
        (["net.hdf5", "net"], "unknown ending of a file ''. Choices are: .hdf5, .onnx, .safet"),
        (["no.hdf5", "net.onnx"], "there is no file 'no.hdf5'"),
        (["net.hdf5", "x.onnx", "--axes", "x=BF"], "--axes: expected a model in ONNX, got 'net.h"),
        (["x.onnx", "net.hdf5", "--axes", "BF"], "--axes: expected NAME=LETTERS, such as x=BHWC"),
    ],
)
def test_what_cannot_be_converted(network_file, tmp_path, monkeypatch, capsys, arguments, text):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"brainstorm: {text}")
    assert os.listdir() == ["net.hdf5"]


def test_classes_of_a_user_are_imported_from_the_present_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_layer.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("1 / 0")
    assert run(tmp_path, "-c", SAVE).returncode == 0
    done = run(tmp_path, "-m", "brainstorm", "info", "own.hdf5", "--import", "own_layer")
    assert (done.returncode, done.stderr) == (0, "")
    assert "CommandLine()  from Input" in done.stdout
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for module, said in {
        "": "--import : ValueError: Empty module name\n",
        "broken": "--import broken: ZeroDivisionError: division by zero\n",
        "no_layer": "No module named 'no_layer'\n",
    }.items():
        assert main(["info", "own.hdf5", "--import", module]) == 2
        assert capsys.readouterr().err == f"brainstorm: {said}"
    sys.path[:] = there = sys.path[3:]
    assert main(["info", "own.hdf5"]) == 2
    assert "CommandLine" in capsys.readouterr().err
    assert sys.path == there  # nothing else is imported from a folder of files


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--version"], 0, f"brainstorm {bs.__version__}\n"),
        *(
            (arguments.split(), 2, "usage: python -m brainstorm ")
            for arguments in ("", "look x", "info", "info x --loud", "convert x")
        ),
    ],
)
def test_what_is_no_command(arguments, status, said, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == status
    assert "".join(capsys.readouterr()).startswith(said)
