"""Products and convolutions followed by an activation function."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from brainstorm.handlers.base_activations import activation_formula
from brainstorm.handlers.native.lane import MANY_SUMMANDS, Lane
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.handlers.native.products import ACTIVATIONS, build_affine
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import activation as activation_of
from brainstorm.utils import Array

#: Function from a lane and the arguments of an operation, by name, to calls.
Build = Callable[..., list[Any]]


def with_activation(build: Build, out: str) -> Build:
    """Return a builder for all activations, given one for those that the library supports.

    Args:
        build: The builder.
        out: The name of the array that the activation is applied to.
    """

    def built(lane: Lane, activation: str = "linear", **arguments: Any) -> list[Any]:
        name = activation_of(activation).name
        if name in ACTIVATIONS:
            return build(lane, activation=name, **arguments)
        array = arguments[out]
        after = lane.compute(activation_formula(activation), [array], [array])
        return [*build(lane, activation="linear", **arguments), *after]

    return built


@functools.cache
def _affine_row(activation: str) -> Formula:
    function = activation_of(activation)
    return formula(lambda a, b, bias: function(fn.sum(a * b, -1, False) + bias))


def affine(lane: Lane, a: Array, b: Array, bias: Array, out: Array, activation: str) -> list[Any]:
    """Return the calls for ``out = activation(a @ b.T + bias)``.

    For one row, the time is that of reading b once; oneDNN's product takes about twice as long
    (measured). For one column of many summands, see `MANY_SUMMANDS`.
    """
    is_row = len(a) == 1
    if is_row or (len(b) == 1 and a.shape[1] >= MANY_SUMMANDS):
        with contextlib.suppress(UnsupportedError):
            line = out[0] if is_row else out[:, 0]
            return lane.compute(_affine_row(activation), [a, b, bias], [line])
    return _affine_rows(lane, a=a, b=b, bias=bias, out=out, activation=activation)


_affine_rows = with_activation(build_affine, "out")
