"""From a program to stages: what one loop nest computes, and what is stored between them.

A stage works through a *domain*, a shape. At each place it evaluates element-wise steps on
elements of arrays that exist already, stores some of the results, and may reduce others over one
set of axes. Element-wise values that several stages need are computed again in each, unless they
are expensive or compared with what was computed from them; those are stored. Operators that only
move elements are views of stored values, except that joined parts are stored side by side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from brainstorm.errors import ValidationError
from brainstorm.optree.loops import C_TYPES, FLOATING
from brainstorm.optree.program import Program, Step
from brainstorm.optree.shapes import Shape

__all__ = ["NotRenderableError", "Root", "Schedule", "Stage", "schedule"]

#: Operators whose operands are stored into regions of a new array.
ASSEMBLIES = ("concatenate", "embed")
#: Steps in one loop; compilers take more than linear time.
MOST_STEPS = 1000


class NotRenderableError(ValidationError):
    """The program has steps for which there is no loop nest; another executor has to run it."""


class Root(NamedTuple):
    """Something that a stage stores.

    Attributes:
        value: The number of the value.
        kind: 'value': into memory of its own; 'output': into output `place`; 'part': as operand
            `place` into the memory of the concatenate or embed step `owner`.
        place: See `kind`.
        owner: See `kind`.
    """

    value: int
    kind: str
    place: int = 0
    owner: int = -1


@dataclass(frozen=True)
class Stage:
    """One loop nest.

    Attributes:
        domain: The shape that it works through.
        axes: The axes that its reductions reduce; None: it has none.
        roots: What it stores. Values of reductions have the domain's shape without `axes`.
        body: Element-wise values (and `full`, and broadcast ones) that it computes, in order.
        leaves: Values whose elements it reads.
    """

    domain: Shape
    axes: tuple[int, ...] | None
    roots: tuple[Root, ...]
    body: tuple[int, ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Stages in order, and the values between them that need memory of their own."""

    program: Program
    stages: tuple[Stage, ...]
    buffers: tuple[int, ...]


def schedule(program: Program) -> Schedule:
    """Arrange a program in stages.

    Raises:
        NotRenderableError: If an operator is a product, an indexing, or has no form in C.
    """
    for step in program.steps:
        _check(step)
    scheduler = _Scheduler(program)
    scheduler.arrange()
    scheduler.stored |= scheduler.worth_storing()
    stages = scheduler.arrange()
    if any(len(stage.body) > MOST_STEPS for stage in stages):
        raise NotRenderableError(
            f"op-tree: expected at most {MOST_STEPS} steps in one loop. Store some values in "
            "between."
        )
    return Schedule(program, tuple(stages), scheduler.buffers(stages))


def _check(step: Step) -> None:
    operator = step.operator
    moves = operator.kind == "view" or operator.name in (*ASSEMBLIES, "full")
    computes = bool(operator.c) and (operator.is_elementwise or operator.kind == "reduction")
    if not (moves or computes) or C_TYPES.get(step.dtype) not in FLOATING:
        raise NotRenderableError(
            f"op-tree: there is no loop in C for the operator {operator.name!r} in {step.dtype}. "
            "Run it with the NumPy executor."
        )


