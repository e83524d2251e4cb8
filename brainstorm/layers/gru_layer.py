"""Gated recurrent units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.layers._recurrence import Gate, RecurrentLayer
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferView, ConstructionWrapper


def Gru(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add gated recurrent units (Cho et al. 2014); the reset gate acts on the recurrent product.

    With y' for the output at t - 1, which is zero before the first step unless a context is given:

        R = sigmoid(Wr x + Rr y' + br)      H = act(Wh x + bh + R * (Rh y' + bRh))
        Z = sigmoid(Wz x + Rz y' + bz)      y = (1 - Z) * H + Z * y'

    This is the formula of cuDNN and PyTorch, whose r, z, n are R, Z, H.

    Args:
        size: Number of units.
        activation: Activation of the candidate H; one of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1), where 0 holds y'
    Outputs: default ('T', 'B', size), context 1
    Parameters: Wr Wz Wh (size, n), Rh Rr Rz (size, size), bRh br bz bh (size,)
    Internals: ('T', 'B', size): Qa (= Rh y' + bRh), Ra Za Ha and Rb Zb Hb, before (a) and after (b)
        the nonlinearity; dQa dRa dZa dHa; the scratch carry ('B', size)
    """
    return ConstructionWrapper.create(GruLayerImpl, name=name, size=size, activation=activation)


class GruLayerImpl(RecurrentLayer):
    """Implements `Gru`; row -1 of the output is the state before the first step."""

    is_traceable = True
    gates = (
        Gate("Qa", "bRh", R="Rh"),
        Gate("Ra", "br", "Wr", "Rr"),
        Gate("Za", "bz", "Wz", "Rz"),
        Gate("Ha", "bh", W="Wh"),
    )
    states = ("Qa", "Ra", "Za", "Ha", "Rb", "Zb", "Hb")
    deltas = ("dQa", "dRa", "dZa", "dHa")
    internal_context = 0
    carries = True

    @staticmethod
    def cell(act: Callable[[Any], Any], v: Any) -> dict[str, Any]:
        Qa, Ra, Za = v.Qa + v.bRh, v.Ra + v.br, v.Za + v.bz
        Rb, Zb = fn.sig(Ra), fn.sig(Za)
        Ha = v.Ha + v.bh + Rb * Qa
        Hb = act(Ha)
        before, after = {"Qa": Qa, "Ra": Ra, "Za": Za, "Ha": Ha}, {"Rb": Rb, "Zb": Zb, "Hb": Hb}
        return {**before, **after, "y": Hb + Zb * (v.y - Hb)}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self.handler.fill(buffers.internals.Qa, 0.0)
        super().forward_pass(buffers, training_pass)
