"""Long short-term memory with peephole connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.layers._recurrence import Gate, RecurrentLayer, rows_before
from brainstorm.layers._writing import compute_into
from brainstorm.optree import formula, gradients
from brainstorm.optree import functions as fn
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import flatten_time

__all__ = ["Lstm", "LstmLayerImpl"]


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
    def cell(act: Callable[[Any], Any], *arguments: Any) -> tuple[Any, ...]:
        Za, Ia, Fa, Oa, _, c, pi, pf, po, bz, bi, bf, bo = arguments
        Za, Ia, Fa = Za + bz, Ia + (bi + pi * c), Fa + (bf + pf * c)
        Zb, Ib, Fb = act(Za), fn.sig(Ia), fn.sig(Fa)
        Ca = Ib * Zb + Fb * c
        Oa = Oa + (bo + po * Ca)
        Ob, Cb = fn.sig(Oa), act(Ca)
        return Za, Zb, Ia, Ib, Fa, Fb, Oa, Ob, Ca, Cb, Ob * Cb

    def backward_pass(self, buffers: BufferView) -> None:
        super().backward_pass(buffers)
        p, b, steps = buffers.parameters, buffers.internals, buffers.inputs.default.shape[0]
        peepholes = self.names("p")
        arrays = [p[name] for name in peepholes]
        arrays += [flatten_time(array[0:steps]) for array in (b.Ca, b.dOa)]
        for now, c in rows_before(b.Ca, steps):
            arrays += [flatten_time(array) for array in (c, b.dIa[now], b.dFa[now])]
        outputs = {f"gradients.{name}": buffers.gradients[name] for name in peepholes}
        compute_into(self, _peephole_gradients, arrays, outputs)


@formula
def _peephole_gradients(pi: Any, pf: Any, po: Any, c: Any, do: Any, *parts: Any) -> list[Any]:
    """Return the gradients; the parts are c', di and df of the first step, and of all others."""
    roots, seeds = [po * c], [do]
    for before, di, df in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        roots += [pi * before, pf * before]
        seeds += [di, df]
    return gradients(roots, [pi, pf, po], seeds)
