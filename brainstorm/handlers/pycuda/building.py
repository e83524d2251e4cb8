"""Building: the launches of one operation, collected one after the other."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.forks import cached_property
from brainstorm.handlers.numpy_memory import byte_span
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.driver import guarded
from brainstorm.handlers.pycuda.elements import converting_walk, copying_walk, element_walk
from brainstorm.handlers.pycuda.fusing import Piece, fused, launched
from brainstorm.handlers.pycuda.launches import (
    Launch,
    check_count,
    load,
    looping_blocks,
    packed_launch,
)
from brainstorm.handlers.pycuda.modules import Kernel, file_with
from brainstorm.handlers.pycuda.recurrences import has_few_rows, product_launch
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.optree.cuda_structure import THREADS
from brainstorm.utils import Arrays

_zeros = formula(lambda target: fn.full(target.shape, 0.0))
#: Rows of bfloat16 are padded to multiples of this many elements, for tensor cores.
_HALF_ROW = 8


class Building:
    """Collects everything that an operation puts into the stream; calling it does so.

    Attributes:
        pieces: What was collected.
        kept: What must not go before the launches do, besides the arrays of the operation, which
            whoever keeps a building keeps if they are to stay.
    """

    def __init__(self, handler: Any, name: str) -> None:
        self.handler, self.device, self.name = handler, handler._device, name
        self.pieces: list[Piece] = []
        self.kept: list[Any] = []
        self._slots = map("temporary {}".format, itertools.count())
        self._back: list[tuple[DeviceArray, DeviceArray]] = []

    @cached_property
    def launches(self) -> list[Launch]:
        """What it puts into the stream by itself, when all of it is collected."""
        return [launched(self.device, piece) for piece in fused(self.pieces)]

    @cached_property
    def _loaded(self) -> list[Launch]:
        load(self.device, self.launches)
        return self.launches

    def __call__(self) -> None:
        """Put all of it into the stream.

        Raises:
            DeviceError: The GPU failed.
        """
        self.device.enter()
        with self.device.lock:
            guarded(self.name, self._run)

    def _run(self) -> None:
        for launch in self._loaded:
            launch.run()

    def kernel(
        self, name: str, count: int, *arguments: DeviceArray | int | None, blocks: int | None = None
    ) -> None:
        """Add a handwritten kernel, if there is anything to do.

        Args:
            name: The kernel.
            count: Elements that the threads share, in a loop over the whole grid.
            *arguments: Arrays and None become addresses, integers ``int``.
            blocks: The exact number of blocks, where the kernel depends on it.

        Raises:
            HandlerValidationError: There are more elements than the kernel can count.
        """
        if not count:
            return
        check_count(name, max([count, *(x for x in arguments if isinstance(x, int))]))
        arrays = [x for x in arguments if isinstance(x, DeviceArray)]
        types = ["P" if x is None or isinstance(x, DeviceArray) else "i" for x in arguments]
        data = struct.pack("".join(types), *(getattr(x, "address", x) or 0 for x in arguments))
        if blocks is None:
            blocks = looping_blocks(self.device, -(-count // THREADS))
        kernel = Kernel(name, [file_with(f"void {name}")])
        self.launch(packed_launch(self.device, kernel, (blocks, 1), (THREADS, 1, 1), data), arrays)

    def elements(
        self, function: str, sources: Sequence[DeviceArray | None], out: DeviceArray,
        numbers: Sequence[int] = (), sizes: Sequence[int] = (), axes: Sequence[int] = (),
        add: bool = False,
    ) -> None:  # fmt: skip
        """Add a loop over a contiguous array, whose elements a function of our files computes.

        It takes the sources, of which None is a null pointer, the place of the element, the
        numbers, the sizes, and, if there are axes, a structure ``Axes`` of them. Sizes and axes are
        known when the kernel is compiled: dividing by other numbers takes longest of all. `add`
        adds to what is there.
        """
        if out.size:
            walk = element_walk(function, sources, out, numbers, sizes, axes, add)
            self.pieces.append(Piece.of_loop(walk))

    def launch(
        self, launch: Launch, arrays: Arrays, reads: Arrays = (), product: Product | None = None
    ) -> None:
        """Add a launch, which writes some arrays, and may read them, and reads others.

        If it computes a product, that is given as well.
        """
        read, written = ([byte_span(array.shadow) for array in given] for given in (reads, arrays))
        self.pieces.append(Piece(read, written, launch=launch, product=product))

    def program(
        self, its_formula: Formula, inputs: Arrays, outputs: Arrays, accumulate: bool = False
    ) -> None:
        """Add a formula."""
        executor = self.handler.memo.executor(its_formula.program(*inputs))
        executor.collect(self, inputs, outputs, [accumulate] * len(outputs))

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Add a copy to other memory, which converts to another dtype."""
        if target.size:
            self.pieces.append(Piece.of_loop(copying_walk(source, target)))

    def clear(self, target: DeviceArray) -> None:
        """Add a launch that fills with zeros."""
        self.program(_zeros, [target], [target])

    def temporary(self, shape: tuple[int, ...], dtype: Any = np.float32) -> DeviceArray:
        """Return memory for this operation until it ends."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        memory = self.device.scratch(next(self._slots), size)
        self.kept.append(memory)
        return DeviceArray.at(self.device, memory, shape, dtype)

    def constant(self, array: DeviceArray) -> DeviceArray:
        """Return a constant of the handler, which is kept with the launches."""
        self.kept.append(array)
        return array

    def number(self, value: Any) -> DeviceArray:
        """Return a number, or an array of one element, as an array without dimensions."""
        number: DeviceArray = self.handler._as_number(value)
        return number if isinstance(value, DeviceArray) else self.constant(number)

    # -- arrays without gaps -----------------------------------------------------------------

    def dense(self, array: DeviceArray) -> DeviceArray:
        """Return an array for reading: itself, or a contiguous copy."""
        if array.flags.c_contiguous:
            return array
        copied = self.temporary(array.shape, array.dtype)
        self.copy(array, copied)
        return copied

    def target(self, array: DeviceArray, keeps: bool = False) -> DeviceArray:
        """Return an array for writing: itself, or contiguous memory that `finish` copies to it.

        `keeps` says whether its content matters.
        """
        if array.flags.c_contiguous:
            return array
        instead = self.temporary(array.shape, array.dtype)
        if keeps:
            self.copy(array, instead)
        self._back.append((instead, array))
        return instead

    def finish(self) -> None:
        """Add the copies of results to their arrays."""
        while self._back:
            self.copy(*self._back.pop(0))

    # -- products ----------------------------------------------------------------------------

    def product(
        self, a: DeviceArray, b: DeviceArray, out: DeviceArray, transa: bool = False,
        transb: bool = False, add: bool = False, is_repeated: bool = False,
    ) -> None:  # fmt: skip
        """Add out = a @ b, or out += a @ b; transposed first if requested.

        The arrays are matrices, or stacks of matrices whose first axis counts the products. If it
        `is_repeated`, it is one of many with the same b, for which a kernel of ours is used if
        possible, which may become part of a recurrence.
        """
        if not out.size or not a.size:  # cuBLAS needs at least one element per row
            if not add:
                self.clear(out)
            return
        if _rows(out) is None:
            target = self.dense(out) if add else self.temporary(out.shape)
            self.product(a, b, target, transa, transb, add, is_repeated)
            self.copy(target, out)  # now, because what follows may read it
            return
        a, transa = self._factor(a, transa)
        b, transb = self._factor(b, transb)
        product = _product(a, b, out, transa, transb, add)
        check_count(self.name, max(product[5:11]))
        if is_repeated and has_few_rows(self.device, product):
            self.launch(product_launch(self.device, product), [out], [a, b], product)
            return
        if self.handler._compute == "bf16":
            a, b = self.rounded(a), self.rounded(b)
            product = _product(a, b, out, transa, transb, add)
        launch = Launch(None, self.handler._blas.call(product))
        self.launch(launch, [out], [a, b], product)

    def rounded(self, array: DeviceArray) -> DeviceArray:
        """Return an array, rounded to bfloat16; with rows, or stacks, that need not be adjacent."""
        half = self._half(array)
        result = half[..., : array.shape[-1]]
        self.pieces.append(Piece.of_loop(converting_walk(array, result)))
        return result

    def widen(self, half: DeviceArray, array: DeviceArray, add: bool) -> None:
        """Add the conversion of bfloat16 to float32, or its addition to what is there."""
        self.pieces.append(Piece.of_loop(converting_walk(half, array, add)))

    def _half(self, array: DeviceArray) -> DeviceArray:
        """Return memory for what a matrix, or a stack, is rounded to.

        It is the same for the same array, so that a graph rounds what is not written in between
        only once; but in all not more than what is rounded, as with ever new sizes.
        """
        known: dict[Any, DeviceArray] = {}
        if array.memory is not None:
            known = self.handler._halves.setdefault(array.memory, known)
        half = known.get(_place(array))
        if half is None:
            # In the order of the array, so that the kernel that writes this can write that as well.
            order = sorted(range(array.ndim - 1), key=lambda axis: -array.strides[axis])
            outer = tuple(array.shape[axis] for axis in order)
            shape = (*outer, -(-array.shape[-1] // _HALF_ROW) * _HALF_ROW)
            axes = (*sorted(range(array.ndim - 1), key=order.__getitem__), array.ndim - 1)
            size = 2 * math.prod(shape) + sum(other.nbytes for other in known.values())
            if array.memory is None or size > array.memory.size:
                return self.temporary(shape, np.uint16).transpose(axes)
            half = DeviceArray.new(self.device, shape, np.uint16).transpose(axes)
            known[_place(array)] = half
        self.kept.append(half)
        return half

    def _factor(self, array: DeviceArray, turned: bool) -> tuple[DeviceArray, bool]:
        """Return a factor in rows, and whether to transpose it."""
        if _rows(array) is not None:
            return array, turned
        order = (*range(array.ndim - 2), array.ndim - 1, array.ndim - 2)
        if _rows(array.transpose(order)) is not None:
            return array.transpose(order), not turned
        return self.dense(array), turned


def _product(
    a: DeviceArray, b: DeviceArray, out: DeviceArray, transa: bool, transb: bool, add: bool
) -> Product:
    """Return the product of two factors, matrices or stacks of them, whose elements are in rows."""
    m, n = out.shape[-2:]
    k = a.shape[-2] if transa else a.shape[-1]
    lda, ldb, ldc = (_rows(x) or x.shape[-1] for x in (a, b, out))
    stacks = [x.strides[0] // x.itemsize if x.ndim == 3 else 0 for x in (a, b, out)]
    return Product(
        a.address, b.address, out.address, transa, transb, m, n, k, lda, ldb, ldc, add,
        out.shape[0] if out.ndim == 3 else 1, (stacks[0], stacks[1], stacks[2]),
        a.dtype.itemsize == 2,
    )  # fmt: skip


def _place(array: DeviceArray) -> tuple[Any, ...]:
    return array.address, array.shape, array.strides


def _rows(array: DeviceArray) -> int | None:
    """Return the elements between rows; None: the elements of rows are not adjacent."""
    *_, rows, columns = array.shape
    *_, step, inner = (stride // array.itemsize for stride in array.strides)
    if columns > 1 and inner != 1:
        return None
    if rows == 1:
        return columns
    return step if step >= columns else None
