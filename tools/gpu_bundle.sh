#!/usr/bin/env bash
# Packs what a GPU machine without a network lacks for `make gpu-hour`: 4 MB at most.
#
#     tools/gpu_bundle.sh [--python VERSION] [FOLDER]     # default: that of PYTHON, gpu-bundle
#
# VERSION is the Python of that machine, e.g. 3.12. FOLDER gets the wheel of PyCUDA (built here in a
# minute, without a CUDA toolkit, if that Python is on PATH or of pyenv), PyCUDA's source, which is
# built there if the wheel does not fit, and the wheels of what PyCUDA needs. Copy FOLDER and the
# working tree to the machine; `make gpu-hour` installs from FOLDER what its Python lacks
# (tools/gpu_install.py), into .gpu and nowhere else.
#
# Everything else is the machine's own, and what it lacks is said there: NumPy, h5py, tqdm, pytest
# with pytest-xdist and pytest-timeout, hypothesis; NVIDIA's driver 580 or newer, cuBLAS, NVRTC or
# nvcc (of a toolkit, or of PyTorch). The project itself is used from the working tree.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
folder=gpu-bundle
while [ $# -gt 0 ]; do
  case $1 in
    --python) version=$2; shift 2 ;;
    *) folder=$1; shift ;;
  esac
done
mkdir -p "$folder"
rm -f "$folder"/*.whl "$folder"/*.tar.gz

target=
for candidate in "$python" "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
  if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null
  then target=$candidate && break; fi
done
if [ -n "$target" ]; then
  "$target" "$root/tools/build_pycuda.py" --wheels "$folder"
else
  echo "NO PYTHON $version HERE: PyCUDA WILL BE BUILT FROM ITS SOURCE ON THE GPU MACHINE"
fi
"$python" "$root/tools/build_pycuda.py" --source "$folder"
wheels=(--python-version "$version" --implementation cp --only-binary :all:)
for platform in manylinux1 manylinux2014 manylinux_2_17 manylinux_2_24 manylinux_2_28; do
  wheels+=(--platform "${platform}_x86_64")
done
"$python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$folder" \
  "${wheels[@]}" pytools platformdirs mako markupsafe siphash24 typing-extensions
du -sh "$folder"
