"""Lanes: memory and caches for native calls that run one after the other."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError, MissingDependencyError
from brainstorm.forks import renew_after_fork
from brainstorm.handlers.compiler import Sources, collecting
from brainstorm.handlers.lowering import Memo
from brainstorm.handlers.native.library import Library, UnsupportedError
from brainstorm.handlers.native.primitives import Primitives
from brainstorm.handlers.native.products import build_product
from brainstorm.handlers.native.programs import NativeExecutor, numpy_calls
from brainstorm.handlers.numpy_memory import raise_out_of_memory, reserved
from brainstorm.optree import Formula, Program, Step, formula
from brainstorm.optree import functions as fn
from brainstorm.optree.stages import NotRenderableError
from brainstorm.utils import Array

#: Number of summands from which products of one row, or one column, are formulas. oneDNN adds them
#: one after the other in float32: of positive numbers, so many have a relative error of 2e-5, and
#: ten million one of 1e-2 (measured without AVX-512).
MANY_SUMMANDS = 2**17

_row_times_matrix = formula(lambda a, b: fn.sum(a * b, 0, False))


class Lane(Primitives):
    """Primitives, scratch memory, and the cached calls of operations.

    Each thread has a lane, and so has every network, in whichever thread it runs.

    Attributes:
        version: Changes when scratch memory grows: calls built before hold the previous memory.
        memo: The cached calls of operations.
        packed: Place of a matrix to its copy; see `brainstorm.handlers.native.packed_products`.
        refusals: Reasons why programs have no kernel.
        wanted: Sources of the kernels that calls still need, if these are built to be listed only.
        is_new: Whether kernels may have to be compiled: some were missing when last listed.
    """

    def __init__(
        self, library: Library | None, threads: int, is_half: bool, refusals: list[str]
    ) -> None:
        super().__init__(library, threads, is_half)
        self.version = 0
        self.refusals = refusals
        self.packed: dict[Hashable, Any] = {}
        self.wanted: Sources | None = None
        self.is_new = True
        self.memo = self._new_memo()
        renew_after_fork(self)

    def only_measure(self) -> None:
        """Build calls that are never executed, and allocate no memory for them."""
        self.allocate = reserved

    def check_writable(self, where: str, arrays: Iterable[Any]) -> None:
        """Raise an error for arrays that NumPy treats as read-only: C would write to them.

        Raises:
            HandlerValidationError: An array is read-only.
        """
        for array in arrays if self.allocate is not reserved else ():
            if isinstance(array, np.ndarray) and not array.flags.writeable:
                raise HandlerValidationError(
                    f"{where}: expected arrays that can be written, got a read-only one of shape "
                    f"{array.shape}. Copy it first."
                )

    @property
    def nbytes(self) -> int:
        """Bytes of memory of calls, other than their arguments."""
        held = (*self.held.values(), *self.packed.values(), *self.memo.executors)
        return sum(each.nbytes for each in held)

    def forget(self) -> None:
        """Make calls that are built from now on use the present memory."""
        self.memo.forget()
        for executor in self.memo.executors:
            executor.forget()
        self.version += 1

    def clear(self) -> None:
        """Drop everything that belongs to arrays, because memory has moved."""
        self.forget()
        self.packed.clear()

    @contextlib.contextmanager
    def listing(self) -> Iterator[Sources]:
        """Build calls that are never executed, and collect what must be compiled for them."""
        wanted: Sources = set()
        self.wanted = wanted
        try:
            yield wanted
        finally:
            self.wanted = None
            self.memo.forget()
            self.packed.clear()

    def trim(self) -> None:
        """Evict what is cached for other sizes, if it is much."""
        self.memo.trim()

    def renew(self) -> None:
        """Use one thread from now on: in a forked process others do not come."""
        self.threads = self.used_threads = 1
        self._made.clear()
        self.memo = self._new_memo()
        self.clear()

    def _new_memo(self) -> Memo:
        """Return an empty cache, which does not keep this object and its memory alive."""
        me = weakref.proxy(self)
        make_executor = functools.partial(Lane._make_executor, me)
        return Memo(make_executor, functools.partial(Lane._build, me))

    # -- op-trees ----------------------------------------------------------------------------

    def compute(
        self,
        formula: Formula,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        add: bool = False,
    ) -> list[Any]:
        """Return the call that computes a formula, or adds it.

        Raises:
            UnsupportedError: There is no kernel for it.
        """
        flags = (add,) * len(outputs)
        calls = self.memo.program(formula.program(*inputs), inputs, outputs, flags)
        if calls is None:
            raise UnsupportedError("there is no kernel for the formula")
        return calls

    def product(self, a: Array, b: Array, out: Array, add: bool = False) -> list[Any]:
        """Return the calls for ``out (+)= a @ b`` of matrices, or of stacks.

        Raises:
            UnsupportedError: See `build_product`.
        """
        fits = a.ndim == b.ndim == 2 and a.shape[1] == len(b) and out.shape == (len(a), b.shape[1])
        if fits and 1 in out.shape and len(b) >= MANY_SUMMANDS and out.dtype == np.float32:
            if len(a) > 1:
                a, b, out = b.T, a.T, out.T
            with contextlib.suppress(UnsupportedError):
                return self.compute(_row_times_matrix, [a[0][:, None], b], [out[0]], add)
        return build_product(self, a, b, out, add)

    def _make_executor(self, program: Program) -> NativeExecutor | None:
        workspace = functools.partial(Lane.workspace, self, "formulas")
        operation = functools.partial(Lane._operations, self)
        try:
            return NativeExecutor(
                program, self.threads, self.allocate, workspace, operation=operation
            )
        except NotRenderableError as error:
            self._refuse(error)
            return None

    def _operations(self, step: Step, *arrays: Array) -> list[Any]:
        """Return the calls of a step of a program that is not a loop."""
        if step.operator.name == "dot":
            with contextlib.suppress(UnsupportedError):
                return self.product(*arrays)
        return numpy_calls(step, *arrays)

    def _build(self, executor: NativeExecutor, *given: Any) -> list[Any] | None:
        self.check_writable("run_program(program, inputs, outputs, accumulate)", given[1])
        try:
            with collecting(self.wanted):
                return executor.calls(*given)
        except (NotRenderableError, MissingDependencyError) as error:
            self._refuse(error)
            return None
        except MemoryError as error:
            raise_out_of_memory(executor.program.name, error)

    def _refuse(self, error: Exception) -> None:
        if str(error) not in self.refusals:
            self.refusals.append(str(error))
