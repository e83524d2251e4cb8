"""Layers that are formulas: values, shapes, what is stored, errors, files."""

import json
import re

import numpy as np
import pytest

from brainstorm import Network
from brainstorm import layers as bl
from brainstorm.errors import HandlerValidationError, LayerValidationError
from brainstorm.layers.base_layer import Layer
from brainstorm.optree import functions as fn
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import build_layer, check_layer
from tests.layers.running import run, run_backward
from tests.networks import checked, classifier

RND = np.random.RandomState(5)
VECTOR = {"default": ("T", "B", 3)}
IMAGE = {"default": ("T", "B", 2, 3, 4)}


def build(formula, parameters=None, in_shapes=VECTOR):
    return build_layer(bl.Expression(formula, parameters), in_shapes)


# -- what is derived ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "internals", "needs"),
    [
        ("x + 1", {}, ()),
        ("tanh(x)", {}, ("outputs",)),
        ("x * x", {}, ("inputs",)),
        ("x * sig(x) + sig(x) * sig(-x)", {"sig_1": 3, "sig_2": 3}, ("inputs", "internals")),
        ("softmax(x) * 2", {"softmax_1": 3}, ("internals",)),
        ("x / sqrt(mean(x * x, axis=-1))", {"sum_1": 1}, Layer.needs_in_backward),
        ("relu(x)", {}, ("outputs",)),
    ],
)
def test_what_is_costly_is_stored_once(formula, internals, needs):
    layer = build(formula)
    assert {name: s.shape for name, s in layer.internal_shapes.items()} == {
        name: ("T", "B", size) for name, size in internals.items()
    }
    assert tuple(layer.needs_in_backward) == needs


def test_what_follows_from_parameters_alone_is_not_stored():
    layer = build("x * exp(scale)", {"scale": 3})
    assert list(layer.internal_shapes) == []
    check_layer(layer, sizes=[(2, 3)])


def test_inputs_without_derivative_get_no_delta():
    layer = build("where(mask > 0, x, 0)", in_shapes={**VECTOR, "mask": ("T", "B", 1)})
    assert layer.characteristics.computes_no_input_deltas_for == {"mask"}
    for formula in ("x > 0", "argmax(x, axis=-1)"):
        assert build(formula).characteristics.can_backprop is False


@pytest.mark.parametrize(
    ("shape", "in_shapes", "expected"),
    [
        (5, VECTOR, (5,)),
        ("F", VECTOR, (3,)),
        ("...", VECTOR, (3,)),
        ("...", IMAGE, (2, 3, 4)),
        (("F",), IMAGE, (4,)),
        (("F", 1), IMAGE, (3, 1)),
        (("...", 1), IMAGE, (2, 3, 1)),
        ((1, "...", "F"), IMAGE, (1, 3, 4)),
        ([7, "..."], VECTOR, (7,)),
        (("F",), {"a": ("T", "B", 6), "b": ("T", "B", 1)}, (1,)),
        (("F",), {"b": ("T", "B", 1), "default": ("T", "B", 9)}, (9,)),
    ],
)
def test_parameter_shapes(shape, in_shapes, expected):
    inputs = [{"default": "x"}.get(port, port) for port in sorted(in_shapes, reverse=True)]
    formula = f"{' * '.join(inputs)} + 0 * sum(p)"
    assert build(formula, {"p": shape}, in_shapes).parameter_shapes["p"].shape == expected


# -- in Python ----------------------------------------------------------------------------------


class SlopedTestLayerImpl(bl.ExpressionLayer):
    """An option, a parameter whose shape follows from it, and two inputs."""

    expected_kwargs = {"size"}

    @classmethod
    def parameters_for(cls, kwargs):
        return {"slope": (kwargs["size"],)}

    def formula(self, x, slope, other):
        return fn.tanh(x[..., : self.kwargs["size"]] * slope) + other


class ClassifierTestLayerImpl(bl.ExpressionLayer):
    """Two outputs, of which one gives back no deltas."""

    takes_no_output_deltas_from = ("predictions",)

    def formula(self, x, targets):
        loss = fn.logsumexp(x, axis=-1) - fn.gather(x, targets, axis=-1)
        return {"predictions": fn.softmax(x, axis=-1), "loss": loss}


def test_a_formula_in_python_with_options():
    layer = ConstructionWrapper.create(SlopedTestLayerImpl, size=2)
    shapes = {**VECTOR, "other": ("T", "B", 1)}
    assert build_layer(layer, shapes).out_shapes["default"].shape == ("T", "B", 2)
    check_layer(layer, shapes)


