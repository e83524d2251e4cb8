"""The fast CPU handler: oneDNN and compiled C where possible, otherwise NumPy."""
# ruff: noqa: D102 (documented in the base classes)

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import integer
from brainstorm.errors import HandlerValidationError, MissingDependencyError, shown
from brainstorm.forks import count_forks
from brainstorm.handlers import compiler
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.lowering import Lowering, Memo, lowered
from brainstorm.handlers.native import convolutions, packed_products, pooling, products, rows
from brainstorm.handlers.native.activated import affine, with_activation
from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.lane import Lane
from brainstorm.handlers.native.library import UnsupportedError, load
from brainstorm.handlers.native.replay import Replay, as_loop, prepare
from brainstorm.handlers.numpy_handler import NumpyHandler
from brainstorm.handlers.numpy_memory import raise_out_of_memory, reserved
from brainstorm.handlers.threads import MOST_THREADS, default_threads
from brainstorm.handlers.traces import Trace, owners
from brainstorm.utils import Array

#: Types of factors of products.
COMPUTE = ("float32", "bf16")


def is_available() -> bool:
    """Return whether oneDNN or a C compiler is available."""
    return load()[0] is not None or compiler.is_available()


#: Minimum number of steps for which a loop over time becomes a loop in C.
FEWEST_STEPS = 4


def _dot(
    lane: Lane, a: Array, b: Array, out: Array, transa: bool, transb: bool, add: bool
) -> list[Any]:
    return lane.product(a.T if transa else a, b.T if transb else b, out, add)


