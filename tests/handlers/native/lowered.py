"""What an operation of the native handler comes down to."""

from __future__ import annotations

from brainstorm.handlers.native.calls import Call


def native_calls(handler, name, arguments):
    """Return the native calls of an operation, which is not done; None: NumPy does it."""
    with handler.tracing(runs=False) as trace:
        getattr(handler, name)(**arguments)
    calls = [step.call for step in trace.steps]
    return calls if all(isinstance(call, Call) for call in calls) else None
