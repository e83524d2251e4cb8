"""Long short-term memory with peephole connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from brainstorm.layers._recurrence import RecurrentLayer
from brainstorm.layers._steps import rows_by_step
from brainstorm.layers._writing import overwrites_all
from brainstorm.layers.base_layer import Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.layers.constraints import integer
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_time, flatten_time_and_features

__all__ = ["Lstm", "LstmLayerImpl"]

INPUT_WEIGHTS = ("Wz", "Wi", "Wf", "Wo")
PEEPHOLES = ("pi", "pf", "po")
RECURRENT_WEIGHTS = ("Rz", "Ri", "Rf", "Ro")
BIASES = ("bz", "bi", "bf", "bo")
BEFORE = ("Za", "Ia", "Fa", "Oa")
DELTAS_BEFORE = ("dZa", "dIa", "dFa", "dOa")


def Lstm(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add an LSTM layer with peepholes (Gers et al. 2002; notation of Greff et al. 2015).

    With ' for the state at t - 1, which is zero before the first step unless there is a context:

        Z = act(Wz x + Rz y' + bz)                c = I * Z + F * c'
        I = sigmoid(Wi x + Ri y' + pi * c' + bi)  O = sigmoid(Wo x + Ro y' + po * c + bo)
        F = sigmoid(Wf x + Rf y' + pf * c' + bf)  y = O * act(c)

    Args:
        size: Number of cells.
        activation: Of block input and cell output; one of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1), where 0 holds c', y'
    Outputs: default ('T', 'B', size), context 1
    Parameters: Wz Wi Wf Wo (size, n), pi pf po (1, size), Rz Ri Rf Ro (size, size), bz bi bf bo
        (size,)
    Internals: ('T', 'B', size) with context 1: Za Zb Ia Ib Fa Fb Oa Ob Ca Cb, before (a) and after
        (b) the nonlinearity, Ca being the cell; their deltas dZa ... dCb, and the scratch dp; with
        a mask hold, idle and dheld
    """
    return ConstructionWrapper.create(LstmLayerImpl, name=name, size=size, activation=activation)


