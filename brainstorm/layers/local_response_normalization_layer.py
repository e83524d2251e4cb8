"""Local response normalization: channels are inhibited by their neighbours."""

from __future__ import annotations

import functools
import operator
from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import integer, number
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper


def LocalResponseNormalization(
    size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add local response normalization across channels (Krizhevsky et al. 2012).

    ``y[c] = x[c] / scale[c] ** beta`` with ``scale[c] = k + alpha / size * sum(x[i] ** 2)`` over
    the channels i from ``c - size // 2`` to ``c + (size - 1) // 2`` that exist.

    Args:
        size: Number of neighbouring channels.
        alpha: Strength, >= 0; divided by `size` as in PyTorch, neon and Caffe.
        beta: Exponent.
        k: The scale if all neighbours are 0, > 0.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)       Outputs: default, of the same shape
    Parameters: none
    Internals: scale, factor = scale ** -beta, of the same shape
    """
    return ConstructionWrapper.create(
        LocalResponseNormalizationLayerImpl, name=name, size=size, alpha=alpha, beta=beta, k=k
    )


def summed_neighbours(tree: Any, before: int, behind: int) -> Any:
    """Return the tree whose channel c is the sum over channels c - before to c + behind."""
    *lead, channels = tree.shape
    parts = [fn.full((*lead, before), 0, tree.dtype), tree, fn.full((*lead, behind), 0, tree.dtype)]
    padded = fn.concatenate([part for part in parts if part.size])
    shifts = range(before + behind + 1)
    return functools.reduce(operator.add, (padded[..., i : i + channels] for i in shifts))


@formula
def normalized(x: Any, *, sides: tuple[int, int], strength: float, beta: float, k: float) -> Any:
    """Return output, scale and factor."""
    scale = k + strength * summed_neighbours(fn.square(x), *sides)
    factor = scale**-beta
    return [x * factor, scale, factor]


@formula
def normalized_deltas(
    x: Any, scale: Any, factor: Any, dy: Any, *, sides: tuple[int, int], slope: float
) -> Any:
    """Return the delta in closed form, which needs no further power."""
    # It is summed over the channels that have this one as a neighbour.
    return dy * factor - slope * x * summed_neighbours(dy * x * factor / scale, *sides[::-1])


class LocalResponseNormalizationLayerImpl(FormulaLayer):
    """Implements `LocalResponseNormalization`."""

    is_traceable = True
    expected_kwargs = {
        "size": integer(minimum=1),
        "alpha": number(0),
        "beta": number(),
        "k": number(0, low_open=True),
    }
    needs_in_backward = ("inputs", "internals")
    delta_operands = (
        "inputs.default", "internals.scale", "internals.factor", "output_deltas.default"
    )  # fmt: skip

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        size, shape = kwargs.get("size", 5), in_shapes["default"].shape
        self.before, self.behind = (min(n, shape[-1] - 1) for n in (size // 2, (size - 1) // 2))
        self.size, self.alpha = size, kwargs.get("alpha", 1e-4)
        self.beta, self.k = kwargs.get("beta", 0.75), kwargs.get("k", 1.0)
        strength = self.alpha / size
        sides, slope = (self.before, self.behind), 2.0 * self.beta * strength
        self.formula = normalized.given(sides=sides, strength=strength, beta=self.beta, k=self.k)
        self.delta = normalized_deltas.given(sides=sides, slope=slope)
        whole = BufferStructure(*shape)
        return {"default": whole}, {}, {"scale": whole, "factor": whole}
