"""The kit must find what is wrong: for every property a layer that breaks this property alone."""

from __future__ import annotations

import re

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
from tests.trainings import refused

IN_SHAPES = {"default": ("T", "B", 3)}


class GainLayerImpl(Layer):
    """y = gain * x, with a gain for each feature; right in every respect."""

    is_traceable = True
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")

    def setup(self, kwargs, in_shapes):
        size = in_shapes["default"].feature_size
        buffer = BufferStructure("T", "B", size)
        return {"default": buffer}, {"gain": BufferStructure(1, size)}, {"products": buffer}

    def forward_pass(self, buffers, training_pass=True):
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        self.handler.mult_mv(x, buffers.parameters.gain, y)

    def backward_pass(self, buffers):
        dy = flatten_time(buffers.output_deltas.default)
        if self.needs_delta("default"):
            overwrite = self.overwrites("input_deltas.default")
            multiply = self.handler.mult_mv if overwrite else self.handler.mult_add_mv
            multiply(dy, buffers.parameters.gain, flatten_time(buffers.input_deltas.default))
        products = flatten_time(buffers.internals.products)
        self.handler.mult_tt(flatten_time(buffers.inputs.default), dy, products)
        self.sum_op("gradients.gain")(products, 0, buffers.gradients.gain)


def variant(name, forward=None, backward=None, **members):
    """Return a class like `GainLayerImpl`, but with other members, and with more after its passes.

    What follows is done with the handler, the buffers and, after the forward pass, y.
    """

    def forward_pass(self, buffers, training_pass=True):
        GainLayerImpl.forward_pass(self, buffers, training_pass)
        forward(self.handler, buffers, buffers.outputs.default)

    def backward_pass(self, buffers):
        GainLayerImpl.backward_pass(self, buffers)
        backward(self.handler, buffers)

    members |= {"forward_pass": forward_pass} if forward else {}
    members |= {"backward_pass": backward_pass} if backward else {}
    return type(f"{name}LayerImpl", (GainLayerImpl,), members)


def half_of_the_first_delta_more(h, b):
    h.mult_add_st(0.5, b.output_deltas.default[0:1], b.input_deltas.default[0:1])


def half_from_one_feature_to_another(h, b):
    """Keep the slope in the direction in which all elements grow alike."""
    half = np.broadcast_to([0.5, -0.5, 0.0], b.input_deltas.default.shape)
    h.add_tt(h.create_from_numpy(half), b.input_deltas.default, b.input_deltas.default)


def half_of_the_gain_more(h, b):
    h.mult_add_st(0.5, b.parameters.gain, b.gradients.gain)


WrongDelta = variant("WrongDelta", backward=half_of_the_first_delta_more)
WrongGradient = variant("WrongGradient", backward=half_of_the_gain_more)
ChangesInput = variant("ChangesInput", backward=lambda h, b: h.fill(b.inputs.default[0:1], 0.0))


def never_adds(self, buffers):
    if self.needs_delta("default"):
        self.handler.fill(buffers.input_deltas.default, 0.0)
    GainLayerImpl.backward_pass(self, buffers)


def changes_the_gradient_without_a_delta(self, buffers):
    GainLayerImpl.backward_pass(self, buffers)
    if not self.needs_delta("default"):
        self.handler.fill(buffers.gradients.gain, 0.0)


def doubles_in_evaluation(self, buffers, training_pass=True):
    GainLayerImpl.forward_pass(self, buffers, training_pass)
    if not training_pass:
        self.handler.mult_st(2.0, buffers.outputs.default, buffers.outputs.default)


def writes_only_in_training(self, buffers, training_pass=True):
    if training_pass:
        GainLayerImpl.forward_pass(self, buffers, training_pass)


def divides_by_the_first_T(self, buffers, training_pass=True):
    GainLayerImpl.forward_pass(self, buffers, training_pass)
    self.first_T = getattr(self, "first_T", buffers.inputs.default.shape[0])
    self.handler.mult_st(1 / self.first_T, buffers.outputs.default, buffers.outputs.default)


def keeps_a_statistic(self, kwargs, in_shapes):
    outputs, parameters, internals = GainLayerImpl.setup(self, kwargs, in_shapes)
    return outputs, parameters, {**internals, "mean": BufferStructure(1, persistent=True)}


def divides_by_the_mean(h, b, y):
    h.divide_mv(flatten_time(y), b.internals.mean.reshape((1, 1)), flatten_time(y))


