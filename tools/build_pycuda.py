"""Builds a wheel of PyCUDA without a CUDA toolkit and installs it.

PyCUDA comes as source only. Its build needs NVIDIA's headers, which are pip packages, and a
`libcuda` to link with: the driver's library belongs to the driver, so a stub of the same name
takes its place and the real one, or the tests' own in `tests/cudashim`, is found when PyCUDA
is imported. cuRAND is left out.

    python tools/build_pycuda.py                 # build once, keep the wheel, install it
    python tools/build_pycuda.py --wheels DIR    # only put the wheel into a folder

The wheel is kept in `$XDG_CACHE_HOME/brainstorm/wheels` (default `~/.cache`): a minute the first
time, a second afterwards.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

VERSION = "2026.1"
HEADERS = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-profiler-api==13.0.85")


def run(*command: str) -> None:
    """Run a command; what it says is shown if it fails."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-4000:]}\nfailed: {' '.join(command)}")


def pip(*arguments: str) -> None:
    """Run the pip of this Python."""
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


def cache() -> Path:
    """The folder in which wheels are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "brainstorm" / "wheels"


def wheel_in(folder: Path) -> Path | None:
    """The wheel of PyCUDA for this Python in a folder, or None."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return next(iter(folder.glob(f"pycuda-{VERSION}-{tag}-*{platform}.whl")), None)


def build(folder: Path) -> Path:
    """Build the wheel.

    Args:
        folder: Where it is put; made where it does not exist.

    Returns:
        The wheel's path.
    """
    for compiler in ("gcc", "g++"):
        if shutil.which(compiler) is None:
            raise SystemExit(f"PyCUDA is compiled with {compiler}, which is not on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        pip("install", "--quiet", "--no-deps", "--target", f"{scratch}/headers", *HEADERS)
        include = next(scratch.glob("headers/nvidia/*/include/cuda.h")).parent
        stub = scratch / "stub.c"
        stub.write_text("int cuInit(unsigned flags) { return 34; }")  # one symbol: linkers keep it
        flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(stub))
        run("gcc", *flags, "-o", f"{scratch}/libcuda.so")
        source = _download(scratch)
        (source / "siteconf.py").write_text(
            f"CUDA_INC_DIR = [{str(include)!r}]\n"
            f"CUDADRV_LIB_DIR = [{str(scratch)!r}]\n"
            "CUDA_ENABLE_CURAND = False\n"
            'CXXFLAGS = ["-g0", "-O2", "-w"]\n'
        )
        pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source))
    wheel = wheel_in(folder)
    if wheel is None:
        raise SystemExit(f"the build left no wheel of PyCUDA {VERSION} in {folder}")
    return wheel


def _download(scratch: Path) -> Path:
    """Fetch and unpack PyCUDA's source.

    Args:
        scratch: A folder for it.

    Returns:
        The unpacked folder.
    """
    name = f"pycuda=={VERSION}"
    pip("download", "--quiet", "--no-deps", "--no-binary", "pycuda", "--dest", str(scratch), name)
    with tarfile.open(scratch / f"pycuda-{VERSION}.tar.gz") as archive:
        archive.extractall(scratch, filter="data")
    return scratch / f"pycuda-{VERSION}"


def main() -> None:
    """Build what is missing; without `--wheels`, install it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="only put the wheel here")
    folder = parser.parse_args().wheels
    if folder is None and importlib.util.find_spec("pycuda") is not None:
        return
    wheel = wheel_in(cache()) or build(cache())
    if folder is None:
        pip("install", "--quiet", str(wheel))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, folder)


if __name__ == "__main__":
    main()
