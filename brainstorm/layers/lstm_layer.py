"""Long short-term memory with peephole connections."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._writing import overwrites_all
from brainstorm.layers.base_layer import Layer, Structures
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

    Inputs: default ('T', 'B', ...), n features   Outputs: default ('T', 'B', size), context 1
    Parameters: Wz Wi Wf Wo (size, n), pi pf po (1, size), Rz Ri Rf Ro (size, size), bz bi bf bo
        (size,)
    Internals: ('T', 'B', size) with context 1: Za Zb Ia Ib Fa Fb Oa Ob Ca Cb, before (a) and after
        (b) the nonlinearity, Ca being the cell; their deltas dZa ... dCb, and the scratch dp
    """
    return ConstructionWrapper.create(LstmLayerImpl, name=name, size=size, activation=activation)


class LstmLayerImpl(Layer):
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
        return {"default": states}, parameters, internals

    # -- forward --------------------------------------------------------------------------------

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = flatten_time_and_features(buffers.inputs.default), buffers.outputs.default
        gates = buffers.internals.joint(*BEFORE)
        W = buffers.parameters.joint(*INPUT_WEIGHTS)
        R = buffers.parameters.joint(*RECURRENT_WEIGHTS)
        bias = buffers.parameters.joint(*BIASES)
        steps = buffers.inputs.default.shape[0]
        flat_gates = flatten_time(gates[0:steps])
        self.handler.dot_mm(x, W, flat_gates, transb=True)
        self.handler.add_mv(flat_gates, bias.reshape((1, bias.shape[0])), flat_gates)
        for t in range(steps):
            self.handler.dot_add_mm(y[t - 1], R, gates[t], transb=True)
            self._forward_step(buffers, t)

    def _forward_step(self, buffers: BufferView, t: int) -> None:
        _h, act = self.handler, self.handler.act_func[self.activation]
        pi, pf, po = (buffers.parameters[name] for name in PEEPHOLES)
        Za, Zb, Ia, Ib, Fa, Fb, Oa, Ob, Ca, Cb = (b[t] for b in buffers.internals[:10])
        previous = buffers.internals.Ca[t - 1]
        _h.mult_add_mv(previous, pi, Ia)
        _h.mult_add_mv(previous, pf, Fa)
        act(Za, Zb)
        _h.sigmoid(Ia, Ib)
        _h.sigmoid(Fa, Fb)
        _h.mult_tt(Ib, Zb, Ca)
        _h.mult_add_tt(Fb, previous, Ca)
        _h.mult_add_mv(Ca, po, Oa)
        _h.sigmoid(Oa, Ob)
        act(Ca, Cb)
        _h.mult_tt(Ob, Cb, buffers.outputs.default[t])

    # -- backward -------------------------------------------------------------------------------

    def backward_pass(self, buffers: BufferView) -> None:
        steps = buffers.inputs.default.shape[0]
        R = buffers.parameters.joint(*RECURRENT_WEIGHTS)
        dgates = buffers.internals.joint(*DELTAS_BEFORE)
        dy = buffers.output_deltas.default
        for t in range(steps - 1, -1, -1):
            if t + 1 < steps:
                self.handler.dot_add_mm(dgates[t + 1], R, dy[t])
            self._backward_output_and_cell(buffers, t, is_last=t + 1 == steps)
            self._backward_gates(buffers, t)
        self._input_deltas(buffers, flatten_time(dgates[0:steps]))
        self._weight_gradients(buffers, dgates, steps)
        self._peephole_gradients(buffers, steps)

    def _backward_output_and_cell(self, buffers: BufferView, t: int, is_last: bool) -> None:
        """Compute the deltas of output gate and cell from those of the output and of t + 1."""
        _h, b = self.handler, buffers.internals
        pi, pf, po = (buffers.parameters[name] for name in PEEPHOLES)
        dy = buffers.output_deltas.default[t]
        _h.mult_tt(dy, b.Cb[t], b.dOb[t])
        _h.sigmoid_deriv(b.Oa[t], b.Ob[t], b.dOb[t], b.dOa[t])
        _h.mult_tt(dy, b.Ob[t], b.dCb[t])
        _h.act_func_deriv[self.activation](b.Ca[t], b.Cb[t], b.dCb[t], b.dCa[t])
        _h.mult_add_mv(b.dOa[t], po, b.dCa[t])
        if not is_last:
            _h.mult_add_tt(b.dCa[t + 1], b.Fb[t + 1], b.dCa[t])
            _h.mult_add_mv(b.dIa[t + 1], pi, b.dCa[t])
            _h.mult_add_mv(b.dFa[t + 1], pf, b.dCa[t])

    def _backward_gates(self, buffers: BufferView, t: int) -> None:
        """Compute the deltas of block input, input gate and forget gate from the cell's."""
        _h, b = self.handler, buffers.internals
        dCa = b.dCa[t]
        for gate, factor in (("Z", b.Ib[t]), ("I", b.Zb[t]), ("F", b.Ca[t - 1])):
            before, after = b[f"{gate}a"][t], b[f"{gate}b"][t]
            deriv = _h.act_func_deriv[self.activation if gate == "Z" else "sigmoid"]
            _h.mult_tt(dCa, factor, b[f"d{gate}b"][t])
            deriv(before, after, b[f"d{gate}b"][t], b[f"d{gate}a"][t])

    def _input_deltas(self, buffers: BufferView, dgates: Array) -> None:
        if self.needs_delta("default"):
            dx = flatten_time_and_features(buffers.input_deltas.default)
            W = buffers.parameters.joint(*INPUT_WEIGHTS)
            self.dot_op("input_deltas.default")(dgates, W, dx)

    def _weight_gradients(self, buffers: BufferView, dgates: Array, steps: int) -> None:
        _h, y, gradients = self.handler, buffers.outputs.default, buffers.gradients
        x, flat = flatten_time_and_features(buffers.inputs.default), flatten_time(dgates[0:steps])
        dot = _h.dot_mm if overwrites_all(self, gradients, *INPUT_WEIGHTS) else _h.dot_add_mm
        dot(flat, x, gradients.joint(*INPUT_WEIGHTS), transa=True)
        total = _h.sum_t if overwrites_all(self, gradients, *BIASES) else _h.sum_add_t
        total(flat, 0, gradients.joint(*BIASES))
        # The state before step 0 is row -1; those before the other steps are rows 0 to T - 2.
        dR = gradients.joint(*RECURRENT_WEIGHTS)
        dot = _h.dot_mm if overwrites_all(self, gradients, *RECURRENT_WEIGHTS) else _h.dot_add_mm
        dot(dgates[0], y[-1], dR, transa=True)
        if steps > 1:
            before, after = flatten_time(y[0 : steps - 1]), flatten_time(dgates[1:steps])
            _h.dot_add_mm(after, before, dR, transa=True)

    def _peephole_gradients(self, buffers: BufferView, steps: int) -> None:
        _h, b, products = self.handler, buffers.internals, buffers.internals.dp
        for name, dgate in (("pi", b.dIa), ("pf", b.dFa)):
            _h.mult_tt(dgate[0], b.Ca[-1], products[0])
            if steps > 1:
                _h.mult_tt(dgate[1:steps], b.Ca[0 : steps - 1], products[1:steps])
            self.sum_op(f"gradients.{name}")(flatten_time(products), 0, buffers.gradients[name])
        _h.mult_tt(b.dOa[0:steps], b.Ca[0:steps], products)
        self.sum_op("gradients.po")(flatten_time(products), 0, buffers.gradients.po)
