"""Long short-term memory with peephole connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.layers._formula import derived
from brainstorm.layers._recurrence import Gate, RecurrentLayer, rows_before
from brainstorm.layers._writing import compute_into
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferView, ConstructionWrapper
from brainstorm.utils import flatten_time


def Lstm(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add an LSTM layer with peepholes (Gers et al. 2002; notation of Greff et al. 2015).

    With ' for the state at t - 1, which is zero before the first step unless a context is given:

        Z = act(Wz x + Rz y' + bz)                c = I * Z + F * c'
        I = sigmoid(Wi x + Ri y' + pi * c' + bi)  O = sigmoid(Wo x + Ro y' + po * c + bo)
        F = sigmoid(Wf x + Rf y' + pf * c' + bf)  y = O * act(c)

    Args:
        size: Number of cells.
        activation: Activation of block input and cell output; one of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1), where 0 holds c', y'
    Outputs: default ('T', 'B', size), context 1
    Parameters: Wz Wi Wf Wo (size, n), pi pf po (1, size), Rz Ri Rf Ro (size, size), bz bi bf bo
        (size,)
    Internals: ('T', 'B', size) with context 1: Za Zb Ia Ib Fa Fb Oa Ob Ca Cb, before (a) and after
        (b) the nonlinearity, Ca being the cell; their deltas dZa ... dCb (the context row of dCa
        is the delta of the cell before step 0); with a mask the scratch carry ('B', size)
    """
    return ConstructionWrapper.create(LstmLayerImpl, name=name, size=size, activation=activation)


class LstmLayerImpl(RecurrentLayer):
    """Implements `Lstm`; row -1 of the output and of Ca is the state before the first step."""

    is_traceable = True
    gates = (
        Gate("Za", "bz", "Wz", "Rz"),
        Gate("Ia", "bi", "Wi", "Ri", "pi"),
        Gate("Fa", "bf", "Wf", "Rf", "pf"),
        Gate("Oa", "bo", "Wo", "Ro", "po"),
    )
    states = ("Za", "Zb", "Ia", "Ib", "Fa", "Fb", "Oa", "Ob", "Ca", "Cb")
    memory = ("Ca",)
    deltas = tuple(f"d{state}" for state in states)

    @staticmethod
    def cell(act: Callable[[Any], Any], v: Any) -> dict[str, Any]:
        Za, Ia, Fa = v.Za + v.bz, v.Ia + (v.bi + v.pi * v.Ca), v.Fa + (v.bf + v.pf * v.Ca)
        Zb, Ib, Fb = act(Za), fn.sig(Ia), fn.sig(Fa)
        Ca = Ib * Zb + Fb * v.Ca
        Oa = v.Oa + (v.bo + v.po * Ca)
        Ob, Cb = fn.sig(Oa), act(Ca)
        before = {"Za": Za, "Ia": Ia, "Fa": Fa, "Oa": Oa, "Ca": Ca}
        after = {"Zb": Zb, "Ib": Ib, "Fb": Fb, "Ob": Ob, "Cb": Cb}
        return {**before, **after, "y": Ob * Cb}

    def backward_pass(self, buffers: BufferView) -> None:
        super().backward_pass(buffers)
        b, steps, peepholes = buffers.internals, buffers.inputs.default.shape[0], self.names("p")
        rows = list(rows_before(b.Ca, steps))
        deltas = [b.dOa[0:steps], *(d[now] for now, _ in rows for d in (b.dIa, b.dFa))]
        arrays = [b.Ca[0:steps], *(c for _, c in rows), *deltas]
        compute_into(
            self,
            derived(_peephole_terms, tuple(range(len(deltas))), tuple(range(len(peepholes)))),
            [*(buffers.parameters[name] for name in peepholes), *map(flatten_time, arrays)],
            {f"gradients.{name}": buffers.gradients[name] for name in peepholes},
        )


@formula
def _peephole_terms(pi: Any, pf: Any, po: Any, c: Any, *before: Any) -> list[Any]:
    """Return what peepholes add to the sums of O, of the first I and F, and of the others."""
    return [po * c, *(p * old for old in before for p in (pi, pf))]
