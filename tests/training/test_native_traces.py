"""What a step of the native handler consists of: counted, since times decide nothing."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.handlers import compiler
from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.library import load
from brainstorm.layers import (
    BatchNorm,
    Clockwork,
    Convolution2D,
    Dropout,
    FullyConnected,
    Gru,
    LayerNorm,
    Lstm,
    MultiHeadSelfAttention,
    Pooling2D,
    Recurrent,
)
from brainstorm.training import AdamStepper, MomentumStepper, SgdStepper
from brainstorm.value_modifiers import ClipValues
from tests.networks import trainable

pytestmark = pytest.mark.skipif(
    not compiler.is_available() or load()[0] is None,
    reason="WITHOUT ONEDNN OR A C COMPILER STEPS ARE NOT ALL NATIVE: THEY ARE NOT COUNTED",
)
IMAGES = (6, 6, 2)


def trace_of_step(stepper, hidden, shape):
    net = trainable(*hidden, handler=NativeHandler(seed=1), features=shape)
    net.set_gradient_modifiers({"Projection": ClipValues(-1, 1)})
    rnd = np.random.default_rng(0)
    net.provide_external_data(
        {"default": rnd.standard_normal((3, 4, *shape)), "targets": rnd.integers(0, 3, (3, 4, 1))}
    )
    stepper.start(net)
    for _ in range(4):
        stepper.run()
    (trace,) = stepper.traces.values()
    return trace


def in_python(trace):
    """The calls of a trace that are none of C functions."""
    return [str(step) for step in trace.steps if not isinstance(step.call, Call)]


@pytest.mark.parametrize(
    ("stepper", "shape", "hidden"),
    [
        (SgdStepper(), (4,), (FullyConnected(5), FullyConnected(4, "gelu"))),
        (AdamStepper(), (4,), (Lstm(5), LayerNorm())),
        (MomentumStepper(), (4,), (Gru(5), Recurrent(4))),
        (SgdStepper(), (4,), (Clockwork(4), BatchNorm())),
        (SgdStepper(), (4,), (MultiHeadSelfAttention(2, causal=True),)),
        (SgdStepper(), IMAGES, (Convolution2D(3, (3, 3)), Pooling2D((2, 2), stride=(2, 2)))),
        (
            SgdStepper(),
            IMAGES,
            (Convolution2D(3, (2, 2), activation="silu"), Pooling2D((2, 2), "avg")),
        ),
    ],
    ids=lambda value: "-".join(type(x).__name__ for x in value) if type(value) is tuple else None,
)
def test_a_step_is_one_call(stepper, shape, hidden):
    trace = trace_of_step(stepper, hidden, shape)
    assert in_python(trace) == []
    assert len(trace._functions) == 1


def test_random_numbers_are_drawn_by_numpy():
    trace = trace_of_step(SgdStepper(), (FullyConnected(5), Dropout(0.5)), (4,))
    assert [name.partition(" ")[0] for name in in_python(trace)] == ["generate_probability_mask"]
    assert len(trace._functions) == 3
