"""Every formula of layers, steppers and modifiers as a kernel, against the NumPy interpreter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brainstorm import value_modifiers as modifiers
from brainstorm.handlers import NumpyHandler, compiler
from brainstorm.handlers.native.programs import NativeExecutor
from brainstorm.testing import LayerHarness, build_layer
from tests.layers.cases import CASES, Case
from tests.trainings import LEARNING

pytestmark = pytest.mark.skipif(
    not compiler.found_commands(), reason="NO C COMPILER: FORMULAS ARE NOT COMPILED"
)

#: One case of every type of layer.
LAYERS = {case.create().layer.layer_type: case for case in reversed(CASES)}
#: Those without a formula: they only move numbers, or are products and sums over windows.
WITHOUT = {
    *("CTC", "ChannelPooling", "Crop", "DeltasScaling", "Embedding", "GlobalPooling2D"),
    *("LearnedPositionalEncoding", "Loss", "Merge", "MultiHeadAttention", "MultiHeadSelfAttention"),
    *("NoOp", "Pooling1D", "Pooling2D", "Pooling3D", "Reshape", "Reverse", "Slice", "Split"),
}


class TwinHandler(NumpyHandler):
    """Runs every program twice, by NumPy and as a kernel."""

    def __init__(self) -> None:
        super().__init__(np.float32)
        self.count = 0

    def run_program(self, program: Any, inputs: Any, outputs: Any, accumulate: Any) -> None:
        before = [out.copy() for out in outputs]
        super().run_program(program, inputs, outputs, accumulate)
        expected = [out.copy() for out in outputs]
        for out, old in zip(outputs, before, strict=True):
            out[...] = old
        executor = NativeExecutor(program, threads=1)
        for call in executor.calls(inputs, outputs, tuple(accumulate)):
            call()
        for out, value in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(out, value, rtol=2e-5, atol=2e-6, err_msg=str(program))
        self.count += 1


@pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS)
def test_formulas_of_layers(case: Case) -> None:
    handler = TwinHandler()
    harness = LayerHarness(build_layer(case.create(), case.in_shapes), handler, case.inputs)
    harness.resize(2, 3)
    rnd = np.random.RandomState(0)
    for training_pass in (False, True):
        harness.forward(harness.sample(rnd), training_pass)
    harness.load(dict.fromkeys(harness.delta_paths + harness.gradient_paths, np.ones(())))
    harness.backward(harness.sample_out_deltas(rnd))
    assert handler.count or harness.layer.type_name in WITHOUT


@pytest.mark.parametrize("name", LEARNING)
def test_formulas_of_steppers(name: str) -> None:
    handler, rnd = TwinHandler(), np.random.RandomState(0)
    arrays = (handler.create_from_numpy(rnd.normal(size=50).astype("f")) for _ in range(2))
    buffer = SimpleNamespace(**dict(zip(("parameters", "gradients"), arrays, strict=True)))
    stepper = LEARNING[name]()
    net = SimpleNamespace(
        handler=handler, buffer=buffer, layers={}, loss_layers=["Loss"], parameters_size=1,
        initializers={"A": 0}, parameter_slices={"A.W": slice(0, 30), "A.bias": slice(30, 50)},
    )  # fmt: skip
    stepper.start(net)
    for stepper.steps in (1, 2, 3):
        stepper.refresh()
        stepper._do_parts("look_ahead")
        stepper._do_parts("update")
    assert handler.count >= 3


@pytest.mark.parametrize(
    "modifier",
    [modifiers.ConstrainL2Norm(1.0), modifiers.ClipValues(-0.5, None), modifiers.ClipValues(),
     modifiers.L1Decay(0.1)],
    ids=lambda modifier: type(modifier).__name__,
)  # fmt: skip
def test_formulas_of_modifiers(modifier: Any) -> None:
    handler, rnd = TwinHandler(), np.random.RandomState(0)
    w, g = (handler.create_from_numpy(rnd.normal(size=(4, 5)).astype("f")) for _ in range(2))
    modifiers.apply_to_gradient(modifier, handler, w, g)
    assert handler.count == 1