class LstmLayerImpl(RecurrentLayer):
    """Implements `Lstm`; row -1 of the output and of Ca is the state before the first step."""

    expected_kwargs = {"size": integer(minimum=1).required(), "activation": activation_name()}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients", "internals")
    joint_buffers = {
        "internals": [BEFORE, DELTAS_BEFORE],
        "parameters": [INPUT_WEIGHTS, RECURRENT_WEIGHTS, BIASES],
    }

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.activation = kwargs.get("activation", "tanh")
        size = kwargs["size"]
        parameters = {
            **dict.fromkeys(
                INPUT_WEIGHTS, BufferStructure(size, in_shapes["default"].feature_size)
            ),
            **dict.fromkeys(PEEPHOLES, BufferStructure(1, size)),
            **dict.fromkeys(RECURRENT_WEIGHTS, BufferStructure(size, size)),
            **dict.fromkeys(BIASES, BufferStructure(size)),
        }
        states = BufferStructure("T", "B", size, context_size=1)
        deltas = BufferStructure("T", "B", size, context_size=1, is_backward_only=True)
        names = ["Za", "Zb", "Ia", "Ib", "Fa", "Fb", "Oa", "Ob", "Ca", "Cb"]
        internals = dict.fromkeys(names, states)
        internals.update((f"d{name}", deltas) for name in names)
        internals["dp"] = BufferStructure("T", "B", size, is_backward_only=True)
        if self.holds:
            internals.update(self.hold_structures(size))
            internals["dheld"] = BufferStructure("B", size, is_backward_only=True)
        return {"default": states}, parameters, internals

    # -- forward --------------------------------------------------------------------------------

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x = flatten_time_and_features(buffers.inputs.default)
        gates = buffers.internals.joint(*BEFORE)
        W = buffers.parameters.joint(*INPUT_WEIGHTS)
        R = buffers.parameters.joint(*RECURRENT_WEIGHTS)
        bias = buffers.parameters.joint(*BIASES)
        steps = buffers.inputs.default.shape[0]
        if self.holds:
            self.prepare_hold(buffers)
        flat_gates = flatten_time(gates[0:steps])
        self.handler.dot_mm(x, W, flat_gates, transb=True)
        self.handler.add_mv(flat_gates, bias.reshape((1, bias.shape[0])), flat_gates)
        self._forward_steps(buffers, gates, R, steps)

    def _forward_steps(self, buffers: BufferView, gates: Array, R: Array, steps: int) -> None:
        """Add to the gates what comes from the step before, and compute what follows from them."""
        _h, act = self.handler, self.handler.act_func[self.activation]
        pi, pf, po = (buffers.parameters[name] for name in PEEPHOLES)
        y_before, Ca_before = buffers.outputs.default[-1], buffers.internals.Ca[-1]
        holds = self.holds
        rows = rows_by_step(steps, gates, *buffers.internals[:10], buffers.outputs.default)
        for t, (gate, Za, Zb, Ia, Ib, Fa, Fb, Oa, Ob, Ca, Cb, y) in enumerate(rows):
            _h.dot_add_mm(y_before, R, gate, transb=True)
            _h.mult_add_mv(Ca_before, pi, Ia)
            _h.mult_add_mv(Ca_before, pf, Fa)
            act(Za, Zb)
            _h.sigmoid(Ia, Ib)
            _h.sigmoid(Fa, Fb)
            _h.mult_tt(Ib, Zb, Ca)
            _h.mult_add_tt(Fb, Ca_before, Ca)
            _h.mult_add_mv(Ca, po, Oa)
            _h.sigmoid(Oa, Ob)
            act(Ca, Cb)
            _h.mult_tt(Ob, Cb, y)
            if holds:
                _h.copy_to_if(Ca_before, Ca, buffers.internals.hold[t])
                _h.copy_to_if(y_before, y, buffers.internals.hold[t])
            y_before, Ca_before = y, Ca

    # -- backward -------------------------------------------------------------------------------

    def backward_pass(self, buffers: BufferView) -> None:
        steps = buffers.inputs.default.shape[0]
        dgates = buffers.internals.joint(*DELTAS_BEFORE)
        self._slopes(buffers, steps)
        self._backward_steps(buffers, dgates, steps)
        self._deltas_after(buffers, steps)
        dgates = dgates[0:steps]
        self.write_gradients(buffers, (dgates, INPUT_WEIGHTS), (dgates, RECURRENT_WEIGHTS))
        overwrite = overwrites_all(self, buffers.gradients, *BIASES)
        total = self.handler.sum_t if overwrite else self.handler.sum_add_t
        total(flatten_time(dgates), 0, buffers.gradients.joint(*BIASES))
        self._peephole_gradients(buffers, steps)

    def _slopes(self, buffers: BufferView, steps: int) -> None:
        """Compute all that `_backward_steps` multiplies deltas with, for all steps at once.

        The derivatives of the cell by Za, Ia, Fa go into dZb, dIb, dFb, those of the output by Oa
        and Ca into dOb and dCb, that of the cell by the cell before into dp.
        """
        _h, b, now = self.handler, buffers.internals, slice(0, steps)
        pi, pf, po = (buffers.parameters[name] for name in PEEPHOLES)
        act_deriv = _h.act_func_deriv[self.activation]
        act_deriv(b.Za[now], b.Zb[now], b.Ib[now], b.dZb[now])
        _h.sigmoid_deriv(b.Ia[now], b.Ib[now], b.Zb[now], b.dIb[now])
        for part, Ca_before in _cells_before(b.Ca, steps):
            _h.sigmoid_deriv(b.Fa[part], b.Fb[part], Ca_before, b.dFb[part])
        _h.sigmoid_deriv(b.Oa[now], b.Ob[now], b.Cb[now], b.dOb[now])
        act_deriv(b.Ca[now], b.Cb[now], b.Ob[now], b.dCb[now])
        names = ("Fb", "dIb", "dFb", "dOb", "dCb", "dp")
        Fb, dIb, dFb, dOb, dCb, dp = (flatten_time(b[name][now]) for name in names)
        _h.mult_add_mv(dOb, po, dCb)
        _h.copy_to(Fb, dp)
        _h.mult_add_mv(dIb, pi, dp)
        _h.mult_add_mv(dFb, pf, dp)

    def _backward_steps(self, buffers: BufferView, dgates: Array, steps: int) -> None:
        """Compute the deltas of the cells and before the gates, from the last step to the first."""
        _h, b, dys = self.handler, buffers.internals, buffers.output_deltas.default
        R, holds = buffers.parameters.joint(*RECURRENT_WEIGHTS), self.holds
        deltas = (b[f"d{name}"] for name in ("Ca", "Cb", "Za", "Zb", "Ia", "Ib", "Fa", "Fb"))
        rows = rows_by_step(steps, dys, dgates, b.dp, *deltas, b.dOa, b.dOb)
        _h.fill(b.dCa[steps - 1], 0.0)
        for t in range(steps - 1, -1, -1):
            dy, dgate, dp, dCa, dCb, dZa, dZb, dIa, dIb, dFa, dFb, dOa, dOb = rows[t]
            if holds:
                self.pass_on(dys, b.hold, t)
            _h.mult_tt(dy, dOb, dOa)
            _h.mult_add_tt(dy, dCb, dCa)
            if holds:
                self._hold_cell_deltas(buffers, t, is_last=t + 1 == steps)
            _h.mult_tt(dCa, dZb, dZa)
            _h.mult_tt(dCa, dIb, dIa)
            _h.mult_tt(dCa, dFb, dFa)
            if t > 0:
                _h.dot_add_mm(dgate, R, dys[t - 1])
                _h.mult_tt(dCa, dp, b.dCa[t - 1])

    def _hold_cell_deltas(self, buffers: BufferView, t: int, is_last: bool) -> None:
        """Add the deltas of cells held at t + 1, and keep for t - 1 those of cells held at t."""
        _h, dCa, dheld = self.handler, buffers.internals.dCa[t], buffers.internals.dheld
        hold = buffers.internals.hold[t]
        if not is_last:
            _h.add_tt(dheld, dCa, dCa)
        _h.fill(dheld, 0.0)
        _h.copy_to_if(dCa, dheld, hold)
        _h.fill_if(dCa, 0.0, hold)

    def _deltas_after(self, buffers: BufferView, steps: int) -> None:
        """Compute the deltas after the nonlinearities, where the slopes were so far."""
        _h, b, now = self.handler, buffers.internals, slice(0, steps)
        dy, dCa = buffers.output_deltas.default[now], b.dCa[now]
        _h.mult_tt(dCa, b.Ib[now], b.dZb[now])
        _h.mult_tt(dCa, b.Zb[now], b.dIb[now])
        for part, Ca_before in _cells_before(b.Ca, steps):
            _h.mult_tt(dCa[part], Ca_before, b.dFb[part])
        _h.mult_tt(dy, b.Cb[now], b.dOb[now])
        _h.mult_tt(dy, b.Ob[now], b.dCb[now])

    def _peephole_gradients(self, buffers: BufferView, steps: int) -> None:
        _h, b, products = self.handler, buffers.internals, buffers.internals.dp
        for name, dgate in (("pi", b.dIa), ("pf", b.dFa)):
            for part, Ca_before in _cells_before(b.Ca, steps):
                _h.mult_tt(dgate[part], Ca_before, products[part])
            self.sum_op(f"gradients.{name}")(flatten_time(products), 0, buffers.gradients[name])
        _h.mult_tt(b.dOa[0:steps], b.Ca[0:steps], products)
        self.sum_op("gradients.po")(flatten_time(products), 0, buffers.gradients.po)


def _cells_before(Ca: Array, steps: int) -> Iterator[tuple[slice, Array]]:
    """Yield steps and the cells of the step before each; the one before step 0 is row -1."""
    yield slice(0, 1), Ca[steps : steps + 1]
    if steps > 1:
        yield slice(1, steps), Ca[0 : steps - 1]