class NativeHandler(Lowering, NumpyHandler):
    """Handler for NumPy arrays that computes with oneDNN and with C, compiled when needed.

    Cases that neither supports (float64 products, arrays with unusual strides, ...) are computed by
    NumPy, as is everything if both are missing; see `info`. The calls of an operation are cached.
    Results have the same bits in every run with the same number of threads.

    Args:
        dtype: float32 or float64.
        threads: Maximum number of threads of an operation; None: OMP_NUM_THREADS, or one per
            processor. After a fork the child uses one.
        seed: Seeds `rnd`; `None` draws a seed from `global_rnd`.
        compute: 'bf16' rounds the factors of products and convolutions to bfloat16, if oneDNN
            supports that on this CPU: several times as fast, with 8 significant bits. Sums,
            parameters and everything else stay in float32. 'float32' does not round.

    Raises:
        HandlerValidationError: An argument is not valid, or this machine does not support
            in bfloat16.

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
        if threads is not None and threads not in integer(1, MOST_THREADS):
            raise HandlerValidationError(
                f"NativeHandler(threads): expected an integer from 1 to {MOST_THREADS} or None, "
                f"got {shown(threads)}"
            )
        self._threads = threads or default_threads()
        self._connect()
        super().__init__(dtype, seed)
        if compute == "bf16":
            self._check_half()

    def _check_half(self) -> None:
        """Raise an error if bfloat16 is not supported."""
        if self.dtype != np.float32:
            reason = f"the dtype is {self.dtype.name}"
        elif self._library is None:
            reason = self._library_name
        elif not products.has_half_products(self._library):
            reason = f"{self._library_name} has no code for it on this CPU (it needs AMX)"
        else:
            return
        raise HandlerValidationError(
            f"NativeHandler(compute='bf16'): expected a CPU with products in bfloat16 and dtype "
            f"float32, but {reason}. Use compute='float32'."
        )

    def __describe__(self) -> dict[str, Any]:
        half = {"compute": self._compute} if self._compute != "float32" else {}
        return {**super().__describe__(), **half}

    def _connect(self) -> None:
        self._library, self._library_name = load()
        #: Reasons why formulas run on NumPy.
        self._refusals: list[str] = []

    @property
    def threads(self) -> int:
        """Maximum number of threads of an operation."""
        if count_forks():
            return 1
        return min(self._threads, self._library.most_threads) if self._library else self._threads

    def new_lane(self) -> Lane:
        return Lane(self._library, self.threads, self._compute == "bf16", self._refusals)

    def reserve(self, shape: tuple[int, ...]) -> Array | None:
        # Without a compiler, a loop over time is recorded step by step, which may take too long.
        return reserved(shape, self.dtype) if compiler.is_available() else None

    @property
    def lane(self) -> Lane:
        """The lane of the calls of this thread."""
        lane = self.running.lane
        if lane is None:
            lane = self.running.lane = self.new_lane()
        return lane

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if name != "_library"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    def info(self) -> dict[str, str]:
        basis = super().info()
        single = self.dtype == np.float32
        fast = self._library is not None and single
        why = self._library_name if single else "oneDNN has no float64"
        numpy = f"numpy ({why})"
        c, refused = compiler.describe(), "; ".join(self._refusals)
        others = f"; others on numpy ({refused})" if c.startswith("C") and refused else ""
        return {
            **basis,
            "compute": self._compute if single else self.dtype.name,
            "products": self._library_name if fast else f"{basis['products']} ({why})",
            "convolutions": self._library_name if fast else numpy,
            "pooling": c,
            "op-trees": c + others,
            "threads": str(self.threads),
        }

    # -- calls -------------------------------------------------------------------------------

    @property
    def memo(self) -> Memo:
        return self.lane.memo

    def _build_calls(
        self, name: str, builder: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> list[Any] | None:
        lane, contract = self.lane, Handler.operations()[name]
        try:
            with compiler.collecting(lane.wanted):
                calls: list[Any] = builder(lane, **arguments)
        except UnsupportedError:
            return None
        except MemoryError as error:
            raise_out_of_memory(name, error)
        lane.check_writable(
            contract.call, (arguments[a.name] for a in contract.arguments if a.written)
        )
        for call in calls:
            call.name = name
        return calls

    def trace(self, function: Callable[[], None]) -> Trace:
        lane = self.lane
        if lane.is_new and compiler.is_available():
            # All that is not in the cache of kernels is compiled at once, before it runs.
            with self.tracing(runs=False), lane.listing() as wanted:
                with compiler.collecting(wanted), contextlib.suppress(MissingDependencyError):
                    prepare()
                function()
            compiler.compile_all(wanted)
            lane.is_new = bool(wanted)
        return super().trace(function)

    def compile(self, calls: Sequence[Callable[[], Any]]) -> Sequence[Callable[[], Any]]:
        functions: list[Callable[[], Any]] = []
        for is_native, group in itertools.groupby(calls, lambda call: isinstance(call, Call)):
            kept: Any = list(group)
            functions += [Replay(kept, self._library)] if is_native else kept
        return functions

    def loop(self, steps: Sequence[int], body: Callable[[int], None]) -> None:
        if not isinstance(steps, range) or len(steps) < FEWEST_STEPS:
            for t in steps:
                body(t)
            return
        version = None
        while version != self.lane.version:  # scratch memory may grow in the first iteration
            version, traces = self.lane.version, []
            for t in (steps[0], steps[1], steps[-1]):
                with self.tracing(runs=False) as trace:
                    body(t)
                traces.append(trace.steps)
        rounds = [[step.call for step in trace] for trace in traces]
        kept = owners(step for trace in traces for step in trace)
        with compiler.collecting(self.lane.wanted):
            loop = as_loop(rounds, len(steps), kept, self._library)
        if loop is None:
            super().loop(steps, body)
        else:
            self.execute((loop,), loop.name)

    # -- products ----------------------------------------------------------------------------

    dot_mm = lowered("dot_mm", functools.partial(_dot, add=False))
    dot_add_mm = lowered("dot_add_mm", functools.partial(_dot, add=True))
    batched_dot_mm = lowered("batched_dot_mm", products.build_batched)
    pack_m = lowered("pack_m", packed_products.build_pack)
    dot_add_packed = lowered("dot_add_packed", packed_products.build_packed)
    affine_mm = lowered("affine_mm", affine)

    take_rows_mv = lowered("take_rows_mv", rows.build_take)
    add_rows_mv = lowered("add_rows_mv", rows.build_add)

    # -- images ------------------------------------------------------------------------------

    _forward = with_activation(convolutions.build_forward, "outputs")
    conv2d_forward_batch = lowered("conv2d_forward_batch", _forward)
    conv3d_forward_batch = lowered("conv3d_forward_batch", _forward)
    conv2d_backward_batch = lowered("conv2d_backward_batch", convolutions.build_backward)
    conv3d_backward_batch = lowered("conv3d_backward_batch", convolutions.build_backward)
    maxpool2d_forward_batch = lowered("maxpool2d_forward_batch", pooling.build_maximum)
    maxpool2d_backward_batch = lowered("maxpool2d_backward_batch", pooling.build_maximum_deltas)
    avgpool2d_forward_batch = lowered("avgpool2d_forward_batch", pooling.build_average)
    avgpool2d_backward_batch = lowered("avgpool2d_backward_batch", pooling.build_average_deltas)
