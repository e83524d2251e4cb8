"""Builds a wheel of PyCUDA without a CUDA toolkit and installs it.

PyCUDA is only available as source. Its build requires NVIDIA's headers, which are pip packages, and
a `libcuda` to link with. This is a part of the driver, so a stub of the same name replaces it; the
real library, or that of the tests in `tests/cudashim`, is found when PyCUDA is imported. cuRAND is
not included.

    python tools/build_pycuda.py                 # build once, keep the wheel, install it
    python tools/build_pycuda.py --wheels DIR    # only put the wheel into a folder
    python tools/build_pycuda.py --source DIR    # only put the source there

The wheel is stored in `$XDG_CACHE_HOME/brainstorm/wheels` (default `~/.cache`). The first build
takes a minute.
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
#: What the build needs, and the packages that have it.
HEADER_FILES = ("cuda.h", "cudaProfiler.h")
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


def header_folders() -> list[Path]:
    """The folders of those of NVIDIA's headers that are here: of wheels, and of a toolkit."""
    toolkits = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    found = importlib.util.find_spec("nvidia")
    for base in found.submodule_search_locations or () if found else ():
        places += sorted(Path(base).glob("*/include"))
    firsts = (next((p for p in places if (p / name).exists()), None) for name in HEADER_FILES)
    return [place for place in firsts if place is not None]


def build(folder: Path, source: Path | None = None) -> Path:
    """Build the wheel.

    Args:
        folder: Where it is put; made where it does not exist.
        source: PyCUDA's source, to be built with what is here, without a network.

    Returns:
        The wheel's path.
    """
    for compiler in ("gcc", "g++"):
        if shutil.which(compiler) is None:
            raise SystemExit(f"PyCUDA is compiled with {compiler}, which is not on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        if source is None:
            pip("install", "--quiet", "--no-deps", "--target", f"{scratch}/headers", *HEADERS)
            include = [next(scratch.glob("headers/nvidia/*/include/cuda.h")).parent]
        else:
            include = header_folders()
            if len(include) < len(HEADER_FILES):
                raise SystemExit(
                    f"PyCUDA is built with {' and '.join(HEADER_FILES)}, of which only those in "
                    f"{[str(place) for place in include]} were found: name a toolkit in CUDA_HOME"
                )
        stub = scratch / "stub.c"
        stub.write_text("int cuInit(unsigned flags) { return 34; }")  # one symbol: linkers keep it
        flags = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(stub))
        run("gcc", *flags, "-o", f"{scratch}/libcuda.so")
        unpacked = _unpacked(source or download(scratch), scratch)
        (unpacked / "siteconf.py").write_text(
            f"CUDA_INC_DIR = {[str(place) for place in include]!r}\n"
            f"CUDADRV_LIB_DIR = [{str(scratch)!r}]\n"
            "CUDA_ENABLE_CURAND = False\n"
            'CXXFLAGS = ["-g0", "-O2", "-w"]\n'
        )
        offline = () if source is None else ("--no-index", "--no-build-isolation")
        pip("wheel", "--quiet", "--no-deps", *offline, "--wheel-dir", str(folder), str(unpacked))
    wheel = wheel_in(folder)
    if wheel is None:
        raise SystemExit(f"the build left no wheel of PyCUDA {VERSION} in {folder}")
    return wheel


def download(folder: Path) -> Path:
    """Fetch PyCUDA's source.

    Args:
        folder: Where it is put.

    Returns:
        The archive.
    """
    name = f"pycuda=={VERSION}"
    pip("download", "--quiet", "--no-deps", "--no-binary", "pycuda", "--dest", str(folder), name)
    return folder / f"pycuda-{VERSION}.tar.gz"


def _unpacked(archive: Path, scratch: Path) -> Path:
    with tarfile.open(archive) as content:
        content.extractall(scratch, filter="data")
    return scratch / archive.name.removesuffix(".tar.gz")


def main() -> None:
    """Build what is missing; without `--wheels` or `--source`, install it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="only put the wheel here")
    parser.add_argument("--source", type=Path, metavar="DIR", help="only put the source here")
    arguments = parser.parse_args()
    folder = arguments.wheels
    if arguments.source is not None:
        download(arguments.source)
        return
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
