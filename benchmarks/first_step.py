"""How long a start takes: the import alone, and all that comes before the second training step.

    python -m benchmarks.first_step [--json FILE] [--rounds N]

Everything happens in fresh interpreters, which take turns. Kernels are compiled once and kept in a
folder; first steps are done with an empty one, and with one that has what they need. Their times
begin before NumPy is imported; memory is the peak of the process, on Linux.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.command import deliver, figures_parser
from benchmarks.tables import Row, as_text
from benchmarks.timing import Times
from brainstorm.optional import has

__all__ = ["main", "measure", "start_rows"]

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
x, y = np.ones((16, *{shape}), np.float32), np.arange(16) % 10
{step}
seconds = time.perf_counter() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak.split()[1]) / 1024)
"""

OURS = """
import brainstorm as bs
net = bs.tools.create_net_from_spec("classification", {shape}, 10, "{spec}")
net.initialize(bs.initializers.Gaussian(0.1))
stepper = bs.training.SgdStepper(0.1)
stepper.start(net)
net.provide_external_data({{"default": x[None], "targets": y[None, :, None]}})
stepper.run()
"""

PYTORCH = """
import torch
from torch import nn
net = nn.Sequential({modules})
stepper = torch.optim.SGD(net.parameters(), 0.1)
nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
stepper.step()
"""

#: Name of a network to the shape of its input, our spec, and the same in PyTorch.
NETWORKS = {
    "MLP 784-32-32-10": (
        "(784,)",
        "F32 F32",
        "nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)",
    ),
    "CNN 28x28, 32@5x5, 64@5x5": (
        "(28, 28, 1)",
        "C32:5 Pm2s2 C64:5 Pm2s2 F128",
        "nn.Unflatten(1, (1, 28)), nn.Flatten(3), nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), "
        "nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 128), "
        "nn.ReLU(), nn.Linear(128, 10)",
    ),
}

EMPTY, FULL, PEER = "empty cache", "full cache", "PyTorch"


def _programs() -> dict[tuple[str, str], str]:
    """Return the programs by what they do and in which way."""
    programs = {("import brainstorm beyond NumPy and h5py", FULL): IMPORT}
    for name, (shape, spec, modules) in NETWORKS.items():
        what = f"import, and a step of {name}, B=16"
        step = STEP.format(shape=shape, step=OURS.format(shape=shape, spec=spec))
        programs[what, EMPTY] = programs[what, FULL] = step
        if has("torch"):
            programs[what, PEER] = STEP.format(shape=shape, step=PYTORCH.format(modules=modules))
    return programs


def measure(rounds: int) -> list[dict[str, Any]]:
    """Return, for everything that is started, seconds and MiB of all rounds by way."""
    programs = _programs()
    found = {what: {} for what, _ in programs}
    with tempfile.TemporaryDirectory() as full:
        for number in range(rounds + 1):
            for (what, way), program in programs.items():
                with tempfile.TemporaryDirectory() as empty:
                    seconds, mebibytes = _run(program, empty if way == EMPTY else full)
                if number > 0:  # the first round fills the cache
                    samples = found[what].setdefault(way, {"seconds": [], "MiB": []})
                    samples["seconds"].append(seconds)
                    samples["MiB"].append(mebibytes)
    return [{"what": what, "ways": ways} for what, ways in found.items()]


def _run(program: str, cache: str) -> tuple[float, float]:
    environment = {**os.environ, "BRAINSTORM_CACHE_DIR": cache}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    seconds, mebibytes = map(float, done.stdout.split())
    return seconds, mebibytes


def start_rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the table: seconds, minimum (median), and the peak of memory."""
    rows = [["seconds", EMPTY, FULL, PEER]]
    for row in found:
        cells = []
        for way in rows[0][1:]:
            samples = row["ways"].get(way)
            peak = f", {min(samples['MiB']):.0f} MiB" if samples and any(samples["MiB"]) else ""
            cells.append(f"{Times.of(samples['seconds'])}{peak}" if samples else "")
        rows.append([row["what"], *cells])
    return rows


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    parser = figures_parser(__doc__)
    parser.add_argument("--rounds", metavar="N", type=int, default=7, help="(%(default)s)")
    arguments = parser.parse_args()
    found = measure(arguments.rounds)
    deliver(found, as_text(start_rows(found)), arguments)


if __name__ == "__main__":
    main()
