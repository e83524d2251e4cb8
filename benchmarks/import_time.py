"""How long ``import brainstorm`` takes beyond NumPy and h5py, in fresh interpreters.

python -m benchmarks.import_time
"""

from __future__ import annotations

import statistics
import subprocess
import sys

ROUNDS = 7
TARGET = 0.2

PROGRAM = """
import time
import h5py, numpy
start = time.perf_counter()
import brainstorm
print(time.perf_counter() - start)
"""


def main() -> None:
    """Print minimum and median of several starts."""
    times = []
    for _ in range(ROUNDS):
        run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
        times.append(float(run.stdout))
    print(
        f"import brainstorm beyond numpy and h5py: {min(times):.3f} s (median "
        f"{statistics.median(times):.3f} s), target {TARGET} s"
    )


if __name__ == "__main__":
    main()
