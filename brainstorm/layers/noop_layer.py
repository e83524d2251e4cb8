"""No operation: copies its input."""

from __future__ import annotations

from brainstorm.layers._copying import CopyingLayer
from brainstorm.structure import ConstructionWrapper


def NoOp(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that copies its input: ``outputs.default = inputs.default``.

    Useful to give several joined outputs one name.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(NoOpLayerImpl, name=name)


class NoOpLayerImpl(CopyingLayer):
    """Implements `NoOp`."""

    is_traceable = True
