"""The exact memory of a layout, before any of it is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from brainstorm.display import without_middle
from brainstorm.errors import NetworkValidationError, OutOfMemoryError
from brainstorm.structure.hubs import Hub, grow_with_source
from brainstorm.structure.placement import measure_bytes, without_sharing
from brainstorm.utils import format_bytes

KINDS = ("outputs", "parameters", "internals", "inputs", "deltas", "gradients")


def check_sizes(hubs: Sequence[Hub], S: int | None, **sizes: int) -> int:
    """Check sizes, and return S if something grows with it; else 1."""
    has_source = grow_with_source(hubs)
    if S is not None and not has_source:
        raise NetworkValidationError(
            f"S: expected None, because this network has one length, got {S!r}."
        )
    if has_source:
        sizes["S"] = S  # type: ignore[assignment]  # None is refused, too
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 0:
            what = ", the second length of this network" * (name == "S")
            raise NetworkValidationError(f"{name}: expected an int >= 0{what}, got {size!r}.")
    return sizes.get("S", 1)


@dataclass
class MemoryReport:
    """The bytes that a network takes for given T and B.

    Attributes:
        time_size: Sequence length T.
        batch_size: Batch size B.
        source_size: The second sequence length S; `None` if there is none.
        layers: Layer name to kind of buffer to bytes. Inputs and deltas that share memory with
            outputs and their deltas are counted once, for the owner of the memory.
        padding: Bytes for the alignment of hubs.
        scratch: Bytes that the handler takes in addition to the buffers during both passes, for
            data between the calls of products, convolutions and formulas. Known for `NativeHandler`
            with a C compiler, for layers that can be traced; else 0.
        shared: Bytes saved because buffers share memory (0 with strategy ``'inspectable'``).
        total: All bytes, exactly. With `shared`, it is the size for ``'inspectable'``, if no
            layer has fewer internals for ``'compact'`` (see `Layer.save_memory`).
    """

    time_size: int
    batch_size: int
    layers: dict[str, dict[str, int]]
    padding: int
    shared: int
    total: int
    scratch: int = 0
    source_size: int | None = None

    def __str__(self) -> str:
        width = max([len(name) for name in self.layers] + [len("alignment")])
        kinds = [kind for kind in KINDS if any(row.get(kind) for row in self.layers.values())]
        header = f"{'layer':<{width}}" + "".join(f"{kind:>12}" for kind in [*kinds, "total"])
        source = "" if self.source_size is None else f", S={self.source_size}"
        lines = [f"memory for T={self.time_size}, B={self.batch_size}{source}", header]
        for name, row in self.layers.items():
            cells = [format_bytes(row[kind]) if row.get(kind) else "" for kind in kinds]
            cells.append(format_bytes(sum(row.values())))
            lines.append(f"{name:<{width}}" + "".join(f"{cell:>12}" for cell in cells))
        space = " " * (12 * len(kinds))
        lines.append(f"{'alignment':<{width}}{space}{format_bytes(self.padding):>12}")
        if self.scratch:
            lines.append(f"{'scratch':<{width}}{space}{format_bytes(self.scratch):>12}")
        if self.shared:
            lines.append(f"{'shared':<{width}}{space}{'-' + format_bytes(self.shared):>12}")
        lines.append(f"{'total':<{width}}{space}{format_bytes(self.total):>12}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        lines = str(self).splitlines()
        return "\n".join(without_middle(lines, "... {} more ...".format))


def measure_memory(
    hubs: Sequence[Hub],
    layer_names: Sequence[str],
    time: int,
    batch: int,
    item_size: int,
    scratch: int = 0,
    source: int | None = None,
) -> MemoryReport:
    """Return the bytes per layer and kind that the hubs take for T, B and S, and the scratch."""
    sizes, third = (time, batch), 1 if source is None else source
    layers: dict[str, dict[str, int]] = {name: {} for name in layer_names}
    used = 0
    for hub in hubs:
        each = hub.get_size(*sizes, third) // max(hub.size, 1)
        for path in hub.sources:
            name, category, _ = path.split(".", 2)
            kind = "deltas" if category.endswith("_deltas") else category
            start, stop = hub.slices[path]
            number = each * (stop - start) * item_size
            layers[name][kind] = layers[name].get(kind, 0) + number
            used += number
    total = measure_bytes(hubs, *sizes, item_size, third)
    apart = measure_bytes(without_sharing(hubs), *sizes, item_size, third)
    padding, shared = apart - used, apart - total
    return MemoryReport(*sizes, layers, padding, shared, total + scratch, scratch, source)


def describe_shortage(
    hubs: Sequence[Hub], item_size: int, time: int, batch: int, source: int
) -> str:
    """Return the message if there is no memory for T, B and S: the total, and the largest hubs."""
    sizes = time, batch, source
    total = measure_bytes(hubs, time, batch, item_size, source)
    rows = [
        f"  {format_bytes(hub.get_size(*sizes) * item_size):>12}  "
        f"{', '.join(hub.sources[:3])}{', ...' if len(hub.sources) > 3 else ''}"
        for hub in sorted(hubs, key=lambda hub: -hub.get_size(*sizes))[:8]
    ]
    also = f", S={source}" if grow_with_source(hubs) else ""
    remedy = "Use a smaller batch (see net.largest_batch) or shorter sequences."
    if 2 * (fixed := measure_bytes(hubs, 0, 0, item_size, 0)) > total:
        remedy = f"Use smaller layers: {format_bytes(fixed)} do not depend on T and B."
    return (
        f"cannot allocate {format_bytes(total)} for T={time}, B={batch}{also}. The largest "
        f"buffers:\n" + "\n".join([*rows, remedy])
    )


def find_largest_batch(
    hubs: Sequence[Hub],
    time: int,
    limit: int,
    item_size: int,
    scratch: Callable[[int], int] = lambda batch: 0,
    source: int = 1,
) -> int:
    """Return the largest batch size that takes at most `limit` bytes for T = `time`.

    `scratch` returns the bytes that a batch size takes in addition to the buffers.

    Raises:
        NetworkValidationError: No buffer grows with the batch size, `time` is less than 1, or
            `limit` is not a number.
    """

    def measure(batch: int) -> int:
        return measure_bytes(hubs, time, batch, item_size, source)

    def fits(batch: int) -> bool:
        return measure(batch) <= limit

    if not isinstance(limit, Real) or not limit < math.inf:
        raise NetworkValidationError(f"bytes: expected a number like 10 * 2**20, got {limit!r}.")
    if time < 1:
        raise NetworkValidationError(f"T: expected at least 1, got {time!r}.")
    if measure(1) == measure(0):
        raise NetworkValidationError("no buffer of this network grows with the batch size.")
    high = 1
    while fits(high):
        high = 2 * high
    most = _last(fits, high)

    def fits_with_scratch(batch: int) -> bool:
        try:
            return measure(batch) + scratch(batch) <= limit
        except OutOfMemoryError:
            return False

    return _last(fits_with_scratch, most + 1)


def _last(fits: Callable[[int], bool], high: int) -> int:
    """Return the last number below `high` that fits; 0 always does."""
    low = 0
    if high > 1 and fits(high - 1):
        return high - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
