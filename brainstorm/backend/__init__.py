"""Tensors and op-trees on a handler, in the manner of neon's backend.

    be = gen_backend("cpu")
    x, w = be.array(data, name="x"), be.zeros((10, 4), name="w")
    y = be.empty((32, 4))
    tree = be.tanh(be.dot(x, w))          # nothing is computed
    y[:] = tree                           # now it is
    dw = Autodiff(tree, be).get_grad_asnumpyarray([w])[0]

A tensor is identified by its view of memory. Assigning behaves as if the whole right side were
computed before anything is written. There is no global state: backends are independent objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.backend.autodiff import Autodiff
from brainstorm.backend.tensors import Backend, Tensor
from brainstorm.errors import ValidationError, unknown
from brainstorm.handlers import Handler, PyCudaHandler, get_default_handler
from brainstorm.optree import OpTreeNode

__all__ = ["Autodiff", "Backend", "OpTreeNode", "Tensor", "gen_backend"]


def gen_backend(
    backend: str | Handler = "cpu", datatype: Any = np.float32, rng_seed: int | None = None
) -> Backend:
    """Return a backend.

    Args:
        backend: ``'cpu'`` (the default handler), ``'gpu'`` (a `PyCudaHandler`; neon's old name
            ``'nervanagpu'`` is understood), or a handler.
        datatype: Type of new tensors: float32 or float64.
        rng_seed: Seeds the backend's random numbers.

    Raises:
        MissingDependencyError: PyCUDA is not installed.
        DeviceError: There is no GPU that can be used.
        ValidationError: If the backend or the type is unknown.
    """
    if isinstance(backend, Handler):
        return Backend(backend, datatype, rng_seed)
    if backend in ("gpu", "nervanagpu"):
        return Backend(PyCudaHandler(), datatype, rng_seed)
    if backend != "cpu":
        raise ValidationError(unknown("backend", str(backend), ("cpu", "gpu", "a handler")))
    return Backend(get_default_handler(), datatype, rng_seed)
