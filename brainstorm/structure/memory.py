"""How much memory a layout takes, to the byte, before any of it is allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from brainstorm.errors import NetworkValidationError
from brainstorm.structure.hubs import Hub
from brainstorm.structure.placement import measure_bytes, without_sharing
from brainstorm.utils import format_bytes, product

__all__ = ["MemoryReport", "find_largest_batch", "measure_memory"]

KINDS = ("outputs", "parameters", "internals", "inputs", "deltas", "gradients")


@dataclass
class MemoryReport:
    """The bytes that a network takes for given T and B.

    Attributes:
        time_size: Sequence length T.
        batch_size: Batch size B.
        layers: Layer name to kind of buffer to bytes. Inputs and deltas that share memory with
            outputs and their deltas are counted once, where the memory is owned.
        padding: Bytes that keep the hubs aligned.
        shared: Bytes saved because buffers share memory (0 with strategy ``'inspectable'``).
        total: All bytes; exactly what the network allocates. With `shared`, it is what
            ``'inspectable'`` would take.
    """

    time_size: int
    batch_size: int
    layers: dict[str, dict[str, int]]
    padding: int
    shared: int
    total: int

    def __str__(self) -> str:
        width = max([len(name) for name in self.layers] + [len("alignment")])
        kinds = [kind for kind in KINDS if any(row.get(kind) for row in self.layers.values())]
        header = f"{'layer':<{width}}" + "".join(f"{kind:>12}" for kind in [*kinds, "total"])
        lines = [f"memory for T={self.time_size}, B={self.batch_size}", header]
        for name, row in self.layers.items():
            cells = [format_bytes(row[kind]) if row.get(kind) else "" for kind in kinds]
            cells.append(format_bytes(sum(row.values())))
            lines.append(f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells))
        space = " " * (12 * len(kinds))
        lines.append(f"{'alignment':<{width}}{space}{format_bytes(self.padding):>12}")
        if self.shared:
            lines.append(f"{'shared':<{width}}{space}{'-' + format_bytes(self.shared):>12}")
        lines.append(f"{'total':<{width}}{space}{format_bytes(self.total):>12}")
        return "\n".join(lines)

    __repr__ = __str__


def measure_memory(
    hubs: Sequence[Hub], layer_names: Sequence[str], time: int, batch: int, item_size: int
) -> MemoryReport:
    """Return the bytes per layer and kind that the hubs take for T and B."""
    layers: dict[str, dict[str, int]] = {name: {} for name in layer_names}
    used = 0
    for hub in hubs:
        rows = product(hub.get_shape(time, batch)[:-1]) * (time if hub.is_square else 1)
        for path in hub.sources:
            name, category, _ = path.split(".", 2)
            kind = "deltas" if category.endswith("_deltas") else category
            start, stop = hub.slices[path]
            number = rows * (stop - start) * item_size
            layers[name][kind] = layers[name].get(kind, 0) + number
            used += number
    total = measure_bytes(hubs, time, batch, item_size)
    apart = measure_bytes(without_sharing(hubs), time, batch, item_size)
    return MemoryReport(time, batch, layers, apart - used, apart - total, total)


def find_largest_batch(hubs: Sequence[Hub], time: int, limit: int, item_size: int) -> int:
    """Return the largest batch size whose buffers take at most `limit` bytes for T = `time`.

    Raises:
        NetworkValidationError: No buffer grows with the batch size, `time` is less than 1, or
            `limit` is no number.
    """

    def fits(batch: int) -> bool:
        return measure_bytes(hubs, time, batch, item_size) <= limit

    if not isinstance(limit, Real):
        raise NetworkValidationError(f"bytes: expected a number like 10 * 2**20, got {limit!r}.")
    if time < 1:
        raise NetworkValidationError(f"T: expected at least 1, got {time!r}.")
    if measure_bytes(hubs, time, 1, item_size) == measure_bytes(hubs, time, 0, item_size):
        raise NetworkValidationError("no buffer of this network grows with the batch size.")
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
