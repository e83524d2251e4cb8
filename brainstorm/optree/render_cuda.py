"""From loops to CUDA C: one kernel per stage, around the same bodies as in C.

A block of threads has a column for each element of the result that it works on, and in each column
as many *workers* as share a reduction. They reduce every so-manieth element in order, and then
their results in a tree. Long reductions with few results are cut into chunks, one for each block
along y; the block that is the last to be done reduces the results of all, in their order. So what
comes out depends on the sizes alone: it is the same bits every time and on every GPU. Without a
reduction there is one worker. Several loops may be one kernel, side by side or row by row; their
results are the bits of each alone. The text includes no file.

Without any reduction a thread may do several adjacent elements, its *lanes*, each of which is
computed as it is alone: it reads and writes them by one instruction for each array.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from brainstorm.optree.cuda_structure import THREADS, Structure, shares
from brainstorm.optree.loop_text import Lines, LoopText
from brainstorm.optree.loops import Loop, Read, Write

#: Terms that a worker reads before it goes on with them: memory takes long to answer.
TERMS = 4
#: Names that C has, but CUDA C++ lacks without its headers; several elements of a thread, and the
#: loop of a kernel's threads over numbers from 0 on.
CUDA_HEAD = r"""
#ifdef __CUDACC_RTC__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
#define _Bool bool
#define int8_t signed char
#define int16_t short
#define int32_t int
#define int64_t long long
#define uint8_t unsigned char
#define uint16_t unsigned short
#define uint32_t unsigned int
#define uint64_t unsigned long long
template <class T, int lanes> struct alignas(sizeof(T) * lanes) Pack { T x[lanes]; };
#define EACH(i, count) \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += gridDim.x * blockDim.x)
"""


def render_cuda(structure: Structure, name: str) -> str:
    """Return the CUDA C source of a kernel, to stand behind `CUDA_HEAD`.

    The kernel takes one structure: the addresses ``char *p[]`` of the arrays that its loops read,
    then write, loop by loop. If it `shares` reductions side by side, two more: of 8 bytes for each
    of them, result and chunk, and of zeros of 4 bytes for each block along x. Then numbers ``index
    n[]``: for each loop the sizes of the axes, and the strides of each array, counted in elements.
    Then the constants, each of its type.
    """
    return _Kernel(structure, name).render()


def kernel_name(structure: Structure) -> str:
    """Return a name that only kernels of the same text have."""
    return f"loop_{hashlib.sha256(repr(structure).encode()).hexdigest()[:24]}"


def lengths(axes: Iterable[int]) -> str:
    """Return the text of how many places there are on some axes."""
    return " * ".join(f"n{axis}" for axis in axes) or "1"


class _Part(LoopText):
    """The text of a loop, whose arrays, numbers, constants and results are those from some on.

    Args:
        structure: That of the kernel.
        loop: The loop.
        lines: Where the text is collected.
        rows: For each array of the kernel so far where its strides begin; those of the loop are
            added.
        n: Where the loop's numbers begin.
        c: Likewise its constants.
        results: Likewise its results.
    """

    def __init__(
        self, structure: Structure, loop: Loop, lines: Lines, rows: list[int], n: int, c: int,
        results: int,
    ) -> None:  # fmt: skip
        super().__init__(loop, lines)
        self.index, self.lanes, self.rows = structure.index, structure.lanes, rows
        self.n, self.c, self.results = n, c, results
        self.accesses = structure.accesses[len(rows) : len(rows) + loop.arrays]
        rows += [n + loop.rank * (1 + k) for k in range(loop.arrays)]

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
        self.decode([(f"i{axis}", f"n{axis}") for axis in axes], self.index, item)

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
        for i, write in self.reductions:
            self.put(f"__shared__ {write.total_type} part{self.results + i}[{THREADS}];")

    def start(self) -> None:
        for i, write in self.reductions:
            self.put(f"{write.total_type} total{self.results + i} = {write.start};")
            if write.is_index:
                self.put(f"{self.index} place{self.results + i} = 0;")

    def join_workers(self) -> None:
        places = [self.results + i for i, _ in self.reductions]
        for i in places:
            self.put(f"part{i}[worker * columns + column] = total{i};")
        self.put("__syncthreads();", "for (int half = workers / 2; half > 0; half /= 2) {")
        self.put("if (worker < half) {", "const int mine = worker * columns + column;")
        self.put("const int other = mine + half * columns;")
        for i, (_, write) in zip(places, self.reductions, strict=True):
            self.put(self.combine(write, f"part{i}[mine]", f"part{i}[other]"))
        self.put("}", "__syncthreads();", "}")
        for i in places:
            self.put(f"total{i} = part{i}[column];")

    def finish(self) -> None:
        for k, (i, write) in zip(self.stored(True), self.reductions, strict=True):
            name = "place" if write.is_index else "total"
            self.assign(self.at(k, self.kept), write, f"{name}{self.results + i}")

    def stride(self, array: int, axis: int) -> str:
        return f"a.n[{self.rows[self.accesses[array].first] + axis}]"

    def at(self, k: int, axes: Sequence[int]) -> str:
        return f"x{self.accesses[k].first}[{self.offset(k, axes)}]"

    def offset(self, k: int, axes: Sequence[int]) -> str:
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
        self.put(*self.body())
        for k in self.stored(False):
            write = self.loop.writes[k - reads]
            self.assign(places[k], write, write.source[0])
        self.reduce()
        if packs:
            self.put("}", *(f"{pack} = q{k};" for k, pack in packs.items() if k >= reads))

    def reduce(self) -> None:
        """Add what is done for an element of each reduction."""
        for i, write in self.reductions:
            total = f"total{self.results + i}"
            step = self.step(write, total)
            if write.is_index:
                self.put(f"if ({step}) {{", f"{total} = {write.source[0]};")
                self.put(f"place{self.results + i} = count;", "}")
            else:
                self.put(f"{total} = {step};")

    def terms(self, parts: Sequence[_Part], axes: Sequence[int], low: str, high: str) -> None:
        """Add the loop of a worker over its terms, which it reads some at a time.

        Args:
            parts: What is done for a term.
            axes: The axes of terms.
            low: The first term of all workers.
            high: The end of the terms.
        """
        read: dict[int, tuple[_Part, int]] = {}
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
        self.indices(axes, "term")
        for x, (part, k) in read.items():
            self.put(f"q{x}[lane] = {part.at(k, range(part.loop.rank))};")
        self.put("}", *each, "if (place < stop) {")
        self.indices(axes, "place")
        held = {x: f"q{x}[lane]" for x in read}
        for part in parts:
            with part.scope():
                part.one_element(held)
        self.put("}", "}", "}")

    def row(self) -> None:
        """Add the loop for one row, by all workers of a column."""
        inner = range(1, self.loop.rank)
        self.sizes()
        self.shared_parts()
        self.put(f"const {self.index} terms = {lengths(inner)};")
        self.start()
        self.put(f"const {self.index} i0 = item;")
        self.terms([self], inner, "0", "terms")
        if self.reductions:
            self.join_workers()
            self.put("if (worker == 0 && item < items) {")
            self.finish()
            self.put("}")


class _Kernel:
    """The text of a kernel; see `render_cuda`."""

    def __init__(self, structure: Structure, name: str) -> None:
        self.structure, self.name, self.index = structure, name, structure.index
        self.lines = Lines()
        self.put = self.lines.put
        self.parts: list[_Part] = []
        rows: list[int] = []
        n = c = results = 0
        for loop in structure.loops:
            self.parts.append(_Part(structure, loop, self.lines, rows, n, c, results))
            n, c, results = n + loop.extents, c + len(loop.constants), results + len(loop.writes)
        self.counts = len(rows), n
        self.lead = next((part for part in self.parts if part.reductions), self.parts[0])
        reduced = self.lead.loop.reduced
        self.body = [part for part in self.parts if part.loop.reduced == reduced]
        self.after = [part for part in self.parts if part.loop.reduced != reduced]

    def render(self) -> str:
        by_rows, lanes = self.structure.by_rows, self.structure.lanes
        is_shared = shares(self.lead.loop) and not by_rows
        types = [type_ for part in self.parts for type_ in part.loop.constants]
        self.put(f"struct {self.name}_arguments {{")
        self.put(f"char *p[{self.counts[0]}];", *["char *parts; unsigned *tickets;"] * is_shared)
        self.put(f"{self.index} n[{self.counts[1]}];")
        self.put(*(f"{type_} c{k};" for k, type_ in enumerate(types)), "};")
        if lanes > 1:
            self.several_lanes()
        self.put('extern "C" __global__')
        self.put(f"void {self.name}(const {self.name}_arguments a) {{")
        if lanes == 1:
            self.arrays()
        if by_rows:
            self.rows()
        else:
            self.lead.sizes()
            self.put(f"const {self.index} items = {lengths(self.lead.kept)};")
            (self.shared_reductions if is_shared else self.one_thread_each)()
        self.put("}")
        return "\n".join(self.lines) + "\n"

    def arrays(self) -> None:
        """Name the arrays."""
        accessed = [array for part in self.parts for array in part.arrays]
        for k, (array, access) in enumerate(zip(accessed, self.structure.accesses, strict=True)):
            const, alone = ("const ", "__restrict__ ") if access.is_constant else ("", "")
            if access.first == k:
                self.put(f"{const}{array.type} *{alone}x{k} = ({const}{array.type} *)a.p[{k}];")

    def several_lanes(self) -> None:
        """Add the function for the lanes of a thread, or for one of them."""
        self.put("template <int lanes> __device__ __forceinline__")
        self.put(f"void {self.name}_lanes(const {self.name}_arguments &a, {self.index} item) {{")
        self.arrays()
        self.lead.sizes()
        self.one_item()
        self.put("}")

    def one_item(self) -> None:
        self.lead.indices(self.lead.kept)
        for part in self.parts:
            with part.scope():
                part.one_thread()

    def rows(self) -> None:
        """Let the workers of a column do all loops for one row after the other."""
        self.workers("x", "y")
        self.put(f"const {self.index} items = a.n[0];")
        self.columns()
        for part in self.parts:
            self.put("{")
            part.row()
            self.put("}", "__syncthreads();")
        self.put("}")

    def one_thread_each(self) -> None:
        """Let each thread compute one element of the result after the other, or several."""
        index, lanes = self.index, self.structure.lanes
        times = f" * {lanes}" if lanes > 1 else ""
        self.put(f"const {index} step = ({index})gridDim.x * blockDim.x{times};")
        self.put(f"{index} item = (({index})blockIdx.x * blockDim.x + threadIdx.x){times};")
        self.put(*["#pragma unroll 1"] * (lanes > 1), "for (; item < items; item += step) {")
        if lanes == 1:
            self.one_item()
        elif self.lead.loop.rank > 1:
            self.put(f"{self.name}_lanes<{lanes}>(a, item);")
        else:
            self.put(f"if (item + {lanes} <= items) {{", f"{self.name}_lanes<{lanes}>(a, item);")
            self.put("} else {", "#pragma unroll 1")
            self.put(f"for ({index} i = item; i < items; i++) {self.name}_lanes<1>(a, i);", "}")
        self.put("}")

    def shared_reductions(self) -> None:
        """Let the workers of a column reduce one element of the result together."""
        lead, index = self.lead, self.index
        self.workers(*("xy" if lead.loop.kind == "rows" else "yx"))
        for part in self.body:
            part.shared_parts()
        self.put(f"const {index} terms = {lengths(lead.axes)};")
        self.put(f"const {index} length = (terms + gridDim.y - 1) / gridDim.y;")
        self.put(f"const {index} low = length * blockIdx.y;")
        self.put(f"const {index} high = low + length < terms ? low + length : terms;")
        self.columns()
        for part in self.body:
            part.start()
        lead.indices(lead.kept)
        lead.terms(self.body, lead.axes, "low", "high")
        self.join_workers()
        self.join_chunks()
        self.put("if (worker == 0 && item < items) {")
        for part in self.body:
            part.finish()
        for part in self.after:
            with part.scope():
                part.sizes()
                part.indices(range(part.loop.rank))
                part.one_element()
        self.put("}", "__syncthreads();", "}")

    def workers(self, along: str, across: str) -> None:
        self.put(f"const int worker = threadIdx.{along}, workers = blockDim.{along};")
        self.put(f"const int column = threadIdx.{across}, columns = blockDim.{across};")

    def columns(self) -> None:
        """Open the loop over columns."""
        self.put(f"{self.index} first = ({self.index})blockIdx.x * columns;")
        self.put(f"for (; first < items; first += ({self.index})gridDim.x * columns) {{")
        self.put(f"const {self.index} item = first + column;")

    def join_workers(self) -> None:
        for part in self.body:
            if part.reductions:
                part.join_workers()

    def join_chunks(self) -> None:
        """Leave results in memory, and let the last block go on with those of all."""
        results = [(part.results + i, w) for part in self.body for i, w in part.reductions]
        places = [
            (f"total{i}", write, f"((size_t){number} * gridDim.y + %s) * items + item")
            for number, (i, write) in enumerate(results)
        ]

        def part(write: Write, place: str, chunk: str) -> str:
            return f"*(volatile {write.total_type} *)(a.parts + 8 * ({place % chunk}))"

        self.put("if (gridDim.y > 1) {", "if (worker == 0 && item < items) {")
        for total, write, place in places:
            self.put(f"{part(write, place, 'blockIdx.y')} = {total};")
        # The fences of the thread that counts are those of its block, by the barriers around it.
        self.put("}", "__shared__ bool last;", "__syncthreads();")
        self.put("if (worker == 0 && column == 0) {", "__threadfence();")
        self.put("last = atomicAdd(a.tickets + blockIdx.x, 1u) == gridDim.y - 1;")
        self.put("__threadfence();", "if (last) a.tickets[blockIdx.x] = 0;")
        self.put("}", "__syncthreads();", "if (!last) return;")
        for total, write, _ in places:
            self.put(f"{total} = {write.start};")
        self.put("for (unsigned chunk = worker; item < items && chunk < gridDim.y;")
        self.put("     chunk += workers) {")
        for total, write, place in places:
            self.put("{", f"const {write.total_type} other = {part(write, place, 'chunk')};")
            self.put(self.lead.combine(write, total, "other"), "}")
        self.put("}")
        self.join_workers()
        self.put("}")
