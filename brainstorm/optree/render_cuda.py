"""From loops to CUDA C: one kernel per stage, around the same bodies as in C.

A block of threads has a column for each element of the result, and in each column as many *workers*
as share a reduction. With n workers, each reduces every n-th element in order, and then their
results are combined in a tree. Long reductions with few results are divided into chunks, one for
each block along y; the last block to finish combines the results of all, in order. So the result
depends on the sizes only: it has the same bits every time and on every GPU. Without a reduction
there is one worker. Loops over the same rows, which read results of each other only in the same
row, become one kernel: a block does all of them for some of the rows. The text includes no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from brainstorm.optree.loop_text import LoopText
from brainstorm.optree.loops import Loop, Read

__all__ = [
    "CUDA_HEAD",
    "MOST_SHARED",
    "Blocks",
    "blocks_of",
    "kernel_name",
    "render_cuda",
    "render_rows",
    "row_blocks",
    "shares",
]

#: Maximum number of threads in a block.
THREADS = 256
#: Number of blocks that keep a GPU busy, and of terms per worker that justify another block.
BUSY, FEW_TERMS = 256, 32
#: Maximum number of reductions in a loop: the workers' results must fit into shared memory.
MOST_SHARED = 20

#: Names that C has, but CUDA C++ lacks without its headers.
CUDA_HEAD = """
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
"""


def render_cuda(loop: Loop, name: str, index: str = "int") -> str:
    """Return the CUDA C source of a kernel, to be placed after `CUDA_HEAD`.

    The kernel takes one structure: the addresses ``char *p[]`` of the arrays that its loop reads,
    then writes; if it `shares` reductions, the addresses of 8 bytes for each of them, each result
    and each chunk, and of 4 zero bytes for each block along x; then numbers ``index n[]``: the
    sizes of the axes, and the strides of each array in elements; then the constants, each of its
    type. Its grid is the result of `blocks_of`.

    Args:
        loop: The stage.
        name: Name of the kernel.
        index: The type of numbers and indices; 'int' if all of them fit, else 'ptrdiff_t'.
    """
    return _CudaText(loop, name, index).render()


def render_rows(loops: Sequence[Loop], name: str, index: str = "int") -> str:
    """Return the CUDA C source of a kernel that does several loops, row by row.

    The first axis of each loop is that of the rows, which it does not reduce. The kernel takes one
    structure: the addresses of the arrays of all loops, ``index n[]`` of all of them, and their
    constants; see `render_cuda`. Its blocks are the result of `row_blocks`.
    """
    text = LoopText(loops[0], name)
    counts = [len(loop.constants) for loop in loops]
    constants = [type_ for loop in loops for type_ in loop.constants]
    text.put(f"struct {name}_arguments {{")
    text.put(f"char *p[{sum(loop.arrays for loop in loops)}];")
    text.put(f"{index} n[{sum(loop.extents for loop in loops)}];")
    text.put(*(f"{type_} c{k};" for k, type_ in enumerate(constants)), "};")
    text.put('extern "C" __global__', f"void {name}(const {name}_arguments a) {{")
    text.put("const int worker = threadIdx.x, workers = blockDim.x;")
    text.put("const int column = threadIdx.y, columns = blockDim.y;")
    text.put(f"const {index} items = a.n[0];")
    text.put(f"{index} first = ({index})blockIdx.x * columns;")
    text.put(f"for (; first < items; first += ({index})gridDim.x * columns) {{")
    text.put(f"const {index} item = first + column;")
    p = n = c = 0
    for loop, count in zip(loops, counts, strict=True):
        part = _RowText(loop, name, index, p, n)
        part.depth = text.depth
        part.row_loop(c)
        text.lines += part.lines
        p, n, c = p + loop.arrays, n + loop.extents, c + count
    text.put("}", "}")
    return "\n".join(text.lines) + "\n"


def kernel_name(loops: Sequence[Loop], index: str) -> str:
    """Return a name that only kernels of the same text have."""
    return f"loop_{hashlib.sha256(repr((loops, index)).encode()).hexdigest()[:24]}"


class Blocks(NamedTuple):
    """The number of threads of a kernel.

    Attributes:
        x: Threads of a block along x.
        y: Threads of a block along y.
        grid: Blocks for one element per column; without chunks there may be fewer.
        chunks: Blocks along y.
        results: Number of elements of the result.
    """

    x: int
    y: int
    grid: int
    chunks: int
    results: int


def blocks_of(loop: Loop, sizes: Sequence[int]) -> Blocks:
    """Return the blocks for axes of these sizes.

    Columns lie along x if adjacent results are reduced from adjacent elements, else along y:
    threads that run together should read adjacent memory.
    """
    kept = reduced = 1
    for size, is_reduced in zip(sizes, loop.reduced, strict=True):
        kept, reduced = (kept, reduced * size) if is_reduced else (kept * size, reduced)
    if not shares(loop):
        return Blocks(THREADS, 1, -(-kept // THREADS), 1, kept)
    if loop.kind == "rows":
        workers = _power_of_two(reduced, THREADS)
        columns = THREADS // workers
        shape = workers, columns
    else:
        columns = _power_of_two(kept, 32)
        workers = _power_of_two(reduced, THREADS // columns)
        shape = columns, workers
    count = -(-kept // columns)
    chunks = min(BUSY // count, reduced // (workers * FEW_TERMS))
    return Blocks(*shape, count, max(1, chunks), kept)


def row_blocks(rows: int, most_terms: int) -> Blocks:
    """Return the blocks of `render_rows`, for given numbers of rows and of terms in a row."""
    workers = _power_of_two(most_terms, THREADS)
    columns = THREADS // workers
    return Blocks(workers, columns, -(-rows // columns), 1, rows)


def shares(loop: Loop) -> bool:
    """Return whether workers share the reductions of a loop."""
    reductions = [write for write in loop.writes if write.reduction]
    return loop.can_chunk and len(reductions) <= MOST_SHARED


def _power_of_two(count: int, most: int) -> int:
    """Return the smallest power of two of at least half of a count, but at most `most`."""
    return min(most, 1 << max(0, (count - 1).bit_length() - 1))


class _CudaText(LoopText):
    """The text of one loop, whose arrays and extents start at some offset in the arguments."""

    def __init__(self, loop: Loop, title: str, index: str, p: int = 0, n: int = 0) -> None:
        super().__init__(loop, title)
        self.index, self.p, self.n = index, p, n

    def render(self) -> str:
        loop, index = self.loop, self.index
        shared = " char *parts; unsigned *tickets;" if shares(loop) else ""
        self.put(f"struct {self.title}_arguments {{")
        self.put(f"char *p[{loop.arrays}];{shared} {index} n[{loop.extents}];")
        self.put(*(f"{type_} c{k};" for k, type_ in enumerate(loop.constants)))
        self.put("};")
        self.put('extern "C" __global__')
        self.put(f"void {self.title}(const {self.title}_arguments a) {{")
        self.numbers(0)
        items = " * ".join(f"n{axis}" for axis in self.kept) or "1"
        self.put(f"const {index} items = {items};")
        if shares(loop):
            self.shared_reductions()
        else:
            self.one_thread_each()
        self.put("}")
        return "\n".join(self.lines) + "\n"

    def numbers(self, c: int) -> None:
        """Name the lengths of the axes, and the constants, which start at c."""
        for axis in range(self.loop.rank):
            self.put(f"const {self.index} n{axis} = a.n[{self.n + axis}];")
        for k, type_ in enumerate(self.loop.constants):
            self.put(f"const {type_} c{k} = a.c{c + k};")

    def one_thread_each(self) -> None:
        """Let each thread compute one element of the result after the other."""
        self.put(f"const {self.index} step = ({self.index})gridDim.x * blockDim.x;")
        self.put(f"{self.index} item = ({self.index})blockIdx.x * blockDim.x + threadIdx.x;")
        self.put("for (; item < items; item += step) {")
        self.decode([(f"i{axis}", f"n{axis}") for axis in self.kept], self.index)
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
        self.put("}")

    def shared_reductions(self) -> None:
        """Let the workers of a column reduce one element of the result together."""
        along, across = "xy" if self.loop.kind == "rows" else "yx"
        self.put(f"const int worker = threadIdx.{along}, workers = blockDim.{along};")
        self.put(f"const int column = threadIdx.{across}, columns = blockDim.{across};")
        self.shared_parts()
        self.put(f"const {self.index} length = (terms + gridDim.y - 1) / gridDim.y;")
        self.put(f"const {self.index} low = length * blockIdx.y;")
        self.put(f"const {self.index} high = low + length < terms ? low + length : terms;")
        self.put(f"{self.index} first = ({self.index})blockIdx.x * columns;")
        self.put(f"for (; first < items; first += ({self.index})gridDim.x * columns) {{")
        self.put(f"const {self.index} item = first + column;")
        self.start()
        self.put(f"for ({self.index} term = low + worker; item < items && term < high;")
        self.put("     term += workers) {")
        self.decode([(f"i{axis}", f"n{axis}") for axis in self.kept], self.index)
        self.decode([(f"i{axis}", f"n{axis}") for axis in self.axes], self.index, "term")
        self.one_element()
        self.put("}")
        self.join_workers()
        self.join_chunks()
        self.put("if (worker == 0 && item < items) {")
        self.decode([(f"i{axis}", f"n{axis}") for axis in self.kept], self.index)
        self.finish()
        self.put("}", "__syncthreads();", "}")

    def shared_parts(self) -> None:
        for i, write in self.reductions:
            self.put(f"__shared__ {write.total_type} part{i}[{THREADS}];")
        terms = " * ".join(f"n{axis}" for axis in self.axes) or "1"
        self.put(f"const {self.index} terms = {terms};")

    def join_chunks(self) -> None:
        """Store results in memory, and let the last block continue with those of all."""
        self.put("if (gridDim.y > 1) {", "if (worker == 0 && item < items) {")
        for i, _ in self.reductions:
            self.put(f"{self.part(i, 'blockIdx.y')} = total{i};")
        # The fences of the thread that counts are those of its block, by the barriers around it.
        self.put("}", "__shared__ bool last;", "__syncthreads();")
        self.put("if (worker == 0 && column == 0) {", "__threadfence();")
        self.put("last = atomicAdd(a.tickets + blockIdx.x, 1u) == gridDim.y - 1;")
        self.put("__threadfence();", "if (last) a.tickets[blockIdx.x] = 0;")
        self.put("}", "__syncthreads();", "if (!last) return;")
        for i, write in self.reductions:
            self.put(f"total{i} = {write.start};")
        self.put("for (unsigned chunk = worker; item < items && chunk < gridDim.y;")
        self.put("     chunk += workers) {")
        for i, write in self.reductions:
            self.put(f"const {write.total_type} other{i} = {self.part(i, 'chunk')};")
            self.put(self.combine(write, f"total{i}", f"other{i}"))
        self.put("}")
        self.join_workers()
        self.put("}")

    def part(self, i: int, chunk: str) -> str:
        """Return the location of a chunk's result."""
        number = [j for j, _ in self.reductions].index(i)
        type_ = self.loop.writes[i].total_type
        place = f"((size_t){number} * gridDim.y + {chunk}) * items + item"
        return f"*(volatile {type_} *)(a.parts + 8 * ({place}))"

    def join_workers(self) -> None:
        for i, _ in self.reductions:
            self.put(f"part{i}[worker * columns + column] = total{i};")
        self.put("__syncthreads();", "for (int half = workers / 2; half > 0; half /= 2) {")
        self.put("if (worker < half) {", "const int mine = worker * columns + column;")
        self.put("const int other = mine + half * columns;")
        for i, write in self.reductions:
            self.put(self.combine(write, f"part{i}[mine]", f"part{i}[other]"))
        self.put("}", "__syncthreads();", "}")
        for i, _ in self.reductions:
            self.put(f"total{i} = part{i}[column];")

    def start(self) -> None:
        for i, write in self.reductions:
            self.put(f"{write.total_type} total{i} = {write.start};")
            if write.is_index:
                self.put(f"{self.index} place{i} = 0;")

    def finish(self) -> None:
        for k, (i, write) in zip(self.stored(True), self.reductions, strict=True):
            value = f"place{i}" if write.is_index else f"total{i}"
            self.assign(self.at(k, self.kept), write, value)

    def stride(self, array: int, axis: int) -> str:
        return f"a.n[{self.n + self.loop.rank * (1 + array) + axis}]"

    def at(self, k: int, axes: Sequence[int]) -> str:
        array = self.arrays[k]
        const = "const " if isinstance(array, Read) else ""
        offset = " + ".join(f"i{axis} * {self.stride(k, axis)}" for axis in axes) or "0"
        return f"(({const}{array.type} *)a.p[{self.p + k}])[{offset}]"

    def one_element(self) -> None:
        everywhere = range(self.loop.rank)
        for k, read in enumerate(self.loop.reads):
            self.put(f"const {read.type} r{k} = {self.at(k, everywhere)};")
        self.put(*self.body())
        for k in self.stored(False):
            write = self.loop.writes[k - len(self.loop.reads)]
            self.assign(self.at(k, everywhere), write, write.source[0])
        for i, write in self.reductions:
            step = self.step(write, f"total{i}")
            if write.is_index:
                self.put(f"if ({step}) {{")
                self.put(f"total{i} = {write.source[0]};", f"place{i} = count;", "}")
            else:
                self.put(f"total{i} = {step};")


class _RowText(_CudaText):
    def row_loop(self, c: int) -> None:
        """Add the loop for one row, by all workers of a column."""
        self.kept, self.axes = [0], list(range(1, self.loop.rank))
        self.put("{")
        self.numbers(c)
        self.shared_parts()
        self.start()
        self.put(f"for ({self.index} term = worker; item < items && term < terms;")
        self.put("     term += workers) {")
        self.one_row_element()
        self.put("}")
        if self.reductions:
            self.join_workers()
            self.put("if (worker == 0 && item < items) {", f"const {self.index} i0 = item;")
            self.finish()
            self.put("}")
        self.put("}", "__syncthreads();")

    def one_row_element(self) -> None:
        self.put(f"const {self.index} i0 = item;")
        if self.axes:
            self.decode([(f"i{axis}", f"n{axis}") for axis in self.axes], self.index, "term")
        self.one_element()
