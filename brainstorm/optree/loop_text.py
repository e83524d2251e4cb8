"""The text of one loop: the common part of all C-family executors."""

from __future__ import annotations

from collections.abc import Sequence

from brainstorm.optree.loops import FLOATING, Loop, Read, Write


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
        arrays: The arrays that are read, then those that are written.
        kept: The axes that are not reduced.
        axes: The axes that are reduced.
        reductions: The writes with a reduction, with their indices among all writes.
    """

    def __init__(self, loop: Loop, lines: Lines) -> None:
        self.loop, self.lines, self.put = loop, lines, lines.put
        self.last = loop.rank - 1
        self.arrays: list[Read | Write] = [*loop.reads, *loop.writes]
        self.kept = [i for i, r in enumerate(loop.reduced) if not r]
        self.axes = [i for i, r in enumerate(loop.reduced) if r]
        self.reductions = [(i, w) for i, w in enumerate(loop.writes) if w.reduction]

    def stride(self, array: int, axis: int) -> str:
        """Return the stride of an array along an axis."""
        return f"n[{2 + self.loop.rank * (1 + array) + axis}]"

    def assign(self, place: str, write: Write, value: str) -> None:
        """Add a statement that stores a value."""
        if not write.add:
            self.put(f"{place} = ({write.type}){value};")
        elif write.type in FLOATING:
            self.put(f"{place} += ({write.type}){value};")
        else:  # the sum is converted, not the value
            working = "(double)" if write.source[1] in FLOATING else ""
            self.put(f"{place} = ({write.type})({working}{place} + {value});")

    def stored(self, reduced: bool) -> list[int]:
        """Return the arrays that are written from reductions, or from single elements."""
        first = len(self.loop.reads)
        return [first + i for i, w in enumerate(self.loop.writes) if bool(w.reduction) == reduced]

    def step(self, write: Write, acc: str) -> str:
        """Return the accumulator after one more value."""
        return write.step.format(write.source[0], acc=acc)

    @staticmethod
    def combine(write: Write, total: str, other: str) -> str:
        """Return the statement that combines two results of a reduction."""
        return f"{total} = {write.step.format(other, acc=total)};"

    def decode(
        self, factors: Sequence[tuple[str, str]], type_: str = "ptrdiff_t", item: str = "item"
    ) -> None:
        """Add the indices of an item; each factor is (index, length)."""
        rest = item
        for index, length in reversed(factors):
            last = index == factors[0][0]
            self.put(f"const {type_} {index} = {rest if last else f'({rest}) % {length}'};")
            rest = f"({rest}) / {length}"
