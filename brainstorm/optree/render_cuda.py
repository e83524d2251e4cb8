"""From loops to CUDA C: one kernel per stage, around the same bodies as in C.

A thread does one element of the result after the other (all threads together, with the number of
threads as the step) and reduces its elements in their order, so that results are the same bits
whatever the grid. The text includes no file, as the compiler of the CUDA driver wants it.
"""

from __future__ import annotations

from collections.abc import Sequence

from brainstorm.optree.loop_text import LoopText
from brainstorm.optree.loops import Loop, Read, typed

__all__ = ["render_cuda"]

#: What C has and CUDA C++ lacks without its headers.
_HEAD = """
#ifdef __CUDACC_RTC__
typedef long long ptrdiff_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
#define _Bool bool
"""


def render_cuda(loops: Sequence[Loop], name: str) -> tuple[str, list[str]]:
    """Return the CUDA C source of kernels, and for each loop the name of its kernel.

    A kernel ``void kernel(char *const *p, const ptrdiff_t *n)`` takes device arrays: the addresses
    of the arrays that its loop reads and writes, and, as `render_c.render_kernel` says, two numbers
    (unused), the sizes of the axes, and the strides of each array. Any grid of one dimension does.

    Args:
        loops: The stages, to be launched in their order.
        name: What the names of the kernels begin with.
    """
    unique = {loop: f"{name}_{i}" for i, loop in enumerate(dict.fromkeys(loops))}
    parts = [_HEAD, *(_CudaText(loop, title).render() for loop, title in unique.items())]
    return "\n".join(parts), [unique[loop] for loop in loops]


class _CudaText(LoopText):
    def render(self) -> str:
        self.put('extern "C" __global__')
        self.put(f"void {self.title}(char *const *p, const ptrdiff_t *n) {{")
        for axis in range(self.loop.rank):
            self.put(f"const ptrdiff_t n{axis} = n[{axis + 2}];")
        items = " * ".join(f"n{axis}" for axis in self.kept) or "1"
        self.put(f"const ptrdiff_t items = {items};")
        self.put("const ptrdiff_t threads = (ptrdiff_t)gridDim.x * blockDim.x;")
        self.put("ptrdiff_t item = (ptrdiff_t)blockIdx.x * blockDim.x + threadIdx.x;")
        self.put("for (; item < items; item += threads) {")
        self.decode([(f"i{axis}", f"n{axis}") for axis in self.kept])
        for i, write in self.reductions:
            self.put(f"{write.total_type} total{i} = {typed(write.initial, write.source[1])};")
            if write.is_index:
                self.put(f"ptrdiff_t place{i} = 0;")
        self.put("ptrdiff_t count = 0;", "(void)count;")
        for axis in self.axes:
            self.put(f"for (ptrdiff_t i{axis} = 0; i{axis} < n{axis}; i{axis}++) {{")
        self.one_element()
        self.put(*"}" * len(self.axes))
        for k, (i, write) in zip(self.stored(True), self.reductions, strict=True):
            value = f"place{i}" if write.is_index else f"total{i}"
            self.assign(self.at(k, self.kept), write, value)
        self.put("}", "}")
        return "\n".join(self.lines) + "\n"

    def at(self, k: int, axes: Sequence[int]) -> str:
        array = self.arrays[k]
        const = "const " if isinstance(array, Read) else ""
        offset = " + ".join(f"i{axis} * {self.stride(k, axis)}" for axis in axes) or "0"
        return f"(({const}{array.type} *)p[{k}])[{offset}]"

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
        if self.axes:
            self.put("count++;")
