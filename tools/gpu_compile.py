"""Compiles every kernel of the PyCudaHandler with NVIDIA's nvcc, for all GPUs it knows.

    python -m tools.gpu_compile [--nvcc PROGRAM] [ARCHITECTURE ...]

No GPU is needed. What nvcc remarks is shown; the program fails if a kernel does not compile or
needs more registers than there are (it spills them into memory). Without an nvcc it says so and
does nothing.
"""

import argparse
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.gpu_sources import kernel_sources

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
#: As the handler has them; no remarks about what is not used: op-trees name all they get.
OPTIONS = ("-O3", "--std=c++17", "-Xptxas", "-v", "-diag-suppress", "177,550")
PROCESSES = 2


def find_nvcc() -> str | None:
    """NVIDIA's nvcc: on PATH, or where toolkits are installed."""
    for place in (None, "/usr/local/cuda/bin"):
        found = shutil.which("nvcc", path=place)
        if (
            found
            and "NVIDIA"
            in subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        ):
            return found
    return None


def compile_one(nvcc: str, path: Path, architecture: str) -> tuple[bool, str]:
    """Compile a file for an architecture.

    Returns:
        Whether it compiles without spilling, and what there is to say about it.
    """
    out = path.with_name(f"{path.stem}.{architecture}.cubin")
    command = [nvcc, "-cubin", f"-arch={architecture}", *OPTIONS, "-o", str(out), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    spilled = re.findall(r"Function properties for (\w+)\n.*?([1-9]\d*) bytes spill stores", said)
    remarks = [
        line for line in said.splitlines() if not re.match(r"ptxas info|    \d+ bytes", line)
    ]
    remarks += [f"{kernel} spills {count} bytes of registers" for kernel, count in spilled]
    return done.returncode == 0 and not spilled, "\n".join(filter(None, remarks))


def main() -> None:
    """Compile everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("architectures", nargs="*", default=ARCHITECTURES, metavar="ARCHITECTURE")
    parser.add_argument("--nvcc", default=find_nvcc(), help="which one (%(default)s)")
    arguments = parser.parse_args()
    if arguments.nvcc is None:
        print("NO NVCC HERE: THE CUDA KERNELS WERE NOT COMPILED BY NVIDIA'S COMPILER")
        return
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PROCESSES) as pool:
        paths = []
        for name, source in kernel_sources().items():
            paths.append(Path(folder) / f"{name}.cu")
            paths[-1].write_text(source)
        pairs = list(itertools.product(paths, arguments.architectures))
        results = list(pool.map(lambda pair: compile_one(arguments.nvcc, *pair), pairs))
    for (path, architecture), (fine, text) in zip(pairs, results, strict=True):
        if text or not fine:
            print(f"{path.stem} for {architecture}: {'' if fine else 'FAILED'}\n{text}")
    failures = sum(not fine for fine, _ in results)
    count = len(arguments.architectures)
    print(f"{len(paths)} sources for {count} architectures: {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
