#!/usr/bin/env bash
# Packs what a GPU machine without a network needs for `make test-gpu` and `make bench-gpu`.
#
#     tools/gpu_bundle.sh [FOLDER]          # default: gpu-bundle
#
# FOLDER gets the wheels of PyCUDA (built here, without a CUDA toolkit, in a minute), of what it
# needs, of this project with NumPy, h5py, tqdm and oneDNN, and of the tests' tools: 65 MB. Copy
# FOLDER and the working tree to the GPU machine and run there
#
#     make test-gpu WHEELS=FOLDER
#     make bench-gpu WHEELS=FOLDER
#
# which install the wheels, without a network, beside what that machine's Python has, and nowhere
# else (`pip install --no-index --no-deps --target`). The machine must have
#   - an NVIDIA driver for CUDA 13 (580 or newer) and a GPU of compute capability 7.5 or higher;
#   - nvcc, which compiles the kernels, and cuBLAS: a CUDA toolkit, or pip packages;
#   - the same Python (major and minor) as the one that ran this script: set PYTHON to choose it;
#   - PyTorch with CUDA, to compare with. Without it our steps are timed alone, and it is said.
#
# Variables: PYTHON (default: python3), LEAN=1 leaves out oneDNN (40 MB), which only the CPU uses,
# TORCH=1 packs the PyTorch of that index which pip is set up for (gigabytes).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-gpu-bundle}"
folder=$(cd "${1:-gpu-bundle}" && pwd)
python=${PYTHON:-python3}
pip=("$python" -m pip --disable-pip-version-check --quiet)

"$python" "$root/tools/build_pycuda.py" --wheels "$folder"
source=$(mktemp -d)  # setuptools leaves files beside what it builds
trap 'rm -rf "$source"' EXIT
cp -r "$root"/{brainstorm,pyproject.toml,setup.py,README.md,LICENSE} "$source"
"${pip[@]}" wheel --no-deps --wheel-dir "$folder" "$source"
packages=(numpy h5py tqdm pytest pytest-timeout pytest-xdist hypothesis)
packages+=(pytools platformdirs mako siphash24)
[ -n "${LEAN:-}" ] || packages+=(onednn-cpu-gomp)
[ -z "${TORCH:-}" ] || packages+=(torch)
"${pip[@]}" wheel --wheel-dir "$folder" "${packages[@]}"
du -sh "$folder"
