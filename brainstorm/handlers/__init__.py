"""Handlers: the arrays that all computation happens on, and the operations on them.

`get_default_handler` returns the handler that networks use unless they are given another; it
is created when first used, and can also be read as the attribute `default_handler`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError, shown
from brainstorm.handlers import native
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.debug_handler import DebugHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.numpy_handler import NumpyHandler
from brainstorm.handlers.pycuda import PyCudaHandler
from brainstorm.optree.activations import register_activation
from brainstorm.randomness import global_rnd

__all__ = [
    "DebugHandler",
    "Handler",
    "NativeHandler",
    "NumpyHandler",
    "PyCudaHandler",
    "get_default_handler",
    "register_activation",
    "set_default_handler",
]

_default: Handler | None = None


def get_default_handler() -> Handler:
    """Return the default handler: the best CPU handler available.

    That is `NativeHandler` if oneDNN or a C compiler is found, else `NumpyHandler`.
    """
    global _default
    if _default is None:
        # Seeded by name: creating it must not change the numbers drawn from global_rnd.
        seed = global_rnd.child("default handler").generate_seed()
        cls = NativeHandler if native.is_available() else NumpyHandler
        _default = cls(np.float32, seed=seed)
    return _default


def set_default_handler(handler: Handler | None) -> None:
    """Set the default handler; `None`: create one when it is next needed.

    Raises:
        HandlerValidationError: It is not a handler.
    """
    global _default
    if not (handler is None or isinstance(handler, Handler)):
        raise HandlerValidationError(
            f"set_default_handler(handler): expected a Handler or None, got {shown(handler)}. "
            f"Create one first, e.g. NumpyHandler(np.float32)."
        )
    _default = handler


def __getattr__(name: str) -> Any:
    if name == "default_handler":
        return get_default_handler()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
