"""Losses of many batches, read at once."""

from __future__ import annotations

from typing import Any

__all__ = ["LateLosses"]

#: How many batches are waited for. Reading a value waits for all that a GPU has still to compute,
#: and nothing more can be prepared for it in that time.
BATCHES = 32


class LateLosses:
    """Copies the losses of each batch to memory of the handler, and reads them later.

    Args:
        net: The network.
    """

    def __init__(self, net: Any) -> None:
        self._net = net
        self._table = net.handler.zeros((BATCHES, len(net.loss_layers)))
        columns = range(len(net.loss_layers))
        self._places = [[self._table[row, i : i + 1] for i in columns] for row in range(BATCHES)]
        self._sizes: list[tuple[int, int]] = []

    def note(self) -> bool:
        """Keep the losses of the last forward pass; return whether it is time to read them."""
        net, places = self._net, self._places[len(self._sizes)]
        for name, place in zip(net.loss_layers, places, strict=True):
            net.handler.copy_to(net.buffer[name].outputs.loss, place)
        self._sizes.append((net.time_size, net.batch_size))
        return len(self._sizes) == BATCHES

    def read(self) -> list[tuple[dict[str, float], int, int]]:
        """Return the losses, T and B of each batch that was not read yet."""
        if not self._sizes:
            return []
        values = self._net.handler.get_numpy_copy(self._table).tolist()
        read = [
            (self._net.name_losses(losses), *sizes)
            for sizes, losses in zip(self._sizes, values, strict=False)
        ]
        self._sizes.clear()
        return read
