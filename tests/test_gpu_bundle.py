"""What is packed for a GPU machine without a network, and what of it is installed there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import build_pycuda, gpu_install

ROOT = Path(__file__).parents[1]

#: A Python that notes what it is called with, and is of version 3.11.
PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *print*) echo 3.11 ;; *sys.exit*) [ "{version}" = 3.11 ] ;; esac
"""


def packed(tmp_path, *, version):
    """Pack for a Python with a Python of 3.11; what that was called with, and what was said."""
    python = tmp_path / "python"
    python.write_text(PYTHON.format(log=tmp_path / "log", version=version))
    python.chmod(0o755)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/pycuda-1-cp27.whl").touch()  # of an earlier time
    environment = {**os.environ, "PYTHON": str(python), "PYENV_ROOT": str(tmp_path)}
    command = [str(ROOT / "tools/gpu_bundle.sh"), "--python", version, str(tmp_path / "bundle")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not list((tmp_path / "bundle").iterdir())
    return (tmp_path / "log").read_text().splitlines(), done.stdout


@pytest.mark.parametrize("version", ["3.11", "9.9"])
def test_the_wheel_of_pycuda_is_built_where_that_python_is_and_its_source_packed_anyhow(
    version, tmp_path
):
    calls, said = packed(tmp_path, version=version)
    assert any("build_pycuda.py --source" in call for call in calls)
    assert any("build_pycuda.py --wheels" in call for call in calls) == (version == "3.11")
    assert ("NO PYTHON 9.9 HERE: PyCUDA WILL BE BUILT" in said) == (version == "9.9")


def test_what_pycuda_needs_is_packed_for_the_named_python_and_nothing_else(tmp_path):
    (download,) = (call for call in packed(tmp_path, version="9.9")[0] if "download" in call)
    assert "--no-deps" in download
    assert "--python-version 9.9 " in download
    names = download.rpartition("x86_64 ")[2].split()
    assert set(names) == {
        *("pytools", "platformdirs", "mako", "markupsafe", "siphash24", "typing-extensions")
    }


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine that lacks what is in its set, with a bundle; what pip installs and builds."""
    bundle, done = tmp_path / "bundle", []
    bundle.mkdir()
    for name in ("mako-1-py3-none-any.whl", "pytools-2-py3-none-any.whl", "pycuda-2026.1.tar.gz"):
        (bundle / name).touch()
    lacking = {"mako", "pycuda"}
    monkeypatch.setattr(gpu_install, "lacks", lambda module: module in lacking)
    monkeypatch.setattr(build_pycuda, "pip", lambda *a: done.append(Path(a[-1]).name))
    monkeypatch.setattr(build_pycuda, "wheel_in", lambda folder: Path("pycuda-1.whl"))
    monkeypatch.setattr(build_pycuda, "build", lambda folder, source: Path(f"built-{source.name}"))
    monkeypatch.setattr(gpu_install, "problem_of_pycuda", lambda folder: "")
    monkeypatch.setattr(sys, "argv", ["gpu_install", str(bundle), str(tmp_path / "folder")])
    return lacking, done, bundle


def test_what_the_machine_lacks_is_installed_and_what_it_has_is_not(machine):
    gpu_install.main()
    assert machine[1] == ["mako-1-py3-none-any.whl", "pycuda-1.whl"]


def test_what_neither_the_machine_nor_the_bundle_has_is_named(machine):
    machine[0].update(["h5py", "xdist"])
    with pytest.raises(SystemExit, match="^MISSING HERE, and .* bundle: h5py, pytest-xdist$"):
        gpu_install.main()
    assert not machine[1]


def test_a_wheel_that_does_not_fit_gives_way_to_the_source(machine, monkeypatch, capsys):
    problems = iter(["GLIBC_2.99 not found", ""])
    monkeypatch.setattr(gpu_install, "problem_of_pycuda", lambda folder: next(problems))
    gpu_install.main()
    assert machine[1][1:] == ["pycuda-1.whl", "built-pycuda-2026.1.tar.gz"]
    assert "building PyCUDA from its source: GLIBC_2.99 not found" in capsys.readouterr().out


def test_without_a_wheel_it_is_built_and_without_a_source_it_is_said(machine, monkeypatch):
    monkeypatch.setattr(build_pycuda, "wheel_in", lambda folder: None)
    gpu_install.main()
    assert machine[1][1:] == ["built-pycuda-2026.1.tar.gz"]
    (machine[2] / "pycuda-2026.1.tar.gz").unlink()
    with pytest.raises(SystemExit, match="PyCUDA cannot be used here: there is no wheel of it"):
        gpu_install.main()


def test_the_build_names_the_headers_that_it_misses(tmp_path, monkeypatch):
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda.h").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(build_pycuda, "HEADER_FILES", ("cuda.h", "no-such-header.h"))
    with pytest.raises(SystemExit, match=r"no-such-header.h, of which only .*name a toolkit"):
        build_pycuda.build(tmp_path / "out", tmp_path / "pycuda.tar.gz")
