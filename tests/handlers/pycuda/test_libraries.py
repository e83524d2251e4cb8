"""Which copy of a library is taken: small libraries that say which one they are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import brainstorm

PACKAGE = Path(brainstorm.__file__).parent / "handlers/pycuda"
PLACES = {"wheels": "nvidia/cu13/lib", "path": "path", "toolkit": "toolkit/lib64"}

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="NO gcc HERE")


def make(folder: Path, name: str, number: int, needs: str = "") -> None:
    """Compile a library whose function `which_<name>` returns a number, plus that of another."""
    folder.mkdir(parents=True, exist_ok=True)
    function = name.partition(".")[0].replace("-", "_")
    other = f"which_{needs}()" if needs else "0"
    source = f"int which_{needs}(void); int which_{function}(void) {{ return {number} + {other}; }}"
    source = source.removeprefix("int which_(void); ")
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,lib{name}", "-o"]
    linked = [str(folder / f"lib{needs}.so.13")] if needs else []
    subprocess.run(
        [*command, str(folder / f"lib{name}"), "-x", "none", *linked],
        input=source, text=True, check=True,
    )  # fmt: skip


def said(folder: Path, script: str) -> str:
    """What a script prints in a process that finds libraries in a folder alone."""
    (folder / "nvidia").mkdir(exist_ok=True)
    (folder / "nvidia/__init__.py").touch()  # so that other folders of this name do not count
    head = "import ctypes, os\nfrom libraries import load_library, path_of\n"  # it alone
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{PACKAGE}",
        "LD_LIBRARY_PATH": str(folder / PLACES["path"]),
        "CUDA_HOME": str(folder / "toolkit"),
    }
    command = [sys.executable, "-c", head + script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_wheels_come_before_the_path_and_the_path_before_the_toolkit(tmp_path):
    for number, place in enumerate(PLACES.values(), 1):
        make(tmp_path / place, "which.so.13", number)
    script = "print(load_library('which', (13, 12)).which_which())"
    for number, place in enumerate(PLACES.values(), 1):
        assert said(tmp_path, script) == str(number)
        shutil.rmtree(tmp_path / place)
    script = "try: load_library('which', (13, 12))\nexcept FileNotFoundError as e: print(e)"
    assert said(tmp_path, script) == "libwhich.so.13 or libwhich.so.12 was not found"


def test_what_the_process_has_loaded_comes_before_everything(tmp_path):
    make(tmp_path / PLACES["wheels"], "which.so.13", 1)
    make(tmp_path / "elsewhere", "which.so.12", 2)
    script = (
        "ctypes.CDLL('elsewhere/libwhich.so.12')\n"
        "print(load_library('which', (13, 12)).which_which(), path_of('which'))"
    )
    assert said(tmp_path, script) == f"2 {tmp_path}/elsewhere/libwhich.so.12"


def test_what_belongs_together_comes_from_one_folder(tmp_path):
    for number, place in ((1, "wheels"), (2, "toolkit")):
        make(tmp_path / PLACES[place], "cublasLt.so.13", 10 * number)
        make(tmp_path / PLACES[place], "cublas.so.13", number, needs="cublasLt")
    assert said(tmp_path, "print(load_library('cublas', (13,)).which_cublas())") == "11"
    script = (
        "ctypes.CDLL('toolkit/lib64/libcublasLt.so.13')\n"
        "print(load_library('cublas', (13,)).which_cublas())"
    )
    assert said(tmp_path, script) == "22"


def test_nvrtc_gets_its_other_half_from_its_own_folder_whoever_loaded_it(tmp_path):
    for place in ("wheels", "elsewhere"):
        folder = tmp_path / PLACES.get(place, place)
        make(folder, "nvrtc.so.13", 1)
        make(folder, "nvrtc-builtins.so.13.0", 2)
    script = "load_library('nvrtc', (13,))\nprint(path_of('nvrtc-builtins'))"
    file = "libnvrtc-builtins.so.13.0"
    assert said(tmp_path, script) == f"{tmp_path / PLACES['wheels'] / file}"
    script = f"ctypes.CDLL('elsewhere/libnvrtc.so.13')\n{script}"
    assert said(tmp_path, script) == f"{tmp_path}/elsewhere/{file}"


def test_a_copy_that_cannot_be_loaded_is_passed_over_and_named_if_it_is_the_only_one(tmp_path):
    broken = tmp_path / PLACES["wheels"] / "libwhich.so.13"
    broken.parent.mkdir(parents=True)
    broken.write_text("no library")
    script = "try: print(load_library('which', (13,)).which_which())\nexcept OSError as e: print(e)"
    assert said(tmp_path, script).endswith("libwhich.so.13: file too short")
    make(tmp_path / PLACES["path"], "which.so.13", 2)
    assert said(tmp_path, script) == "2"
