#!/usr/bin/env bash
# Runs tiny training steps of every kind under NVIDIA's compute-sanitizer: accesses outside of
# allocations, races within shared memory, wrong barriers. Needs a GPU; says so where the program
# (a part of the CUDA toolkit) is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v compute-sanitizer >/dev/null; then
  echo "NO compute-sanitizer HERE: RACES AND ILLEGAL ACCESSES ON THE GPU WERE NOT LOOKED FOR"
  exit 0
fi
for tool in memcheck racecheck synccheck; do
  echo "compute-sanitizer --tool $tool"
  compute-sanitizer --tool "$tool" --error-exitcode 1 --target-processes all \
    "${PYTHON:-python3}" -m benchmarks.gpu --smoke >/dev/null
done
