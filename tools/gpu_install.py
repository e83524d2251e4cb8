"""Installs a bundle of tools/gpu_bundle.sh on a machine without a network.

    python -m tools.gpu_install BUNDLE FOLDER

Only packages that this Python lacks are installed into FOLDER, for PYTHONPATH. PyCUDA is built from
its source if its wheel does not fit. Other missing requirements are named, and the program fails.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from tools import build_pycuda

#: Modules that the machine itself must have, and packages with them.
NEEDED = {
    "numpy": "numpy",
    "h5py": "h5py",
    "tqdm": "tqdm",
    "pytest": "pytest",
    "xdist": "pytest-xdist",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
}


def lacks(module: str) -> bool:
    """Whether this Python has no such module."""
    return importlib.util.find_spec(module) is None


def install(wheel: Path, folder: Path) -> None:
    """Install a wheel into a folder, and nothing else.

    Raises:
        SystemExit: It does not fit.
    """
    build_pycuda.pip(
        *("install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target"),
        *(str(folder), str(wheel)),
    )


def problem_of_pycuda(folder: Path) -> str:
    """Why PyCUDA in a folder cannot be loaded; nothing if only the driver is missing."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", "import pycuda._driver"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return "" if not done.returncode or "libcuda.so" in done.stderr else done.stderr


def install_pycuda(bundle: Path, folder: Path) -> None:
    """Install PyCUDA's wheel, or build it from its source where the wheel does not fit."""
    wheel = build_pycuda.wheel_in(bundle)
    problem = "there is no wheel of it for this Python"
    if wheel is not None:
        install(wheel, folder)
        problem = problem_of_pycuda(folder)
    source = next(bundle.glob("pycuda-*.tar.gz"), None)
    if problem and source is not None:
        print(f"building PyCUDA from its source: {problem.strip()}", flush=True)
        install(build_pycuda.build(folder / "built", source), folder)
        problem = problem_of_pycuda(folder)
    if problem:
        raise SystemExit(f"PyCUDA cannot be used here: {problem}")


def main() -> None:
    """Install what is missing; say what is missing still."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    missing = [package for module, package in NEEDED.items() if lacks(module)]
    if missing:
        raise SystemExit(f"MISSING HERE, and not in the bundle: {', '.join(missing)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(arguments.bundle.glob("*.whl")):
        module = re.match(r"[^-]*", wheel.name)[0].lower()
        if module != "pycuda" and lacks(module):
            install(wheel, arguments.folder)
            print(f"installed {wheel.name}")
    if lacks("pycuda"):
        install_pycuda(arguments.bundle, arguments.folder)
        print("installed PyCUDA")


if __name__ == "__main__":
    main()
