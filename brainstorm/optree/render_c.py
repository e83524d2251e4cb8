"""From loops to C: the text of two functions per stage, and of a kernel that calls them in turn.

There are three kinds of loops, each parallel over its *items*. 'map' has no reduction; an item is
a piece of a row. 'rows' reduces the innermost axis and perhaps more; an item is one element of the
result. 'columns' reduces only other axes; an item is a tile of consecutive elements of the result.
Long reductions with few items are divided into chunks that are items themselves, so that the order
of additions depends on the number of chunks, and not on the speed of threads.

One function computes a range of items, which takes nearly all of the time. The other one has each
thread compute a range; it is 'cold', which takes a compiler a tenth less time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brainstorm.optree.c_math import with_math
from brainstorm.optree.loop_text import Lines, LoopText
from brainstorm.optree.loops import Loop, Read, render_body

#: Numbers of elements: in a piece of a row in a 'map', in a tile, and in a block that is summed
#: before it is added to the total.
PIECE, TILE, BLOCK = 4096, 256, 512

_ARGUMENTS = "char *const *p, const ptrdiff_t *n"
_RANGE = f"{_ARGUMENTS}, char *parts, ptrdiff_t item, ptrdiff_t end"

#: Gives each thread a range of the items. One thread needs no parallel region, which would take it
#: 0.2 microseconds (GCC).
_SHARE = f"""
static __attribute__((noinline)) void share(
    void (*compute)({_RANGE}), {_ARGUMENTS}, char *parts, ptrdiff_t items
) {{
    const ptrdiff_t threads = n[0];
    if (threads > 1) {{
#pragma omp parallel for schedule(static) num_threads(threads)
        for (ptrdiff_t t = 0; t < threads; t++)
            compute(p, n, parts, items * t / threads, items * (t + 1) / threads);
    }} else
        compute(p, n, parts, 0, items);
}}
"""


def render_kernel(loops: Sequence[Loop], name: str) -> str:
    """Return the C source of a kernel.

    Its function ``void name(char *const *p, const ptrdiff_t *n)`` takes the addresses of the
    arrays that the loops read and write, in order, and per loop: the number of threads, the
    number of chunks, the sizes of the axes, the strides of each array, counted in elements, and
    the bits of the constants as double.

    Args:
        loops: The stages.
        name: Name of the function.
    """
    unique = {loop: f"loop{i}" for i, loop in enumerate(dict.fromkeys(loops))}
    parts = [_SHARE]
    parts += [_KINDS[loop.kind](loop, Lines()).render(title) for loop, title in unique.items()]
    calls = []
    p = n = 0
    for loop in loops:
        calls.append(f"    {unique[loop]}(p + {p}, n + {n});")
        p, n = p + loop.arrays, n + 2 + loop.extents + len(loop.constants)
    body = "\n".join(calls)
    parts.append(f"__attribute__((cold)) void {name}({_ARGUMENTS}) {{\n{body}\n}}\n")
    return with_math("\n".join(parts))


class _CText(LoopText):
    """The text of a loop; subclasses are kinds of loops."""

    @property
    def factors(self) -> list[tuple[str, str]]:
        """What an item is: (index name, length), the last runs fastest."""
        raise NotImplementedError

    def sizes(self, allocate: bool) -> None:
        """Add the lengths of `factors`; `allocate`: and the memory for the results of chunks."""

    def item(self) -> None:
        """Add what is computed for an item."""
        raise NotImplementedError

    def join(self) -> None:
        """Add what combines the results of an item's chunks."""

    def render(self, title: str) -> str:
        self.put(f"static __attribute__((noinline, hot)) void {title}_items({_RANGE}) {{")
        self.numbers()
        self.sizes(allocate=False)
        self.put("for (; item < end; item++) {")
        self.decode(self.factors)
        self.item()
        self.put("}", "}", f"static __attribute__((cold)) void {title}({_ARGUMENTS}) {{")
        self.numbers()
        self.put("char *parts = NULL;")
        self.sizes(allocate=True)
        self.put(f"const ptrdiff_t items = {' * '.join(length for _, length in self.factors)};")
        self.put(f"share({title}_items, p, n, parts, items);")
        if self.loop.can_chunk:
            self.put("for (ptrdiff_t item = 0; chunks > 1 && item < items / chunks; item++) {")
            self.decode(self.factors[:-1])
            self.join()
            self.put("}", "free(parts);")
        self.put("}")
        return "\n".join(self.lines) + "\n"

    # -- pieces ------------------------------------------------------------------------------

    def stride(self, array: int, axis: int) -> str:
        return f"n[{2 + self.loop.rank * (1 + array) + axis}]"

    def numbers(self) -> None:
        for axis in range(self.loop.rank):
            self.put(f"const ptrdiff_t n{axis} = n[{axis + 2}];")
        for k, type_ in enumerate(self.loop.constants):
            place = f"n + {2 + self.loop.extents + k}"
            self.put(f"const {type_} c{k} = ({type_})*(const double *)({place});")

    def pointers(self, axes: Iterable[int], which: Iterable[int]) -> None:
        for k in which:
            array = self.arrays[k]
            const = "const " if isinstance(array, Read) else ""
            offset = "".join(f" + i{axis} * {self.stride(k, axis)}" for axis in axes)
            self.put(f"{const}{array.type} *const a{k} = ({const}{array.type} *)p[{k}]{offset};")
            if array.inner == "any":
                self.put(f"const ptrdiff_t s{k} = {self.stride(k, self.last)};")
            if array.inner == "fixed" and isinstance(array, Read):
                self.put(f"const {array.type} r{k} = a{k}[0];")

    def element(self, k: int) -> str:
        inner = self.arrays[k].inner
        index = {"unit": "j", "any": f"j * s{k}", "fixed": "0"}[inner]
        return f"a{k}[{index}]"

    def open_inner(self, start: str, stop: str, clauses: str | None) -> None:
        if clauses is not None:
            self.put(f"#pragma omp simd{clauses}")
        self.put(f"for (ptrdiff_t j = {start}; j < {stop}; j++) {{")
        for k, read in enumerate(self.loop.reads):
            if read.inner != "fixed":
                self.put(f"const {read.type} r{k} = {self.element(k)};")
        self.put(*render_body(self.loop.body))
        for k in self.mapped:
            write = self.loop.writes[k - len(self.loop.reads)]
            self.assign(self.element(k), write, write.source[0])

    def open_outer(self, axes: Iterable[int]) -> None:
        self.put("ptrdiff_t count = 0;", "(void)count;")
        for axis in axes:
            low, high = self.bounds(axis)
            self.put(f"for (ptrdiff_t i{axis} = {low}; i{axis} < {high}; i{axis}++) {{")
        self.pointers(range(self.last), [*range(len(self.loop.reads)), *self.mapped])

    def chunk_bounds(self) -> None:
        first = f"n{self.axes[0]}"
        self.put(f"const ptrdiff_t low = chunk * {first} / chunks;")
        self.put(f"const ptrdiff_t high = (chunk + 1) * {first} / chunks;")

    def bounds(self, axis: int) -> tuple[str, str]:
        return ("low", "high") if axis == self.axes[0] else ("0", f"n{axis}")

    def chunks(self, sizes: Iterable[str], allocate: bool) -> None:
        """Add the number of chunks; without memory for their results there is only one."""
        if not self.loop.can_chunk:
            self.put("const ptrdiff_t chunks = 1;")
            return
        self.put(f"const ptrdiff_t places = {' * '.join(['n[1]', *sizes])};")
        if allocate:
            size = f"{8 * len(self.reductions)} * places"
            self.put(f"if (n[1] > 1) parts = malloc({size});")
        self.put("const ptrdiff_t chunks = parts ? n[1] : 1;")

    def part(self, i: int, place: str) -> str:
        """Return the location of a chunk's result of a reduction."""
        number = [j for j, _ in self.reductions].index(i)
        type_ = self.loop.writes[i].total_type
        return f"(({type_} *)(parts + {8 * number} * places))[{place}]"


