"""The passes of the layers: each in turn, with the planned copying and clearing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, shown
from brainstorm.handlers.traces import Traceable
from brainstorm.network.error_places import naming_places, place_of
from brainstorm.network.pass_plan import BackwardStep, plan_backward_pass
from brainstorm.optree import formula
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.hubs import last_axis_slice
from brainstorm.utils import Array

Followers = Mapping[str, tuple[Callable[[], None], bool]]


@formula
def unscaled(g: Any, scale: Any) -> Any:
    """Return the gradients of the loss itself."""
    return g / scale


def _check_flag(where: str, value: Any) -> None:
    if not isinstance(value, (bool, int, np.bool_)):
        raise NetworkValidationError(
            f"{where}: expected True or False, got {shown(value)}. Data are given to "
            f"provide_external_data, deltas come from Loss layers."
        )


class Passes(Traceable):
    """The forward and backward pass of a network over its present memory."""

    def __init__(self, layers: Mapping[str, Any], manager: BufferManager) -> None:
        self.layers = layers
        self.traced = [layer for layer in layers.values() if layer.is_traceable]
        self.manager = manager
        #: Factor of the deltas of Loss layers, in memory; gradients are divided by it.
        self.loss_scale: Array = None
        #: Layer to the function to call in backward passes directly after the layer, and whether it
        #: only queues work, see `Handler.call`. The first ones are called in every pass.
        self.followers: list[Followers] = [{}]
        self.replan()

    def replan(self) -> None:
        """Follow a change of the layout."""
        #: The steps of a backward pass, accumulating or not; planned when first needed.
        self.steps = cache(partial(plan_backward_pass, self.layers, self.manager.layout))
        #: Layer to the copied inputs to fill before its forward pass.
        self._filled = {
            name: [path for port in layer.in_shapes
                   if "@copy_of" in self.manager.nodes[path := f"{name}.inputs.{port}"]]
            for name, layer in self.layers.items()
        }  # fmt: skip

    @contextlib.contextmanager
    def following(self, followers: Followers) -> Iterator[None]:
        """Call further functions in the backward passes of a ``with`` block."""
        self.followers.append(followers)
        try:
            yield
        finally:
            self.followers.pop()

    def forward(
        self,
        names: Collection[str],
        training_pass: bool,
        context: Sequence[Array | None] | None,
        past: Mapping[str, BufferView] | None = None,
    ) -> None:
        """Run layers forward, in topological order.

        The state before the first step is `context`, or if that is `None` zero, or as carried on.
        In step-by-step prediction `past` is the state that layers have kept of earlier steps.
        """
        _check_flag("forward_pass, training_pass", training_pass)
        self.manager.begin_pass(0)
        handler = self.manager.handler
        with handler.running.at("context"):
            self.manager.start_context(context)
        for name in names:
            if name == INPUT:
                continue
            for sink in self._filled[name]:
                for source, part in self._parts_of_copy(sink):
                    handler.copy_to(source, part)
            if past and name in past:
                self._run(name, "forward_step", past[name])
            else:
                self._run(name, "forward_pass", training_pass)
        if len(names) == len(self.layers):
            self.manager.position = len(self.layers) - 1

    def backward(self, accumulate: bool) -> None:
        """Run all layers backward that lead to a parameter; may add to the present gradients."""
        _check_flag("backward_pass, accumulate", accumulate)
        self.manager.begin_pass(len(self.layers))
        gradients = self.manager.views.gradients if self.loss_scale is not None else None
        if gradients is not None and accumulate:
            self.manager.handler.mult_st(self.loss_scale, gradients, gradients)
        for step in self.steps(accumulate):
            self._backward_step(step)
            for followers in self.followers:
                if step.layer in followers:
                    self.manager.handler.call(*followers[step.layer])
        if gradients is not None:
            self.manager.handler.compute(unscaled, [gradients, self.loss_scale], [gradients])
        self.manager.position = 2 * len(self.layers) - 1

    def _backward_step(self, step: BackwardStep) -> None:
        handler = self.manager.handler
        for hub, start, stop in step.clear:
            handler.fill(self.manager.part(hub, start, stop), 0.0)
        if step.layer not in ("", INPUT):
            self._run(step.layer, "backward_pass", step=step)
        for sink, adds in step.copies.items():
            for (source, part), add in zip(self._parts_of_copy(sink), adds, strict=True):
                if add:
                    handler.add_tt(source, part, source)
                else:
                    handler.copy_to(part, source)

    def _run(
        self, name: str, method: str, *arguments: Any, step: BackwardStep | None = None
    ) -> None:
        """Do a pass of a layer: its operations, or a call that every replay repeats."""
        handler, layer, views = self.manager.handler, self.layers[name], self.manager.views[name]

        def run() -> None:
            if step is not None:
                layer.set_write_modes(step.unneeded, step.overwritten)
            getattr(layer, method)(layer.lifted(views), *arguments)

        place = f"{name}, {method.removesuffix('_pass')}", place_of(layer, method)
        with naming_places(layer, method, views), handler.running.at(*place):
            if layer.is_traceable and method not in vars(layer):
                run()
            else:
                handler.call(run)

    def _parts_of_copy(self, sink: str) -> Iterator[tuple[Array, Array]]:
        """Yield (source, part of the sink) pairs for an input that is a copy of several outputs."""
        buffer, start = self.manager.views, 0
        target = buffer[sink]
        for path in self.manager.nodes[sink]["@copy_of"]:
            structure = BufferStructure.from_layout(self.manager.nodes[path])
            stop = start + structure.get_shape(*self.manager.sizes)[-1]
            if "@null" not in self.manager.nodes[path]:
                # The context of a recurrent output is not copied.
                yield buffer[path][0 : target.shape[0]], last_axis_slice(target, start, stop)
            start = stop
