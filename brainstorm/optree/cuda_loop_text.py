"""The text of one loop in a CUDA kernel; see `render_cuda`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from brainstorm.optree.cuda_structure import THREADS, Structure
from brainstorm.optree.loop_text import Lines, LoopText
from brainstorm.optree.loops import Read, render_body

#: Terms that a worker reads before it goes on with them: memory takes long to answer.
TERMS = 4


def lengths(axes: Iterable[int]) -> str:
    """Return the text of how many places there are on some axes."""
    return " * ".join(f"n{axis}" for axis in axes) or "1"


class CudaLoopText(LoopText):
    """The text of one of a kernel's loops; `reductions` has numbers among the results of all."""

    def __init__(self, structure: Structure, number: int, lines: Lines) -> None:
        before, loop = structure.loops[:number], structure.loops[number]
        super().__init__(loop, lines)
        self.structure, self.index, self.lanes = structure, structure.index, structure.lanes
        #: Where the loop's numbers and its constants begin.
        self.n = sum(other.extents for other in before)
        self.c = sum(len(other.constants) for other in before)
        results = sum(len(other.writes) for other in before)
        self.reductions = [(results + i, write) for i, write in self.reductions]
        first = sum(other.arrays for other in before)
        self.accesses = structure.accesses[first : first + loop.arrays]

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Add braces around what is between, with the constants."""
        self.put("{")
        for k, type_ in enumerate(self.loop.constants):
            self.put(f"const {type_} c{k} = a.c{self.c + k};")
        yield
        self.put("}")

    def sizes(self) -> None:
        """Name the lengths of the axes."""
        for axis in range(self.loop.rank):
            self.put(f"const {self.index} n{axis} = a.n[{self.n + axis}];")

    def indices(self, axes: Sequence[int], item: str = "item") -> None:
        """Name the indices of an item along some axes."""
        self.decode([(f"i{axis}", f"n{axis}") for axis in axes], item)

    def one_thread(self) -> None:
        """Add what one thread does for an element of the result."""
        self.start()
        counts = any(write.is_index for _, write in self.reductions)
        if counts:
            self.put(f"{self.index} count = 0;")
        for axis in self.axes:
            self.put(f"for ({self.index} i{axis} = 0; i{axis} < n{axis}; i{axis}++) {{")
        self.one_element()
        if counts:
            self.put("count++;")
        self.put(*"}" * len(self.axes))
        self.finish()

    def shared_parts(self) -> None:
        """Name the memory for the results of all workers."""
        for i, write in self.reductions:
            self.put(f"__shared__ {write.total_type} part{i}[{THREADS}];")

    def join_workers(self) -> None:
        """Reduce the results of all workers of a column."""
        for i, _ in self.reductions:
            self.put(f"part{i}[worker * columns + column] = total{i};")
        self.put("__syncthreads();", "for (int half = workers / 2; half > 0; half /= 2) {")
        self.put("if (worker < half) {", "const int mine = worker * columns + column;")
        self.put("const int other = mine + half * columns;")
        for i, write in self.reductions:
            self.combine(write, f"part{i}[mine]", f"part{i}[other]")
        self.put("}", "__syncthreads();", "}")
        for i, _ in self.reductions:
            self.put(f"total{i} = part{i}[column];")

    def finish(self) -> None:
        """Store the results."""
        for k, write, result in self.results():
            self.assign(self.at(k, self.kept), write, result)

    def stride(self, array: int, axis: int) -> str:
        """Return the stride of an array along an axis."""
        return f"a.n[{self.structure.strides[self.accesses[array].first] + axis}]"

    def at(self, k: int, axes: Sequence[int]) -> str:
        """Return the element of an array at the indices of some axes."""
        return f"x{self.accesses[k].first}[{self.offset(k, axes)}]"

    def offset(self, k: int, axes: Sequence[int]) -> str:
        """Return the number of that element."""
        texts = {"fixed": "", "unit": "i{0}", "any": "i{0} * {1}"}
        steps = self.accesses[k].steps
        terms = [texts[steps[axis]].format(axis, self.stride(k, axis)) for axis in axes]
        return " + ".join(filter(None, terms)) or "0"

    def one_element(self, held: Mapping[int, str] = MappingProxyType({})) -> None:
        """Add what is done for an element, or for all lanes.

        Args:
            held: Variables with elements of arrays that were read before.
        """
        everywhere, reads = range(self.loop.rank), len(self.loop.reads)
        places = [self.at(k, everywhere) for k in range(self.loop.arrays)]
        packs = {}
        for k, (array, access) in enumerate(zip(self.arrays, self.accesses, strict=True)):
            if self.lanes > 1 and access.steps[-1] == "unit":
                type_ = f"Pack<{array.type}, lanes>"
                packs[k] = f"*({type_} *)&{places[k]}"
                is_needed = isinstance(array, Read) or array.add
                content = f" = *(const {type_} *)&{places[k]}" if is_needed else ""
                self.put(f"{type_} q{k}{content};")
                places[k] = f"q{k}.x[lane]"
        if packs:
            self.put("#pragma unroll", "for (int lane = 0; lane < lanes; lane++) {")
        if self.loop.file:
            self.put(f"const unsigned at = {self.offset(reads, everywhere)};")
        for k, read in enumerate(self.loop.reads):
            first, *_, is_early = self.accesses[k]
            if self.loop.file:
                self.put(f"const {read.type} *p{k} = x{first};")
            else:
                place = held.get(first, places[k]) if is_early else places[k]
                self.put(f"const {read.type} r{k} = {place};")
        self.put(*render_body(self.loop.body))
        for k in self.mapped:
            write = self.loop.writes[k - reads]
            self.assign(places[k], write, write.source[0])
        for i, write in self.reductions:
            self.reduce(i, write, f"total{i}")
        if packs:
            self.put("}", *(f"{pack} = q{k};" for k, pack in packs.items() if k >= reads))

    def terms(self, parts: Sequence[CudaLoopText], low: str, high: str) -> None:
        """Add the loop of a worker over its terms, which it reads some at a time.

        Args:
            parts: What is done for a term.
            low: The first term of all workers.
            high: The end of the terms.
        """
        read: dict[int, tuple[CudaLoopText, int]] = {}
        for part in parts:
            reads = 0 if part.loop.file else len(part.loop.reads)
            for k, access in enumerate(part.accesses[:reads]):
                if access.is_early:
                    read.setdefault(access.first, (part, k))
        self.put(f"const {self.index} stop = item < items ? {high} : {low};")
        self.put(f"for ({self.index} next = {low} + worker; next < stop;")
        self.put(f"     next += {TERMS} * workers) {{")
        self.put(*(f"{part.arrays[k].type} q{x}[{TERMS}];" for x, (part, k) in read.items()))
        place = f"const {self.index} place = next + lane * workers;"
        each = "#pragma unroll", f"for (int lane = 0; lane < {TERMS}; lane++) {{", place
        self.put(*each, f"const {self.index} term = place < stop ? place : next;")
        self.indices(self.axes, "term")
        for x, (part, k) in read.items():
            self.put(f"q{x}[lane] = {part.at(k, range(part.loop.rank))};")
        self.put("}", *each, "if (place < stop) {")
        self.indices(self.axes, "place")
        held = {x: f"q{x}[lane]" for x in read}
        for part in parts:
            with part.scope():
                part.one_element(held)
        self.put("}", "}", "}")

    def row(self) -> None:
        """Add the loop for one row, by all workers of a column."""
        self.sizes()
        self.shared_parts()
        self.put(f"const {self.index} terms = {lengths(self.axes)};")
        self.start()
        self.indices(self.kept)
        self.terms([self], "0", "terms")
        if self.reductions:
            self.join_workers()
            self.put("if (worker == 0 && item < items) {")
            self.finish()
            self.put("}")
