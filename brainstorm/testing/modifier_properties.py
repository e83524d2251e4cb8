"""The properties that every modifier must have, and `check_modifier`, which tests them.

    check_modifier(ClipValues(-1, 1))

Each property is a function of a `_Harness`, which has the arrays that copies of a modifier work on.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import ValidationError, shown
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.handlers.base_handler import Handler
from brainstorm.randomness import RandomState
from brainstorm.testing.gradients import PropertyError
from brainstorm.testing.properties import Properties
from brainstorm.testing.traced import difference, find_reads, tell_could_be_traced
from brainstorm.utils import product
from brainstorm.value_modifiers import GradientModifier, ValueModifier

#: Number of elements of other memory on both sides of the arrays.
MARGIN = 16

#: Number of calls of a modifier, with other numbers each time.
CALLS = 6

#: Name of each property to the function that checks it.
MODIFIER_PROPERTIES = Properties()


def check_modifier(
    modifier: ValueModifier | GradientModifier,
    shape: tuple[int, ...] = (4, 3),
    handler: Handler | None = None,
    seed: int = 0,
) -> None:
    """Test a modifier: let copies of it change some arrays, and check all properties.

    Args:
        modifier: The modifier; it is not changed.
        shape: Shape of a parameter for the modifier.
        handler: The handler to use; `None`: a float64 `NumpyHandler`.
        seed: Seed of the random numbers.

    Raises:
        PropertyError: The message names property, modifier, array, element and both numbers.
        ValidationError: It is not a modifier.
    """
    if not isinstance(modifier, ValueModifier | GradientModifier):
        raise ValidationError(
            f"check_modifier: expected a ValueModifier or a GradientModifier, got "
            f"{shown(modifier)}."
        )
    handler = NumpyHandler(np.float64) if handler is None else handler
    for check in MODIFIER_PROPERTIES.values():
        check(_Harness(modifier, shape, handler, seed))


class _Harness:
    """A parameter and its gradient, each in the middle of other memory, and copies of a modifier.

    Attributes:
        memory: Name to the array and the memory around it.
        arrays: Name to the array alone.
        modified: The name of the array that is modified; the other one is only read.
    """

    checking = ""  # the name of the property that is being checked

    def __init__(self, modifier: Any, shape: tuple[int, ...], handler: Handler, seed: int) -> None:
        self.modifier, self.shape, self.handler, self.seed = modifier, shape, handler, seed
        size = product(shape)
        names = ("parameters", "gradients")
        self.memory = {name: handler.allocate((size + 2 * MARGIN,)) for name in names}
        self.arrays = {
            name: array[MARGIN : MARGIN + size].reshape(shape)
            for name, array in self.memory.items()
        }
        self.modified = names[isinstance(modifier, GradientModifier)]

    def copy(self) -> Any:
        """Return a copy of the modifier, with its random numbers at their start."""
        return self.placed(copy.deepcopy(self.modifier), RandomState(self.seed))

    def placed(self, modifier: Any, rnd: RandomState) -> Any:
        """Return a modifier that is told its place, with random numbers."""
        modifier.layer_name, modifier.view_name = "Layer", "parameter"
        modifier.rnd = rnd
        return modifier

    def load(self, number: int) -> None:
        """Fill the memory with random numbers from a seed."""
        rnd = np.random.RandomState(self.seed + number)
        for array in self.memory.values():
            self.handler.set_from_numpy(array, rnd.normal(size=array.shape))

    def call(self, modifier: Any) -> None:
        """Call a modifier on the arrays."""
        is_pair = isinstance(modifier, GradientModifier)
        arrays = self.arrays.values() if is_pair else [self.arrays["parameters"]]
        if (result := modifier(self.handler, *arrays)) is not None:
            self.fail(f"expected it to change the array in place, got {shown(result)} from a call.")

    @property
    def result(self) -> np.ndarray:
        """A copy of the modified array."""
        return np.asarray(self.handler.get_numpy_copy(self.arrays[self.modified]))

    def read_memory(self) -> dict[str, np.ndarray]:
        """Return copies of the arrays and the memory around them."""
        return {name: self.handler.get_numpy_copy(a) for name, a in self.memory.items()}

    def fail(self, text: str) -> None:
        """Raise the error that the property does not hold."""
        name = type(self.modifier).__name__
        raise PropertyError(f"property {self.checking!r}: modifier {name}: {text}")


# -- the properties ------------------------------------------------------------------------------


@MODIFIER_PROPERTIES
def replay_equals_direct_execution(harness: _Harness) -> None:
    """Also for other numbers; and `is_traceable` is said where it is true."""
    (what, is_traceable), name = _not_traced(harness), type(harness.modifier).__name__
    if is_traceable and what:
        harness.fail(
            f"{what}. Take `is_traceable = True` out of class {name}, which is then called in "
            f"every step."
        )
    if not is_traceable and not what:
        tell_could_be_traced(f"modifier {name}: it seems", name)


def _not_traced(harness: _Harness) -> tuple[str, bool]:
    """Return the difference between a trace and a call ('' if none), and `is_traceable`.

    The first call is not traced: its preparations are kept.
    """
    stream, modifier, expected = harness.handler.stream, harness.copy(), []
    state = stream.get_state()
    for number in range(CALLS):
        harness.load(number)
        harness.call(modifier)
        expected.append(harness.result)
    stream.set_state(state)
    modifier = harness.copy()
    harness.load(0)
    harness.call(modifier)
    harness.load(1)
    revision, is_traceable = modifier.revision, modifier.is_traceable
    trace = harness.handler.trace(lambda: harness.call(modifier))
    if reads := find_reads(trace):
        return f"it calls {reads[0]}, whose result a replay does not see", is_traceable
    if modifier.revision != revision:
        return "it changes a public attribute, which a replay does not", is_traceable
    for number in range(2, CALLS):
        harness.load(number)
        trace.replay()
        if text := difference(harness.result, expected[number]):
            return f"call {number + 1}, {harness.modified}{text}, by a replay", is_traceable
    return "", is_traceable


@MODIFIER_PROPERTIES
def only_its_array_is_written(harness: _Harness) -> None:
    """Neither what lies beside it, nor the parameter that a gradient is modified for."""
    harness.load(0)
    before = harness.read_memory()
    harness.call(harness.copy())
    for name, got in harness.read_memory().items():
        stop = got.size - MARGIN
        parts = {
            f"memory in front of {name}": slice(0, MARGIN),
            f"memory behind {name}": slice(stop, None),
        }
        if name != harness.modified:
            parts[f"the flat {name}"] = slice(MARGIN, stop)
        for place, part in parts.items():
            if text := difference(got[part], before[name][part]):
                harness.fail(f"it writes to {place}{text}")


@MODIFIER_PROPERTIES
def shape_and_dtype_stay(harness: _Harness) -> None:
    """The array is changed in place: it is the same array afterwards."""
    array = harness.arrays[harness.modified]

    def looks() -> str:
        return f"shape {tuple(array.shape)} and dtype {np.dtype(array.dtype)}"

    before = looks()
    harness.load(0)
    harness.call(harness.copy())
    if looks() != before:
        harness.fail(f"expected {before}, got {looks()}")


@MODIFIER_PROPERTIES
def a_description_continues_exactly(harness: _Harness) -> None:
    """So does a network from a file, with the states of ``modifier.rnd`` and of the handler."""
    modifier, stream = harness.copy(), harness.handler.stream
    for number in range(CALLS // 2):
        harness.load(number)
        harness.call(modifier)
    other = create_from_description(get_description(modifier))
    harness.placed(other, copy.deepcopy(modifier.rnd))
    for number in range(CALLS // 2, CALLS):
        state, results = stream.get_state(), []
        for each in (modifier, other):
            stream.set_state(state)
            harness.load(number)
            try:
                harness.call(each)
            except Exception as error:
                harness.fail(
                    f"one from its description raises {type(error).__name__}: {error} Arrays come "
                    f"back as lists: use np.asarray, or name the attribute in __undescribed__ if "
                    f"its content does not matter."
                )
            results.append(harness.result)
        if text := difference(*reversed(results)):
            harness.fail(
                f"call {number + 1}, {harness.modified}{text}, by one from its description. What "
                f"a call leaves for the next belongs into attributes that are numbers, and random "
                f"numbers come from fill_gaussian, without a stream, or self.rnd."
            )


@MODIFIER_PROPERTIES
def only_operations_of_the_handler_touch_arrays(harness: _Harness) -> None:
    """Arrays on other devices have no arithmetic; a `DebugHandler` raises the error."""
    handler = DebugHandler(harness.handler)
    checked = _Harness(harness.modifier, harness.shape, handler, harness.seed)
    checked.load(0)
    checked.call(checked.copy())
