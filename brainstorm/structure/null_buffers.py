"""What stands for a delta that is not needed."""

from __future__ import annotations

from typing import Any

from brainstorm.display import safe_repr
from brainstorm.errors import NullBufferError


class NullBuffer:
    """Stands for a delta that is not needed: it has no memory, and any use raises an error.

    Only its shape, size and truth value can be read; they are those of an empty array.

    Args:
        path: Dotted path of the buffer, for the message.
        reason: Why it is not allocated, and how to get it.
    """

    shape = (0,)
    size = 0

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason

    def error(self) -> NullBufferError:
        """Return the error for reading this buffer."""
        return NullBufferError(f"{self.path} is not allocated: {self.reason}")

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self.error()

    __array__ = __getitem__ = __setitem__ = __len__ = __iter__ = __contains__ = _refuse
    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = _refuse
    __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __matmul__ = __rmatmul__ = __neg__ = __pos__ = __abs__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __float__ = __int__ = _refuse

    def __getattr__(self, name: str) -> Any:
        # Methods and attributes of arrays. Copy and pickle ask for those with underscores.
        if name.startswith("__") or "reason" not in vars(self):
            raise AttributeError(name)
        raise self.error()

    def __bool__(self) -> bool:
        return False

    @safe_repr
    def __repr__(self) -> str:
        return f"<{self.path} is not allocated: {self.reason}>"
