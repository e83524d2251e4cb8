"""Characteristics of layers: facts that networks and exporters need to know of any layer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Characteristics:
    """Facts about a layer, declared on its class or derived from other declarations.

    Attributes:
        is_source: The layer has no inputs.
        is_sink: It has no outputs.
        has_parameters: It has parameters (its own or shared ones).
        has_activation: It has an option ``activation``.
        has_loss: Its output is a loss to be minimized.
        has_stats: It accumulates statistics; see `Layer.dump_statistics`.
        is_inplace: Its output shares the memory of its input.
        can_backprop: Its backward pass computes an input delta or a gradient.
        depends_on_mode: The forward pass differs between training and other passes.
        time_coupled: Outside training, the output of a step depends on its position or on others.
        needs_in_backward: Buffers of the forward pass that the backward pass reads.
        computes_no_input_deltas_for: Inputs that get no delta.
        computes_no_gradients_for: Parameters that get no gradient.
        takes_no_output_deltas_from: Outputs whose deltas are ignored.
    """

    is_source: bool
    is_sink: bool
    has_parameters: bool
    has_activation: bool
    has_loss: bool
    has_stats: bool
    is_inplace: bool
    can_backprop: bool
    depends_on_mode: bool
    time_coupled: bool
    needs_in_backward: frozenset[str]
    computes_no_input_deltas_for: frozenset[str]
    computes_no_gradients_for: frozenset[str]
    takes_no_output_deltas_from: frozenset[str]

    @classmethod
    def of(cls, layer: Any) -> Characteristics:
        """Return the characteristics of a layer."""
        no_deltas = frozenset(layer.computes_no_input_deltas_for)
        no_gradients = frozenset(layer.computes_no_gradients_for)
        return cls(
            is_source=not layer.in_shapes,
            is_sink=not layer.out_shapes,
            has_parameters=bool(layer.parameter_shapes),
            has_activation="activation" in layer.expected_kwargs,
            has_loss=layer.has_loss,
            has_stats=layer.has_stats,
            is_inplace=layer.is_inplace,
            can_backprop=bool(
                set(layer.in_shapes) - no_deltas or set(layer.parameter_shapes) - no_gradients
            ),
            depends_on_mode=layer.depends_on_mode,
            time_coupled=layer.time_coupled,
            needs_in_backward=frozenset(layer.needs_in_backward),
            computes_no_input_deltas_for=no_deltas,
            computes_no_gradients_for=no_gradients,
            takes_no_output_deltas_from=frozenset(layer.takes_no_output_deltas_from),
        )

    @property
    def flags(self) -> list[str]:
        """The names of all characteristics that are true, without ``is_`` and ``has_``."""
        return [
            field.name.removeprefix("is_").removeprefix("has_")
            for field in fields(self)
            if getattr(self, field.name) is True
        ]