def test_a_formula_with_several_outputs():
    layer = ConstructionWrapper.create(ClassifierTestLayerImpl)
    shapes = {**VECTOR, "targets": ("T", "B", 1)}
    check_layer(layer, shapes, {"targets": lambda shape, rnd: rnd.randint(0, 3, shape)})
    inputs = {"default": RND.normal(size=(2, 3, 3)), "targets": RND.randint(0, 3, (2, 3, 1)) * 1.0}
    ours, theirs = (run(construction, inputs) for construction in (layer, bl.SoftmaxCE()))
    for harness in (ours, theirs):
        run_backward(harness)
    for path in ("outputs.predictions", "outputs.loss", "input_deltas.default"):
        np.testing.assert_allclose(ours.get(path), theirs.get(path), rtol=1e-12)


# -- errors -------------------------------------------------------------------------------------

ALONE = "expected every time step of every sequence to be treated alone, but"
ERRORS = [
    ("foo(x)", {}, ", option 'formula': 'foo(x)': unknown function 'foo'. Choices are: abs"),
    ("x +", {}, ", option 'formula': 'x +' is not a formula: invalid syntax."),
    (5, {}, ", option 'formula': expected a formula as text, got 5."),
    ("x", ["scale"], ", option 'parameters': expected a dict from names to shapes, got ['scale']."),
    ("3 + 4", {}, ": expected a formula with inputs, got one of []."),
    ("w + 1", {"w": 3}, ": expected a formula with inputs, got one of ['w']."),
    ("x + default", {}, ": its formula has x and default, which are one input. Write x."),
    ("x + gate", {}, ", input 'gate': expected (T, B, ...), but nothing is connected. Connect "
     "something: ... >> 'gate' - E, or declare a parameter. Constants are written as numb"),
    ("gate", {}, ": unknown input 'default'. Choices are: gate."),
    ("x", {"scale": 3}, ": parameter 'scale' does not occur in its formula."),
    ("x * w", {"w": ("F", "F")}, ": parameter 'w': expected a shape of sizes >= 1, 'F' for as many "
     "as input 'default' has there, and at most one '...', got ('F', 'F') where 'default' has "
     "(3,)."),
    *(("x * w", {"w": wrong}, ": parameter 'w': expected a shape of sizes >= 1, 'F' for")
      for wrong in (0, ("...", "..."), (), True, None, 2.5)),
    ("x * w", {"w": 4}, ": its formula, with T=5 and B=3: op-tree 'mul' of x of shape (5, 3, 3) "
     "and w of shape (4,): expected shapes that broadcast"),
    ("x * sum(x)", {}, f": its formula, with T=5 and B=3: {ALONE} sum(x, axis=(0, 1, 2), "
     "keepdims=True) mixes or drops axis 0 (time) or 1 (sequence). Use feature axes, such as "
     "axis=-1, and keep reduced ones; or write a Layer that computes the formula with "
     "handler.compute."),
    ("x - mean(x, axis=0)", {}, f"{ALONE} sum(x, axis=(0,), keepdims=True) mixes"),
    ("softmax(x, axis=1)", {}, f"{ALONE} softmax(x, axis=(1,)) mixes"),
    ("transpose(x)", {}, f"{ALONE} transpose(x, axes=(2, 1, 0)) mixes"),
    ("gather(x, x, axis=0)", {}, f"{ALONE} gather(x, x, axis=0) mixes"),
    ("sum(x, axis=-1, keepdims=False)", {}, ": its formula, with T=5 and B=3: output 'default': "
     "expected a value for every time step and sequence, of shape (T, B, features...), got "
     "sum(x, axis=(2,), keepdims=False) of shape (5, 3)."),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "parameters", "message"), ERRORS, ids=lambda v: str(v)[:30])
def test_errors(formula, parameters, message):
    start = "" if message.startswith(ALONE) else "layer 'E' (Expression)"
    with pytest.raises(LayerValidationError, match=re.escape(f"{start}{message}")):
        build_layer(bl.Expression(formula, parameters, name="E"), VECTOR)


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("x * gate", r"'E' .*x in its formula is the input 'default'"),
        ("2 * gate", r"'E' .*unknown input 'x'"),
    ],
)
def test_x_is_not_the_name_of_an_input(formula, text):
    inp, layer = bl.Input({"default": ("T", "B", 3)}), bl.Expression(formula, name="E")
    inp >> "x" - layer
    inp >> "gate" - layer
    with pytest.raises(LayerValidationError, match=text):
        Network.from_layer(layer)


