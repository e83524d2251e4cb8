"""Plans of a network: what is done often is recorded when it comes again, and replayed then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.handlers.plan import (
    NotRecordableError,
    Plan,
    Recorder,
    Watched,
    plans_are_enabled,
    recording,
)

__all__ = ["Plans"]

#: How many plans are kept: one for each T, B, and whatever else the caller tells apart.
MOST_PLANS = 64


class Plans:
    """The plans of one purpose, by T, B and whether a context is carried on.

    A plan is made anew when what it depends on has changed: the handler, the memory, the
    gradient modifiers, or a public attribute of a layer or modifier. What cannot be recorded is
    done directly; `brainstorm.handlers.plan` says what can be. Copies start empty.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, tuple[Any, Plan | None]] = {}
        self._is_recordable = True

    def __deepcopy__(self, memo: Any) -> Plans:
        return Plans()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Plans, ())

    def run(
        self,
        net: Any,
        direct: Callable[[], Any],
        record: Callable[[Any], Any],
        purpose: Any = None,
    ) -> None:
        """Do something with a network, by plan where that can be done.

        Args:
            net: The network.
            direct: Does it.
            record: Does the same with a `RecordedNetwork`, whose handler is a `Recorder`.
            purpose: Tells apart what is done with networks of the same sizes.
        """
        if not (self._is_recordable and net.handler.replays_plans and plans_are_enabled()):
            direct()
            return
        sizes, depends = net.plan_key
        key = (*sizes, purpose)
        recorded_for, plan = self._plans.get(key, (None, None))
        if recorded_for != depends:
            at_once = net.handler.plans_at_once
            plan = self._record(net, record) if at_once or key in self._plans else None
        if plan is None:
            direct()
        else:
            plan.replay()
            if recorded_for == depends and Watched.changes == depends[0]:
                self._plans[key] = self._plans.pop(key)  # now it is the last of all
                return
        self._plans.pop(key, None)
        if len(self._plans) >= MOST_PLANS:
            del self._plans[next(iter(self._plans))]  # the one that was not used for longest
        # Layers that set attributes in every pass do not make their own plan invalid.
        self._plans[key] = (None if plan is None else net.plan_key[1], plan)

    def _record(self, net: Any, record: Callable[[Any], Any]) -> Plan | None:
        recorder = Recorder(net.handler)
        try:
            with recording():
                recorded = net.recorded(recorder)
                record(recorded)
        except NotRecordableError:
            self._is_recordable = False
            return None
        plan = Plan(net.handler, recorder.steps)
        plan.calls += (recorded.note_replay,)
        return plan
