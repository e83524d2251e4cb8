"""Tensors and op-trees on a handler, similar to neon's backend.

    be = gen_backend("cpu")
    x, w = be.array(data, name="x"), be.zeros((10, 4), name="w")
    y = be.empty((32, 4))
    tree = be.tanh(be.dot(x, w))          # nothing is computed
    y[:] = tree                           # now it is
    dw = Autodiff(tree, be).get_grad_asnumpyarray([w])[0]

A tensor is identified by its view of memory. An assignment behaves as if the whole right side were
computed before anything is written. There is no global state: backends are independent objects.
"""

from __future__ import annotations

from typing import Any

from brainstorm.backend.autodiff import Autodiff
from brainstorm.backend.backend import Backend
from brainstorm.backend.neon import NeonBackend
from brainstorm.backend.tensors import Tensor
from brainstorm.errors import ValidationError, unknown
from brainstorm.handlers import Handler, PyCudaHandler, get_default_handler
from brainstorm.optree import OpTreeNode

__all__ = ["Autodiff", "Backend", "NeonBackend", "OpTreeNode", "Tensor", "gen_backend"]

#: The libraries whose rules can be used in place of NumPy's.
BACKENDS = {None: Backend, "neon": NeonBackend}


def gen_backend(
    backend: str | Handler = "cpu",
    datatype: Any = None,
    rng_seed: int | None = None,
    batch_size: int = 0,
    compat: str | None = None,
    stochastic_round: bool = False,
    device_id: int = 0,
) -> Backend:
    """Return a backend.

    Args:
        backend: ``'cpu'`` (the default handler), ``'gpu'`` (a `PyCudaHandler`), or a handler;
            neon's names ``'mkl'`` and ``'nervanagpu'`` are accepted.
        datatype: Type of new tensors: float32 or float64; by default that of the handler.
        rng_seed: Seeds the backend's random numbers.
        batch_size: `Backend.bsz`, for `Backend.iobuf`.
        compat: ``'neon'``: neon's rules for shapes, types and axes; see `NeonBackend`.
        stochastic_round: As in neon; not supported.
        device_id: The number of the GPU.

    Raises:
        MissingDependencyError: PyCUDA is not installed.
        DeviceError: There is no usable GPU.
        ValidationError: If the backend, the type or `compat` is unknown, or `stochastic_round` set.
    """
    if compat not in BACKENDS:
        raise ValidationError(unknown("compat", str(compat), ("neon", "None")))
    if stochastic_round:
        raise ValidationError(
            "gen_backend(stochastic_round): expected False, got "
            f"{stochastic_round!r}. Numbers are rounded to the nearest."
        )
    return BACKENDS[compat](_handler_of(backend, device_id), datatype, rng_seed, batch_size)


def _handler_of(backend: str | Handler, device: int) -> Handler:
    if isinstance(backend, Handler):
        return backend
    if backend in ("gpu", "nervanagpu"):
        return PyCudaHandler(device=device)
    if backend not in ("cpu", "mkl"):
        raise ValidationError(unknown("backend", str(backend), ("cpu", "gpu", "a handler")))
    return get_default_handler()
