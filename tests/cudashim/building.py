"""Compiles the driver, libraries and the stand-in for nvcc, once for each state of the sources."""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cudashim.nvcc import COMPILE

HERE = Path(__file__).parent
DRIVER = ("context", "memory", "threads", "races", "streams", "copies", "modules")
#: Routines of BLAS, all of which libraries expect to be there.
BLAS = """asum axpy copy dgmm dot dotc dotu gbmv geam gemm gemmBatched gemv ger gerc geru
    getrfBatched getriBatched getrsBatched hbmv hemm hemv her her2 her2k herk hpmv hpr hpr2 nrm2 rot
    rotg rotm rotmg sbmv scal spmv spr spr2 swap symm symv syr syr2 syr2k syrk tbmv tbsv tpmv tpsv
    trmm trmv trsm trsmBatched trsv"""
#: Those whose names do not begin with one of S, D, C, Z.
BLAS_OTHERS = """Dzasum Dznrm2 Scasum Scnrm2 Csrot Csscal Zdrot Zdscal Icamax Icamin Idamax Idamin
    Isamax Isamin Izamax Izamin GetCurrentCtx"""
#: Its name is not that of cuDNN, so that handlers find it only where a test wants them to.
CUDNN = "libcudnn_of_tests.so"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-w", "-U_FORTIFY_SOURCE")


class UnavailableError(RuntimeError):
    """Why there is no driver for the tests."""


def folder_of(header: str) -> Path | None:
    """The folder of one of NVIDIA's header files: of a pip package, of a toolkit, of the system."""
    places = [Path("/usr/local/cuda/include"), Path("/usr/include")]
    found = importlib.util.find_spec("nvidia")
    for base in found.submodule_search_locations if found else ():
        places = [*Path(base).glob("*/include"), *places]
    return next((place for place in places if (place / header).exists()), None)


def headers() -> Path:
    """The folder of cuda.h."""
    if (found := folder_of("cuda.h")) is None:
        raise UnavailableError("cuda.h was not found: pip install nvidia-cuda-runtime")
    return found


def includes_cudnn() -> list[str]:
    """Options to compile with NVIDIA's cudnn.h, or with its stand-in where that is not found."""
    found = folder_of("cudnn.h")
    return [f"-I{place}" for place in (HERE / "src/stubs", found, headers()) if found]


def key() -> str:
    """A name for the state of all sources."""
    state = hashlib.sha256(" ".join((*FLAGS, sys.executable, *includes_cudnn())).encode())
    for path in sorted([*HERE.glob("src/**/*.*"), HERE / "nvcc.py", Path(__file__)]):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def run(*commands: list[str]) -> None:
    """Run commands at the same time."""
    running = [subprocess.Popen(c, stderr=subprocess.PIPE, text=True) for c in commands]
    said = [process.communicate()[1] for process in running]
    for process, text in zip(running, said, strict=True):
        if process.returncode:
            raise UnavailableError(f"the tests' CUDA driver does not compile:\n{text}")


def defined(objects: list[str]) -> set[str]:
    """The functions that are in object files."""
    listing = subprocess.run(["nm", "--defined-only", *objects], capture_output=True, text=True)
    return set(re.findall(r" T (cu\w+)", listing.stdout))


def refusing(names: set[str], code: int) -> str:
    """C source of functions that only answer with an error: that they are not supported."""
    return "\n".join(f"int {name}(void) {{ return {code}; }}" for name in sorted(names))


def driver_names(include: Path) -> set[str]:
    """The driver's functions, by its header."""
    command = ["gcc", "-E", "-P", "-x", "c", str(include / "cuda.h")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"CUresult\s+(cu[A-Z]\w*)\s*\(", text))


def blas_names() -> set[str]:
    """The functions of cuBLAS that libraries look for when they are loaded."""
    routines = [*(letter + name for letter in "SDCZ" for name in BLAS.split())]
    routines += BLAS_OTHERS.split()
    return {f"cublas{name}{version}" for name in routines for version in ("", "_v2")}


def compile_into(folder: Path) -> None:
    """Compile everything into a folder, which is named as it will be at the end."""
    include = headers()
    objects = [str(folder / f"{name}.o") for name in DRIVER]
    compiled = [
        ["g++", *FLAGS, f"-I{include}", "-c", str(HERE / f"src/{name}.cpp"), "-o", out]
        for name, out in zip(DRIVER, objects, strict=True)
    ]
    shutil.copy(HERE / "src/device.h", folder)
    header = str(folder / "device.h")
    as_header = ["c++-header" if word == "c++" else word for word in COMPILE]
    blas, nvrtc, cudnn = (str(folder / f"{name}.o") for name in ("cublas", "nvrtc", "cudnn"))
    compiled.append(["g++", *FLAGS, "-O3", "-c", str(HERE / "src/cublas.cpp"), "-o", blas])
    compiled.append(["g++", *FLAGS, "-c", str(HERE / "src/nvrtc.cpp"), "-o", nvrtc])
    with_cudnn = [*FLAGS, "-O3", *includes_cudnn()]
    compiled.append(["g++", *with_cudnn, "-c", str(HERE / "src/cudnn.cpp"), "-o", cudnn])
    run(*compiled, ["g++", *as_header, header, "-o", header + ".gch"])
    (folder / "no_driver.c").write_text(refusing(driver_names(include) - defined(objects), 801))
    (folder / "no_blas.c").write_text(refusing(blas_names() - defined([blas]), 15))
    for name, parts in (
        ("libcuda.so.1", [*objects, str(folder / "no_driver.c")]),
        ("libcublas.so.13", [blas, str(folder / "no_blas.c"), str(folder / "libcuda.so.1")]),
        ("libnvrtc.so.13", [nvrtc]),
        (CUDNN, [cudnn, str(folder / "libcuda.so.1")]),
    ):
        shared = ["gcc", "-w", "-fPIC", "-shared", "-pthread", f"-Wl,-soname,{name}"]
        run([*shared, "-o", str(folder / name), *parts, "-lstdc++", "-lm", "-ldl"])
    (folder / "bin").mkdir()
    shutil.copy(HERE / "nvcc.py", folder / "bin/nvcc.py")
    script = folder / "bin/nvcc"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$(dirname "$0")/nvcc.py" "$@"\n')
    script.chmod(0o755)


def built() -> Path:
    """The folder of the compiled driver; compiled now where it is not yet.

    Raises:
        UnavailableError: Without a compiler or cuda.h.
    """
    for compiler in ("gcc", "g++", "nm"):
        if shutil.which(compiler) is None:
            raise UnavailableError(f"{compiler} is not on PATH")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brainstorm/cudashim"
    base.mkdir(parents=True, exist_ok=True)
    folder = base / key()
    with open(base / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=base) as scratch:
                made = Path(scratch) / folder.name
                made.mkdir()
                compile_into(made)
                made.rename(folder)
    return folder
