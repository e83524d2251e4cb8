"""Steps by plan: a step is recorded when its sizes come again, and replayed from then on."""

from __future__ import annotations

from typing import Any

from brainstorm.handlers.plan import (
    NotRecordableError,
    Plan,
    Recorder,
    StandIn,
    plans_are_enabled,
    recording,
)

__all__ = ["StepPlans"]

#: How many combinations of T and B are remembered.
MOST_PLANS = 64


class StepPlans:
    """The recorded steps of one stepper, by T, B and whether a context is carried on.

    A plan is made anew when what it depends on has changed: the handler, the memory, the
    gradient modifiers, or a public attribute of a layer or modifier. Steppers whose own part
    cannot be recorded run directly; `brainstorm.handlers.plan` says what can be.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, tuple[Any, Plan | None]] = {}
        self._is_recordable = True

    def __deepcopy__(self, memo: Any) -> StepPlans:
        return StepPlans()

    def __reduce__(self) -> tuple[Any, ...]:
        return (StepPlans, ())

    def run(self, stepper: Any) -> None:
        """Do one step of a stepper, by plan where that can be done."""
        net = stepper.net
        if not (self._is_recordable and net.handler.replays_plans and plans_are_enabled()):
            stepper.step()
            return
        key, depends = net.plan_key
        recorded_for, plan = self._plans.get(key, (None, None))
        if recorded_for != depends:
            plan = self._record(stepper) if key in self._plans else None
        if plan is None:
            stepper.step()
        else:
            plan.replay()
        if len(self._plans) >= MOST_PLANS and key not in self._plans:
            self._plans.clear()
        # Layers that set attributes in every pass do not make their own plan invalid.
        self._plans[key] = (None if plan is None else net.plan_key[1], plan)

    def _record(self, stepper: Any) -> Plan | None:
        recorder = Recorder(stepper.handler)
        guarded = {
            name: {key: recorder.guard(array) for key, array in getattr(stepper, name).items()}
            for name in ("state", "scratch", "numbers")
        }
        hidden = (*stepper.hyperparameters, "steps")
        try:
            with recording():
                recorded = stepper.net.recorded(recorder)
                stand_in = StandIn(stepper, hidden, net=recorded, **guarded)
                stand_in.copy.step()
                stand_in.check()
        except NotRecordableError:
            self._is_recordable = False
            return None
        return Plan(stepper.handler, recorder.steps)
