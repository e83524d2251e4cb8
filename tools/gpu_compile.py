"""Compiles every kernel of the PyCudaHandler with NVIDIA's NVRTC and nvcc, for all GPUs they know.

    python -m tools.gpu_compile [--nvcc PROGRAM] [ARCHITECTURE ...]

No GPU is needed. The messages of the compilers are shown; the program fails if a kernel does not
compile or spills registers into memory. It reports a missing compiler (`pip install
nvidia-cuda-nvrtc`; the CUDA toolkit).
"""

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from brainstorm.handlers.pycuda.nvrtc import Nvrtc, RefusedError
from brainstorm.handlers.pycuda.recurrence_parts import CLUSTERED
from tools.gpu_sources import OF_CLUSTERS, kernel_sources

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
#: No remarks about what is not used: op-trees name all they get.
OPTIONS = ("--ptxas-options=-v", "-diag-suppress=177,550")
#: An NVRTC, or the path of an nvcc.
Compiler = Nvrtc | str
PROCESSES = 2


def find_nvcc() -> str | None:
    """NVIDIA's nvcc: on PATH, or where toolkits are installed."""
    for place in (None, "/usr/local/cuda/bin"):
        if found := shutil.which("nvcc", path=place):
            done = subprocess.run([found, "--version"], capture_output=True, text=True)
            if "NVIDIA" in done.stdout:
                return found
    return None


def find_nvrtc() -> Nvrtc | None:
    """NVIDIA's NVRTC, of its wheels or of a toolkit."""
    try:
        return Nvrtc()
    except OSError:
        return None


def compile_one(compiler: Compiler, path: Path, architecture: str) -> tuple[bool, str]:
    """Compile a file for an architecture.

    Returns:
        Whether it compiles without spilling, and what there is to say about it.
    """
    run = _by_nvcc if isinstance(compiler, str) else _by_nvrtc
    fine, said = run(compiler, path, architecture)
    spilled = re.findall(r"Function properties for (\w+)\n.*?([1-9]\d*) bytes spill stores", said)
    remarks = [
        line for line in said.splitlines() if not re.match(r"ptxas  |ptxas info|    \d+ ", line)
    ]
    remarks += [f"{kernel} spills {count} bytes of registers" for kernel, count in spilled]
    return fine and not spilled, "\n".join(filter(None, remarks))


def _by_nvcc(nvcc: str, path: Path, architecture: str) -> tuple[bool, str]:
    out = path.with_name(f"{path.stem}.{architecture}.cubin")
    words = ["-cubin", f"-arch={architecture}", "-O3", "--std=c++17", *OPTIONS]
    done = subprocess.run([nvcc, *words, "-o", str(out), str(path)], capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def _by_nvrtc(nvrtc: Nvrtc, path: Path, architecture: str) -> tuple[bool, str]:
    try:
        return True, nvrtc.compile(path.read_text(), architecture, *OPTIONS)[1]
    except RefusedError as error:
        return False, str(error)


def compile_all(name: str, compiler: Compiler, architectures: Sequence[str]) -> int:
    """Compile everything with one compiler, and print what there is to say.

    Returns:
        How much of it failed.
    """
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        paths = []
        for stem, source in kernel_sources().items():
            paths.append(Path(folder) / f"{stem}.cu")
            paths[-1].write_text(source)
        pairs = [
            (path, architecture)
            for path, architecture in itertools.product(paths, architectures)
            if path.stem != OF_CLUSTERS or int(architecture.removeprefix("sm_")) >= CLUSTERED
        ]
        results = list(pool.map(lambda pair: compile_one(compiler, *pair), pairs))
    for (path, architecture), (fine, text) in zip(pairs, results, strict=True):
        if text or not fine:
            print(f"{path.stem} for {architecture}: {'' if fine else 'FAILED'}\n{text}")
    failures = sum(not fine for fine, _ in results)
    print(f"{name}: {len(paths)} sources for {len(architectures)} GPUs: {failures} failures")
    return failures


def main() -> None:
    """Compile everything with both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("architectures", nargs="*", default=ARCHITECTURES, metavar="ARCHITECTURE")
    parser.add_argument("--nvcc", default=find_nvcc(), help="which one (%(default)s)")
    arguments = parser.parse_args()
    failures = 0
    for name, compiler in (("NVRTC", find_nvrtc()), ("nvcc", arguments.nvcc)):
        if compiler is None:
            print(f"NO {name} HERE: THE CUDA KERNELS WERE NOT COMPILED BY IT", flush=True)
        else:
            failures += compile_all(name, compiler, arguments.architectures)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
