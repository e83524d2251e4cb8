"""Formulas as text: what they mean, and that nothing but a formula is accepted."""

import contextlib
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError, ValidationError
from brainstorm.layers._formula_text import FUNCTIONS, MOST_CHARACTERS, MOST_LEVELS, FormulaText
from brainstorm.optree import Variable, evaluate
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS
from brainstorm.testing import build_layer


def parse_and_build(text, shape=(2, 3, 4)):
    formula = FormulaText(text)
    return formula(*[Variable(shape, name=name) for name in formula.names])


def test_names_are_in_order_of_appearance():
    names = FormulaText("tanh(scale * x + shift) * gate - x").names
    assert names == ("scale", "x", "shift", "gate")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("a + b * c ** 2", "a + (b * (c ** 2))"),
        ("-a - (b - +c) / d", "(-a) - ((b - c) / d)"),
        ("-a ** 2", "-(a ** 2)"),
        ("(a < b) + (a <= b) * (a > b)", "(a < b) + ((a <= b) * (a > b))"),
        ("(a >= b) + (a == b) * (a != b)", "(a >= b) + ((a == b) * (a != b))"),
        ("sum(a, axis=(-1, 1), keepdims=False)", "sum(a, axis=(1, 2), keepdims=False)"),
        ("max(a, -1) + logsumexp(a)",
         "max(a, axis=(2,), keepdims=True) + logsumexp(a, axis=(0, 1, 2), keepdims=True)"),
        ("clip(a, low=-1, high=2.5)", "minimum(maximum(a, -1), 2.5)"),
        ("a\n    * b", "a * b"),
        ("a % b // 2", "(a % b) // 2"),
        ("cumsum(a, axis=-1) * isnan(a)", "cumsum(a, axis=2) * isnan(a)"),
        ("(a < b) & ~(b > 2) | (a == 0)", "((a < b) & (~(b > 2))) | (a == 0)"),
        ("a * (2 + 3) ** 2 * 1e-3", "(a * 25.0) * 0.001"),
    ],
)  # fmt: skip
def test_it_means_what_it_says(text, printed):
    assert parse_and_build(text).pp() == printed


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_functions_can_be_called(name):
    x = Variable((2, 3, 4), name="x")
    trees = FormulaText(f"{name}(x) + {name}(2) * linear")(x, 1.0), ACTIVATIONS[name](x)
    ours, theirs = evaluate(list(trees), {x: np.full(x.shape, 2.0, np.float32)})
    np.testing.assert_allclose(ours, 2 * theirs, rtol=1e-6)


def test_every_function_can_be_called():
    assert set(fn.__all__) - set(FUNCTIONS) == {"broadcast_to", "concatenate", "full", "reshape"}
    x = np.random.RandomState(0).uniform(0.1, 0.9, (2, 3, 4))
    a = Variable(x.shape, x.dtype, "a")
    for name in ("tanh", "sum", "var", "softmax", "safelog", "argmax", "erf"):
        (ours,), (theirs,) = (
            evaluate([tree], {a: x})
            for tree in (FormulaText(f"{name}(a)")(a), getattr(fn, name)(a))
        )
        np.testing.assert_array_equal(ours, theirs)


