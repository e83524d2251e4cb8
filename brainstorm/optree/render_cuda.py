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

from brainstorm.optree.cuda_loop_text import CudaLoopText, lengths
from brainstorm.optree.cuda_structure import Structure
from brainstorm.optree.loop_text import Lines
from brainstorm.optree.loops import Write

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
    then write, loop by loop. If it `is_shared`, two more: of 8 bytes for each reduction, result and
    chunk, and of zeros of 4 bytes for each block along x. Then numbers ``index n[]``: for each loop
    the sizes of the axes, and the strides of each array, counted in elements. Then the constants,
    each of its type.
    """
    return _Kernel(structure, name).render()


def render_step(structure: Structure, name: str, blocks: int) -> str:
    """Return the CUDA C of a function that does a row of loops, in one of several steps.

    It is for loops side by side over rows and columns, without reductions; the threads of a cluster
    of so many blocks share the columns. It takes a structure ``<name>_arguments`` like that of a
    kernel, with ``ptrdiff_t d[]`` behind the addresses: how many bytes they move from step to step;
    and the numbers of the step and of the row.
    """
    return _Kernel(structure, name).render_step(blocks)


class _Kernel:
    """The text of a kernel; see `render_cuda`."""

    def __init__(self, structure: Structure, name: str) -> None:
        self.structure, self.name, self.index = structure, name, structure.index
        self.lines = Lines()
        self.put = self.lines.put
        loops = structure.loops
        self.parts = [CudaLoopText(structure, k, self.lines) for k in range(len(loops))]
        self.counts = len(structure.accesses), sum(loop.extents for loop in loops)
        self.lead = self.parts[structure.lead]
        reduced = self.lead.loop.reduced
        self.body = [part for part in self.parts if part.loop.reduced == reduced]
        self.after = [part for part in self.parts if part.loop.reduced != reduced]

    def render(self) -> str:
        by_rows, lanes = self.structure.by_rows, self.structure.lanes
        is_shared = self.structure.is_shared
        self.arguments(*["char *parts; unsigned *tickets;"] * is_shared)
        if lanes > 1:
            self.several_lanes()
        self.put('extern "C" __global__')
        self.put(f"void {self.name}(const {self.name}_arguments a) {{")
        if lanes == 1:
            self.arrays()
        self.lead.sizes()
        self.put(f"const {self.index} items = {lengths(self.lead.kept)};")
        if by_rows:
            self.rows()
        else:
            (self.shared_reductions if is_shared else self.one_thread_each)()
        self.put("}")
        return "\n".join(self.lines) + "\n"

    def render_step(self, blocks: int) -> str:
        self.arguments(f"ptrdiff_t d[{self.counts[0]}];")
        self.put("static __device__ __forceinline__")
        step = f"const {self.name}_arguments &a, ptrdiff_t step, {self.index} i0"
        self.put(f"void {self.name}({step}) {{")
        self.arrays(" + step * a.d[{}]")
        self.put(f"const {self.index} part = (a.n[1] + {blocks - 1}) / {blocks};")
        self.put(f"const {self.index} start = blockIdx.x % {blocks} * part;")
        self.put(f"const {self.index} end = start + part < a.n[1] ? start + part : a.n[1];")
        self.put(f"for ({self.index} i1 = start + threadIdx.x; i1 < end; i1 += blockDim.x) {{")
        for part in self.parts:
            with part.scope():
                part.one_thread()
        self.put("}", "}")
        return "\n".join(self.lines) + "\n"

    def arguments(self, *more: str) -> None:
        """Add the structure of the arguments."""
        types = [type_ for part in self.parts for type_ in part.loop.constants]
        self.put(f"struct {self.name}_arguments {{")
        self.put(f"char *p[{self.counts[0]}];", *more, f"{self.index} n[{self.counts[1]}];")
        self.put(*(f"{type_} c{k};" for k, type_ in enumerate(types)), "};")

    def arrays(self, moved: str = "") -> None:
        """Name the arrays, whose addresses may be moved."""
        accessed = [array for part in self.parts for array in part.arrays]
        for k, (array, access) in enumerate(zip(accessed, self.structure.accesses, strict=True)):
            const, alone = ("const ", "__restrict__ ") if access.is_constant else ("", "")
            if access.first == k:
                place = f"(a.p[{k}]{moved.format(k)})" if moved else f"a.p[{k}]"
                self.put(f"{const}{array.type} *{alone}x{k} = ({const}{array.type} *){place};")

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
        self.workers()
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
        self.workers()
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
        lead.terms(self.body, "low", "high")
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

    def workers(self) -> None:
        along, across = "xy" if self.lead.loop.kind == "rows" else "yx"
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
        results = [reduction for part in self.body for reduction in part.reductions]
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
            self.lead.combine(write, total, "other")
            self.put("}")
        self.put("}")
        self.join_workers()
        self.put("}")
