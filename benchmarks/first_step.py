"""How long a start takes: the import alone, and all that comes before the second training step.

    python -m benchmarks.import_time

Everything happens in fresh interpreters, which take turns. The times of the second line begin
before NumPy is imported; its memory is the peak of the process, on Linux.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from brainstorm.optional import has

ROUNDS = 7

IMPORT = """
import time
import h5py, numpy
start = time.perf_counter()
import brainstorm
print(time.perf_counter() - start, 0)
"""

STEP = """
import time
start = time.perf_counter()
import numpy as np
x, y = np.ones((16, 784), np.float32), np.arange(16) % 10
{step}
seconds = time.perf_counter() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1024)
"""

OURS = """
import brainstorm as bs
net = bs.tools.create_net_from_spec("classification", 784, 10, "F32 F32")
net.initialize(bs.initializers.Gaussian(0.1))
stepper = bs.training.SgdStepper(0.1)
stepper.start(net)
net.provide_external_data({"default": x[None], "targets": y[None, :, None]})
stepper.run()
"""

PYTORCH = """
import torch
from torch import nn
sizes = (784, 32, 32)
hidden = [part for m, n in zip(sizes, sizes[1:]) for part in (nn.Linear(m, n), nn.ReLU())]
net = nn.Sequential(*hidden, nn.Linear(32, 10))
stepper = torch.optim.SGD(net.parameters(), 0.1)
nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
stepper.step()
"""


def main() -> None:
    """Print minimum and median of several starts."""
    step = "import, and a step of an MLP 784-32-32-10"
    programs = {
        "import brainstorm beyond numpy and h5py, at most 0.2 s": IMPORT,
        f"{step}, at most 0.5 s and 100 MiB": STEP.format(step=OURS),
    }
    if has("torch"):
        programs[f"{step}, PyTorch"] = STEP.format(step=PYTORCH)
    runs: dict[str, list[list[float]]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
            runs[name].append([float(number) for number in done.stdout.split()])
    for name, found in runs.items():
        seconds, mebibytes = zip(*found, strict=True)
        peak = f", {min(mebibytes):.0f} MiB" if any(mebibytes) else ""
        print(f"{name}: {min(seconds):.3f} s (median {statistics.median(seconds):.3f} s){peak}")


if __name__ == "__main__":
    main()
