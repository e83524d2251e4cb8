"""Recording passes: what stands for a network while its operations are taken down."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from brainstorm.handlers.plan import NotRecordableError, Recorder, StandIn
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.passes import Passes
from brainstorm.structure.view_tree import create_buffer_views_from_layout
from brainstorm.utils import Array
from brainstorm.value_modifiers import apply_to_gradient

__all__ = ["RecordedNetwork"]


class RecordedNetwork:
    """Stands for a network: its passes are recorded, and nothing else can be asked of it.

    Args:
        recorder: Takes down the operations.
        manager: The network's memory.
        passes: The network's passes.
        layers: Name to layer, in topological order.
        gradient_modifiers: (layer, parameter, modifier), applied after the backward pass.
    """

    def __init__(
        self,
        recorder: Recorder,
        manager: BufferManager,
        passes: Passes,
        layers: Mapping[str, Any],
        gradient_modifiers: Iterable[tuple[str, str, Any]],
    ) -> None:
        self.handler = recorder
        buffers = [recorder.guard(buffer) for buffer in manager.buffers]
        self.buffer = create_buffer_views_from_layout(
            manager.layout, buffers, manager.hubs, manager.handler
        )
        self._memory, self._plain = manager, manager.views
        self._manager = StandIn(manager, handler=recorder, buffers=buffers, _views=self.buffer).copy
        self._layers = {
            name: _RecordedLayer(layer, recorder, manager.views[name])
            for name, layer in layers.items()
        }
        self._passes = StandIn(passes, manager=self._manager, layers=self._layers, _bound=None).copy
        self._gradient_modifiers = gradient_modifiers

    def forward_pass(
        self,
        training_pass: bool = False,
        context: Sequence[Array] | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        """Record what `Network.forward_pass` does, or that with some of the layers."""
        self._passes.forward(names or self._layers, training_pass, context)

    def backward_pass(self, accumulate: bool = False, modify: bool = True) -> None:
        """Record what `Network.backward_pass` does."""
        self._passes.backward(accumulate)
        if modify:
            self.apply_gradient_modifiers()

    def apply_gradient_modifiers(self) -> None:
        """Record what `Network.apply_gradient_modifiers` does."""
        for layer, parameter, modifier in self._gradient_modifiers:
            guarded, plain = self.buffer[layer], self._plain[layer]
            self.handler.attempt(
                f"{layer}, {type(modifier).__name__} of {parameter}",
                modifier,
                partial(_modify, self.handler, guarded, parameter),
                partial(_modify, self.handler.handler, plain, parameter, modifier),
            )

    def note_replay(self) -> None:
        """Note that what was recorded has been done to the network's memory."""
        self._memory.position = self._manager.position

    def __getattr__(self, name: str) -> Any:
        raise NotRecordableError(f"a plan cannot repeat the use of the network's {name!r}.")


def _modify(handler: Any, views: BufferView, parameter: str, modifier: Any) -> None:
    apply_to_gradient(modifier, handler, views.parameters[parameter], views.gradients[parameter])


class _RecordedLayer:
    """Stands for a layer in the passes."""

    def __init__(self, layer: Any, recorder: Recorder, views: BufferView) -> None:
        self.layer, self.recorder, self.views = layer, recorder, views
        self.name, self.type_name = layer.name, layer.type_name
        self._modes: tuple[Iterable[str], Iterable[str]] = ((), ())

    def set_write_modes(self, unneeded: Iterable[str], overwritten: Iterable[str]) -> None:
        self._modes = (frozenset(unneeded), frozenset(overwritten))

    def forward_pass(self, buffers: BufferView, training_pass: bool) -> None:
        self.recorder.attempt(
            f"{self.name}, forward",
            self.layer,
            lambda layer: layer.forward_pass(buffers, training_pass),
            partial(self.layer.forward_pass, self.views, training_pass),
        )

    def backward_pass(self, buffers: BufferView) -> None:
        layer, views, modes = self.layer, self.views, self._modes

        def call() -> None:
            layer.set_write_modes(*modes)
            layer.backward_pass(views)

        self.recorder.attempt(
            f"{self.name}, backward",
            layer,
            lambda stand_in: stand_in.backward_pass(buffers),
            call,
            _unneeded_deltas=modes[0],
            _overwritten=modes[1],
        )
