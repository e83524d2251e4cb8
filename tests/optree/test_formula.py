"""Formulas: programs by shapes and types, through handlers."""

import functools

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.optree.formula import MOST_FORMULAS


@formula
def gated(x, gate):
    """Document it."""
    return fn.tanh(x) * fn.sig(gate)


def test_an_input_that_is_not_used_may_be_given():
    x, unused, out = np.arange(3.0), np.zeros(5), np.zeros(3)
    NumpyHandler(np.float64).compute(formula(lambda x, unused: x + 1.0), [x, unused], [out])
    np.testing.assert_array_equal(out, x + 1.0)


def test_one_program_per_shapes_and_types():
    double, single = np.zeros((2, 3)), np.zeros((2, 3), np.float32)
    program = gated.program(double, double)
    assert gated.program(double.copy(), double) is program
    assert gated.program(single, single) is not program
    assert gated.program(double, double[:1]) is not program
    assert [variable.name for variable in program.inputs] == ["x", "gate"]
    several = formula(lambda *xs: xs[0] + xs[1]).program(double, double)
    assert [variable.name for variable in several.inputs] == ["xs0", "xs1"]


def test_it_keeps_name_and_docstring_which_messages_have():
    texts = gated.__name__, gated.__doc__, repr(gated)
    assert texts == ("gated", "Document it.", "<formula gated>")
    with pytest.raises(ValidationError, match=r"formula 'gated': missing .* 'gate'; got 1 arrays"):
        gated.program(np.zeros(2))
    with pytest.raises(ValidationError, match="formula 'gated': expected arrays, got ndarray, int"):
        gated.program(np.zeros(2), 3)
    x = np.zeros(2)
    with pytest.raises(ValidationError, match=r"gated: expected outputs .* got \['NoneType'\]"):
        NumpyHandler(np.float64).compute(gated, [x, x], [None])
    with pytest.raises(ValidationError, match="formula: expected a function, got 3"):
        Formula(3)


def test_programs_are_called_as_their_formulas():
    def _twice(x):
        return formula(lambda x: x * 2)

    x = np.zeros(3, np.float32)
    names = [
        formula(lambda x: x), Formula(lambda x: x, "copied"), formula(_twice), _twice(x),
        formula(functools.partial(fn.sum, axis=0)),
    ]  # fmt: skip
    own = "test_programs_are_called_as_their_formulas"
    assert [f.__name__ for f in names] == [own, "copied", "twice", "twice", "run_program"]
    assert names[1].program(x).name == "copied"


def test_options_are_keyword_arguments():
    @formula
    def scaled(x, *, factor, shift=0.0):
        return factor * x + shift

    with pytest.raises(ValidationError, match="'scaled': options: .* unexpected .*'facto'"):
        scaled.given(facto=2.0)
    with pytest.raises(ValidationError, match="'scaled': options: unhashable type: 'list'"):
        scaled.given(factor=[2.0])
    double = scaled.given(factor=2.0)
    assert double is scaled.given(factor=2.0) is not scaled.given(factor=3.0)
    h, x, y = NumpyHandler(np.float64), np.arange(3.0), np.zeros(3)
    h.compute(double, [x], [y])
    assert (y.tolist(), repr(double)) == ([0.0, 2.0, 4.0], "<formula scaled>")
    for zero in (0.0, -0.0):
        h.compute(scaled.given(factor=zero, shift=-0.0), [np.ones(3)], [y])
        assert np.signbit(y).all() == np.signbit(zero)
    for i in range(MOST_FORMULAS):
        scaled.given(factor=0.0, shift=float(i))
    assert double is not scaled.given(factor=2.0)
