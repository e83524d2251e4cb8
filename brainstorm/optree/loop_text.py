"""The text of one loop: the common part of all C-family executors."""

from __future__ import annotations

from collections.abc import Sequence

from brainstorm.optree.loops import FLOATING, Loop, Write


class Lines(list[str]):
    """Lines of C, which braces at their ends and beginnings indent."""

    depth = 0

    def put(self, *lines: str) -> None:
        """Add lines."""
        for line in lines:
            self.depth -= line.startswith("}")
            self.append(line if line.startswith("#") else "    " * self.depth + line)
            self.depth += line.endswith("{")


class LoopText:
    """Collects the lines of the function for a loop.

    Args:
        loop: The loop.
        lines: Where they are collected.

    Attributes:
        arrays: See `Loop.accessed`.
        kept: The axes that are not reduced.
        axes: The axes that are reduced.
        mapped: The arrays that are written element by element.
        reductions: The writes with a reduction, with their indices among all writes.
        index: The type of indices.
    """

    index = "ptrdiff_t"

    def __init__(self, loop: Loop, lines: Lines) -> None:
        self.loop, self.lines, self.put = loop, lines, lines.put
        self.last = loop.rank - 1
        self.arrays = loop.accessed
        self.kept = [i for i, r in enumerate(loop.reduced) if not r]
        self.axes = [i for i, r in enumerate(loop.reduced) if r]
        self.mapped = [
            k for k, write in enumerate(loop.writes, len(loop.reads)) if not write.reduction
        ]
        self.reductions = [(i, w) for i, w in enumerate(loop.writes) if w.reduction]

    def assign(self, place: str, write: Write, value: str) -> None:
        """Add a statement that stores a value."""
        if not write.add:
            self.put(f"{place} = ({write.type}){value};")
        elif write.type in FLOATING:
            self.put(f"{place} += ({write.type}){value};")
        else:  # the sum, which may wrap around, is converted, not the value
            working = "(double)" if write.source[1] in FLOATING else "(uint64_t)"
            self.put(f"{place} = ({write.type})({working}{place} + {value});")

    def start(self) -> None:
        """Start the reductions."""
        for i, write in self.reductions:
            self.put(f"{write.total_type} total{i} = {write.start};")
            if write.is_index:
                self.put(f"{self.index} place{i} = 0;")

    def reduce(self, i: int, write: Write, total: str) -> None:
        """Add what is done for an element of a reduction."""
        step = write.step(total, write.source[0])
        if write.is_index:
            self.put(f"if ({step}) {{", f"{total} = {write.source[0]};", f"place{i} = count;", "}")
        else:
            self.put(f"{total} = {step};")

    def combine(self, write: Write, total: str, other: str) -> None:
        """Add the statement that combines two results of a reduction."""
        self.put(f"{total} = {write.step(total, other)};")

    def results(self) -> list[tuple[int, Write, str]]:
        """Return for each reduction the array that it is written to, and its result."""
        written = [k for k in range(len(self.loop.reads), len(self.arrays)) if k not in self.mapped]
        found = []
        for k, (i, write) in zip(written, self.reductions, strict=True):
            signed = write.total_type == "uint64_t" and not write.source[1].startswith("u")
            total = f"(int64_t)total{i}" if signed else f"total{i}"
            found.append((k, write, f"place{i}" if write.is_index else total))
        return found

    def decode(self, factors: Sequence[tuple[str, str]], item: str = "item") -> None:
        """Add the indices of an item; each factor is (index, length)."""
        rest = item
        for index, length in reversed(factors):
            last = index == factors[0][0]
            self.put(f"const {self.index} {index} = {rest if last else f'({rest}) % {length}'};")
            rest = f"({rest}) / {length}"