class _Map(_CText):
    @property
    def factors(self) -> list[tuple[str, str]]:
        return [*((f"i{axis}", f"n{axis}") for axis in range(self.last)), ("piece", "pieces")]

    def sizes(self, allocate: bool) -> None:
        self.put(f"const ptrdiff_t pieces = (n{self.last} + {PIECE - 1}) / {PIECE};")

    def item(self) -> None:
        inner = f"n{self.last}"
        self.put(f"const ptrdiff_t start = piece * {PIECE};")
        self.put(f"const ptrdiff_t stop = start + {PIECE} < {inner} ? start + {PIECE} : {inner};")
        self.pointers(range(self.last), range(len(self.arrays)))
        self.open_inner("start", "stop", "")
        self.put("}")


class _Rows(_CText):
    @property
    def factors(self) -> list[tuple[str, str]]:
        return [*((f"i{axis}", f"n{axis}") for axis in self.kept), ("chunk", "chunks")]

    def sizes(self, allocate: bool) -> None:
        self.chunks((length for _, length in self.factors[:-1]), allocate)

    def item(self) -> None:
        self.chunk_bounds()
        self.start()
        self.open_outer(self.axes[:-1])
        self.row_blocks()
        self.put(*"}" * (len(self.axes) - 1))
        if self.loop.can_chunk:
            self.put("if (chunks > 1) {")
            self.put(*(f"{self.part(i, 'item')} = total{i};" for i, _ in self.reductions))
            self.put("continue;", "}")
        self.store_rows()

    def row_blocks(self) -> None:
        low, high = self.bounds(self.last)
        blocked = self.loop.can_chunk
        clauses = None
        if blocked:
            self.put(f"for (ptrdiff_t start = {low}; start < {high}; start += {BLOCK}) {{")
            self.put(f"const ptrdiff_t stop = start + {BLOCK} < {high} ? start + {BLOCK} : {high};")
            for i, write in self.reductions:
                self.put(f"{write.block_type} acc{i} = {write.start};")
            low, high = "start", "stop"
            clauses = "".join(
                f" reduction({w.operator.joins} : acc{i})" for i, w in self.reductions
            )
        self.open_inner(low, high, clauses)
        for i, write in self.reductions:
            self.reduce(i, write, f"acc{i}" if blocked else f"total{i}")
        if not blocked:
            self.put("count++;", "}")
        else:
            self.put("}")
            for i, write in self.reductions:
                self.combine(write, f"total{i}", f"acc{i}")
            self.put("}")

    def join(self) -> None:
        for i, write in self.reductions:
            self.put(f"{write.total_type} total{i} = {self.part(i, 'item * chunks')};")
            self.put("for (ptrdiff_t c = 1; c < chunks; c++) {")
            self.combine(write, f"total{i}", self.part(i, "item * chunks + c"))
            self.put("}")
        self.store_rows()

    def store_rows(self) -> None:
        results = self.results()
        self.pointers(self.kept, [k for k, *_ in results])
        for k, write, result in results:
            self.assign(f"a{k}[0]", write, result)