class _Scheduler:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.first = len(program.inputs)
        self.users: dict[int, list[Step]] = defaultdict(list)
        for step in program.steps:
            for x in self.operands(step):
                self.users[x].append(step)
        self.stored = {x for step in program.steps for x in self.must_store(step)}
        self.level: dict[int, int] = {}
        self.done: set[int] = set()

    @staticmethod
    def operands(step: Step) -> list[int]:
        return [x for x in step.operands if isinstance(x, int)]

    def step(self, value: int) -> Step | None:
        return self.program.steps[value - self.first] if value >= self.first else None

    def is_inline(self, value: int) -> bool:
        """Whether the value is computed where it is used."""
        step = self.step(value)
        if step is None:
            return False
        if step.operator.name == "broadcast":
            return self.is_inline(self.operands(step)[0])
        return step.operator.is_elementwise or step.operator.name == "full"

    def must_store(self, step: Step) -> Iterable[int]:
        name = step.operator.name
        if step.operator.kind == "view" and not self.is_inline(step.result):
            return [x for x in self.operands(step) if self.is_inline(x)]
        if step.operator.kind == "reduction" and name != "sum":
            # The compiler rounds an expression in different ways in different loops, and what is
            # compared with its maximum has to be the same number.
            return [x for x in self.operands(step) if self.is_inline(x) and len(self.users[x]) > 1]
        return []

    def closure(self, root: int, domain: Shape) -> tuple[list[int], list[int]]:
        """Return body and leaves for a value."""
        needed, body, leaves = {root}, [], []
        for value in range(root, -1, -1):
            if value not in needed:
                continue
            if self.is_leaf(value, domain) or not self.is_inline(value):
                leaves.append(value)
                continue
            step = self.step(value)
            assert step is not None
            body.append(value)
            needed.update(self.operands(step))
        return body[::-1], leaves[::-1]

    def is_leaf(self, value: int, domain: Shape) -> bool:
        if value not in self.stored:
            return False
        return value in self.done or self.program.shape_of(value) != domain

    def base_level(self, leaf: int) -> int:
        """Return the first level at which a leaf can be read."""
        step = self.step(leaf)
        while step is not None and step.operator.kind == "view" and not self.is_inline(leaf):
            leaf = self.operands(step)[0]
            step = self.step(leaf)
        return 0 if step is None else self.level[leaf] + 1

    def level_of(self, value: int, domain: Shape) -> int:
        body, leaves = self.closure(value, domain)
        known = [self.level[x] for x in body if x != value and x in self.stored]
        return max([0, *known, *(self.base_level(x) for x in leaves)])

    def roots(self) -> Iterable[tuple[Root, int, Shape, tuple[int, ...] | None]]:
        """Yield (root, the value that is evaluated, domain, reduced axes) in order."""
        outputs: dict[int, list[int]] = defaultdict(list)
        for index, value in enumerate(self.program.outputs):
            outputs[value].append(index)
        for value in range(self.first + len(self.program.steps)):
            step = self.step(value)
            roots = [Root(value, "output", index) for index in outputs[value]]
            source, domain, axes = value, self.program.shape_of(value), None
            if step is not None and step.operator.name in ASSEMBLIES:
                for index, part in enumerate(self.operands(step)):
                    shape = self.program.shape_of(part)
                    yield Root(part, "part", index, value), part, shape, None
            elif step is not None and step.operator.kind == "reduction":
                (source,) = self.operands(step)
                domain, axes = self.program.shape_of(source), step.params["axis"]
                roots.append(Root(value, "value"))
            elif value in self.stored:
                roots.append(Root(value, "value"))
            for root in roots:
                yield root, source, domain, axes

    def arrange(self) -> list[Stage]:
        """Group all roots by level, domain and reduction."""
        self.level.clear()
        self.done.clear()
        groups: dict[tuple[int, Shape], dict[tuple[int, ...] | None, list[Root]]] = {}
        for root, source, domain, axes in self.roots():
            level = self.level_of(source, domain)
            if root.kind != "output":
                owner = root.owner if root.kind == "part" else root.value
                self.level[owner] = max(self.level.get(owner, 0), level)
            groups.setdefault((level, domain), {}).setdefault(axes, []).append(root)
        stages = []
        for level, domain in sorted(groups, key=lambda key: key[0]):
            group = groups[level, domain]
            if None in group and len(group) > 1:  # what is only stored needs no loop of its own
                first = next(axes for axes in group if axes is not None)
                group[first] = group.pop(None) + group[first]
            for axes, roots in group.items():
                stages.append(self.stage(domain, axes, roots))
                self.done.update(root.value for root in roots if root.kind == "value")
        return stages

    def stage(self, domain: Shape, axes: tuple[int, ...] | None, roots: list[Root]) -> Stage:
        bodies: set[int] = set()
        leaves: set[int] = set()
        for root in roots:
            source = self.source(root)
            body, read = self.closure(source, domain)
            bodies.update(body)
            leaves.update(read)
        return Stage(domain, axes, tuple(roots), tuple(sorted(bodies)), tuple(sorted(leaves)))

    def source(self, root: Root) -> int:
        """Return the value that is evaluated for a root: a reduction's operand, or itself."""
        step = self.step(root.value)
        if root.kind != "part" and step is not None and step.operator.kind == "reduction":
            return self.operands(step)[0]
        return root.value

    def worth_storing(self) -> set[int]:
        """Return expensive values that several stages, or many places of one, would compute."""
        times: dict[int, float] = defaultdict(float)
        for stage in self.arrange():
            for value in stage.body:
                step = self.step(value)
                if step is not None and not step.operator.cheap:
                    size = math.prod(self.program.shape_of(value))
                    times[value] += math.prod(stage.domain) / max(size, 1)
        often = {value for value, n in times.items() if n >= 2}
        outputs = set(self.program.outputs)
        return {
            value
            for value in often
            if value in outputs or any(user.result not in often for user in self.users[value])
        }

    def buffers(self, stages: list[Stage]) -> tuple[int, ...]:
        """Return the values that a later stage, or a view, reads."""
        read = {leaf for stage in stages for leaf in stage.leaves}
        for value in sorted(read | set(self.program.outputs), reverse=True):
            at = value
            step = self.step(at)
            while step is not None and step.operator.kind == "view" and not self.is_inline(at):
                at = self.operands(step)[0]
                read.add(at)
                step = self.step(at)
        return tuple(
            v
            for v in sorted(read)
            if (s := self.step(v)) is not None and (self.is_inline(v) or s.operator.kind != "view")
        )
