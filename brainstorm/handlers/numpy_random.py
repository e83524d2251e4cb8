"""Random numbers of the NumpyHandler: streams from a counter-based generator."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.forks import free, renew_after_fork


class NumpyStream:
    """A stream of random numbers (Philox), the same for the same seed.

    Args:
        seed: A non-negative integer.
    """

    def __init__(self, seed: int) -> None:
        self.generator = np.random.Generator(np.random.Philox(seed))
        renew_after_fork(self)

    def renew(self) -> None:
        """Free the lock of another thread that drew numbers when this process was forked."""
        free(self.generator.bit_generator.lock)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of random numbers>"

    def get_state(self) -> dict[str, Any]:
        """Return the state as data for JSON."""
        state = self.generator.bit_generator.state
        inner = {name: value.tolist() for name, value in state["state"].items()}
        return {**state, "state": inner, "buffer": state["buffer"].tolist()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` returned.

        Raises:
            ValidationError: Its position is out of range.
        """
        inner = {n: np.array(value, dtype=np.uint64) for n, value in state["state"].items()}
        buffer = np.array(state["buffer"], dtype=np.uint64)
        position = state["buffer_pos"]
        if not 0 <= position <= 4:  # NumPy does not check it
            raise ValidationError(f"NumpyStream: expected a position from 0 to 4, got {position}")
        self.generator.bit_generator.state = {**state, "state": inner, "buffer": buffer}
