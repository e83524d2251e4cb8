"""The fast CPU: oneDNN and compiled C where they do what is asked for, NumPy where not."""
# ruff: noqa: D102 (documented in the base classes)

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError, MissingDependencyError
from brainstorm.handlers import compiler
from brainstorm.handlers.base_activations import activation_formula
from brainstorm.handlers.compiled import CompiledProgram
from brainstorm.handlers.native import convolutions, pooling, products, rows
from brainstorm.handlers.native.cache import CallCache
from brainstorm.handlers.native.calls import KERNEL, Call, Replay
from brainstorm.handlers.native.elementwise import (
    Computation,
    ProgramOperations,
    affine_row,
    program_of,
)
from brainstorm.handlers.native.library import Library, UnsupportedError, load
from brainstorm.handlers.native.native_operation import NATIVES, NativeOperation, native
from brainstorm.handlers.native.primitives import Primitives
from brainstorm.handlers.numpy_handler import NumpyHandler
from brainstorm.handlers.threads import default_threads, is_forked
from brainstorm.optree import Program
from brainstorm.optree.stages import NotRenderableError
from brainstorm.utils import Array

__all__ = ["NativeHandler", "is_available"]

#: Types that factors of products can have.
COMPUTE = ("float32", "bf16")

_handlers: weakref.WeakSet[NativeHandler] = weakref.WeakSet()


def _after_fork() -> None:
    for handler in list(_handlers):
        handler.threads = 1
        handler._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_available() -> bool:
    """Return whether there is anything native here: oneDNN or a C compiler."""
    return load()[0] is not None or compiler.is_available()


class _Memory(threading.local):
    """What one Python thread has built."""

    def __init__(self, library: Library | None, threads: int, is_half: bool) -> None:
        self.calls = CallCache()
        self.primitives = Primitives(library, threads, is_half, self.calls.clear)