class KeepsInBackwardOnlyLayerImpl(GainLayerImpl):
    def setup(self, kwargs, in_shapes):
        outputs, parameters, internals = super().setup(kwargs, in_shapes)
        kept = BufferStructure("T", "B", in_shapes["default"].feature_size, is_backward_only=True)
        return outputs, parameters, {**internals, "kept": kept}

    def forward_pass(self, buffers, training_pass=True):
        super().forward_pass(buffers, training_pass)
        self.handler.copy_to(buffers.inputs.default, buffers.internals.kept)

    def backward_pass(self, buffers):
        self.handler.copy_to(buffers.internals.kept, buffers.inputs.default)
        super().backward_pass(buffers)


def halves_the_gain_in_evaluation(self, buffers, training_pass=True):
    GainLayerImpl.forward_pass(self, buffers, training_pass)
    if not training_pass:
        self.handler.mult_st(0.5, buffers.parameters.gain, buffers.parameters.gain)


def reads_in_evaluation(self, buffers, training_pass=True):
    GainLayerImpl.forward_pass(self, buffers, training_pass)
    if not training_pass:
        self.handler.get_numpy_copy(buffers.outputs.default)


class RemembersOutsideOfBuffersLayerImpl(GainLayerImpl):
    """Keeps what it has learned in training in an array of its own, which no file has."""

    depends_on_mode = True

    def set_handler(self, handler):
        super().set_handler(handler)
        self.total = handler.zeros((1, 3))

    def forward_pass(self, buffers, training_pass=True):
        super().forward_pass(buffers, training_pass)
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        if training_pass:
            self.handler.add_mv(self.total, x[0:1], self.total)
        else:
            self.handler.subtract_mv(y, self.total, y)


def takes_steps_for_passes(self, buffers, past):
    Layer.forward_step(self, buffers, past)
    self.handler.add_tt(*[buffers.outputs.default] * 3)


def counts_calls(h, b, y):
    CALLS.append(1)
    h.mult_st(float(len(CALLS)), y, y)


def draws_from_the_handler(h, b, y):
    h.fill_gaussian(0.0, 1.0, b.internals.products)
    h.add_tt(y, b.internals.products, y)


CALLS = []
CountsCalls = variant("CountsCalls", counts_calls, is_traceable=True)
DrawsFromTheHandler = variant("DrawsFromTheHandler", draws_from_the_handler)


class DrawsFromAGeneratorLayerImpl(GainLayerImpl):
    """Draws from what is not saved with a run."""

    depends_on_mode = True

    def set_handler(self, handler):
        super().set_handler(handler)
        self.generator = np.random.default_rng(self.rnd.generate_seed())

    def forward_pass(self, buffers, training_pass=True):
        super().forward_pass(buffers, training_pass)
        if training_pass:
            products, y = buffers.internals.products, buffers.outputs.default
            self.handler.set_from_numpy(products, self.generator.normal(size=products.shape))
            self.handler.add_tt(y, products, y)


class DrawsFromARandomStateLayerImpl(DrawsFromAGeneratorLayerImpl):
    depends_on_mode = True

    def set_handler(self, handler):
        super().set_handler(handler)
        self.generator = self.rnd.child("noise")


class RepeatsItsNoiseLayerImpl(DrawsFromARandomStateLayerImpl):
    """Draws in Python, which a replay does not."""

    is_traceable = True


class AddsToTheContextLayerImpl(RecurrentLayerImpl):
    """Adds to the row before the first one of its output deltas."""

    def backward_pass(self, buffers):
        dy = buffers.output_deltas.default
        for t in range(dy.shape[0] - 1):
            self.handler.mult_add_st(0.5, dy[t], dy[t - 1])
        super().backward_pass(buffers)


class ForgetsTheContextRowLayerImpl(RecurrentLayerImpl):
    """Takes outputs for as long as inputs."""

    def backward_pass(self, buffers):
        dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
        self.handler.add_tt(dx, dy, dx)


class ForgetsContextLayerImpl(RecurrentLayerImpl):
    def backward_pass(self, buffers):
        super().backward_pass(buffers)
        # Take the part of the state before the first step out of the gradient of R again.
        first, state = buffers.internals.dHa[0], buffers.outputs.default[-1]
        bare = self.handler.get_numpy_copy
        wrong = bare(buffers.gradients.R) - bare(first).T @ bare(state)
        self.handler.set_from_numpy(buffers.gradients.R, wrong)


