"""How long fused op-trees take, and building and differentiating them.

python -m benchmarks.optrees
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import THREADS
from benchmarks.timing import seconds_of_others, take_turns
from brainstorm.handlers.native.programs import NativeExecutor
from brainstorm.optree import Expression, Program, Variable, gradients, linearise
from brainstorm.optree import functions as fn

SIZE = 1_000_000
BATCH, CELLS = 32, 256
CHAIN = 2000
SECONDS = 6.0
ROUNDS = 5


def ten_operations(x: Expression, y: Expression) -> Expression:
    """Five additions and five multiplications."""
    return ((((x + y) * x + y) * y + x) * x + y) * (x * y + 0.5)


def transcendental(x: Expression, y: Expression) -> Expression:
    """The same, with an exponential and a hyperbolic tangent."""
    return ((((fn.tanh(x) + y) * x + y) * y + fn.exp(x)) * x + y) * (x * y + 0.5)


def lstm_cell() -> tuple[list[Variable], list[Expression]]:
    """Block input, three gates with peepholes, state and output: (variables, outputs)."""
    gates = [Variable((BATCH, CELLS), name=name) for name in ("z", "i", "f", "o", "c")]
    peepholes = [Variable((CELLS,), name=f"p{name}") for name in "ifo"]
    z, i, f, o, c = gates
    pi, pf, po = peepholes
    block, enter, keep = fn.tanh(z), fn.sig(i + pi * c), fn.sig(f + pf * c)
    state = block * enter + c * keep
    leave = fn.sig(o + po * state)
    squashed = fn.tanh(state)
    return gates + peepholes, [block, enter, keep, leave, state, squashed, squashed * leave]


def runner(trees: list[Expression], seed: int = 0) -> Callable[[], None]:
    """Return a call of the trees' kernel on random arrays; the kernel has run once."""
    rnd = np.random.RandomState(seed)
    program = linearise(trees)
    inputs = [rnd.uniform(-1, 1, v.shape).astype(v.dtype) for v in program.inputs]
    outputs = [np.zeros(program.shape_of(v), program.dtype_of(v)) for v in program.outputs]
    return _call(program, inputs, outputs)


def _call(program: Program, inputs: list[Any], outputs: list[Any]) -> Callable[[], None]:
    executor = NativeExecutor(program, threads=THREADS)
    (kernel,) = executor.calls(inputs, outputs, (False,) * len(outputs))
    kernel.keep = kernel.keep, inputs, outputs  # calls do not keep their arrays alive
    kernel()
    return kernel


def lstm_slices() -> Callable[[], None]:
    """Return the cell's kernel where the gates lie side by side, as after a joint product."""
    rnd = np.random.RandomState(0)
    _, outputs = lstm_cell()
    program = linearise(outputs)
    joint = rnd.uniform(-1, 1, (BATCH, 4 * CELLS)).astype(np.float32)
    split = {name: joint[:, k * CELLS : (k + 1) * CELLS] for k, name in enumerate("zifo")}
    inputs = [
        split.get(str(v.name), rnd.uniform(-1, 1, v.shape).astype(np.float32))
        for v in program.inputs
    ]
    results = [np.zeros((BATCH, CELLS), np.float32) for _ in program.outputs]
    return _call(program, inputs, results)


def chain_seconds() -> float:
    """Return the shortest time of building and differentiating a chain."""
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        x = Variable((10,))
        tree: Expression = x
        for k in range(CHAIN // 2):
            tree = fn.tanh(tree) if k % 2 else tree * x
        for k in range(CHAIN - CHAIN // 2):
            tree = tree + (x if k % 2 else 1.5)
        gradients(tree, [x])
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    """Print what was measured, our time, the peer's and the ratio."""
    rnd = np.random.RandomState(0)
    a, b = (rnd.uniform(-1, 1, SIZE).astype(np.float32) for _ in range(2))
    c = np.empty_like(a)
    x, y = Variable((SIZE,), name="x"), Variable((SIZE,), name="y")
    start, others = time.perf_counter(), seconds_of_others()
    times = take_turns(
        {
            "multiply": lambda: np.multiply(a, b, out=c),
            "fused": runner([ten_operations(x, y)]),
            "transcendental": runner([transcendental(x, y)]),
            "lstm": runner(lstm_cell()[1]),
            "lstm slices": lstm_slices(),
            "call": runner([Variable((4,)) + 1]),
        },
        SECONDS,
    )
    peer = times["multiply"]
    share = (seconds_of_others() - others) / (time.perf_counter() - start)
    print(f"op-trees, {THREADS} threads, milliseconds: minimum (median)")
    print(f"others used {share:.2f} processors meanwhile; two threads need two that are free")
    for what, key, target in (
        (f"10 additions and multiplications of {SIZE:,} floats", "fused", 1),
        ("the same with exp and tanh", "transcendental", 2),
    ):
        ratio = times[key].minimum / peer.minimum
        print(f"{what}: {times[key]}, np.multiply {peer}: {ratio:.2f} of it, target {target}")
    print(f"LSTM cell {BATCH} x {CELLS}: {times['lstm']}, target 0.040")
    print(f"LSTM cell, gates side by side: {times['lstm slices']}, target 0.040")
    print(f"call of a kernel: {times['call']}, target 0.002")
    print(
        f"chain of {CHAIN:,} nodes, built and differentiated: {chain_seconds():.3f} s, target 0.2"
    )


if __name__ == "__main__":
    main()
