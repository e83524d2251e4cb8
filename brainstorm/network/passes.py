"""The passes of a network: data, forward, backward, losses, and the context of recurrent layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, shown
from brainstorm.handlers.traces import Trace
from brainstorm.interrupts import uninterrupted
from brainstorm.network.external_data import DataCheck
from brainstorm.network.layer_passes import Passes
from brainstorm.network.parameters import NetworkParameters, each_modifier
from brainstorm.network.pass_plan import find_finished_gradients
from brainstorm.network.topology import warn_of_parts
from brainstorm.network.tracing import Traces, check_planned, repeat
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.lifetimes import plan_memory
from brainstorm.structure.memory import (
    MemoryReport,
    check_sizes,
    find_largest_batch,
    measure_memory,
)
from brainstorm.utils import Array, as_array

Data = Mapping[str, Array]
Functions = Mapping[str, Callable[[], None]]


class NetworkPasses(NetworkParameters):
    """A network that can be run forward and backward."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._check_data = DataCheck(self.layers[INPUT].out_shapes)
        self._passes = Passes(self.layers, self._buffer_manager)

    @property
    def keep_input_deltas(self) -> bool:
        """Whether the deltas of the Input layer are computed too; by a change the batch is lost."""
        return "@needed" in self._buffer_manager.layout[INPUT]

    @keep_input_deltas.setter
    def keep_input_deltas(self, keep: bool) -> None:
        if keep == self.keep_input_deltas:
            return
        with self._buffer_manager.turn, uninterrupted():
            hubs, layout = plan_memory(self.layers, keep, self._buffer_manager.strategy)
            self._buffer_manager.set_layout(layout, hubs, self.handler)
            self._passes.replan()

    @property
    def loss_scale(self) -> Array | None:
        """The factor of all deltas: a one-element array, or `None` for 1.

        At the end of a backward pass the gradients are divided by it, before the modifiers. Every
        step of a stepper sets it.
        """
        return self._passes.loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: Array | None) -> None:
        if scale is not None and getattr(scale, "shape", None) != (1,):
            raise NetworkValidationError(
                f"loss_scale: expected an array of the network's handler with one element, such as "
                f"net.handler.ones((1,)), or None, got {shown(scale)}."
            )
        self._passes.loss_scale = scale
        for name in self.loss_layers:
            self.layers[name].loss_scale = scale

    def provide_external_data(self, data: Data, all_inputs: bool = True) -> None:
        """Copy a batch into the outputs of the Input layer, after a resize to its T and B.

        Args:
            data: Name to array (T, B, features...), as in the Input's ``out_shapes``. Arrays of
                other kinds than the handler's are converted by NumPy and cast to its dtype; unknown
                names are ignored.
            all_inputs: Whether every input must be given; if not, the others keep the data they
                have if T, B and S stay the same, or their size is constant; otherwise steppers
                refuse the batch.

        Raises:
            MissingDataError: An input is missing.
            NetworkValidationError: A shape or dtype does not fit, or T, B or S differ.
            LayerValidationError: Values are not valid for a layer (e.g. class out of range).
            OutOfMemoryError: There is no memory for these sizes.
        """
        with self._buffer_manager.turn:
            T, B, S = (1 if all_inputs else size or 1 for size in self._buffer_manager.sizes)
            self._provide(data, *self._check_data(data, all_inputs, (T, B, S)))

    def _provide(self, data: Data, *sizes: int, missing: Collection[str] = ()) -> None:
        """Provide data whose T, B and S `DataCheck` has returned, without others."""
        inp, handler = self.layers[INPUT], self.handler
        arrays = {name: data[name] for name in inp.out_shapes if name in data}
        for name, array in arrays.items():
            if not isinstance(array, (np.ndarray, handler.array_type)):
                arrays[name] = as_array(array, f"data {name!r}")
        for connection in inp.outgoing:
            array = arrays.get(connection.output_name)
            if isinstance(array, np.ndarray):
                self.layers[connection.end_layer].validate_data(connection.input_name, array)
        self._buffer_manager.leave_batch()
        targets = self._buffer_manager.resize(*sizes).Input.outputs
        self._buffer_manager.provided -= {*arrays, *missing}
        for name, array in arrays.items():
            if isinstance(array, np.ndarray):
                handler.set_from_numpy(targets[name], array)
            else:
                handler.copy_to(array, targets[name])
        self._buffer_manager.provided |= arrays.keys()

    def forward_pass(
        self, training_pass: bool = False, context: Sequence[Array] | None = None
    ) -> None:
        """Compute the outputs of all layers from the provided data.

        Args:
            training_pass: Whether layers act as in training (dropout, batch statistics).
            context: The result of `get_context` after the preceding part of the sequences;
                `None`: start from zeros (or as `carry_context` has set).

        Raises:
            NetworkValidationError: The context is not one of this network and batch size.
            MissingDataError: The batch was lost: there are data for no input.
        """
        self._check_context("forward_pass, context", context)
        if context is not None:
            warn_of_parts(self.layers, is_intended=False, missing=self._missing)
        with self._buffer_manager.turn:
            if not self._buffer_manager.provided:
                self.check_complete()
            self._passes.forward(self.layers, training_pass, context)

    def forward_layers(
        self,
        names: Sequence[str],
        context: Sequence[Array | None] | None = None,
        past: Mapping[str, BufferView] | None = None,
        missing: Collection[str] = (),
    ) -> None:
        """Run some layers forward, outside training, with 0 for missing inputs; see `Passes`."""
        with self._buffer_manager.turn:
            self._buffer_manager.provided.difference_update(missing)
            for name in missing:
                self.handler.fill(self.buffer.Input.outputs[name], 0.0)
            self._passes.forward(names, False, context, past)

    def backward_pass(self, accumulate: bool = False, modify: bool = True) -> None:
        """Compute all gradients (and deltas) of the sum of all losses.

        They belong to the last forward pass: in training it had ``training_pass=True``.

        Args:
            accumulate: Whether to add to the gradients instead of overwriting them.
            modify: Whether to apply the gradient modifiers.

        Raises:
            MissingDataError: Data of the batch are missing.
        """
        with self._buffer_manager.turn:
            if self._buffer_manager.position is not None:  # else there was no forward pass
                self.check_complete()
            self._passes.backward(accumulate)
            if modify:
                self.apply_gradient_modifiers()

    @property
    def finished_gradients(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """The parts of the flat gradients, as (start, stop), that are final after each layer.

        In the order of the backward pass; the last layer may be ``''``, the end of the pass.
        """
        return find_finished_gradients(self._passes.steps(False), self._buffer_manager.layout)

    def follow_backward_pass(self, functions: Functions, are_queued: bool = False) -> None:
        """Set functions to call in every backward pass, each after a layer.

        Args:
            functions: Name of a layer of `finished_gradients` to a function; they replace all
                earlier ones.
            are_queued: Whether they only put work into the handler's stream; see `Handler.call`.
        """
        self._passes.followers[0] = {name: (f, are_queued) for name, f in functions.items()}

    def following(
        self, functions: Functions, are_queued: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context in which further functions are called; see `follow_backward_pass`."""
        return self._passes.following({name: (f, are_queued) for name, f in functions.items()})

    def do_traced(self, traces: Traces, function: Callable[[], None], purpose: Any = None) -> None:
        """Do something with this network, by replaying its calls if it was traced; see `Traces`.

        Meanwhile other threads that compute with this network wait.
        """
        with self._buffer_manager.turn:
            if any(name in vars(self) or getattr(type(self), name) is not m for name, m in _PASSES):
                function()  # a trace would repeat only the handler operations of a user's pass
            else:
                traces.run(self._buffer_manager, self._what_passes_depend_on, function, purpose)

    def _what_passes_depend_on(self) -> Any:
        passes = self._passes
        modifiers = [
            (*which, which[-1].revision) for which in each_modifier(self.gradient_modifiers)
        ]
        layers = [layer.revision for layer in passes.traced]
        return passes, passes.revision, list(passes.followers), layers, modifiers

    def plan(self, training_pass: bool = True, backward_pass: bool | None = None) -> Trace:
        """Return the calls of both passes for the present T and B, without executing them.

        Only a `DebugHandler` executes them, because it checks the results of operations.

        ``print(net.plan().report())`` shows each with its time, after running the passes a few
        times. A replay, and each of these, is a turn that does the same as the passes; it is
        refused if they would consist of other calls by now.

        Args:
            training_pass: Whether layers act as in training.
            backward_pass: Whether the backward pass is included; `None`: only in training.
        """
        manager = self._buffer_manager
        both = training_pass if backward_pass is None else backward_pass

        def state() -> tuple[Any, ...]:
            kept = [getattr(layer, "keeps_statistics", None) for layer in self._passes.traced]
            depends = self._what_passes_depend_on(), training_pass and kept
            return manager.sizes, manager.carries_context, manager.stamp, depends

        with manager.turn:
            with self.handler.tracing(runs=False) as trace:
                position, provided = manager.position, manager.provided
                manager.provided = set(self.input_names)  # the calls do not depend on the data
                try:
                    self.forward_pass(training_pass)
                    if both:
                        self.backward_pass()
                    end = manager.position
                finally:
                    manager.provided = provided
                    if not trace.runs:
                        manager.position = position
            planned = state()

        def around(function: Callable[[], None]) -> None:
            with manager.turn:
                check_planned(planned, state())
                if both:
                    self.check_complete()
                repeat(manager, end, function)

        trace.around = around
        return trace

    def memory(self, T: int, B: int, S: int | None = None) -> MemoryReport:
        """Return the exact bytes per layer and kind for T, B and S; nothing is allocated.

        The memory of `NativeHandler` besides the buffers is included.

        Raises:
            NetworkValidationError: One of them is not an int >= 0; S is missing, or given although
                nothing grows with it.
        """
        manager, names = self._buffer_manager, list(self.layers)
        scratch = self._measure_scratch(T, check_sizes(manager.hubs, S, T=T, B=B), B)
        return measure_memory(manager.hubs, names, T, B, manager.item_size, scratch, S)

    def largest_batch(self, bytes: int, T: int = 1, S: int | None = None) -> int:
        """Return the largest batch size whose `memory` fits into `bytes` for sequences of T steps.

        Raises:
            NetworkValidationError: No buffer grows with the batch size, T is less than 1, `bytes`
                is not a number, or S is missing, or given although nothing grows with it.
        """
        manager = self._buffer_manager
        source = check_sizes(manager.hubs, S, T=T)
        scratch = partial(self._measure_scratch, T, source)
        return find_largest_batch(manager.hubs, T, bytes, manager.item_size, scratch, source)

    def _measure_scratch(self, T: int, S: int, B: int) -> int:
        """Return the bytes that traced parts of both passes take in addition to the buffers."""
        manager, handler = self._buffer_manager, self.handler
        if handler.reserve((0,)) is None or not T * S * B:
            return 0
        with manager.turn, handler.tracing(runs=False):
            there = BufferManager(manager.layout, manager.hubs, handler, handler.reserve)
            there.resize(T, B, S)
            passes = Passes(self.layers, there)
            with there.turn:
                passes.forward(self.layers, True, None)
                passes.backward(False)
        return there.lane.nbytes

    def get_loss_values(self) -> OrderedDict[str, float]:
        """Return the losses of the last forward pass.

        Returns:
            ``total_loss``, preceded by one entry per Loss layer if there are several.

        Raises:
            NetworkValidationError: There was none that ended, or memory has moved since.
            MissingDataError: Data of the batch are missing.
        """
        with self._buffer_manager.turn:  # all of one pass
            if self.loss_layers and self._buffer_manager.position is None:
                raise NetworkValidationError(
                    "get_loss_values: expected a forward pass before it. Call "
                    "provide_external_data and forward_pass."
                )
            self.check_complete()
            losses = [self.get(f"{name}.outputs.loss").item() for name in self.loss_layers]
        return self.name_losses([float(loss) for loss in losses])

    def name_losses(self, values: Sequence[float]) -> OrderedDict[str, float]:
        """Return the values of the Loss layers in the form of `get_loss_values`."""
        losses = OrderedDict(zip(self.loss_layers, values, strict=True))
        total = sum(values, 0.0)
        if len(losses) == 1:
            losses.clear()
        losses["total_loss"] = total
        return losses

    def get_context(self, out: Sequence[Array | None] | None = None) -> list[Array | None]:
        """Return the state of all recurrent layers after the last step, for `forward_pass`.

        Args:
            out: A context of this network that is no longer needed: its memory is reused.

        Raises:
            NetworkValidationError: `out` is something else.
        """
        self._check_context("get_context, out", out or None)
        with self._buffer_manager.turn:
            return self._buffer_manager.get_context(out)

    def _check_context(self, place: str, context: Any) -> None:
        count = len(self._buffer_manager.hubs)
        if not (context is None or (isinstance(context, (list, tuple)) and len(context) == count)):
            raise NetworkValidationError(
                f"{place}: expected what get_context of this network returned, or None, got a "
                f"{type(context).__name__}."
            )

    def carry_context(self, state: list[Array | None], continues: bool) -> None:
        """Make the present batch a part of longer sequences, until the next batch is provided.

            state = []
            for number, part in enumerate(parts_of_some_sequences):
                net.provide_external_data(part)
                net.carry_context(state, continues=number > 0)
                net.forward_pass(training_pass=True)  # starts where the previous part ended

        `tools.run_network` and the Trainer do this with the batches of `SequenceChunks`.

        Args:
            state: A list for these sequences. Once the batch is replaced, it holds the state of all
                recurrent layers after its last step, in the same arrays: copy them to keep one.
            continues: Whether forward passes start from the present `state`, or from zeros.

        Raises:
            NetworkValidationError: `state` is not a list, or is empty although it is continued, or
                belongs to another network or batch size.
        """
        if np.ndim(continues):
            raise NetworkValidationError(
                f"carry_context, continues: expected True or False, for all sequences, got "
                f"{shown(continues)}. To begin some anew, set their part of each array of the "
                f"state to 0: array[:, numbers] = 0."
            )
        if continues:
            warn_of_parts(self.layers, missing=self._missing)
        with self._buffer_manager.turn:
            self._buffer_manager.carry_context(state, continues)

    def leave_batch(self) -> None:
        """Update the list given to `carry_context`; no pass may follow on this batch."""
        with self._buffer_manager.turn:
            self._buffer_manager.leave_batch()


#: The methods that traces repeat.
_PASSES = [
    (name, getattr(NetworkPasses, name))
    for name in ("forward_pass", "backward_pass", "apply_gradient_modifiers")
]