KeepsTheFirstT = variant("KeepsTheFirstT", forward_pass=divides_by_the_first_T)
OUTPUT, DELTA, GRADIENT = r"outputs\.default", r"input_deltas\.default", r"gradients\.gain"
INPUT_DELTAS = "input deltas equal central differences"
COUPLED = r"\. If that is intended, write `time_coupled = True` into class \w+LayerImpl\.$"
LEAVE = "forward passes leave what is for the backward pass"
GARBAGE = "what is not needed backward may be garbage"
BROKEN = [
    (DrawsFromTheHandler, "equal passes give equal outputs", OUTPUT),
    (DrawsFromAGeneratorLayerImpl, "equal passes give equal outputs", OUTPUT),
    (RemembersOutsideOfBuffersLayerImpl, "equal passes give equal outputs",
     f"{OUTPUT}: two forward passes outside of training over .*persistent=True"),
    (WrongDelta, INPUT_DELTAS, DELTA),
    (variant("WrongDeltas", backward=half_from_one_feature_to_another), INPUT_DELTAS, DELTA),
    (KeepsTheFirstT, INPUT_DELTAS, DELTA),
    (KeepsTheFirstT, "outputs equal those of the reference", OUTPUT),
    (WrongGradient, "gradients equal central differences", GRADIENT),
    (variant("NeverAdds", can_overwrite=(), backward_pass=never_adds),
     "deltas and gradients are added to", DELTA),
    (variant("NeverOverwrites", overwrites=lambda self, path: False),
     "first writers overwrite", DELTA),
    (variant("ForgetsNull", needs_delta=lambda self, port: True),
     "null deltas are left out", "with a null buffer"),
    (variant("NullChangesGradient", backward_pass=changes_the_gradient_without_a_delta),
     "null deltas are left out", GRADIENT),
    (variant("ReadsOldMemory", lambda h, b, y: h.add_tt(y, b.internals.products, y)),
     "nothing depends on what was in memory", OUTPUT),
    (variant("WritesOnlyInTraining", forward_pass=writes_only_in_training),
     "every output element is written", OUTPUT),
    (ChangesInput, "what is read is not changed", r"inputs\.default"),
    (variant("ForgetsTheMode", lambda h, b, y: h.mult_st(0.9, b.internals.mean, b.internals.mean),
             setup=keeps_a_statistic), "what is read is not changed", r"internals\.mean"),
    (variant("HalvesTheGain", forward_pass=halves_the_gain_in_evaluation),
     "what is read is not changed", r"parameters\.gain"),
    (variant("SaysNoGradient", computes_no_gradients_for=("gain",)),
     "what is read is not changed", GRADIENT),
    (variant("ForwardInDeltas", lambda h, b, y: h.copy_to(y, b.output_deltas.default)), LEAVE,
     r"output_deltas\.default: the forward pass writes to it, whose memory other layers may use "
     r"until the backward pass\. Declare an internal for its values\.$"),
    (KeepsInBackwardOnlyLayerImpl, LEAVE, r"internals\.kept"),
    (variant("ReadsInputsAfterAll", needs_in_backward=()), GARBAGE, GRADIENT),
    (KeepsInBackwardOnlyLayerImpl, GARBAGE, GRADIENT),
    (CountsCalls, "replay equals direct execution", OUTPUT),
    (RepeatsItsNoiseLayerImpl, "replay equals direct execution", OUTPUT),
    (variant("OtherInTraining", forward_pass=doubles_in_evaluation),
     "characteristics tell the truth", rf"{OUTPUT}.* intended, write `depends_on_mode = True` into "
     r"class OtherInTrainingLayerImpl\.$"),
    (variant("MixesTimeSteps",
             lambda h, b, y: [h.add_tt(y[t], y[t - 1], y[t]) for t in range(1, y.shape[0])]),
     "characteristics tell the truth", f"{OUTPUT}.* differ[)]{COUPLED}"),
    (variant("TakesStepsForPasses", forward_step=takes_steps_for_passes),
     "steps one by one are those of the sequence", OUTPUT),
    (variant("AddsItsPlace",
             lambda h, b, y: [h.add_st(float(t), y[t], y[t]) for t in range(1, y.shape[0])]),
     "what does not look at time does without", f"{OUTPUT}.*{COUPLED}"),
]  # fmt: skip


