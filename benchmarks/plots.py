"""What was measured as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["plot_growth", "plot_steps"]

RESOLUTION = 100

#: Colours that people with any colour vision tell apart (Okabe and Ito), and shapes.
STYLES = {
    "NativeHandler": ("#d55e00", "o"),
    "NumpyHandler": ("#e69f00", "s"),
    "PyTorch": ("#0072b2", "^"),
    "torch.compile": ("#56b4e9", "v"),
    "JAX": ("#009e73", "D"),
    "onnxruntime": ("#cc79a7", "P"),
}


def plot_steps(result: Mapping[str, Any], path: Path) -> None:
    """Draw a line per workload, with everybody's shortest time and the limit on it."""
    workloads = result["workloads"]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.42 * len(workloads)), layout="constrained")
    places = np.arange(len(workloads))
    for name, (colour, shape) in STYLES.items():
        times = [w["times"]["float32"].get(name, {}).get("minimum") for w in workloads]
        axes.plot(times, places, shape, color=colour, label=name, markersize=8, alpha=0.9)
    limits = [1e3 * w["flop"] / result["limits"]["float32"] for w in workloads]
    axes.plot(limits, places, "|", color="black", label="limit", markersize=16, mew=2)
    axes.set(xscale="log", xlabel="milliseconds (minimum)", yticks=places)
    axes.set_yticklabels([w["name"] for w in workloads])
    axes.invert_yaxis()
    axes.grid(alpha=0.4)
    figure.legend(loc="outside upper center", ncols=(len(STYLES) + 2) // 2)
    _save(figure, path)


def plot_growth(result: Mapping[str, Any], path: Path) -> None:
    """Draw a panel per series: the times, and the lines through them."""
    series = result["series"]
    figure, panels = plt.subplots(2, (len(series) + 1) // 2, figsize=(9, 7), layout="constrained")
    for axes, one in zip(panels.flat, series, strict=False):
        sizes = np.array(one["sizes"], float)
        between = np.geomspace(sizes[0], sizes[-1], 100)
        for name, found in one["found"].items():
            colour, shape = STYLES[name]
            a, b = found["fit"]
            axes.plot(sizes, found["times"], shape, color=colour, label=name)
            axes.plot(between, a + b * between ** one["power"], color=colour, linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel=one["symbol"], ylabel="milliseconds")
        axes.set_xticks(sizes, [str(size) for size in one["sizes"]])
        axes.minorticks_off()
        axes.set_title(one["name"], fontsize=11)
        axes.grid(alpha=0.4)
    panels.flat[0].legend()
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=RESOLUTION, metadata={"Software": None})
    plt.close(figure)
