"""Layer normalization: the features of each time step get mean 0 and variance 1."""

from __future__ import annotations

from brainstorm.layers._normalizing import FeatureNormLayer
from brainstorm.structure import ConstructionWrapper


def LayerNorm(epsilon: float = 1e-5, name: str | None = None) -> ConstructionWrapper:
    """Add layer normalization (Ba et al. 2016) over all features of a time step of a sequence.

    ``y = gamma * (x - mean) / sqrt(var + epsilon) + beta``, with the biased variance.

    Args:
        epsilon: Added to the variance, > 0.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: gamma and beta, of the shape of the features
    Internals: x_hat = (x - mean) / sigma of the input's shape, sigma ('T', 'B', 1) =
        sqrt(var + epsilon)
    """
    return ConstructionWrapper.create(LayerNormLayerImpl, name=name, epsilon=epsilon)


class LayerNormLayerImpl(FeatureNormLayer):
    """Implements `LayerNorm`."""

    is_traceable = True
    centers = True
