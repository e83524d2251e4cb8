"""Stages with arrays: the views that their loops read and write, and the axes of the loops.

Stages know shapes, but neither strides nor where values lie. Here every value between them gets its
array: an output, a view, or new memory. The result of a stage has two parts: the `Loop`, from which
a kernel is compiled, and the numbers that are its arguments, so that arrays of other sizes need no
other kernel. Of a softmax over the rows of a contiguous x (4, 6), the second stage (see `stages`)
becomes, with strides in elements::

    loop      e = exp(r0 - r1); s += e; inner axis: r0, e contiguous, r1, s fixed, reduced for s
    reads     x, strides (6, 1); m, strides (1, 0)
    writes    e, strides (6, 1); s, strides (1, 0); both new arrays
    numbers   1 thread, 1 chunk, sizes 4 and 6, the strides

An output that shares memory with what is read later is computed in a new array, and copied.
"""
# ruff: noqa: D102 (only `Executor` uses the methods of `Binder`)

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.bound_program import BoundStage, Place
from brainstorm.handlers.numpy_memory import steps_of
from brainstorm.optree.collapse import Axes, collapse
from brainstorm.optree.interpreter import exact_types
from brainstorm.optree.loops import (
    C_TYPES,
    Line,
    Loop,
    Read,
    Write,
    line_of,
    source_of,
)
from brainstorm.optree.program import Step
from brainstorm.optree.render_c import TILE
from brainstorm.optree.shapes import region
from brainstorm.optree.stages import OPERATIONS, NotRenderableError, Root, Stage, StagedProgram
from brainstorm.utils import Array

#: Minimum work for threads, in additions of float32; and the cost of an operator like exp.
PARALLEL_WORK, EXPENSIVE = 200_000, 10


