"""Slices: gradients that are summed during the backward pass.

The gradients of a layer are final as soon as the backward pass has processed it, and those of
neighbouring layers are adjacent in memory. So the gradients of the last layers can be summed over
the ranks while those of the first ones are still being computed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from brainstorm.errors import TrainingError
from brainstorm.network.pass_plan import Interval


def plan_slices(
    finished: list[tuple[str, list[Interval]]], smallest: int
) -> dict[str, list[Interval]]:
    """Return the slices (start, stop) of the gradients to send after each layer, in this order.

    They have at least `smallest` values, except for the last ones. Together they cover everything.
    """
    waiting: list[Interval] = []
    plan: dict[str, list[Interval]] = {}
    for layer, intervals in finished:
        waiting = _joined([*waiting, *intervals])
        is_last = layer == finished[-1][0]
        if ready := [(a, b) for a, b in waiting if is_last or b - a >= smallest]:
            plan[layer] = ready
            waiting = [interval for interval in waiting if interval not in ready]
    return plan


def _joined(intervals: list[Interval]) -> list[Interval]:
    """Return the same ranges, with adjacent ones merged."""
    result: list[Interval] = []
    for start, stop in sorted(intervals):
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return result


class GradientSlices:
    """Sums the gradients of a reducer's network in slices of at least so many bytes.

    Attributes:
        starts: Layer to the function that starts to sum slices after it in the backward pass.
    """

    def __init__(self, reducer: Any, slice_bytes: int) -> None:
        self.reducer = reducer
        stepper, net = reducer.stepper, reducer.stepper.net
        for what in ("loss_scaling", "accumulation"):
            if getattr(stepper, what):
                raise TrainingError(
                    f"Reducer.start: expected no {what} where gradients are summed in slices while "
                    f"they are computed. Leave slice_bytes at None."
                )
        item = stepper.gradients.dtype.itemsize
        plan = plan_slices(net.finished_gradients, max(1, slice_bytes // item))
        self._requests: list[Any] = []
        self.starts = {layer: partial(self._start, slices) for layer, slices in plan.items()}

    def _start(self, slices: list[Interval]) -> None:
        """Start to sum some slices."""
        for start, stop in slices:
            part = self.reducer.stepper.gradients[start:stop]
            self.reducer.scale(self.reducer.stepper.handler, part)
            self._requests.append(self.reducer.transport.start_sum(part))

    def finish(self) -> None:
        """Wait for all sums."""
        for request in self._requests:
            self.reducer.transport.wait(request)
        self._requests.clear()