FOREIGN = "expected letters, digits, _ . , + - * / % @ & | ~ < > = ! ( and ) only."
KINDS = "expected numbers, names, arithmetic, comparisons and calls only."
OPTION = "expected a number, True, False, None or a tuple of integers."
REFUSED = [
    ("", "'' is not a formula: invalid syntax."),
    ("x +", "'x +' is not a formula: invalid syntax."),
    ("x = 3", "'x = 3' is not a formula: invalid syntax."),
    ("x[0]", f"'x[0]' contains '[', at character 2: {FOREIGN} Use the layer Slice, before an "
     "input of the formula, or an index in a subclass of ExpressionLayer; for constants a "
     "parameter, frozen by a ParameterGroup."),
    ("x ^ 2", f"'x ^ 2' contains '^', at character 3: {FOREIGN} Powers are written with **."),
    ("x # all", f"'x # all' contains '#', at character 3: {FOREIGN}"),
    ("x\0", rf"'x\x00' contains '\x00', at character 2: {FOREIGN}"),
    ("é", f"'é' contains 'é', at character 1: {FOREIGN}"),
    ("exp('x')", f"\"exp('x')\" contains \"'\", at character 5: {FOREIGN}"),
    ("().__class__", f"'().__class__': {KINDS}"),
    ("1 + x.__class__", f"'x.__class__', at character 5 of '1 + x.__class__': {KINDS}"),
    ("x if y else z", f"'x if y else z': {KINDS}"),
    ("x and y", f"'x and y': {KINDS}"),
    ("(x, y)", f"'(x, y)': {KINDS}"),
    ("sum(x, (0, 1))", f"8 of 'sum(x, (0, 1))': {KINDS} Name the option: axis=(0, 1)."),
    ("sum(*x)", f"'*x', at character 5 of 'sum(*x)': {KINDS}"),
    ("not x", "'not x': expected +, - or ~ as sign."),
    ("x << 2", "'x << 2': expected one of + - * / // % ** @ & | < <= > >= == !=."),
    ("x in y", "'x in y': expected one of + - * / // % ** @ & | < <= > >= == !=."),
    ("0 < x < 1", "'0 < x < 1': expected one comparison. Join two: (0 < x) & (x < 1)."),
    ("2 * tanh", "'tanh', at character 5 of '2 * tanh': is a function. Call it: tanh(...), or"),
    ("tahn(x)", "'tahn(x)': unknown function 'tahn'. Choices are: abs,"),
    ("tahn(x)", "Did you mean 'tan' or 'tanh'?"),
    ("__import__(os)", "'__import__(os)': unknown function '__import__'."),
    ("x.tanh(y)", "'x.tanh(y)': unknown function 'x.tanh'."),
    ("full(x, 1)", "'full(x, 1)': unknown function 'full'."),
    ("tanh(x, y)", "'tanh(x, y)': expected tanh(x): too many positional arguments."),
    ("gelu(x, 1)", "'gelu(x, 1)': expected gelu(x): too many positional arguments."),
    ("onehot(x, 3)", "': expected onehot(indices, axis, size): missing a required argument: 'siz"),
    ("softmax(x, dim=-1)", "': expected softmax(x, axis=-1): got an unexpected keyword argument"),
    ("x.detach()", "'x.detach()': unknown function 'x.detach'. Choices are"),
    ("detach(x)", "unknown function 'detach'. Use the layer DeltasScaling(0), before an"),
    ("reshape(x)", "'reshape(x)': unknown function 'reshape'. Use the layer Reshape, bef"),
    ("max(x, 0)", "'max(x, 0)': expected a feature axis, got '0'. Did you mean maximum(x, y)?"),
    ("1 - min(x, y)", "min(x, y)': expected a feature axis, got 'y'. Did you mean minimum(x, y)?"),
    ("sum(x, axes=1)", "'sum(x, axes=1)': expected sum(x, axis=None, keepdims=True): got an "
     "unexpected keyword argument 'axes'."),
    ("sum(x, **3)", ", keepdims=True): got an unexpected keyword argument 'None'."),
    ("sum(x, axis=1, axis=2)", "'sum(x, axis=1, axis=2)': expected each option once."),
    ("sum(x, axis=y)", f"'y', at character 13 of 'sum(x, axis=y)': {OPTION}"),
    ("clip(x, low=0, high=2 * y)",
     f"'2 * y', at character 21 of 'clip(x, low=0, high=2 * y)': {OPTION}"),
    ("sum(x, axis=1j)", f"'1j', at character 13 of 'sum(x, axis=1j)': {OPTION}"),
    ("sum(x, axis=(1, 1.5))", f"'(1, 1.5)', at character 13 of 'sum(x, axis=(1, 1.5))': {OPTION}"),
    ("1e999 * x", "'1e999', at character 1 of '1e999 * x': expected a finite number."),
    ("True * x", "'True', at character 1 of 'True * x': expected a finite number."),
    ("9" * 400, f"'{'9' * 80}...': expected a finite number."),
    (f"{'-' * 500}x", f"'{'-' * 80}...': expected at most {MOST_LEVELS} levels of nesting."),
    ("(" * 900 + ")" * 900, f"'{'(' * 80}...' is not a formula: "),
    ("x" * 2001, f"'{'x' * 80}...' has 2001 characters, expected at most {MOST_CHARACTERS}. Write"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=lambda value: value[:30])
def test_anything_else_is_refused(text, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        FormulaText(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("transpose(x, axes=3)", "'transpose' of x of shape (2, 3, 4): expected axes from"),
        ("sum(x, y)", "'sum' of x of shape (2, 3, 4): expected axis to be integers"),
        ("gather(1, 2)", "'gather': expected an op-tree or variable, got a number."),
    ],
)
def test_what_cannot_be_built_is_refused(text, message):
    with pytest.raises(ValidationError, match=re.escape(f"op-tree {message}")):
        parse_and_build(text)


def test_towers_of_powers_take_no_time():
    assert parse_and_build("9 ** 9 ** 9 ** 9 ** 9") == np.inf


TOKENS = st.sampled_from(
    [
        *("x", "y", "1", "-1", "2.5", "1e308", "(", ")", ",", "+", "-", "*", "/", "**", "@", "<"),
        *("<=", "==", "!=", "not ", " if ", " else ", " in ", " is ", ".", "=", "axis=", "size="),
        *("__class__", "lambda", "None", "True", "keepdims=", "axes=", "0x", "1j", "9999999999"),
        *(f"{name}(" for name in FUNCTIONS),
    ]
)


OPTIONS = st.sampled_from(
    [
        *("axis=-1", "axis=2", "axis=9", "axis=(0, 1)", "axis=0.5", "axis=None", "keepdims=False"),
        *("axes=(0, 1, 2)", "axes=None", "size=3", "size=-1", "size=1e300", "low=0"),
    ]
)
CALLS = st.recursive(
    st.sampled_from(["x", "y", "1", "-2", "0.5", "True"]),
    lambda inner: st.builds(
        lambda name, arguments, options: f"{name}({', '.join([*arguments, *options])})",
        st.sampled_from(sorted(FUNCTIONS)),
        st.lists(inner, max_size=3),
        st.lists(OPTIONS, max_size=2),
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(CALLS | st.lists(TOKENS, max_size=12).map("".join))
def test_any_text_is_a_layer_or_refused(text):
    try:
        names = FormulaText(text).names
    except ValidationError:
        names = ()
    in_shapes = {{"x": "default"}.get(name, name): ("T", "B", 1) for name in names}
    with contextlib.suppress(LayerValidationError):
        layer = build_layer(bl.Expression(text), in_shapes)
        assert set(layer.out_shapes) == {"default"}
