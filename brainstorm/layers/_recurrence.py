"""Common parts of recurrent layers: a formula for one time step, and the loop over time.

A subclass names its gates and buffers, and writes `RecurrentLayer.cell`, the trees of a step. The
rest follows: the deltas of a step are its derivatives, in terms of the stored internals. What does
not depend on the state is done for all steps at once: the products with the inputs before the loop,
those for the gradients after it. So a step is one product and one formula. For an LSTM, whose sums
Za Ia Fa Oa lie side by side::

    sums = x @ W.T                                          (T, B, 4 size), one product
    for t in range(T):
        sums[t] += y[t - 1] @ R.T
        Za[t], ..., Ca[t], Cb[t], y[t] = step(Za[t], ..., y[t - 1], Ca[t - 1], peepholes, biases)

Row -1 is the state before the first step: the last row of arrays with a context. `Handler.loop`
records one step and its strides, so that a trace of 1,000 steps is as short as one of 10.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from brainstorm.layers._formula import split
from brainstorm.layers._masked import MaskedLayer
from brainstorm.layers._writing import overwrites_all
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.layers.constraints import integer
from brainstorm.optree import Formula, formula, gradients, substitute
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import activation
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import Array, flatten_time, flatten_time_and_features


class Gate(NamedTuple):
    """The names of what belongs to one gate; '' for what it lacks.

    Attributes:
        sum: The internal that holds W x + R y', y' being the output before.
        b: The bias (size,).
        W: The weights (size, n) of the inputs.
        R: The weights (size, size) of the output before.
        p: The peephole (1, size).
    """

    sum: str
    b: str
    W: str = ""
    R: str = ""
    p: str = ""


class RecurrentLayer(MaskedLayer):
    """Base of recurrent layers.

    Where the mask is 0, outputs and cells keep their values of t - 1, and their deltas are passed
    to t - 1. A subclass names its buffers and writes `cell`; everything else is derived.
    """

    expected_kwargs = {"size": integer(minimum=1).required(), "activation": activation_name()}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients", "internals")

    #: Their sums lie side by side in memory, and so do those with W, and those with R.
    gates: tuple[Gate, ...]
    #: Internals that `cell` returns, and those of which it takes the row before.
    states: tuple[str, ...]
    memory: tuple[str, ...] = ()
    #: Internals for the deltas of nodes of `cell`, called d...; those of all sums and memory must
    #: be among them.
    deltas: tuple[str, ...]
    #: Context rows of these internals; memory needs one.
    internal_context = 1
    #: Whether an output depends on the previous one other than by the recurrent weights.
    carries = False

    @staticmethod
    def cell(act: Callable[[Any], Any], v: Any) -> dict[str, Any]:
        """Build the trees of one time step.

        Args:
            act: The activation, a function of trees.
            v: With attributes of their names, the sums of the gates, the previous output y, the
                previous rows of memory, the peepholes and the biases.

        Returns:
            Nodes by the names of the states, and the output y. None of them may be an argument.
        """
        raise NotImplementedError

    @classmethod
    def names(cls, *kinds: str) -> tuple[str, ...]:
        """Return the names of some kinds, which are attributes of `Gate`, in all gates."""
        return tuple(n for kind in kinds for gate in cls.gates if (n := getattr(gate, kind)))

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        size, n = kwargs["size"], in_shapes["default"].feature_size
        parameters = {
            **dict.fromkeys(self.names("W"), BufferStructure(size, n)),
            **dict.fromkeys(self.names("p"), BufferStructure(1, size)),
            **dict.fromkeys(self.names("R"), BufferStructure(size, size)),
            **dict.fromkeys(self.names("b"), BufferStructure(size)),
        }
        shape, context = ("T", "B", size), self.internal_context
        deltas = BufferStructure(*shape, context_size=context, is_backward_only=True)
        internals = {
            **dict.fromkeys(self.states, BufferStructure(*shape, context_size=context)),
            **dict.fromkeys(self.deltas, deltas),
        }
        if self.carries or self.holds:
            internals["carry"] = BufferStructure("B", size, is_backward_only=True)
        self.activation = kwargs.get("activation", "tanh")
        several = {
            "internals": [self.names("sum"), _deltas(self.names("sum"))],
            "parameters": [self.names("W"), self.names("R"), self.names("b")],
        }
        self.joint_buffers = {k: [g for g in v if len(g) > 1] for k, v in several.items()}
        return {"default": BufferStructure(*shape, context_size=1)}, parameters, internals

    @property
    def holds(self) -> bool:
        """Whether anything can hold the state."""
        return "mask" in self.in_shapes

    def active(self, buffers: BufferView) -> list[Array]:
        """Return arrays that are 0 where the state is held, if anything can hold it."""
        return self.mask(buffers)

    def _reached(self, kind: str, sums: Array) -> Array:
        """Return the part of all sums (T, B, ...), or of their deltas, that W or R add to."""
        has = [bool(getattr(gate, kind)) for gate in self.gates]
        size, first = self.kwargs["size"], has.index(True)
        return sums if all(has) else sums[:, :, first * size : (first + sum(has)) * size]

    # -- formulas ---------------------------------------------------------------------------------

    @classmethod
    @functools.cache
    def _formulas(cls, name: str, holds: bool) -> tuple[Formula, Formula]:
        """Return the formulas of a time step, and of its deltas.

        With ' for the previous row, *active* if the state is held, *carry* if there is one::

            step(*gates, *active, y', *memory', *fixed) -> (*states, y)
            deltas(dy, *dmemory, *states, y, *active, y', *memory', *fixed, *carry)
                -> (*deltas, *dmemory', *carry)
        """
        act = activation(name)
        gates, fixed = cls.names("sum"), cls.names("p", "b")
        carried, results = ["y", *cls.memory], [*cls.states, "y"]

        def cell(*operands: Any) -> dict[str, Any]:
            named = zip([*gates, *carried, *fixed], operands, strict=True)
            # Multiplied by 1, the result is a new node even if the activation is the identity.
            return cls.cell(lambda x: act(1 * x), SimpleNamespace(**dict(named)))

        @formula
        def step(*arrays: Any) -> list[Any]:
            sums, active, before, constants = split(arrays, len(gates), holds, len(carried))
            nodes = cell(*sums, *before, *constants)
            for state, old in zip(carried, before, strict=True):
                nodes[state] = _held(active, nodes[state], old)
            return [nodes[state] for state in results]

        @formula
        def deltas(*arrays: Any) -> list[Any]:
            counts = len(carried), len(results), holds, len(carried), len(fixed)
            errors, values, active, before, constants, carry = split(arrays, *counts)
            stored = dict(zip(results, values, strict=True))
            nodes = cell(*(stored[gate] for gate in gates), *before, *constants)
            errors = [sum(carry, errors[0]), *errors[1:]]
            own = [nodes[name.removeprefix("d")] for name in cls.deltas]
            roots, seeds = [nodes[n] for n in carried], [_held(active, e, 0) for e in errors]
            trees = gradients(roots, [*own, *before], seeds)
            trees = substitute(trees, [(nodes[name], tree) for name, tree in stored.items()])
            values, handed = trees[: len(own)], trees[len(own) :]
            if active:
                handed = [
                    g + fn.where(active[0], 0, e) for g, e in zip(handed, errors, strict=True)
                ]
            return [*values, *handed[1:], *handed[: len(carry)]]

        return step, deltas

    # -- forward --------------------------------------------------------------------------------

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        _h, x, y = self.handler, buffers.inputs.default, buffers.outputs.default
        p, b, steps = buffers.parameters, buffers.internals, x.shape[0]
        gates = _joint(b, self.names("sum"))[0:steps]
        flat, W = flatten_time(self._reached("W", gates)), _joint(p, self.names("W"))
        _h.dot_mm(flatten_time_and_features(x), W, flat, transb=True)
        gates, R = self._reached("R", gates), _joint(p, self.names("R"))
        product = _h.repeated_dot_add(R, transb=True)
        step, _ = self._formulas(self.activation, self.holds)
        fixed = _named(p, self.names("p", "b"))
        now = [*_named(b, self.names("sum")), *self.active(buffers)]
        before, results = [y, *_named(b, self.memory)], [*_named(b, self.states), y]

        def forward(t: int) -> None:
            product(y[t - 1], gates[t])
            _h.compute(step, [*_rows(now, t), *_rows(before, t - 1), *fixed], _rows(results, t))

        forward(0)  # the row before the first one is the context: the last row
        _h.loop(range(1, steps), forward)

    # -- backward -------------------------------------------------------------------------------

    def backward_pass(self, buffers: BufferView) -> None:
        steps = buffers.inputs.default.shape[0]
        dgates = _joint(buffers.internals, _deltas(self.names("sum")))[0:steps]
        from_state = self._reached("R", dgates)
        self._backward_steps(buffers, from_state)
        flat = flatten_time(self._reached("W", dgates))
        if self.needs_delta("default"):
            dx = flatten_time_and_features(buffers.input_deltas.default)
            W = _joint(buffers.parameters, self.names("W"))
            self.dot_op("input_deltas.default")(flat, W, dx)
        x = flatten_time_and_features(buffers.inputs.default)
        self._add_products(buffers.gradients, self.names("W"), [(flat, x)])
        y, biases = buffers.outputs.default, self.names("b")
        pairs = [(flatten_time(from_state[t]), flatten_time(y0)) for t, y0 in rows_before(y, steps)]
        self._add_products(buffers.gradients, self.names("R"), pairs)
        overwrite = overwrites_all(self, buffers.gradients, *biases)
        total = self.handler.sum_t if overwrite else self.handler.sum_add_t
        total(flatten_time(dgates), 0, _joint(buffers.gradients, biases))

    def _backward_steps(self, buffers: BufferView, dgates: Array) -> None:
        """Compute all deltas, one time step after the other, from the last to the first."""
        _h, p, b, steps = self.handler, buffers.parameters, buffers.internals, dgates.shape[0]
        y, dy = buffers.outputs.default, buffers.output_deltas.default
        product = _h.repeated_dot_add(_joint(p, self.names("R")))
        _, deltas = self._formulas(self.activation, self.holds)
        dmemory, carry = _named(b, _deltas(self.memory)), [b.carry] if "carry" in b else []
        _h.clear([*(delta[steps - 1] for delta in dmemory), *carry])
        now = [dy, *dmemory, *_named(b, self.states), y, *self.active(buffers)]
        before, results = [y, *_named(b, self.memory)], _named(b, self.deltas)
        fixed = [*_named(p, self.names("p", "b")), *carry]

        def backward(t: int) -> None:
            outputs = [*_rows(results, t), *_rows(dmemory, t - 1), *carry]
            _h.compute(deltas, [*_rows(now, t), *_rows(before, t - 1), *fixed], outputs)

        def hand_on(t: int) -> None:
            backward(t)
            product(dgates[t], dy[t - 1])

        _h.loop(range(steps - 1, 0, -1), hand_on)
        backward(0)  # the row before the first one is the context: the last row

    def _add_products(
        self, gradients: BufferView, weights: tuple[str, ...], pairs: Sequence[tuple[Array, Array]]
    ) -> None:
        """Write the sum of all products of deltas, transposed, with their operands."""
        overwrite = overwrites_all(self, gradients, *weights)
        for deltas, factor in pairs:
            dot = self.handler.dot_mm if overwrite else self.handler.dot_add_mm
            dot(deltas, factor, _joint(gradients, weights), transa=True)
            overwrite = False


def _joint(views: BufferView, names: tuple[str, ...]) -> Array:
    return views.joint(*names) if len(names) > 1 else views[names[0]]


def _deltas(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"d{name}" for name in names)


def _named(views: BufferView, names: tuple[str, ...]) -> list[Array]:
    return [views[name] for name in names]


def _rows(arrays: Sequence[Array], t: int) -> list[Array]:
    return [array[t] for array in arrays]


def rows_before(state: Array, steps: int) -> Iterator[tuple[slice, Array]]:
    """Yield steps, and the state before each of them, which before step 0 is row -1."""
    yield slice(0, 1), state[steps : steps + 1]
    if steps > 1:
        yield slice(1, steps), state[0 : steps - 1]


def _held(active: Sequence[Any], value: Any, otherwise: Any) -> Any:
    return fn.where(active[0], value, otherwise) if active else value
