"""What an operation of the native handler comes down to, and whether that is right."""

import numpy as np

from brainstorm.handlers.native.calls import Call
from brainstorm.testing.handler_arguments import Arguments, Invocation
from tests.handlers.running import traced


def native_calls(handler, name, arguments):
    """Return the native calls of an operation, which is not done; None: NumPy does it."""
    calls = traced(handler, lambda: getattr(handler, name)(**arguments))
    return calls if all(isinstance(call, Call) for call in calls) else None


def check(handler, name, arguments, rtol=1e-5, atol=None, strided=False, is_native=True):
    """Compare a call with the reference, and return what it comes down to, which is native."""
    call = Invocation(handler, arguments, strided=strided)
    calls = native_calls(handler, name, call.values)
    assert calls is not None or not is_native, f"{arguments}"
    call.run()
    for written, expected in arguments.expected().items():
        text = f"{arguments}: {written}"
        limits = (rtol, rtol if atol is None else atol)
        np.testing.assert_allclose(call.get(written), expected, *limits, err_msg=text)
    return calls


def check_random_calls(handler, name, rtol=1e-5, atol=None, strided=False, count=80):
    """Compare random calls with the reference, each of them native."""
    for seed in range(count):
        arguments = Arguments(name, seed, handler.dtype, example=seed % 4)
        check(handler, name, arguments, rtol, atol, strided and bool(seed & 4))
