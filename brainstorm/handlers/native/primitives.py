"""oneDNN's primitives, created once per layout of their arguments, and their memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from brainstorm.forks import cached_property
from brainstorm.handlers.native.calls import Call, Execution
from brainstorm.handlers.native.library import Handle, Library, UnsupportedError, sizes
from brainstorm.handlers.numpy_memory import address_of, aligned_zeros, overlap
from brainstorm.utils import Array

T = TypeVar("T")
#: A layout, and the address of memory that has it.
Placed: TypeAlias = tuple[Handle, int]

# Numbers of dnnl_types.h: the arguments of executions ...
SRC, DST, WEIGHTS, BIAS, SCRATCHPAD = 1, 17, 33, 41, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_BIAS = 129, 145, 161, 169
# ... kinds of queries ...
WEIGHTS_LAYOUT, DIFF_WEIGHTS_LAYOUT, SCRATCHPAD_LAYOUT = 131, 132, 136
# ... and the rest.
_BFLOAT16, _FLOAT32, _OURS, _ALLOW_BF16 = 2, 3, 1, 1
_ANY_TAG: Any = 1

#: In place of strides: the library chooses the layout.
ANY = None
#: In place of a size or a stride: that of the arrays at execution.
GIVEN = -(2**63)
#: Maximum number of cached primitives.
MOST_PRIMITIVES = 1024
#: Minimum work for several threads (measured): one unit is a multiplication or an addition, and
#: each number read or written counts as `PER_NUMBER` of them.
PARALLEL_WORK, PER_NUMBER = 2_000_000, 16


class Primitive:
    """A primitive descriptor of the library and, created when needed, its primitive.

    Args:
        library: The library.
        kind: E.g. ``'matmul'``.
        arguments: Arguments of the function that creates the descriptor.

    Attributes:
        implementation: The name of the implementation.
    """

    def __init__(self, library: Library, kind: str, *arguments: Any) -> None:
        self._library = library
        self.description = library.describe(kind, *arguments)
        self.implementation = library.implementation(self.description)
        if self.implementation.startswith("ref"):
            raise UnsupportedError(f"oneDNN has no fast code for this {kind}")
        self._layouts: dict[int, Handle] = {}

    @cached_property
    def handle(self) -> Handle:
        """The primitive."""
        return self._library.create("dnnl_primitive", self.description)

    def layout(self, what: int) -> Handle:
        """Return the memory descriptor of an argument, always the same object."""
        if what not in self._layouts:
            self._layouts[what] = self._library.queried(self.description, what)
        return self._layouts[what]


class Primitives:
    """Everything that operations are built from, for calls that run one after the other.

    Args:
        library: The library; None: only calls without primitives can be built.
        threads: Maximum number of threads of a call.
        is_half: Whether factors of products are rounded to bfloat16; sums stay in float32.

    Attributes:
        threads: Maximum number of threads of a call.
        is_half: Whether factors are rounded to bfloat16.
        allocate: Returns new memory that calls need, as an array of zeros of a shape and type.
        used_threads: How many the next primitives and calls use.
        held: Memory that every call may overwrite, by purpose; it grows to what the largest needs.
    """

    def __init__(self, library: Library | None, threads: int, is_half: bool = False) -> None:
        self._loaded, self.threads = library, threads
        self.is_half = is_half
        self.used_threads = threads
        self.allocate: Callable[[tuple[int, ...], Any], np.ndarray] = aligned_zeros
        self.held: dict[str, np.ndarray] = {}
        self._made: dict[Hashable, Any] = {}
        #: Those that calls or primitives use.
        self._layouts: weakref.WeakValueDictionary[Hashable, Handle]
        self._layouts = weakref.WeakValueDictionary()
        if library is not None:
            self._stream = library.stream()

    def forget(self) -> None:
        """Called when existing calls hold memory that is out of date; does nothing here."""

    def workspace(self, slot: str, size: int) -> np.ndarray:
        """Return at least `size` bytes; their content lasts until the slot is used again."""
        held = self.held.get(slot)
        if held is None or held.size < size:
            if held is not None:
                self.forget()
            held = self.held[slot] = self.allocate((size,), np.uint8)
        return held

    def choose_threads(self, flop: int, numbers: int) -> None:
        """Let the next primitives and calls use all threads, or one if there is little to do.

        That is decided by the operations, and by the numbers that are read and written.
        """
        self.used_threads = self.threads if flop + PER_NUMBER * numbers >= PARALLEL_WORK else 1
        self.library.use_threads(self.used_threads)

    @property
    def library(self) -> Library:
        """The library.

        Raises:
            UnsupportedError: It is not available.
        """
        if self._loaded is None:
            raise UnsupportedError("there is no oneDNN")
        return self._loaded

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned when it was first called for this key."""
        key = self.used_threads, key
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= MOST_PRIMITIVES:
                del self._made[next(iter(self._made))]
            made = self._made[key] = make()
        return made

    def layout(
        self, shape: tuple[int, ...], strides: tuple[int, ...] | None, is_half: bool = False
    ) -> Handle:
        """Return a memory descriptor, the same object for the same arguments.

        Args:
            shape: Sizes, or `GIVEN`.
            strides: In elements, or `GIVEN`; or `ANY`.
            is_half: Whether elements are bfloat16.
        """
        key = shape, strides, is_half
        layout = self._layouts.get(key)
        if layout is None:
            way, rest = "_with_tag", _ANY_TAG
            if strides is not ANY:
                way, rest = "_with_strides", sizes(strides)
            arguments = len(shape), sizes(shape), _BFLOAT16 if is_half else _FLOAT32, rest
            layout = self.library.create("dnnl_memory_desc", *arguments, way=way)
            self._layouts[key] = layout
        return layout

    def primitive(
        self,
        kind: str,
        *terms: Any,
        add: bool = False,
        activation: tuple[int, float, float] | None = None,
        is_half: bool = False,
    ) -> Primitive:
        """Return a primitive, the same object for the same arguments.

        Args:
            kind: E.g. ``'matmul'``.
            *terms: Arguments of the function that creates the descriptor, without the attributes:
                objects of the library, numbers, and tuples of sizes.
            add: Whether it adds to the destination.
            activation: What it applies to the result: its number in the library, two parameters.
            is_half: Whether the library may round factors in float32 to bfloat16.
        """

        def make() -> Primitive:
            given = [sizes(term) if isinstance(term, tuple) else term for term in terms]
            attributes = self._attributes(add, activation, is_half)
            return Primitive(self.library, kind, *given, attributes)

        return self.kept((kind, terms, add, activation, is_half), make)

    def _attributes(
        self, add: bool, activation: tuple[int, float, float] | None, is_half: bool
    ) -> Handle:
        library = self.library
        attributes = library.create("dnnl_primitive_attr")
        library.check("dnnl_primitive_attr_set_scratchpad_mode", attributes, _OURS)
        if is_half:
            library.check("dnnl_primitive_attr_set_fpmath_mode", attributes, _ALLOW_BF16)
        after = library.create("dnnl_post_ops")
        if add:
            library.check("dnnl_post_ops_append_sum", after, 1.0, 0, 0)
        if activation is not None:
            library.check("dnnl_post_ops_append_eltwise", after, *activation)
        library.check("dnnl_primitive_attr_set_post_ops", attributes, after)
        return attributes

    def temporary(self, slot: str, layout: Handle) -> Placed:
        """Return a layout with the address of memory for it, from the workspace."""
        return layout, address_of(self.workspace(slot, self.library.size(layout)))

    def copy(self, source: Placed, target: Placed, add: bool = False) -> Execution:
        """Return the call that copies from one place to another, or adds."""
        engine = self.library.engine
        reorder = self.primitive("reorder", source[0], engine, target[0], engine, add=add)
        return self.call(reorder, {SRC: source, DST: target})

    def copied(self, calls: list[Call], slot: str, given: Placed, wanted: Handle) -> Placed:
        """Add the call that copies an array to the workspace, and return the copy.

        Args:
            calls: The calls before.
            slot: See `workspace`.
            given: Layout and address of the array.
            wanted: The layout of the copy.
        """
        target = self.temporary(slot, wanted)
        calls.append(self.copy(given, target))
        return target

    def call(self, primitive: Primitive, arguments: Mapping[int, Placed]) -> Execution:
        """Return the call of a primitive with arguments by number."""
        library, given = self.library, dict(arguments)
        layout = primitive.layout(SCRATCHPAD_LAYOUT)
        if library.size(layout):
            given[SCRATCHPAD] = self.temporary("scratchpad", layout)
        held = tuple(self.held.values())
        return Execution(library, primitive, self._stream, given, held, self.used_threads)


def check_arrays(dtypes: tuple[Any, ...], outputs: list[Array], inputs: list[Array]) -> None:
    """Raise an error for arrays that no native operation supports.

    Raises:
        UnsupportedError: An array is empty, of another type, not aligned, as a field of a
            structured array may be (its strides are not whole elements), or overlaps an output.
    """
    arrays = [*outputs, *inputs]
    if any(a.dtype not in dtypes or a.dtype != arrays[0].dtype or a.size == 0 for a in arrays):
        raise UnsupportedError("arrays are empty or of another type")
    if not all(a.flags.aligned for a in arrays):
        raise UnsupportedError("arrays are not aligned")
    for i, out in enumerate(outputs):
        if any(overlap(out, other) for other in arrays[i + 1 :]):
            raise UnsupportedError("outputs overlap other arrays")
