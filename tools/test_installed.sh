#!/usr/bin/env bash
# The tests against what users install.
#
#     tools/test_installed.sh [PYTEST_ARGUMENTS]
#
# Builds the source distribution from what git tracks, and the wheel from the source distribution.
# Each of the two is installed into an empty environment, and the tests that the source distribution
# brings along run against it, in a folder where there is no `brainstorm/` to import by accident.
# Runs all tests twice, and leaves nothing. Variables: PYTHON (default: python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${PYTHON:-python3}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/source" "$work/tree"
git ls-files -z | xargs -0 cp --parents --target-directory "$work/source"
"$python" -m venv "$work/building"
"$work/building/bin/python" -m pip install --quiet --disable-pip-version-check build
"$work/building/bin/python" -m build --outdir "$work/dist" "$work/source" >/dev/null
ls -l "$work/dist"

tar --extract --file "$work"/dist/*.tar.gz --directory "$work/tree" --strip-components 1
rm -r "$work"/tree/brainstorm*
cd "$work/tree"
for built in "$work"/dist/*; do
  echo "installing ${built##*/} into an empty environment"
  rm -rf "$work/environment"
  "$python" -m venv "$work/environment"
  PATH=$work/environment/bin:$PATH
  python -m pip install --quiet --disable-pip-version-check "$built[test]"
  python tools/build_pycuda.py || true
  python -c 'import brainstorm; print("the tests of", brainstorm.__file__)'
  python -m pytest -n 2 "$@"
done
