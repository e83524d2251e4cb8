"""Clockwork layer: a recurrent layer whose units compute at different rates."""

from __future__ import annotations

from brainstorm.layers._clocks import ClockedLayer
from brainstorm.layers.recurrent_layer import RecurrentLayerImpl
from brainstorm.structure import ConstructionWrapper


def Clockwork(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add a clockwork recurrent layer (Koutník et al. 2014, with a full recurrent matrix).

    Where t is a multiple of timing: Ha_t = W x_t + R y_(t-1) + bias and y_t = act(Ha_t). Elsewhere
    y_t = y_(t-1). All units compute at t = 0, the first step of a pass.

    Args:
        size: Number of units.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1), where 0 holds y_(t-1)
    Outputs: default ('T', 'B', size), context 1
    Parameters: W (size, n), R (size, size), bias (size,); timing (size,), positive and without a
        gradient: the number of steps between computations of a unit
    Internals: those of `Recurrent` with a mask; time ('T', 'B', 1); active ('T', 'B', size), which
        is 0 where units hold their state
    """
    return ConstructionWrapper.create(
        ClockworkLayerImpl, name=name, size=size, activation=activation
    )


class ClockworkLayerImpl(ClockedLayer, RecurrentLayerImpl):
    """Implements `Clockwork`; row -1 of the output is the state before the first step."""

    is_traceable = True
