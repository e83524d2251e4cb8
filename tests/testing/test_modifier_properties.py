"""The kit must find what is wrong: for every property a modifier that breaks it."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.handlers import DebugHandler, NativeHandler, NumpyHandler
from brainstorm.testing import MODIFIER_PROPERTIES, PropertyError, check_modifier
from brainstorm.value_modifiers import (
    ClipValues,
    ConstrainL2Norm,
    FreezeValues,
    GradientModifier,
    MaskValues,
    ValueModifier,
)
from tests.test_value_modifiers import EXAMPLES
from tests.trainings import refused

BUILT_IN = {**EXAMPLES, "FreezeValues, given": lambda: FreezeValues(np.eye(3))}


@pytest.mark.parametrize("make", BUILT_IN.values(), ids=BUILT_IN)
@pytest.mark.parametrize(
    "handler",
    [None, NativeHandler(np.float32), DebugHandler(NumpyHandler(np.float64))],
    ids=["default", "native", "debug"],
)
def test_a_built_in_modifier_has_every_property(make, handler):
    check_modifier(make(), shape=(3, 3), handler=handler)


def test_parameters_of_one_dimension():
    for modifier in (ConstrainL2Norm(0.5), MaskValues([0, 1])):
        check_modifier(modifier, shape=(2,))


class OwnNoise(ValueModifier):
    """Draws from its random numbers."""

    def __call__(self, handler, view):
        handler.set_from_numpy(view, self.rnd.normal(size=view.shape))


class CommonNoise(ValueModifier):
    """Draws from the stream of the handler."""

    is_traceable = True

    def __call__(self, handler, view):
        handler.fill_gaussian(0.0, 1.0, view)


@pytest.mark.parametrize("modifier_class", [OwnNoise, CommonNoise])
def test_random_numbers_of_modifier_and_handler_are_right(modifier_class):
    check_modifier(modifier_class())


class HalvesLargeValues(ValueModifier):
    is_traceable = True

    def __call__(self, handler, view):
        if np.abs(handler.get_numpy_copy(view)).max() > 1:
            handler.mult_st(0.5, view, view)


class EveryOtherCall(GradientModifier):
    is_traceable = True
    _calls = 0

    def __call__(self, handler, parameters, gradients):
        self._calls += 1
        handler.mult_st(1.0 + self._calls % 2, gradients, gradients)


class LessEachTime(ValueModifier):
    is_traceable = True

    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def __call__(self, handler, view):
        self.factor *= 0.5
        handler.mult_st(self.factor, view, view)


class WritesBeside(ValueModifier):
    is_traceable = True

    def __call__(self, handler, view):
        whole = view.base
        stop = np.argmax(whole == view[-1, -1]) + 1
        handler.fill(whole[stop : stop + 1], 7.0)


class WritesParameters(GradientModifier):
    is_traceable = True

    def __call__(self, handler, parameters, gradients):
        handler.mult_tt(parameters, gradients, parameters)


class Reshapes(ValueModifier):
    def __call__(self, handler, view):
        handler.get_numpy_copy(view)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy 2.5 says how bad that is
            view.shape = view.shape[::-1]


class ForeignNoise(ValueModifier):
    def __call__(self, handler, view):
        handler.set_from_numpy(view, np.random.normal(size=view.shape))


class Average(GradientModifier):
    """Keeps an array of the handler, which is a list in a file."""

    is_traceable = True
    _mean = None

    def __call__(self, handler, parameters, gradients):
        if self._mean is None:
            self._mean = handler.zeros(gradients.shape)
        handler.mult_add_st(0.5, gradients, self._mean)
        handler.copy_to(self._mean, gradients)


class HalvesWithNumpy(ValueModifier):
    def __call__(self, handler, view):
        view *= 0.5


class Returns(ValueModifier):
    is_traceable = True

    def __call__(self, handler, view):
        out = handler.zeros(view.shape)
        handler.mult_st(0.5, view, out)
        return out


REPLAY = "property 'replay equals direct execution'"
DESCRIPTION = "property 'a description continues exactly'"
WRITES = "property 'only its array is written'"
TAKE_OUT = r"Take `is_traceable = True` out of class {name}, which is then called in every step\."
NUMBERS = r": expected \S+, got \S+ \(\d+ of \d+ elements differ\)"
BROKEN = [
    (HalvesLargeValues, REPLAY,
     rf"it calls get_numpy_copy, whose result a replay does not see\. {TAKE_OUT}"),
    (EveryOtherCall, REPLAY, rf"call 3, gradients\[0, 0\]{NUMBERS}, by a replay\. {TAKE_OUT}"),
    (LessEachTime, REPLAY,
     rf"it changes a public attribute, which a replay does not\. {TAKE_OUT}"),
    (WritesBeside, WRITES, rf"it writes to memory behind parameters\[0\]{NUMBERS}"),
    (WritesParameters, WRITES, rf"it writes to the flat parameters\[0\]{NUMBERS}"),
    (Reshapes, "property 'shape and dtype stay'",
     r"expected shape \(4, 3\) and dtype float64, got shape \(3, 4\) and dtype float64"),
    (Returns, REPLAY, r"expected it to change the array in place, got array\(.* from a call\."),
    (ForeignNoise, DESCRIPTION, rf"call 4, parameters\[0, 0\]{NUMBERS}, by one from .*"),
    (Average, DESCRIPTION, r"one from its description raises \w+: .* use np.asarray, or .*"),
]  # fmt: skip


@pytest.mark.parametrize(("modifier_class", "property", "text"), BROKEN)
def test_a_broken_modifier_is_found(modifier_class, property, text):
    name = modifier_class.__name__
    expected = rf"^{property}: modifier {name}: {text.format(name=name)}$"
    with pytest.raises(PropertyError, match=expected):
        check_modifier(modifier_class())


def test_every_property_is_broken_by_some_modifier():
    others = {"only operations of the handler touch arrays"}
    assert {property.split("'")[1] for _, property, _ in BROKEN} == set(
        MODIFIER_PROPERTIES
    ) - others


def test_a_modifier_that_computes_with_arrays_is_found():
    with pytest.raises(TypeError, match="'DebugArray'"):
        check_modifier(HalvesWithNumpy())


@pytest.mark.parametrize("base", [HalvesLargeValues, EveryOtherCall, LessEachTime])
def test_without_the_line_they_are_right(base):
    check_modifier(type(f"Untraced{base.__name__}", (base,), {})())


def test_who_could_be_traced_is_told_so():
    text = (
        "modifier CouldBeTraced: it seems to do nothing but handler operations, the same ones each "
        "time. If so, write `is_traceable = True` into class CouldBeTraced: then a training step "
        "repeats the operations without calling it."
    )
    with pytest.warns(UserWarning, match=re.escape(text)) as found:
        check_modifier(type("CouldBeTraced", (ClipValues,), {})())
    assert [warning.filename for warning in found] == [__file__]


def test_what_is_no_modifier_is_refused():
    text = "check_modifier: expected a ValueModifier or a GradientModifier, got 0.1."
    with refused(text, ValidationError, is_whole=True):
        check_modifier(0.1)
