"""Clockwork LSTM: a long short-term memory whose cells compute at different rates."""

from __future__ import annotations

from brainstorm.layers.clockwork_layer import ClockedLayer
from brainstorm.layers.lstm_layer import LstmLayerImpl
from brainstorm.structure import ConstructionWrapper


def ClockworkLstm(
    size: int, activation: str = "tanh", name: str | None = None
) -> ConstructionWrapper:
    """Add an LSTM layer with peepholes and clocks.

    Where t is a multiple of timing, a unit computes as in `Lstm`. Elsewhere it keeps both cell and
    output of t - 1. All units compute at t = 0, the first step of a sequence; a pass that starts
    from the context of another one continues its clocks.

    Args:
        size: Number of cells.
        activation: Of block input and cell output; one of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1), where 0 holds c', y'
    Outputs: default ('T', 'B', size), context 1
    Parameters: those of `Lstm`; timing (size,), positive and without a gradient: the number of
        steps between computations of a unit
    Internals: those of `Lstm` with a mask; time ('T', 'B', 1), context 1, the number of steps so
        far; active ('T', 'B', size), which is 0 where units hold their state
    """
    return ConstructionWrapper.create(
        ClockworkLstmLayerImpl, name=name, size=size, activation=activation
    )


class ClockworkLstmLayerImpl(ClockedLayer, LstmLayerImpl):
    """Implements `ClockworkLstm`; row -1 of output and Ca is the state before the first step."""

    is_traceable = True
