"""From a program to stages: what each loop nest computes, and which values are stored between them.

A stage loops over a *domain*, a shape. At each index it evaluates element-wise steps on elements of
existing arrays, stores some of the results, and may reduce others over one set of axes.
Element-wise values that several stages need are recomputed in each, unless they are expensive or
compared with values computed from them; those are stored. Operators that only move elements are
views of stored values, except that concatenated parts are stored side by side. Products, indexing
and scans are not loops: such a step is placed between the stages, from stored values to a stored
value, and executors have their own implementations of it.

A softmax over the rows of x (4, 6) is three stages::

    over (4, 6), reducing axis 1:  m = max(x)
    over (4, 6), reducing axis 1:  e = exp(x - m), stored;  s = sum(e)
    over (4, 6):                   y = e / s

e is stored because two stages need it and `exp` is expensive; x - m never exists as an array.

Stages are formed by *levels*. What reads only inputs has level 0, what reads values that level n
stores has level n + 1. Values of one level do not depend on each other, so those with the same
domain, and the same reduced axes if any, share one stage and read their common arrays once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from brainstorm.errors import ValidationError
from brainstorm.optree.loops import C_TYPES, FLOATING
from brainstorm.optree.program import Program, Step
from brainstorm.optree.shapes import Shape

#: Kinds of operators that are no loops.
OPERATIONS = ("product", "indexing", "scan")
#: Maximum number of steps in a loop: compilers take more than linear time.
MOST_STEPS = 1000


#: The axes that a stage reduces; None: no reduction.
Axes: TypeAlias = tuple[int, ...] | None


class NotRenderableError(ValidationError):
    """The program has steps without a loop nest; another executor has to run it."""


class Root(NamedTuple):
    """A value that a stage stores.

    Attributes:
        value: The number of the value.
        source: The value that is evaluated: the operand of a reduction, else the value itself.
        kind: 'value': into memory of its own; 'output': into output `place`; 'part': as operand
            `place` into the memory of the concatenate or embed step `owner`.
        place: See `kind`.
        owner: See `kind`.
    """

    value: int
    source: int
    kind: str
    place: int = 0
    owner: int = -1

    @property
    def is_reduced(self) -> bool:
        """Whether the value is a reduction of what is evaluated."""
        return self.source != self.value


class Stage(NamedTuple):
    """One loop nest.

    Attributes:
        domain: The shape that it loops over.
        axes: The axes that its reductions reduce; None: no reductions.
        roots: The values that it stores. Values of reductions have the domain's shape without
            `axes`.
        body: Element-wise values (and `full`, and broadcast ones) that it computes, in order.
        leaves: Values whose elements it reads.
    """

    domain: Shape
    axes: Axes
    roots: tuple[Root, ...]
    body: tuple[int, ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class StagedProgram:
    """Stages, and steps that are no loops, in order, and the values that they leave in memory."""

    program: Program
    stages: tuple[Stage | Step, ...]
    buffers: tuple[int, ...]


def split_into_stages(program: Program) -> StagedProgram:
    """Arrange a program in stages.

    Raises:
        NotRenderableError: If an operator has no form in C.
    """
    for step in program.steps:
        _check(step)
    stager = _Stager(program)
    stages = stager.arrange()
    if more := stager.worth_storing(stages) - stager.stored:
        stager.stored |= more
        stages = stager.arrange()
    if any(len(stage.body) > MOST_STEPS for stage in stager.loops(stages)):
        raise NotRenderableError(
            f"op-tree: expected at most {MOST_STEPS} steps in one loop. Store some values in "
            "between."
        )
    return StagedProgram(program, tuple(stages), stager.buffers(stages))


def _check(step: Step) -> None:
    operator = step.operator
    moves = operator.kind in ("view", "assembly", "constant", *OPERATIONS)
    computes = bool(operator.c) and (operator.is_elementwise or operator.kind == "reduction")
    if not (moves or computes) or C_TYPES.get(step.dtype) not in FLOATING:
        raise NotRenderableError(
            f"op-tree: there is no loop in C for the operator {operator.name!r} in {step.dtype}. "
            "Run it with the NumPy executor."
        )


class _Stager:
    def __init__(self, program: Program) -> None:
        self.program, self.step = program, program.step_of
        self.users: dict[int, list[Step]] = defaultdict(list)
        #: For each value its operands, and whether it is computed where it is used.
        self.operands: list[list[int]] = [[] for _ in program.inputs]
        self.inline = [False] * len(program.inputs)
        for step in program.steps:
            name, operands = step.operator.name, step.values
            for x in operands:
                self.users[x].append(step)
            self.operands.append(operands)
            self.inline.append(
                self.inline[operands[0]]
                if name == "broadcast"
                else step.operator.is_elementwise or step.operator.kind == "constant"
            )
        self.outputs: dict[int, list[int]] = defaultdict(list)
        for index, value in enumerate(program.outputs):
            self.outputs[value].append(index)
        self.stored = {x for step in program.steps for x in self.must_store(step)}
        self.level: dict[int, int] = {}
        self.done: set[int] = set()

    def must_store(self, step: Step) -> Iterable[int]:
        kind = step.operator.kind
        inline = [x for x in self.operands[step.result] if self.inline[x]]
        if kind in OPERATIONS or (kind == "view" and not self.inline[step.result]):
            return inline
        if kind == "reduction" and step.operator.exact != "total":
            # The compiler may round an expression differently in different loops, but a value that
            # is compared with its maximum must be the same number.
            return [x for x in inline if len(self.users[x]) > 1]
        return []

    def closure(self, root: int, domain: Shape) -> tuple[list[int], list[int]]:
        """Return body and leaves for a value."""
        needed, body, leaves = {root}, [], []
        # Operands have smaller numbers than their users, so one pass downwards finds all.
        for value in range(root, -1, -1):
            if value not in needed:
                continue
            if self.is_leaf(value, domain) or not self.inline[value]:
                leaves.append(value)
            else:
                body.append(value)
                needed.update(self.operands[value])
        return body[::-1], leaves[::-1]

    def is_leaf(self, value: int, domain: Shape) -> bool:
        if value not in self.stored:
            return False
        # The stage that stores a value has it at hand, if it is at the same index there.
        return value in self.done or self.program.shape_of(value) != domain

    def base(self, value: int) -> int:
        """Return the value in whose memory a value lies: another one for views."""
        while (step := self.step(value)) is not None and step.operator.kind == "view":
            if self.inline[value]:
                break
            (value,) = self.operands[value]
        return value

    def base_level(self, leaf: int) -> int:
        """Return the first level at which a leaf can be read."""
        base = self.base(leaf)
        return 0 if self.step(base) is None else self.level[base] + 1

    def level_of(self, value: int, domain: Shape) -> int:
        body, leaves = self.closure(value, domain)
        known = [self.level[x] for x in body if x != value and x in self.stored]
        return max([0, *known, *(self.base_level(x) for x in leaves)])

    def roots(self, value: int) -> Iterable[tuple[Root, Axes]]:
        """Yield the roots of a value, and the axes that they reduce."""
        step, source, axes = self.step(value), value, None
        if step is not None and step.operator.kind == "assembly":
            for index, part in enumerate(step.values):
                yield Root(part, part, "part", index, value), None
        elif step is not None and step.operator.kind == "reduction":
            (source,), axes = step.values, step.params["axis"]
        for index in self.outputs[value]:
            yield Root(value, source, "output", index), axes
        if source != value or value in self.stored:
            yield Root(value, source, "value"), axes

    def arrange(self) -> list[Stage | Step]:
        """Group all roots by level, domain and reduction, with the steps that are not loops."""
        self.level.clear()
        self.done.clear()
        groups: dict[int, dict[Shape, dict[Axes, list[Root]]]] = defaultdict(dict)
        alone: dict[int, list[Step]] = defaultdict(list)
        for value in range(len(self.program.inputs) + len(self.program.steps)):
            step = self.step(value)
            if step is not None and step.operator.kind in OPERATIONS:
                self.level[value] = max(map(self.base_level, step.values))
                alone[self.level[value]].append(step)
            for root, axes in self.roots(value):
                domain = self.program.shape_of(root.source)
                level = self.level_of(root.source, domain)
                if root.kind != "output":
                    owner = root.owner if root.kind == "part" else root.value
                    self.level[owner] = max(self.level.get(owner, 0), level)
                groups[level].setdefault(domain, {}).setdefault(axes, []).append(root)
        stages: list[Stage | Step] = []
        for level in sorted({*groups, *alone}):
            stages += alone[level]
            for domain, group in groups[level].items():
                stages += self.stages(domain, group)
        return stages

    def stages(self, domain: Shape, group: dict[Axes, list[Root]]) -> Iterable[Stage]:
        """Yield the stages for a group of roots: a loop nest per set of axes."""
        if None in group and len(group) > 1:  # values without reduction need no loop of their own
            first = next(axes for axes in group if axes is not None)
            group[first] = group.pop(None) + group[first]
        for axes, roots in group.items():
            parts = [self.closure(root.source, domain) for root in roots]
            body = sorted({value for values, _ in parts for value in values})
            leaves = sorted({value for _, values in parts for value in values})
            yield Stage(domain, axes, tuple(roots), tuple(body), tuple(leaves))
            self.done.update(root.value for root in roots if root.kind == "value")

    def worth_storing(self, stages: list[Stage | Step]) -> set[int]:
        """Return expensive values that several stages, or many places of one, would compute."""
        times: dict[int, float] = defaultdict(float)
        for stage in self.loops(stages):
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

    @staticmethod
    def loops(stages: Iterable[Stage | Step]) -> list[Stage]:
        return [stage for stage in stages if isinstance(stage, Stage)]

    def buffers(self, stages: list[Stage | Step]) -> tuple[int, ...]:
        """Return the values that a later stage, an operation or a view reads, or one writes."""
        read = {leaf for stage in self.loops(stages) for leaf in stage.leaves}
        for stage in stages:
            if isinstance(stage, Step):
                read |= {stage.result, *stage.values}
        read |= {x for x in self.program.outputs if self.base(x) != x}
        bases = {self.base(x) for x in read}
        return tuple(x for x in sorted(bases) if self.step(x) is not None)
