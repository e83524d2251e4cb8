"""Losses of many batches, read together."""

from __future__ import annotations

from typing import Any

from brainstorm.optree import functions as fn
from brainstorm.optree.formula import formula
from brainstorm.scorers.base import find_loss_length, find_loss_mask

#: How many batches are collected. Reading a value waits for everything that a GPU has still to
#: compute, and nothing more can be prepared for it in that time.
BATCHES = 32


@formula
def counted(mask: Any) -> Any:
    """Return how many time steps count."""
    return fn.sum(mask != 0, None, False)


class LateLosses:
    """Copies the losses of each batch to memory of the handler, and reads them later."""

    def __init__(self, net: Any) -> None:
        self._net = net
        self._mask, self._length = find_loss_mask(net), find_loss_length(net)
        columns = range(len(net.loss_layers) + 1)  # the last one has the steps that count
        self._table = net.handler.zeros((BATCHES, len(columns)))
        self._places = [[self._table[row, i : i + 1] for i in columns] for row in range(BATCHES)]
        self._sizes: list[tuple[int, int]] = []

    def note(self) -> bool:
        """Keep the losses of the last forward pass; return whether to read them now."""
        net, places = self._net, self._places[len(self._sizes)]
        for name, place in zip(net.loss_layers, places, strict=False):
            net.handler.copy_to(net.buffer[name].outputs.loss, place)
        if self._mask is not None:
            mask = net.buffer["Input"].outputs[self._mask]
            net.handler.compute(counted, [mask], [places[-1].reshape(())])
        self._sizes.append((getattr(net, self._length) * net.batch_size, net.batch_size))
        return len(self._sizes) == BATCHES

    def read(self) -> list[tuple[dict[str, float], int, int]]:
        """Return the losses, counted steps and B of each batch that was not read yet."""
        if not self._sizes:
            return []
        values = self._net.handler.get_numpy_copy(self._table).tolist()
        read = [
            (self._net.name_losses(losses), int(count) if self._mask else steps, sequences)
            for (steps, sequences), (*losses, count) in zip(self._sizes, values, strict=False)
        ]
        self._sizes.clear()
        return read
