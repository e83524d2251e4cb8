"""Root mean square normalization: the features of each time step get mean square 1."""

from __future__ import annotations

from brainstorm.layers._normalizing import FeatureNormLayer
from brainstorm.structure import ConstructionWrapper


def RMSNorm(epsilon: float = 1e-5, name: str | None = None) -> ConstructionWrapper:
    """Add RMS normalization (Zhang & Sennrich 2019) over all features of a time step of a sequence.

    ``y = gamma * x / sqrt(mean(x ** 2) + epsilon)``.

    Args:
        epsilon: Added to the mean square, > 0.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: gamma, of the shape of the features
    Internals: x_hat = x / sigma of the input's shape, sigma ('T', 'B', 1) =
        sqrt(mean(x ** 2) + epsilon)
    """
    return ConstructionWrapper.create(RMSNormLayerImpl, name=name, epsilon=epsilon)


class RMSNormLayerImpl(FeatureNormLayer):
    """Implements `RMSNorm`."""

    is_traceable = True
    centers = False