class _Columns(_CText):
    @property
    def factors(self) -> list[tuple[str, str]]:
        outer = [(f"i{axis}", f"n{axis}") for axis in self.kept[:-1]]
        return [*outer, ("tile", "tiles"), ("chunk", "chunks")]

    def sizes(self, allocate: bool) -> None:
        self.put(f"const ptrdiff_t tiles = (n{self.last} + {TILE - 1}) / {TILE};")
        self.chunks([*(length for _, length in self.factors[:-1]), str(TILE)], allocate)

    def item(self) -> None:
        self.chunk_bounds()
        self.tile_bounds()
        self.tile_reduction()
        if self.loop.can_chunk:
            self.put("if (chunks > 1) {", f"for (ptrdiff_t l = 0; l < {TILE}; l++) {{")
            for i, _ in self.reductions:
                self.put(f"{self.part(i, f'item * {TILE} + l')} = total{i}[l];")
            self.put("}", "continue;", "}")
        self.store_tile()

    def join(self) -> None:
        self.tile_bounds()
        for i, write in self.reductions:
            first = self.part(i, f"item * chunks * {TILE}")
            self.put(f"{write.total_type} *const total{i} = &{first};")
            self.put("for (ptrdiff_t c = 1; c < chunks; c++) {")
            self.put("for (ptrdiff_t l = 0; l < width; l++) {")
            self.combine(write, f"total{i}[l]", f"total{i}[c * {TILE} + l]")
            self.put("}", "}")
        self.store_tile()

    def tile_bounds(self) -> None:
        inner = f"n{self.last}"
        self.put(f"const ptrdiff_t start = tile * {TILE};")
        self.put(f"const ptrdiff_t width = {inner} - start < {TILE} ? {inner} - start : {TILE};")

    def tile_reduction(self) -> None:
        """Reduce the rows of a tile; sums are collected in blocks of rows of the innermost axis."""
        for i, write in self.reductions:
            self.put(f"{write.total_type} total{i}[{TILE}];")
            self.put(f"ptrdiff_t place{i}[{TILE}];") if write.is_index else None
            self.put(f"for (ptrdiff_t l = 0; l < {TILE}; l++) {{", f"total{i}[l] = {write.start};")
            self.put(f"place{i}[l] = 0;") if write.is_index else None
            self.put("}")
        self.open_outer(self.axes)
        self.open_inner("start", "start + width", "")
        for i, write in self.reductions:
            total = f"total{i}[j - start]"
            step = write.step(total, write.source[0])
            if write.is_index:
                self.put(f"const int taken{i} = {step};")
                self.put(f"{total} = taken{i} ? {write.source[0]} : {total};")
                self.put(f"place{i}[j - start] = taken{i} ? count : place{i}[j - start];")
            else:
                self.put(f"{total} = {step};")
        self.put("}", "count++;", *"}" * len(self.axes))

    def store_tile(self) -> None:
        results = self.results()
        self.pointers(self.kept[:-1], [k for k, *_ in results])
        self.put("for (ptrdiff_t j = start; j < start + width; j++) {")
        for k, write, result in results:
            self.assign(self.element(k), write, f"{result}[j - start]")
        self.put("}")


_KINDS = {"map": _Map, "rows": _Rows, "columns": _Columns}