class Binder:
    """Gives arrays to the stages of a program; see `Executor` for most of the arguments.

    Args:
        protected: Outputs that are computed in new arrays, which are copied to them at the end.

    Attributes:
        arrays: Inputs, outputs, and new arrays.
        keeps_zeros: Whether parts of new arrays are never written and must stay zero.
    """

    def __init__(
        self,
        staged: StagedProgram,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
        threads: int,
        new_array: Callable[[tuple[int, ...], Any], Array],
        protected: set[int],
    ) -> None:
        self.staged, self.program = staged, staged.program
        self.new_array = new_array
        self.accumulate, self.threads, self.protected = accumulate, threads, protected
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.arrays = [*inputs, *outputs]
        self.places = {i: Place(i, array) for i, array in enumerate(inputs)}
        self.targets = [Place(len(inputs) + k, out) for k, out in enumerate(outputs)]
        self.types: list[Any] = [array.dtype for array in inputs]
        self.types += map(self.type_of, self.program.steps)
        self.stages: list[BoundStage] = []
        for k in sorted(protected):
            self.targets[k] = self.new(outputs[k].shape, self.types[self.program.outputs[k]])
        self.home: dict[int, int] = {}
        self.keeps_zeros = False
        for value in staged.buffers:
            self.give_memory(value)

    def type_of(self, step: Step) -> Any:
        """Return the type in which a result is stored: moved and reduced integers stay exact.

        Those of operands are known.
        """
        kind, exact = step.operator.kind, step.operator.exact
        types = [self.types[x] for x in step.values]
        if kind == "view":
            return types[0]
        is_exact = exact == "index" or all(dtype.kind != "f" for dtype in types)
        if kind not in ("reduction", "assembly") or not (exact and is_exact):
            return step.dtype
        return exact_types(step, types)[1]

    def step(self, value: int) -> Step:
        step = self.program.step_of(value)
        assert step is not None
        return step

    def new(self, shape: tuple[int, ...], dtype: Any) -> Place:
        self.arrays.append(self.new_array(shape, dtype))
        return Place(len(self.arrays) - 1, self.arrays[-1])

    def give_memory(self, value: int) -> None:
        """Place a value in an output that it is written to anyway, or in new memory."""
        if self.step(value).operator.name == "embed":  # its zeros are written only once
            self.keeps_zeros = True
        else:
            for k, output in enumerate(self.program.outputs):
                target = self.targets[k]
                plain = k in self.protected or not self.accumulate[k]
                if output == value and plain and target.view.dtype == self.types[value]:
                    self.places[value], self.home[value] = target, k
                    return
        self.places[value] = self.new(self.program.shape_of(value), self.types[value])

    def run(self) -> list[BoundStage]:
        """Return the stages with arrays."""
        for stage in self.staged.stages:
            if isinstance(stage, Step):
                self.stages.append(self.bind_alone(stage))
                continue
            roots = [root for root in stage.roots if self.is_needed(root)]
            if roots:
                self.stages.append(self.bind(stage, roots))
        for k in sorted(self.protected):
            target = Place(len(self.inputs) + k, self.outputs[k])
            self.copy(self.targets[k], target, self.accumulate[k])
        return self.stages

    def is_needed(self, root: Root) -> bool:
        if root.kind == "value":
            return root.value in self.places and root.value not in self.home
        if root.kind == "output" and self.home.get(root.value) == root.place:
            operator = self.step(root.value).operator  # parts and operations were written there
            return operator.name != "concatenate" and operator.kind not in OPERATIONS
        return True

    # -- views -------------------------------------------------------------------------------

    def place(self, value: int) -> Place:
        """Return the place from which a value is read; views of stored values are created here."""
        if value not in self.places:
            step = self.step(value)
            base, array = self.place(*step.values)
            if step.operator.name == "reshape" and self.moves(array, step.shape):
                copied = self.new(array.shape, array.dtype)
                self.copy(Place(base, array), copied, False)
                base, array = copied
            self.places[value] = Place(base, step.view(array))
        return self.places[value]

    @staticmethod
    def moves(array: Array, shape: tuple[int, ...]) -> bool:
        """Whether NumPy would have to copy to reshape."""
        try:
            array.reshape(shape, copy=False)
        except ValueError:
            return True
        return False

    def target(self, root: Root, stage: Stage) -> tuple[Place, bool]:
        """Return the place of a root over the domain, and whether it is added to."""
        if root.kind == "part":
            return self.part(root), False
        if root.kind == "output":
            place = self.targets[root.place]
            add = self.accumulate[root.place] and root.place not in self.protected
        else:
            place, add = self.places[root.value], False
        if root.is_reduced and not self.step(root.value).params["keepdims"]:
            place = Place(place.base, np.expand_dims(place.view, stage.axes or ()))
        return place.over(stage.domain), add

    def part(self, root: Root) -> Place:
        step = self.step(root.owner)
        base, array = self.places[root.owner]
        shape = self.program.shape_of(root.value)
        if step.operator.name == "embed":
            return Place(base, array[region(step.params["start"], step.params["step"], shape)])
        axis = step.params["axis"]
        start = sum(self.program.shape_of(x)[axis] for x in step.values[: root.place])
        return Place(base, array[(slice(None),) * axis + (slice(start, start + shape[axis]),)])

    def bind_alone(self, step: Step) -> BoundStage:
        """Bind a step that is not a loop; operands other than indices get its working type."""
        places = [self.place(x) for x in step.values]
        values = [i for i in range(len(places)) if i not in step.operator.index_operands]
        self.check_exact(step, [step.values[i] for i in values])
        for i in values:
            place = places[i]
            if place.view.dtype != step.dtype:
                places[i] = self.new(place.view.shape, step.dtype)
                self.copy(place, places[i], False)
        return BoundStage(step, places, [self.places[step.result]])

    def check_exact(self, step: Step, values: Sequence[int]) -> None:
        """Raise an error if integers would be rounded to floating-point numbers."""
        types = [self.types[x] for x in values]
        adds = step.operator.kind == "product" or step.operator.exact == "total"
        rounds = adds or any(dtype.itemsize > 2 for dtype in types)
        if types and rounds and all(dtype.kind != "f" for dtype in types):
            raise NotRenderableError(
                f"op-tree: there is no exact {step.operator.name!r} of integers in C. "
                f"Run it with the NumPy executor."
            )

    # -- loops -------------------------------------------------------------------------------

    def bind(self, stage: Stage, roots: list[Root]) -> BoundStage:
        reads = [self.place(leaf).over(stage.domain) for leaf in stage.leaves]
        names = {
            leaf: (f"r{i}", c_type(place.view))
            for i, (leaf, place) in enumerate(zip(stage.leaves, reads, strict=True))
        }
        body: list[Line] = []
        constants: list[tuple[str, float]] = []
        for i, value in enumerate(stage.body):
            body.append(line_of(self.step(value), f"v{i}", names, constants))
            names[value] = (f"v{i}", body[-1].type)
        roots = sorted(roots, key=lambda root: root.is_reduced)
        targets = [self.target(root, stage) for root in roots]
        writes = [place for place, _ in targets]
        operators = [self.step(r.value).operator for r in roots if r.is_reduced]
        keep_order = not all(operator.joins for operator in operators)
        reduced = [i in (stage.axes or ()) for i in range(len(stage.domain))]
        strides = [steps(place.view) for place in (*reads, *writes)]
        axes = collapse(stage.domain, reduced, strides, keep_order, bool(operators))
        form = [Read(c_type(place.view), axes.inner(k)) for k, place in enumerate(reads)]
        written = []
        for k, (root, (place, add)) in enumerate(zip(roots, targets, strict=True), len(reads)):
            source, reduction = names[root.source], ""
            if root.is_reduced:
                step = self.step(root.value)
                source, reduction = source_of(step, source), step.operator.name
            written.append(Write(c_type(place.view), axes.inner(k), source, add, reduction))
        types = tuple(type_ for type_, _ in constants)
        loop = Loop(axes.reduced, tuple(form), tuple(body), tuple(written), types)
        work = 1 + sum(1 if self.step(v).operator.cheap else EXPENSIVE for v in stage.body)
        threads = self.threads if work * math.prod(stage.domain) >= PARALLEL_WORK else 1
        values = [value for _, value in constants]
        chunks = chunks_of(loop, axes, threads)
        return BoundStage(loop, reads, writes, axes, threads, chunks, values)

    def copy(self, source: Place, target: Place, add: bool) -> None:
        loop, axes = copying_loop(source.view, target.view, add)
        threads = self.threads if source.view.size >= PARALLEL_WORK else 1
        self.stages.append(BoundStage(loop, [source], [target], axes, threads))


