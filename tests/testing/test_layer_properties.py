"""The kit must find what is wrong: for every property a layer that breaks this property alone."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.layers import Elementwise
from brainstorm.layers.base_layer import Layer
from brainstorm.layers.recurrent_layer import RecurrentLayerImpl
from brainstorm.randomness import RandomState
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import (
    LAYER_PROPERTIES,
    PropertyError,
    check_layer,
    get_test_configurations,
    run_deltas_test,
    run_gradients_test,
    run_layer_tests,
    set_up_layer,
)
from brainstorm.utils import flatten_time

IN_SHAPES = {"default": ("T", "B", 3)}


class GainLayerImpl(Layer):
    """y = gain * x, with a gain for each feature; right in every respect."""

    is_traceable = True
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")

    def setup(self, kwargs: Any, in_shapes: Any) -> Any:
        size = in_shapes["default"].feature_size
        buffer = BufferStructure("T", "B", size)
        return {"default": buffer}, {"gain": BufferStructure(1, size)}, {"products": buffer}

    def forward_pass(self, buffers: Any, training_pass: bool = True) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        self.handler.mult_mv(x, buffers.parameters.gain, y)

    def backward_pass(self, buffers: Any) -> None:
        dy = flatten_time(buffers.output_deltas.default)
        if self.needs_delta("default"):
            overwrite = self.overwrites("input_deltas.default")
            multiply = self.handler.mult_mv if overwrite else self.handler.mult_add_mv
            multiply(dy, buffers.parameters.gain, flatten_time(buffers.input_deltas.default))
        products = flatten_time(buffers.internals.products)
        self.handler.mult_tt(flatten_time(buffers.inputs.default), dy, products)
        self.sum_op("gradients.gain")(products, 0, buffers.gradients.gain)


def variant(name: str, forward: Any = None, backward: Any = None, **members: Any) -> type[Layer]:
    """Return a class like `GainLayerImpl`, but with other members, and with more after its passes.

    What follows is done with the handler, the buffers and, after the forward pass, y.
    """

    def forward_pass(self: Any, buffers: Any, training_pass: bool = True) -> None:
        GainLayerImpl.forward_pass(self, buffers, training_pass)
        forward(self.handler, buffers, buffers.outputs.default)

    def backward_pass(self: Any, buffers: Any) -> None:
        GainLayerImpl.backward_pass(self, buffers)
        backward(self.handler, buffers)

    members |= {"forward_pass": forward_pass} if forward else {}
    members |= {"backward_pass": backward_pass} if backward else {}
    return type(f"{name}LayerImpl", (GainLayerImpl,), members)


WrongDelta = variant(
    "WrongDelta",
    backward=lambda h, b: h.mult_add_st(
        0.5, b.output_deltas.default[0:1], b.input_deltas.default[0:1]
    ),
)
WrongGradient = variant(
    "WrongGradient",
    backward=lambda h, b: h.mult_add_st(0.5, b.parameters.gain, b.gradients.gain),
)
ChangesInput = variant("ChangesInput", backward=lambda h, b: h.fill(b.inputs.default[0:1], 0.0))


class NeverAddsLayerImpl(GainLayerImpl):
    can_overwrite = ()

    def backward_pass(self, buffers: Any) -> None:
        if self.needs_delta("default"):
            self.handler.fill(buffers.input_deltas.default, 0.0)
        super().backward_pass(buffers)


class NullChangesGradientLayerImpl(GainLayerImpl):
    def backward_pass(self, buffers: Any) -> None:
        super().backward_pass(buffers)
        if not self.needs_delta("default"):
            self.handler.fill(buffers.gradients.gain, 0.0)


class OtherInTrainingLayerImpl(GainLayerImpl):
    def forward_pass(self, buffers: Any, training_pass: bool = True) -> None:
        super().forward_pass(buffers, training_pass)
        if not training_pass:
            self.handler.mult_st(2.0, buffers.outputs.default, buffers.outputs.default)


class WritesOnlyInTrainingLayerImpl(GainLayerImpl):
    def forward_pass(self, buffers: Any, training_pass: bool = True) -> None:
        if training_pass:
            super().forward_pass(buffers, training_pass)


class KeepsInBackwardOnlyLayerImpl(GainLayerImpl):
    def setup(self, kwargs: Any, in_shapes: Any) -> Any:
        outputs, parameters, internals = super().setup(kwargs, in_shapes)
        kept = BufferStructure("T", "B", in_shapes["default"].feature_size, is_backward_only=True)
        return outputs, parameters, {**internals, "kept": kept}

    def forward_pass(self, buffers: Any, training_pass: bool = True) -> None:
        super().forward_pass(buffers, training_pass)
        self.handler.copy_to(buffers.inputs.default, buffers.internals.kept)

    def backward_pass(self, buffers: Any) -> None:
        self.handler.copy_to(buffers.internals.kept, buffers.inputs.default)
        super().backward_pass(buffers)


class TakesStepsForPassesLayerImpl(GainLayerImpl):
    def forward_step(self, buffers: Any, past: Any) -> None:
        super().forward_step(buffers, past)
        y = buffers.outputs.default
        self.handler.add_tt(y, y, y)


def counts_calls(h: Any, b: Any, y: Any) -> None:
    CALLS.append(1)
    h.mult_st(float(len(CALLS)), y, y)


def draws_from_the_handler(h: Any, b: Any, y: Any) -> None:
    h.fill_gaussian(0.0, 1.0, b.internals.products)
    h.add_tt(y, b.internals.products, y)


CALLS: list[int] = []
CountsCalls = variant("CountsCalls", counts_calls, is_traceable=True)
DrawsFromTheHandler = variant("DrawsFromTheHandler", draws_from_the_handler)


class DrawsFromItsOwnStreamLayerImpl(GainLayerImpl):
    is_traceable = True
    depends_on_mode = True

    def set_handler(self, handler: Any) -> None:
        super().set_handler(handler)
        self.stream = handler.create_random_stream(self.rnd.child("noise").generate_seed())

    def forward_pass(self, buffers: Any, training_pass: bool = True) -> None:
        super().forward_pass(buffers, training_pass)
        products, y = buffers.internals.products, buffers.outputs.default
        if training_pass:
            self.handler.fill_gaussian(0.0, 1.0, products, stream=self.stream)
            self.handler.add_tt(y, products, y)


class AddsToTheContextLayerImpl(RecurrentLayerImpl):
    """Adds to the row before the first one of its output deltas, which nobody has cleared."""

    def backward_pass(self, buffers: Any) -> None:
        dy = buffers.output_deltas.default
        for t in range(dy.shape[0] - 1):
            self.handler.mult_add_st(0.5, dy[t], dy[t - 1])
        super().backward_pass(buffers)


class ForgetsTheContextRowLayerImpl(RecurrentLayerImpl):
    """Takes outputs for as long as inputs."""

    def backward_pass(self, buffers: Any) -> None:
        dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
        self.handler.add_tt(dx, dy, dx)


class ForgetsContextLayerImpl(RecurrentLayerImpl):
    def backward_pass(self, buffers: Any) -> None:
        super().backward_pass(buffers)
        # Take the part of the state before the first step out of the gradient of R again.
        first, state = buffers.internals.dHa[0], buffers.outputs.default[-1]
        bare = self.handler.get_numpy_copy
        wrong = bare(buffers.gradients.R) - bare(first).T @ bare(state)
        self.handler.set_from_numpy(buffers.gradients.R, wrong)


OUTPUT, DELTA, GRADIENT = r"outputs\.default", r"input_deltas\.default", r"gradients\.gain"
GARBAGE = "what is not needed backward may be garbage"
BROKEN = [
    (DrawsFromTheHandler, "equal passes give equal outputs", OUTPUT),
    (WrongDelta, "input deltas equal central differences", DELTA),
    (WrongGradient, "gradients equal central differences", GRADIENT),
    (NeverAddsLayerImpl, "deltas and gradients are added to", DELTA),
    (
        variant("NeverOverwrites", overwrites=lambda self, path: False),
        "first writers overwrite",
        DELTA,
    ),
    (
        variant("ForgetsNull", needs_delta=lambda self, port: True),
        "null deltas are left out",
        "with a null buffer",
    ),
    (NullChangesGradientLayerImpl, "null deltas are left out", GRADIENT),
    (
        variant("ReadsOldMemory", lambda h, b, y: h.add_tt(y, b.internals.products, y)),
        "nothing depends on what was in memory",
        OUTPUT,
    ),
    (WritesOnlyInTrainingLayerImpl, "every output element is written", OUTPUT),
    (ChangesInput, "what is read is not changed", r"inputs\.default"),
    (variant("ReadsInputsAfterAll", needs_in_backward=()), GARBAGE, GRADIENT),
    (KeepsInBackwardOnlyLayerImpl, GARBAGE, GRADIENT),
    (CountsCalls, "replay equals direct execution", OUTPUT),
    (OtherInTrainingLayerImpl, "characteristics tell the truth", OUTPUT),
    (
        variant(
            "MixesTimeSteps",
            lambda h, b, y: [h.add_tt(y[t], y[t - 1], y[t]) for t in range(1, y.shape[0])],
        ),
        "characteristics tell the truth",
        OUTPUT,
    ),
    (TakesStepsForPassesLayerImpl, "steps one by one are those of the sequence", OUTPUT),
    (
        variant(
            "AddsItsPlace",
            lambda h, b, y: [h.add_st(float(t), y[t], y[t]) for t in range(1, y.shape[0])],
        ),
        "what does not look at time does without",
        OUTPUT,
    ),
]


def create(layer_class: type, **kwargs: Any) -> ConstructionWrapper:
    return ConstructionWrapper.create(layer_class, **kwargs)


def instance(layer_class: type[Layer]) -> Layer:
    shapes = {"default": BufferStructure("T", "B", 3)}
    return layer_class("It", shapes, set(), set(), rnd=RandomState(0))


class ChangesItselfLayerImpl(GainLayerImpl):
    is_traceable = True
    passes = 0

    def forward_pass(self, buffers: Any, training_pass: bool = True) -> None:
        self.passes += 1
        super().forward_pass(buffers, training_pass)


Reads = variant("Reads", lambda h, b, y: h.get_numpy_copy(b.inputs.default), is_traceable=True)


class IsSilentLayerImpl(GainLayerImpl):
    """Does not say that it is traceable."""


@pytest.mark.parametrize(
    ("layer_class", "what"),
    [
        (Reads, "its passes call get_numpy_copy, whose result a replay does not see"),
        (ChangesItselfLayerImpl, "its passes change a public attribute, which a replay does not"),
        (
            CountsCalls,
            "for other inputs, a replay of its passes gives something else in outputs.default",
        ),
    ],
)
def test_what_cannot_be_traced_is_told_to_take_the_line_out(layer_class: type, what: str) -> None:
    name = "replay equals direct execution"
    text = (
        f"property '{name}': layer '{layer_class.__name__.removesuffix('LayerImpl')}' "
        f"({layer_class.__name__.removesuffix('LayerImpl')}), T=1, B=1: {what}. Take "
        f"`is_traceable = True` out of class {layer_class.__name__}, whose passes are then called "
        f"at every step."
    )
    with pytest.raises(PropertyError, match=f"^{re.escape(text)}$"):
        check_layer(create(layer_class), IN_SHAPES, properties=[name])


def test_what_could_be_traced_is_told_the_line() -> None:
    text = (
        "layer 'IsSilent' (IsSilent): its passes seem to do nothing but handler operations, the "
        "same ones each time. If so, write `is_traceable = True` into class IsSilentLayerImpl: "
        "then a training step repeats the operations without calling it."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$") as found:
        check_layer(create(IsSilentLayerImpl), IN_SHAPES)
    assert {warning.filename for warning in found} == {__file__}


def test_right_layer_passes() -> None:
    check_layer(create(GainLayerImpl), IN_SHAPES)


@pytest.mark.parametrize(("layer_class", "name", "match"), BROKEN)
def test_broken_layer_is_found(layer_class: type, name: str, match: str) -> None:
    with pytest.raises(PropertyError, match=rf"property '{name}': layer .*, T=\d, B=\d.*{match}"):
        check_layer(create(layer_class), IN_SHAPES, properties=[name])


def test_every_property_has_a_broken_layer() -> None:
    assert {name for _, name, _ in BROKEN} == set(LAYER_PROPERTIES)


def test_random_numbers_that_are_not_the_layers_own_are_named_as_the_cause() -> None:
    check_layer(create(DrawsFromItsOwnStreamLayerImpl), IN_SHAPES)
    text = (
        "property 'equal passes give equal outputs': layer 'DrawsFromTheHandler' "
        "(DrawsFromTheHandler), T=1, B=1, outputs.default: two forward passes over the same "
        "inputs, parameters and memory, from the same random state, differ. Keep nothing "
        "outside of buffers. Draw random numbers from a stream of the layer's own: in "
        "set_handler write self.stream = handler.create_random_stream(self.rnd.child('noise')"
        ".generate_seed()), and in the pass fill_gaussian(..., stream=self.stream)."
    )
    with pytest.raises(PropertyError, match=f"^{re.escape(text)}$"):
        check_layer(create(DrawsFromTheHandler), IN_SHAPES)


@pytest.mark.parametrize(
    ("layer_class", "place"),
    [
        (AddsToTheContextLayerImpl, "context of output_deltas.default: mult_add_st"),
        (ForgetsTheContextRowLayerImpl, "output_deltas.default with its context: add_tt"),
    ],
)
def test_errors_of_operations_name_the_buffer_and_its_context(
    layer_class: type, place: str
) -> None:
    name = layer_class.__name__.removesuffix("LayerImpl")
    start = f"^layer '{name}' \\({name}\\), backward pass, {re.escape(place)}"
    with pytest.raises(HandlerValidationError, match=start):
        check_layer(create(layer_class, size=3), IN_SHAPES)


def test_wrong_context_gradient_is_found() -> None:
    with pytest.raises(PropertyError, match=r"gradients\.R\[\d, \d\]: expected .*, got "):
        check_layer(
            create(ForgetsContextLayerImpl, size=2), IN_SHAPES, handler=NumpyHandler(np.float64)
        )


def test_message_has_everything() -> None:
    property = "gradients equal central differences"
    expected = (
        rf"property '{property}': layer 'WrongGradient' \(WrongGradient\), T=2, B=3, gradients.gain"
        r"\[0, \d\]: expected -?\d[\d.]*, got -?\d[\d.]* \(3 of 3 elements differ\)"
    )
    with pytest.raises(PropertyError, match=expected):
        check_layer(create(WrongGradient), IN_SHAPES, sizes=[(2, 3)], properties=[property])


def test_kink_at_one_sample_is_dodged() -> None:
    samples = []

    def on_the_kink_at_first(shape: tuple[int, ...], rnd: Any) -> np.ndarray:
        samples.append(shape)
        return np.zeros(shape) if len(samples) == 1 else rnd.normal(size=shape)

    check_layer(
        Elementwise("rel"),
        IN_SHAPES,
        {"default": on_the_kink_at_first},
        [(1, 2)],
        properties=["input deltas equal central differences"],
    )
    assert len(samples) == 2


def test_kinks_everywhere_are_reported() -> None:
    property = "input deltas equal central differences"
    match = r"ten samples in a row .*cannot be differentiated; the last: element \[0\]: the slope"
    with pytest.raises(PropertyError, match=match):
        check_layer(
            Elementwise("rel"),
            IN_SHAPES,
            {"default": np.full((1, 1, 3), 2e-6)},
            [(1, 1)],
            properties=[property],
        )


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"check_layer: expected in_shapes, such as .*, got None"):
        check_layer(create(GainLayerImpl))
    with pytest.raises(
        ValueError, match=r"check_layer: expected in_shapes, such as .*, got \('T', "
    ):
        check_layer(create(GainLayerImpl), ("T", "B", 3))
    for wrong in (GainLayerImpl, Elementwise):
        with pytest.raises(
            ValueError, match=r"the result of a layer function, .*Call the function"
        ):
            check_layer(wrong, IN_SHAPES)
    with pytest.raises(ValueError, match=r"unknown property 'all'. Choices are: equal passes give"):
        check_layer(create(GainLayerImpl), IN_SHAPES, properties=["all"])


def test_check_layer_takes_instances_and_single_precision() -> None:
    check_layer(instance(GainLayerImpl), handler=NumpyHandler(np.float32))
    with pytest.raises(PropertyError, match="central differences"):
        check_layer(instance(WrongDelta), handler=NumpyHandler(np.float32))


# -- single checks ------------------------------------------------------------------------------


def test_set_up_layer_fills_what_specs_say() -> None:
    x = np.arange(12.0).reshape(2, 2, 3)
    specs = {
        "time_steps": 2,
        "batch_size": 2,
        "default": x,
        "inits": {"gain": np.full((1, 3), 2.0)},
    }
    layer = instance(GainLayerImpl)
    buffers = set_up_layer(layer, specs)
    layer.forward_pass(buffers)
    np.testing.assert_array_equal(layer.handler.get_numpy_copy(buffers.outputs.default), 2 * x)


def test_single_derivative_tests() -> None:
    specs = {"time_steps": 2, "batch_size": 2, "eps": 1e-4}
    run_deltas_test(instance(GainLayerImpl), specs, "default", "default")
    run_gradients_test(instance(GainLayerImpl), specs, "gain", "default")
    with pytest.raises(PropertyError, match=r"input_deltas\.default\["):
        run_deltas_test(instance(WrongDelta), specs, "default", "default")
    with pytest.raises(PropertyError, match=r"gradients\.gain\["):
        run_gradients_test(instance(WrongGradient), specs, "gain", "default")


@pytest.mark.parametrize("specs", list(get_test_configurations()), ids=lambda s: s["activation"])
def test_run_layer_tests(specs: dict[str, Any]) -> None:
    run_layer_tests(instance(GainLayerImpl), specs)
    with pytest.raises(PropertyError):
        run_layer_tests(instance(ChangesInput), specs)
