"""Random numbers on a GPU: streams whose position is in device memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.driver import Device


class DeviceStream:
    """A stream of random numbers (Philox4x32-10), the same for the same non-negative seed.

    Attributes:
        state: Two 64-bit integers in device memory: the key, and the number of blocks of four
            numbers drawn so far. Kernels update it, so that draws can be replayed.
    """

    def __init__(self, device: Device, seed: int) -> None:
        self.state = DeviceArray.new(device, (2,), np.uint64)
        (key,) = np.random.SeedSequence(seed).generate_state(1, np.uint64)
        self.state[...] = np.array([key, 0], np.uint64)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of random numbers>"

    def get_state(self) -> dict[str, Any]:
        """Return the state as data for JSON; waits for the GPU."""
        key, drawn = self.state.get().tolist()
        return {"generator": "Philox4x32", "key": key, "drawn": drawn}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` returned.

        Raises:
            ValidationError: It belongs to another kind of stream.
        """
        words = [state.get("key"), state.get("drawn")]
        if not all(isinstance(word, int) and 0 <= word < 2**64 for word in words):
            raise ValidationError(
                f"DeviceStream: expected a state with the integers 'key' and 'drawn', got the "
                f"entries {sorted(state)}. Streams of other handlers cannot be continued on a GPU."
            )
        self.state[...] = np.array(words, np.uint64)


def fill_gaussian(
    build: Building, mean: Any, std: Any, out: DeviceArray, stream: DeviceStream | None = None
) -> None:
    """Build the operation of this name."""
    _draw(build, "random_normal", stream, [mean, std], out)


def generate_probability_mask(
    build: Building, mask: DeviceArray, probability: Any, stream: DeviceStream | None = None
) -> None:
    """Build the operation of this name."""
    _draw(build, "random_mask", stream, [probability], mask)


def _draw(
    build: Building, kernel: str, stream: DeviceStream | None, values: Any, out: DeviceArray
) -> None:
    state = build.constant((stream or build.handler.stream).state)
    numbers, target = map(build.number, values), build.target(out)
    build.kernel(kernel, -(-out.size // 4), state, *numbers, target, out.size)
    build.kernel("advance_random", 1, state, out.size)