class NativeHandler(ProgramOperations):
    """Handler for NumPy arrays that computes with oneDNN and with C, compiled when it is needed.

    What neither does (float64 products, arrays with unusual strides, ...) is done by NumPy, as is
    everything if both are missing; `info` says what there is. In steady state an operation looks
    its calls up and executes them. Results are the same bits from run to run for the same number
    of threads.

    Args:
        dtype: float32 or float64.
        threads: How many threads an operation uses at most; None: OMP_NUM_THREADS, or one per
            processor. After a fork the child uses one.
        seed: Seeds `rnd`; `None` draws a seed from `global_rnd`.
        compute: 'bf16' rounds the factors of products and convolutions to bfloat16, where oneDNN
            has code for that on this CPU: several times as fast, with 8 significant bits. Sums,
            parameters and everything else stay in float32. 'float32' rounds nothing.

    Raises:
        HandlerValidationError: An argument is not what it should be, or this machine cannot compute
            in bfloat16.

    Attributes:
        threads: How many threads an operation uses at most.
    """

    context = "native"

    def __init__(
        self,
        dtype: Any = np.float32,
        threads: int | None = None,
        seed: int | None = None,
        compute: str = "float32",
    ) -> None:
        if compute not in COMPUTE:
            raise HandlerValidationError(
                f"NativeHandler(compute): expected 'float32' or 'bf16', got {compute!r}"
            )
        self._compute = compute
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise HandlerValidationError(
                f"NativeHandler(threads): expected a positive integer or None, got {threads!r}"
            )
        self.threads = threads or default_threads()
        self._connect()
        super().__init__(dtype, seed)
        if compute == "bf16":
            self._check_half()

    def _check_half(self) -> None:
        """Refuse to compute in bfloat16 where that is not possible."""
        if self.dtype != np.float32:
            reason = f"the dtype is {self.dtype.name}"
        elif self._library is None:
            reason = self._library_name
        elif not products.has_half_products(self._library):
            reason = f"{self._library_name} has no code for it on this CPU (AMX, AVX512-BF16)"
        else:
            return
        raise HandlerValidationError(
            f"NativeHandler(compute='bf16'): expected a CPU with products in bfloat16 and dtype "
            f"float32, but {reason}. Use compute='float32'."
        )

    def __describe__(self) -> dict[str, Any]:
        half = {"compute": self._compute} if self._compute != "float32" else {}
        return {**super().__describe__(), **half}

    @classmethod
    def __new_from_description__(cls, description: Mapping[str, Any]) -> NativeHandler:
        return cls(description["dtype"], compute=description.get("compute", "float32"))

    def _connect(self) -> None:
        if is_forked():
            self.threads = 1
        self._library, self._library_name = load()
        self._executors: dict[int, tuple[weakref.ref[Program], CompiledProgram | None]] = {}
        self._refusal = ""
        self._forget()
        _handlers.add(self)

    def _forget(self) -> None:
        self._memory = _Memory(self._library, self.threads, self._compute == "bf16")

    def __getstate__(self) -> dict[str, Any]:
        of_this_process = {"_library", "_executors", "_memory"}
        return {name: v for name, v in vars(self).items() if name not in of_this_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    def info(self) -> dict[str, str]:
        basis = super().info()
        single = self.dtype == np.float32
        fast = self._library is not None and single
        why = self._library_name if single else "oneDNN has no float64"
        numpy = f"numpy ({why})"
        c = compiler.describe()
        some = c.startswith("C") and self._refusal
        others = f"; others on numpy ({self._refusal})" if some else ""
        return {
            **basis,
            "compute": self._compute if single else self.dtype.name,
            "products": self._library_name if fast else f"{basis['products']} ({why})",
            "convolutions": self._library_name if fast else numpy,
            "pooling": c,
            "op-trees": c + others,
            "threads": str(self.threads),
        }

    # -- native calls ------------------------------------------------------------------------

    def _calls_for(self, name: str, arguments: Mapping[str, Any]) -> list[Call] | None:
        """Return the calls that an operation consists of; None: NumPy does it.

        They hold the numbers among the arguments, but not always the arrays and the program: keep
        these as long as the calls.

        Args:
            name: Of an operation, or ``'run_program'``.
            arguments: By name; those with defaults may be left out.
        """
        if name == "run_program":
            return self._program_calls(**arguments)
        operation = NATIVES.get(name)
        if operation is None:
            program = self._program_arguments(name, arguments)
            calls = None if program is None else self._program_calls(**program)
            for call in calls or ():
                call.keep = (*call.keep, program)  # the numbers among its inputs
            return calls
        values = operation.complete((), arguments)
        return self._calls(operation, operation.arrays(values), operation.options(values))

    def compile_plan(self, operations: Sequence[Any]) -> list[Callable[[], Any]]:
        """Return functions that do operations again and again, many of them from one C function."""
        for _ in range(2):  # the memory that they share may grow in the first round
            found = [
                None if o.function else self._calls_for(o.name, o.arguments) for o in operations
            ]
        functions: list[Callable[[], Any]] = []
        start = 0
        for i, operation in enumerate(operations):
            if found[i] is None:
                functions += self._replay(found[start:i], operations[start:i])
                functions.append(operation.bound_to(self))
                start = i + 1
        return [*functions, *self._replay(found[start:], operations[start:])]

    def _replay(self, found: Sequence[Any], operations: Sequence[Any]) -> list[Callable[[], Any]]:
        if not found:
            return []
        memory = self._memory
        replay = Replay([call for calls in found for call in calls], self._library)

        def run() -> None:
            if self._memory is memory:
                replay()
            else:  # in the child of a fork
                for operation in operations:
                    operation.bound_to(self)()

        return [run]

    def _find(
        self,
        operation: NativeOperation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        identities: Any,
    ) -> list[Call] | None:
        values = operation.complete(args, kwargs)
        arrays, options = operation.arrays(values), operation.options(values)
        calls = self._calls(operation, arrays, options)
        if list not in map(type, values):  # lists may change
            self._memory.calls.identify(identities, arrays, options, calls)
        return calls

    def _calls(
        self, operation: NativeOperation, arrays: Sequence[Any], options: tuple[Any, ...]
    ) -> list[Call] | None:
        memory = self._memory

        def build() -> list[Call] | None:
            instead = operation.instead(*arrays, *options)
            if instead is not None:
                return self._computation_calls(instead)
            known, activation = operation.without_activation(options)
            try:
                calls = operation.build(memory.primitives, *arrays, *known)
            except UnsupportedError:
                return None
            if activation != "linear":
                after = self._activation_calls(activation, arrays[-1])
                if after is None:
                    return None
                calls += after
            for call in calls:
                call.name = operation.name
            return calls

        return memory.calls.find((operation.name, options), arrays, build)

    # -- op-trees ----------------------------------------------------------------------------

    def run_program(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
    ) -> None:
        executor = self._executor(program)
        if executor is not None:
            try:
                executor(inputs, outputs, accumulate)
                return
            except (NotRenderableError, MissingDependencyError) as error:
                self._remember(program, None, str(error))
        super().run_program(program, inputs, outputs, accumulate)

    def _executor(self, program: Program) -> CompiledProgram | None:
        entry = self._executors.get(id(program))
        if entry is not None:
            return entry[1]
        try:
            # A copy: what holds the program itself would keep it for ever.
            executor = CompiledProgram(dataclasses.replace(program), self.threads)
        except NotRenderableError as error:
            return self._remember(program, None, str(error))
        return self._remember(program, executor)

    def _remember(
        self, program: Program, executor: CompiledProgram | None, refusal: str = ""
    ) -> CompiledProgram | None:
        key, executors = id(program), self._executors
        self._refusal = refusal or self._refusal
        executors[key] = weakref.ref(program, lambda _: executors.pop(key, None)), executor
        return executor

    def _program_calls(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
    ) -> list[Call] | None:
        executor = self._executor(program)
        if executor is None:
            return None
        try:
            parts = executor.call_parts(inputs, outputs, accumulate)
        except (NotRenderableError, MissingDependencyError) as error:
            self._remember(program, None, str(error))
            return None
        function, pointers, numbers, keep = parts
        return [Call(KERNEL, function, pointers, numbers, keep=keep, name="run_program")]

    def _activation_calls(self, name: str, array: Array) -> list[Call] | None:
        return self._computation_calls(Computation(activation_formula(name), [array], [array]))

    def _computation_calls(self, computation: Computation) -> list[Call] | None:
        arguments = program_of(computation)
        calls = self._program_calls(**arguments)
        for call in calls or ():
            call.keep = (*call.keep, arguments["program"])
        return calls

    # -- products ----------------------------------------------------------------------------

    dot_mm = native(
        functools.partial(products.build_dot, add=False), "a b out", "transa transb"
    )(NumpyHandler.dot_mm)  # fmt: skip
    dot_add_mm = native(
        functools.partial(products.build_dot, add=True), "a b out", "transa transb"
    )(NumpyHandler.dot_add_mm)  # fmt: skip
    batched_dot_mm = native(products.build_batched, "a b out", "transa transb")(
        NumpyHandler.batched_dot_mm
    )

    pack_m = native(products.build_pack, "b", "transb")(NumpyHandler.pack_m)
    dot_add_packed = native(products.build_packed, "a b out", "transb")(NumpyHandler.dot_add_packed)
    affine_mm = native(products.build_affine, "a b bias out", "activation", affine_row)(
        NumpyHandler.affine_mm
    )

    take_rows_mv = native(rows.build_take, "m v out")(NumpyHandler.take_rows_mv)
    add_rows_mv = native(rows.build_add, "m v out")(NumpyHandler.add_rows_mv)

    # -- images ------------------------------------------------------------------------------

    _forward = native(
        convolutions.build_forward,
        "inputs weights bias outputs",
        "padding stride dilation groups activation",
    )
    conv2d_forward_batch = native(
        convolutions.build_forward,
        "inputs weights bias outputs",
        "padding stride dilation groups activation add_outputs",
    )(NumpyHandler.conv2d_forward_batch)
    conv3d_forward_batch = _forward(NumpyHandler.conv3d_forward_batch)
    _backward = native(
        convolutions.build_backward,
        "inputs weights in_deltas out_deltas weight_deltas bias_deltas",
        "padding stride add_gradients add_in_deltas dilation groups",
    )
    conv2d_backward_batch = _backward(NumpyHandler.conv2d_backward_batch)
    conv3d_backward_batch = _backward(NumpyHandler.conv3d_backward_batch)
    maxpool2d_forward_batch = native(
        pooling.build_maximum, "inputs outputs argmax", "window padding stride"
    )(NumpyHandler.maxpool2d_forward_batch)
    maxpool2d_backward_batch = native(
        pooling.build_maximum_deltas,
        "in_deltas argmax out_deltas",
        "window padding stride add_in_deltas",
    )(NumpyHandler.maxpool2d_backward_batch)
    avgpool2d_forward_batch = native(
        pooling.build_average, "inputs outputs", "window padding stride"
    )(NumpyHandler.avgpool2d_forward_batch)
    avgpool2d_backward_batch = native(
        pooling.build_average_deltas, "in_deltas out_deltas", "window padding stride add_in_deltas"
    )(NumpyHandler.avgpool2d_backward_batch)
