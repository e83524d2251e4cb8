"""Gated recurrent units."""

from __future__ import annotations

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

__all__ = ["Gru", "GruLayerImpl"]

INPUT_WEIGHTS = ("Wr", "Wz", "Wh")
RECURRENT_WEIGHTS = ("Rh", "Rr", "Rz")
BIASES = ("bRh", "br", "bz", "bh")
# The first three get a product with y', the last three one with x: in this order both are slices.
BEFORE = ("Qa", "Ra", "Za", "Ha")
DELTAS_BEFORE = ("dQa", "dRa", "dZa", "dHa")


def Gru(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add gated recurrent units (Cho et al. 2014), the reset gate acting on the recurrent product.

    With y' for the output at t - 1, which is zero before the first step unless there is a context:

        R = sigmoid(Wr x + Rr y' + br)      H = act(Wh x + bh + R * (Rh y' + bRh))
        Z = sigmoid(Wz x + Rz y' + bz)      y = (1 - Z) * H + Z * y'

    This is the formula of cuDNN and PyTorch, whose r, z, n are R, Z, H.

    Args:
        size: Number of units.
        activation: Of the candidate H; one of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), n features; optional mask ('T', 'B', 1), where 0 holds y'
    Outputs: default ('T', 'B', size), context 1
    Parameters: Wr Wz Wh (size, n), Rh Rr Rz (size, size), bRh br bz bh (size,)
    Internals: ('T', 'B', size): Qa (= Rh y' + bRh), Ra Za Ha and Rb Zb Hb, before (a) and after (b)
        the nonlinearity, D (= y' - H); dQa dRa dZa dHa, and the slopes sR (of Ha by Ra), sZ and sH
        (of y by Za and Ha); with a mask hold and idle
    """
    return ConstructionWrapper.create(GruLayerImpl, name=name, size=size, activation=activation)


class GruLayerImpl(RecurrentLayer):
    """Implements `Gru`; row -1 of the output is the state before the first step."""

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
        self.size = size = kwargs["size"]
        inputs = in_shapes["default"].feature_size
        parameters = {
            **dict.fromkeys(INPUT_WEIGHTS, BufferStructure(size, inputs)),
            **dict.fromkeys(RECURRENT_WEIGHTS, BufferStructure(size, size)),
            **dict.fromkeys(BIASES, BufferStructure(size)),
        }
        states = BufferStructure("T", "B", size)
        deltas = BufferStructure("T", "B", size, is_backward_only=True)
        internals = {
            **dict.fromkeys((*BEFORE, "Rb", "Zb", "Hb", "D"), states),
            **dict.fromkeys((*DELTAS_BEFORE, "sR", "sZ", "sH"), deltas),
            **self.hold_structures(size),
        }
        return {"default": BufferStructure("T", "B", size, context_size=1)}, parameters, internals

    def _from_input(self, gates: Array) -> Array:
        """Return what the input reaches, (T, B, ...)."""
        return gates[:, :, self.size : 4 * self.size]

    def _from_state(self, gates: Array) -> Array:
        """Return what the previous output reaches, (T, B, ...)."""
        return gates[:, :, 0 : 3 * self.size]

    # -- forward --------------------------------------------------------------------------------

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        _h, x = self.handler, flatten_time_and_features(buffers.inputs.default)
        gates = buffers.internals.joint(*BEFORE)
        R = buffers.parameters.joint(*RECURRENT_WEIGHTS)
        W, bias = buffers.parameters.joint(*INPUT_WEIGHTS), buffers.parameters.joint(*BIASES)
        if self.holds:
            self.prepare_hold(buffers)
        _h.dot_mm(x, W, flatten_time(self._from_input(gates)), transb=True)
        _h.fill(buffers.internals.Qa, 0.0)
        flat = flatten_time(gates)
        _h.add_mv(flat, bias.reshape((1, bias.shape[0])), flat)
        self._forward_steps(buffers, self._from_state(gates), R)

    def _forward_steps(self, buffers: BufferView, gates: Array, R: Array) -> None:
        """Add to the gates what comes from the step before, and compute what follows from them."""
        _h, act, outputs = self.handler, self.handler.act_func[self.activation], buffers.outputs
        y_before = outputs.default[-1]
        rows = rows_by_step(gates.shape[0], gates, *buffers.internals[:8], outputs.default)
        for t, (gate, Qa, Ra, Za, Ha, Rb, Zb, Hb, D, y) in enumerate(rows):
            _h.dot_add_mm(y_before, R, gate, transb=True)
            _h.sigmoid(Ra, Rb)
            _h.sigmoid(Za, Zb)
            _h.mult_add_tt(Rb, Qa, Ha)
            act(Ha, Hb)
            _h.subtract_tt(y_before, Hb, D)
            _h.mult_tt(Zb, D, y)
            _h.add_tt(y, Hb, y)
            if self.holds:
                _h.copy_to_if(y_before, y, buffers.internals.hold[t])
            y_before = y

    # -- backward -------------------------------------------------------------------------------

    def backward_pass(self, buffers: BufferView) -> None:
        dgates = buffers.internals.joint(*DELTAS_BEFORE)
        self._slopes(buffers)
        self._backward_steps(buffers, self._from_state(dgates))
        from_input = self._from_input(dgates), INPUT_WEIGHTS
        self.write_gradients(buffers, from_input, (self._from_state(dgates), RECURRENT_WEIGHTS))
        overwrite = overwrites_all(self, buffers.gradients, *BIASES)
        total = self.handler.sum_t if overwrite else self.handler.sum_add_t
        total(flatten_time(dgates), 0, buffers.gradients.joint(*BIASES))

    def _slopes(self, buffers: BufferView) -> None:
        """Compute what `_backward_steps` multiplies deltas with, for all steps at once."""
        _h, b = self.handler, buffers.internals
        _h.sigmoid_deriv(b.Ra, b.Rb, b.Qa, b.sR)
        _h.sigmoid_deriv(b.Za, b.Zb, b.D, b.sZ)
        _h.mult_st(-1.0, b.Zb, b.sH)
        _h.add_st(1.0, b.sH, b.sH)
        _h.inplace_act_func_deriv[self.activation](b.Hb, b.sH, b.Ha)

    def _backward_steps(self, buffers: BufferView, dgates: Array) -> None:
        """Compute the deltas before the nonlinearities, from the last step to the first."""
        _h, b, dys = self.handler, buffers.internals, buffers.output_deltas.default
        R, steps = buffers.parameters.joint(*RECURRENT_WEIGHTS), dgates.shape[0]
        names = ("dQa", "dRa", "dZa", "dHa", "sR", "sZ", "sH", "Rb", "Zb")
        rows = rows_by_step(steps, dys, dgates, *(b[name] for name in names))
        for t in range(steps - 1, -1, -1):
            dy, dgate, dQa, dRa, dZa, dHa, sR, sZ, sH, Rb, Zb = rows[t]
            if self.holds:
                self.pass_on(dys, b.hold, t)
            _h.mult_tt(dy, sZ, dZa)
            _h.mult_tt(dy, sH, dHa)
            _h.mult_tt(dHa, sR, dRa)
            _h.mult_tt(dHa, Rb, dQa)
            if t > 0:
                _h.mult_add_tt(dy, Zb, rows[t - 1][0])
                _h.dot_add_mm(dgate, R, rows[t - 1][0])
