#!/usr/bin/env bash
# The tests with the oldest versions that pyproject.toml allows.
#
#     tools/test_oldest.sh [PYTEST_ARGUMENTS]
#
# In an environment of its own, of which nothing is left. Variables: PYTHON (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work"
PATH=$work/bin:$PATH
python -m pip install --quiet --disable-pip-version-check uv
# (The oldest matplotlib makes the newest pyparsing warn.)
uv pip install --quiet --python "$work/bin/python" --resolution lowest-direct \
  --only-binary :all: --no-binary brainstorm --editable '.[test]' 'pyparsing~=3.2.0'
python tools/build_pycuda.py || true
python -m pytest -n 2 "$@"
