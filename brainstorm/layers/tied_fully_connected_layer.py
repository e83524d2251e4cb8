"""Tied fully connected layer: the transposed weights of another one."""

from __future__ import annotations

from brainstorm.errors import NetworkValidationError
from brainstorm.layers.fully_connected_layer import FullyConnectedLayerImpl
from brainstorm.structure import ConstructionWrapper
from brainstorm.structure.buffer_structure import format_shape
from brainstorm.structure.construction import RECTIFIED


def TiedFullyConnected(
    tied_to: ConstructionWrapper,
    activation: str = RECTIFIED,
    name: str | None = None,
    size: int | tuple[int, ...] | None = None,
) -> ConstructionWrapper:
    """Add a fully connected layer with the transposed weights of another one, for autoencoders.

    outputs.default = act(inputs.default @ W + bias), where W belongs to `tied_to` and n, the number
    of flattened input features, is its size. The gradients of both layers add up.

    Args:
        tied_to: The `FullyConnected` layer.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.
        size: Feature shape of the output; `None`: as many features as the input of `tied_to`, which
            must then come before this layer.

    Inputs: default ('T', 'B', ...)          Outputs: default ('T', 'B', *size)
    Parameters: W (n, out), that of `tied_to`; bias (out,), its own
    Internals: Ha, the input of the activation, if the derivative needs it, as for gelu

    Raises:
        NetworkValidationError: `tied_to` is something else, such as the name of a layer.
    """
    if not isinstance(tied_to, ConstructionWrapper):
        raise NetworkValidationError(
            f"TiedFullyConnected: expected tied_to to be the result of FullyConnected(...), got "
            f"{tied_to!r}."
        )
    tied = ConstructionWrapper.create(
        TiedFullyConnectedLayerImpl, name=name, activation=activation, size=size
    )
    tied.layer.shared_parameters = {"W": (tied_to.layer, "W")}
    tied.layer.merge_scopes(tied_to.layer)
    return tied


class TiedFullyConnectedLayerImpl(FullyConnectedLayerImpl):
    """Implements `TiedFullyConnected`; turns the output deltas into pre-activation deltas."""

    is_traceable = True
    is_transposed = True

    def default_size(self) -> tuple[int, ...]:
        shared = self.shared_structures.get("W")
        if shared is None or len(shared.shape) != 2:
            got = "no W" if shared is None else f"a W {format_shape(shared.shape)}"
            raise self.fail(
                f"expected that this layer is tied to one before it, with a W (units, inputs) as "
                f"that of FullyConnected, got {got}. Tie it to such a layer, or give the size.",
                option="size",
            )
        return shared.shape[1:]
