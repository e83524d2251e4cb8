"""Weights of recurrent layers as other libraries hold them: all gates in one matrix.

PyTorch and ONNX have two biases for each gate, which are added. Only in `Gru` the second one of the
candidate, which is the last gate, stays apart: the reset gate acts on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Stacked(NamedTuple):
    """The weights of inputs and previous outputs, the biases and the second ones, by gate."""

    W: np.ndarray
    R: np.ndarray
    b: np.ndarray
    second: np.ndarray

    def parameters(self, kind: str, gates: str) -> dict[str, np.ndarray]:
        """Return the parameters of a layer of some type by name, given a letter for each gate."""
        found, second = {}, self.second
        if kind == "Gru":
            *others, found["bRh"] = np.split(second, 3)
            second = np.concatenate([*others, np.zeros_like(found["bRh"])])
        arrays = self.W, self.R, self.b + second
        for names, array in zip(names_of_weights(kind, gates), arrays, strict=True):
            found.update(zip(names, np.split(array, len(names)), strict=True))
        return found


def stack(kind: str, gates: str, get: Callable[[str], Any]) -> Stacked:
    """Return the weights of a layer, given its type, its gates and a reader of its parameters."""
    names = names_of_weights(kind, gates)
    W, R, b = (np.concatenate([get(name) for name in each]) for each in names)
    second = np.zeros_like(b)
    if kind == "Gru":
        second[-len(b) // 3 :] = get("bRh")
    return Stacked(W, R, b, second)


def names_of_weights(kind: str, gates: str) -> list[list[str]]:
    """Return the names of the parameters W, R and b of all gates."""
    if kind == "Recurrent":
        return [["W"], ["R"], ["bias"]]
    return [[f"{start}{gate}" for gate in gates] for start in "WRb"]