create = ConstructionWrapper.create


def instance(layer_class):
    shapes = {"default": BufferStructure("T", "B", 3)}
    return layer_class("It", shapes, set(), set(), rnd=RandomState(0))


def counts_its_passes(self, buffers, training_pass=True):
    self.passes += 1
    GainLayerImpl.forward_pass(self, buffers, training_pass)


members = {"is_traceable": True, "passes": 0, "forward_pass": counts_its_passes}
ChangesItself = variant("ChangesItself", **members)
Reads = variant("Reads", lambda h, b, y: h.get_numpy_copy(b.inputs.default), is_traceable=True)


@pytest.mark.parametrize(
    ("layer_class", "what"),
    [
        (Reads, "its passes call get_numpy_copy, whose result a replay does not see"),
        (variant("ReadsInEvaluation", is_traceable=True, forward_pass=reads_in_evaluation),
         "its passes call get_numpy_copy, whose result a replay does not see"),
        (ChangesItself, "its passes change a public attribute, which a replay does not"),
        (CountsCalls, "for other inputs, a replay of its passes gives something else in "
         "outputs.default"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_told_to_take_the_line_out(layer_class, what):
    property, name = "replay equals direct execution", layer_class.__name__
    short = name.removesuffix("LayerImpl")
    with refused(
        f"property '{property}': layer '{short}' ({short}), T=1, B=1: {what}. Take "
        f"`is_traceable = True` out of class {name}, whose passes are then called at every step.",
        PropertyError,
        is_whole=True,
    ):
        check_layer(create(layer_class), IN_SHAPES, properties=[property])


def test_what_could_be_traced_is_told_the_line():
    text = (
        "layer 'IsSilent' (IsSilent): its passes seem to do nothing but handler operations, the "
        "same ones each time. If so, write `is_traceable = True` into class IsSilentLayerImpl: "
        "then a training step repeats the operations without calling it."
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$") as found:
        check_layer(create(variant("IsSilent")), IN_SHAPES)
    assert {warning.filename for warning in found} == {__file__}


@pytest.mark.parametrize(("layer_class", "name", "match"), BROKEN)
def test_broken_layer_is_found(layer_class, name, match):
    layer = layer_class.__name__.removesuffix("LayerImpl")
    expected = rf"^property '{name}': layer '{layer}' \({layer}\), T=\d, B=\d.*{match}"
    with pytest.raises(PropertyError, match=expected):
        check_layer(create(layer_class), IN_SHAPES, properties=[name])


@pytest.mark.parametrize("layer_class", [GainLayerImpl, DrawsFromARandomStateLayerImpl])
def test_right_layers_pass(layer_class):
    check_layer(create(layer_class), IN_SHAPES)


def test_every_property_has_a_broken_layer():
    assert {name for _, name, _ in BROKEN} == set(LAYER_PROPERTIES)


def test_random_numbers_that_are_not_the_layers_own_are_named_as_the_cause():
    text = (
        "property 'equal passes give equal outputs': layer 'DrawsFromTheHandler' "
        "(DrawsFromTheHandler), T=1, B=1, outputs.default: two forward passes over the same "
        "inputs, parameters and memory, from the same random state, differ. Keep nothing "
        "outside of buffers; what later passes need is an internal with persistent=True. Draw "
        "random numbers from a stream of the layer's own: in set_handler write self.stream = "
        "handler.create_random_stream(self.rnd.child('noise')"
        ".generate_seed()), and in the pass fill_gaussian(..., stream=self.stream)."
    )
    with refused(text, PropertyError, is_whole=True):
        check_layer(create(DrawsFromTheHandler), IN_SHAPES)


@pytest.mark.parametrize(
    ("layer_class", "place"),
    [
        (AddsToTheContextLayerImpl, "context of output_deltas.default: mult_add_st"),
        (ForgetsTheContextRowLayerImpl, "output_deltas.default with its context: add_tt"),
    ],
)
def test_errors_of_operations_name_the_buffer_and_its_context(layer_class, place):
    name = layer_class.__name__.removesuffix("LayerImpl")
    with refused(f"layer '{name}' ({name}), backward pass, {place}", HandlerValidationError):
        check_layer(create(layer_class, size=3), IN_SHAPES)


def test_wrong_context_gradient_is_found():
    forgets, handler = create(ForgetsContextLayerImpl, size=2), NumpyHandler(np.float64)
    with pytest.raises(PropertyError, match=r"gradients\.R\[\d, \d\]: expected .*, got "):
        check_layer(forgets, IN_SHAPES, handler=handler)


def test_initial_values_of_persistent_internals_that_do_not_work_are_found():
    layer = create(variant("DividesByZero", divides_by_the_mean, setup=keeps_a_statistic))
    property, match = "every output element is written", r"outputs\.default.* got -?inf"
    with np.errstate(divide="ignore"), pytest.raises(PropertyError, match=match):
        check_layer(layer, IN_SHAPES, handler=NumpyHandler(np.float64), properties=[property])


def test_kink_at_one_sample_is_dodged():
    samples = []

    def on_the_kink_at_first(shape, rnd):
        samples.append(shape)
        return np.zeros(shape) if len(samples) == 1 else rnd.normal(size=shape)

    data = {"default": on_the_kink_at_first}
    check_layer(Elementwise("rel"), IN_SHAPES, data, [(1, 2)], properties=[INPUT_DELTAS])
    assert len(samples) == 2


def test_kinks_everywhere_are_reported():
    match = r"ten samples in a row .*cannot be differ.*; the last: element \[0, 0, 0\]: the slope"
    data = {"default": np.full((1, 1, 3), 2e-6)}
    with pytest.raises(PropertyError, match=match):
        check_layer(Elementwise("rel"), IN_SHAPES, data, [(1, 1)], properties=[INPUT_DELTAS])


def test_arguments_are_checked():
    text = r"check_layer: expected in_shapes, such as .*, got "
    with pytest.raises(ValueError, match=f"{text}None"):
        check_layer(create(GainLayerImpl))
    with pytest.raises(ValueError, match=rf"{text}\('T', "):
        check_layer(create(GainLayerImpl), ("T", "B", 3))
    for wrong in (GainLayerImpl, Elementwise):
        with pytest.raises(ValueError, match="the result of a layer function, .*Call the function"):
            check_layer(wrong, IN_SHAPES)
    with pytest.raises(ValueError, match=r"unknown property 'all'. Choices are: equal passes give"):
        check_layer(create(GainLayerImpl), IN_SHAPES, properties=["all"])


def test_check_layer_takes_instances_and_single_precision():
    check_layer(instance(GainLayerImpl), handler=NumpyHandler(np.float32))
    with pytest.raises(PropertyError, match="central differences"):
        check_layer(instance(WrongDelta), handler=NumpyHandler(np.float32))


def test_outputs_in_single_precision_are_compared_with_those_in_double_precision():
    rounds = create(variant("Rounds", lambda h, b, y: [h.add_st(s, y, y) for s in (1e6, -1e6)]))
    check_layer(rounds, IN_SHAPES, properties=["outputs equal those of the reference"])
    with pytest.raises(PropertyError, match="outputs equal those of the reference"):
        check_layer(rounds, IN_SHAPES, handler=NumpyHandler(np.float32))


def test_set_up_layer_fills_what_specs_say():
    x = np.arange(12.0).reshape(2, 2, 3)
    sizes = {"time_steps": 2, "batch_size": 2}
    specs = {**sizes, "default": x, "inits": {"gain": np.full((1, 3), 2.0)}}
    layer = instance(GainLayerImpl)
    buffers = set_up_layer(layer, specs)
    layer.forward_pass(buffers)
    np.testing.assert_array_equal(layer.handler.get_numpy_copy(buffers.outputs.default), 2 * x)


def test_single_derivative_tests():
    specs = {"time_steps": 2, "batch_size": 2, "eps": 1e-4}
    run_deltas_test(instance(GainLayerImpl), specs, "default", "default")
    run_gradients_test(instance(GainLayerImpl), specs, "gain", "default")
    with pytest.raises(PropertyError, match=r"input_deltas\.default\["):
        run_deltas_test(instance(WrongDelta), specs, "default", "default")
    with pytest.raises(PropertyError, match=r"gradients\.gain\["):
        run_gradients_test(instance(WrongGradient), specs, "gain", "default")


@pytest.mark.parametrize("specs", list(get_test_configurations()), ids=lambda s: s["activation"])
def test_run_layer_tests(specs):
    run_layer_tests(instance(GainLayerImpl), specs)
    with pytest.raises(PropertyError):
        run_layer_tests(instance(ChangesInput), specs)
