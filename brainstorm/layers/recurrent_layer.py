"""Recurrent layer: fully connected to its input and to its own previous output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.layers._recurrence import Gate, RecurrentLayer
from brainstorm.structure import ConstructionWrapper


def Recurrent(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add a simple recurrent layer.

    Ha_t = W x_t + R y_(t-1) + bias and y_t = act(Ha_t), with the n input features flattened.

    Args:
        size: Number of units.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...); optional mask ('T', 'B', 1), where 0 holds y_(t-1)
    Outputs: default ('T', 'B', size), context 1
    Parameters: W (size, n), R (size, size), bias (size,)
    Internals: Ha and, in the backward pass, dHa and dHb: deltas before and after the activation;
        with a mask the scratch carry ('B', size)
    """
    return ConstructionWrapper.create(
        RecurrentLayerImpl, name=name, size=size, activation=activation
    )


class RecurrentLayerImpl(RecurrentLayer):
    """Implements `Recurrent`; row -1 of the output is the state before the first step."""

    is_traceable = True
    gates = (Gate("Ha", "bias", "W", "R"),)
    states = ("Ha",)
    deltas = ("dHa", "dHb")

    @staticmethod
    def cell(act: Callable[[Any], Any], v: Any) -> dict[str, Any]:
        Ha = v.Ha + v.bias
        Hb = act(Ha)
        return {"Ha": Ha, "Hb": Hb, "y": Hb}