class MisfitTestLayerImpl(bl.ExpressionLayer):
    """Any function of x as formula."""

    expected_kwargs = {"function"}

    def formula(self, x):
        return self.kwargs["function"](x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 3.0, "output 'default': expected an op-tree, got 3.0."),
        (lambda x: {"y": None}, "output 'y': expected an op-tree, got None."),
        (lambda x: fn.full((5, 3, 2), 1), "output 'default': expected a value for every time step"),
        (lambda x: x[1:], f"{ALONE} slice(x, start=(1, 0, 0)"),
        (lambda x: x[::-1], f"{ALONE} slice(x, start=(4, 0, 0)"),
        (lambda x: x[:6], "with T=7 and B=2"),
        (lambda x: x * fn.full((x.shape[0],), 1.0), "with T=5 and B=3: op-tree 'mul'"),
        (
            lambda x: fn.broadcast_to(x[..., :1], (*x.shape[:2], x.shape[0])),
            "expected a formula whose features depend on neither T nor B, got for (T, B) = (5, 3), "
            "(7, 2), (1, 1): {'outputs.default': (5,)}, {'outputs.default': (7,)}",
        ),
    ],
)
def test_formulas_in_python_that_do_not_fit(function, message):
    layer = ConstructionWrapper.create(MisfitTestLayerImpl, function=function)
    with pytest.raises(LayerValidationError, match=re.escape(message)):
        build_layer(layer, VECTOR)


class EmptyTestLayerImpl(bl.ExpressionLayer):
    """Forgets its formula."""


class ChangeableTestLayerImpl(MisfitTestLayerImpl):
    changeable_kwargs = ("function",)


def test_an_option_of_a_formula_does_not_change():
    """Programs that were made before would keep its first value."""
    layer = ConstructionWrapper.create(ChangeableTestLayerImpl, function=fn.tanh)
    text = "changeable_kwargs: expected none, because its formula is built once, got function. Give"
    with pytest.raises(LayerValidationError, match=text):
        build_layer(layer, VECTOR)


def test_a_class_without_a_formula_says_so():
    layer = ConstructionWrapper.create(EmptyTestLayerImpl)
    with pytest.raises(LayerValidationError, match=r"a formula with inputs, got one of \["):
        build_layer(layer, VECTOR)
    with pytest.raises(NotImplementedError, match="SlopedTestLayerImpl does not define formula"):
        bl.ExpressionLayer.formula(SlopedTestLayerImpl.__new__(SlopedTestLayerImpl))


# -- in networks --------------------------------------------------------------------------------


def make_network():
    gated = bl.Expression("tanh(a * x + b) * sig(x)", {"a": ("...",), "b": 1}, name="Gated")
    return checked(classifier(bl.FullyConnected(6, "linear"), gated))


def test_an_architecture_is_json_and_back_and_a_hostile_one_is_refused():
    net = make_network()
    text = json.dumps(net.architecture)
    assert '"formula": "tanh(a * x + b) * sig(x)"' in text
    again = Network.from_architecture(json.loads(text))
    assert again.layers["Gated"].parameter_shapes == net.layers["Gated"].parameter_shapes
    assert again.buffer.parameters.size == net.buffer.parameters.size
    hostile = json.loads(text)
    hostile["Gated"]["formula"] = "().__class__.__base__.__subclasses__()"
    with pytest.raises(LayerValidationError, match=r"layer 'Gated' \(Expression\), option 'form"):
        Network.from_architecture(hostile)


def test_a_bad_index_names_the_layer_also_in_a_replay():
    table = bl.Expression("take(V, x, axis=0)", {"V": (4, 2)}, name="Table")
    net = Network.from_layer(bl.Input({"default": ("T", "B", 1)}) >> table)
    net.initialize(1.0)
    text = r"^layer 'Table' \(Expression\), forward pass: op-tree: expected indices from -4 to 3, "
    for _ in ("a pass", "a replay"):
        with pytest.raises(HandlerValidationError, match=text):
            net.predict(np.full((1, 2, 1), 4.0), "Table.outputs.default")
        assert (net.predict(np.ones((1, 2, 1)), "Table.outputs.default") == 1).all()
