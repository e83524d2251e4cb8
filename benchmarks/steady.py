"""Many training steps with changing T and B: does memory stay what it is?

    python -m benchmarks.steady [--steps N] [--warm-up N] [--json FILE]

An LSTM is trained by traces, on batches that are all in memory, with sizes below that of the first.
When every size has come up often enough, nothing more is to be allocated: the program reports the
resident memory before and after all further steps, the number of traces, calls and programs, and
the most that was allocated at a time in Python (by NumPy, too): the headers of views, when T and B
change.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

from benchmarks.command import deliver, figures_parser
from benchmarks.memory import resident
from benchmarks.ours import build
from benchmarks.workloads import LEARNING_RATE, Lstm, Workload
from brainstorm.handlers.native import NativeHandler
from brainstorm.training import SgdStepper

__all__ = ["main", "measure"]

#: T and B of the batches; the first is the largest.
SIZES = ((40, 16), (25, 16), (40, 9), (13, 5), (1, 16), (40, 1))
#: Steps until nothing is new: traces are made, and NumPy keeps what it allocates for 1024 arrays.
WARM_UP = 1200
#: Where the classes are whose objects hold what is made once.
MADE_ONCE = ("brainstorm.handlers", "brainstorm.optree", "brainstorm.structure")


def measure(steps: int, warm_up: int = WARM_UP) -> dict[str, Any]:
    """Return what there was before and after so many steps, on one thread.

    Args:
        steps: Their number.
        warm_up: How many steps there are before them.

    Returns:
        ``steps``; before and after: ``resident`` bytes and ``objects``, the number of traces,
        calls, programs and the like; ``traced``, the most bytes allocated at a time.
    """
    largest = Workload("steady", "LSTM", *SIZES[0], (16,), 8, (Lstm(32),))
    net = build(largest, NativeHandler(threads=1))
    batches = [largest._replace(T=T, B=B).data() for T, B in SIZES]
    stepper = SgdStepper(LEARNING_RATE)
    stepper.start(net)

    def train(count: int) -> None:
        for number in range(count):
            net.provide_external_data(batches[number % len(batches)])
            stepper.run()

    train(warm_up)
    before = _count_objects(), resident("VmRSS")
    train(steps)
    after = _count_objects(), resident("VmRSS")
    objects, bytes_ = zip(before, after, strict=True)
    traced = _traced_peak(lambda: train(warm_up))
    return {"steps": steps, "objects": objects, "resident": bytes_, "traced": traced}


def _traced_peak(train: Callable[[], object]) -> int:
    """Return the most bytes that were allocated at a time beyond what stays allocated."""
    tracemalloc.start()
    train()  # what was allocated before has given way to what is traced
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    train()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak - before


def _count_objects() -> int:
    gc.collect()
    return sum(str(type(thing).__module__).startswith(MADE_ONCE) for thing in gc.get_objects())


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    parser = figures_parser(__doc__)
    parser.add_argument("--steps", type=int, default=10_000, help="(%(default)s)")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="(%(default)s)")
    arguments = parser.parse_args()
    found = measure(arguments.steps, arguments.warm_up)
    text = (
        f"{found['steps']:,} steps with T and B changing: resident memory "
        f"{found['resident'][0] / 1e6:.2f} MB before, {found['resident'][1] / 1e6:.2f} MB after; "
        f"traces, calls and programs {found['objects'][0]}, then {found['objects'][1]}; "
        f"at most {found['traced'] / 1e3:.1f} kB allocated at a time"
    )
    deliver(found, text, arguments)


if __name__ == "__main__":
    main()