def copying_loop(
    source: Array, target: Array, add: bool, body: tuple[Line, ...] = ()
) -> tuple[Loop, Axes]:
    """Return the loop that copies an array to one of the same shape, or adds it, and its axes.

    A body computes what is written from the element ``r0``.
    """
    axes = collapse(source.shape, [False] * len(source.shape), [steps(source), steps(target)])
    read = Read(c_type(source), axes.inner(0))
    value = (body[-1].name, body[-1].type) if body else ("r0", read.type)
    write = Write(c_type(target), axes.inner(1), value, add)
    return Loop(axes.reduced, (read,), body, (write,)), axes


def c_type(array: Array) -> str:
    """Return the C type of an array's elements."""
    found = C_TYPES.get(array.dtype)
    if found is None:
        raise NotRenderableError(
            f"op-tree: there is no type in C for arrays of {array.dtype}. Run on NumPy."
        )
    return found


def steps(array: Array) -> tuple[int, ...]:
    """Return an array's strides in elements."""
    size, strides = array.dtype.itemsize, steps_of(array)
    if any(stride % size for stride in strides):
        raise NotRenderableError(
            "op-tree: expected strides of whole elements. Copy the array, or run on NumPy."
        )
    return tuple(stride // size for stride in strides)


def chunks_of(loop: Loop, axes: Axes, threads: int) -> int:
    """Return the number of chunks of the outermost reduced axis."""
    if threads == 1 or not loop.can_chunk:
        return 1
    kept = [n for n, r in zip(axes.sizes, axes.reduced, strict=True) if not r]
    if loop.kind == "columns":
        kept[-1] = -(-kept[-1] // TILE)
    items = math.prod(kept)
    if items >= 2 * threads:
        return 1
    length = next(n for n, r in zip(axes.sizes, axes.reduced, strict=True) if r)
    return min(2 * threads, -(-8 * threads // items), length)  # enough to keep all threads busy
