"""The properties that every stepper must have, and `check_stepper`, which tests them.

    check_stepper(SgdStepper(0.1))

Each property is a function of a `_Harness`, on which small networks are trained with copies of it.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from brainstorm.constraints import Constraint
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import ValidationError, shown
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.traces import replays_are_enabled
from brainstorm.initializers import Gaussian
from brainstorm.layers import FullyConnected
from brainstorm.network import Network
from brainstorm.testing.gradients import PropertyError
from brainstorm.testing.properties import Properties
from brainstorm.testing.traced import difference, find_reads, tell_could_be_traced
from brainstorm.tools import get_in_out_layers
from brainstorm.training import TrainingStepper

#: Number of steps of a training, and the step after which it is interrupted.
STEPS, INTERRUPTED = 12, 5

#: T, B and the number of features of the data.
SIZES = (2, 4, 3)

#: The state after each step: name to values.
Course = list[dict[str, np.ndarray]]

#: Name of each property to the function that checks it.
STEPPER_PROPERTIES = Properties()


def check_stepper(stepper: TrainingStepper, handler: Handler | None = None, seed: int = 0) -> None:
    """Test a stepper: train small networks with copies of it, and check all properties.

    Every step has other data, and another value of each hyperparameter. The networks have two
    layers, ``'Hidden'`` and ``'Output_projection'``, to which groups may refer.

    Args:
        stepper: The stepper, configured as it will be used; it is not changed.
        handler: The handler to use; `None`: a float64 `NumpyHandler`.
        seed: Seed of the random numbers.

    Raises:
        PropertyError: The message names property, stepper, step, array, element and both numbers.
        ValidationError: It is not a stepper, or replays are turned off.
    """
    if not isinstance(stepper, TrainingStepper):
        raise ValidationError(
            f"check_stepper: expected a stepper such as SgdStepper(0.1), got {shown(stepper)}."
        )
    handler = NumpyHandler(np.float64) if handler is None else handler
    if not (handler.replays and replays_are_enabled()):
        raise ValidationError(
            "check_stepper: expected replays, to compare them with direct execution, got "
            "BRAINSTORM_REPLAY=0 in the environment or a handler without (a DebugHandler)."
        )
    for check in STEPPER_PROPERTIES.values():
        check(_Harness(stepper, handler, seed))


class _Harness:
    """Data, hyperparameters and networks to train, and copies of a stepper.

    Attributes:
        name: The name of the stepper's class.
        steps: The data of each step, and the hyperparameters to set before it.
    """

    checking = ""  # the name of the property that is being checked

    def __init__(self, stepper: TrainingStepper, handler: Handler, seed: int) -> None:
        self.stepper, self.handler, self.seed = stepper, handler, seed
        self.name = type(stepper).__name__
        self.first_number = handler.stream.get_state()
        rnd = np.random.RandomState(seed)
        self.steps = [
            (
                {name: rnd.normal(size=SIZES) for name in ("default", "targets")},
                {
                    name: _another(getattr(stepper, name), allowed, rnd)
                    for name, allowed in stepper.hyperparameters.items()
                },
            )
            for _ in range(STEPS)
        ]

    def copy(self) -> Any:
        """Return a copy of the stepper that was never started."""
        return create_from_description(get_description(self.stepper))

    def network(self) -> Network:
        """Return a network, the same each time."""
        inp, projection = get_in_out_layers("regression", SIZES[-1], SIZES[-1])
        _ = inp >> FullyConnected(4, "tanh", name="Hidden") >> projection
        net = Network.from_layer(projection, seed=self.seed, handler=self.handler)
        net.initialize(Gaussian(0.5), seed=self.seed)
        return net

    def start(self, stepper: Any) -> Network:
        """Return a network on which a stepper was started; random numbers begin anew."""
        self.handler.stream.set_state(self.first_number)
        net = self.network()
        stepper.start(net)
        return net

    def train(self, stepper: Any, first: int = 0, last: int = STEPS) -> Course:
        """Do some steps with a started stepper; return the state after each."""
        net, course = stepper.net, []
        for data, values in self.steps[first:last]:
            for name, value in values.items():
                setattr(stepper, name, value)
            net.provide_external_data(data)
            stepper.run()
            arrays = {name: self.handler.get_numpy_copy(a) for name, a in stepper.state.items()}
            arrays["loss"] = net.get(f"{net.loss_layers[0]}.outputs.loss")
            course.append({"parameters": net.get("parameters"), **arrays})
        return course

    def find_difference(self, got: Course, expected: Course, first: int = 0) -> str:
        """Return step, array, element and both values at the first difference; '' if none."""
        for number, (found, right) in enumerate(zip(got, expected, strict=True), first + 1):
            for name, values in right.items():
                if text := difference(found[name], values):
                    return f"step {number}, {name}{text}"
        return ""

    def fail(self, text: str) -> None:
        """Raise the error that the property does not hold."""
        raise PropertyError(f"property {self.checking!r}: stepper {self.name}: {text}")


def _another(value: float, allowed: Constraint, rnd: np.random.RandomState) -> float:
    """Return another number that is allowed, close to a value."""
    distance = abs(value) / 2 or 0.05
    while (other := rnd.uniform(value - distance, value + distance)) not in allowed:
        pass
    return other


# -- the properties ------------------------------------------------------------------------------


@STEPPER_PROPERTIES
def equal_trainings_are_equal(harness: _Harness) -> None:
    """Random numbers are those of the handler, whose state is saved with a run."""
    first, second = _direct_course(harness), _direct_course(harness)
    if text := harness.find_difference(second, first):
        harness.fail(f"{text}, in a second training. Draw by fill_gaussian, without a stream.")


@STEPPER_PROPERTIES
def replay_equals_direct_execution(harness: _Harness) -> None:
    """Also with other data and hyperparameters; and `is_traceable` is said where it is true."""
    stepper, name = harness.stepper, harness.name
    direct = _direct_course(harness)
    what = _not_traced(harness, direct)
    if stepper.is_traceable:
        if what:
            harness.fail(
                f"{what}. Take `is_traceable = True` out of class {name}, whose update is then "
                f"called in every step."
            )
        return
    as_it_is = harness.copy()
    harness.start(as_it_is)
    if text := harness.find_difference(harness.train(as_it_is), direct):
        harness.fail(f"{text}, although the class does not say that it is traceable")
    if not what:
        tell_could_be_traced(f"stepper {name}: its steps seem", name)


def _direct_course(harness: _Harness) -> Course:
    stepper, handler = harness.copy(), harness.handler
    handler.replays = False
    try:
        harness.start(stepper)
        return harness.train(stepper)
    finally:
        handler.replays = True


def _not_traced(harness: _Harness, direct: Course) -> str:
    """Return the difference between traces and steps; '' if nothing was found."""
    stepper = harness.copy()
    vars(stepper)["is_traceable"] = True
    harness.start(stepper)
    before = dict(vars(stepper))
    course = harness.train(stepper)
    for name, value in vars(stepper).items():
        if stepper.decides_operations(name) and before.get(name, before) is not value:
            return f"its steps change the attribute {name!r}, which a replay does not"
    if not stepper.traces:
        return "its steps are not made by traces"
    if reads := [name for trace in stepper.traces.values() for name in find_reads(trace)]:
        return f"its steps call {reads[0]}, whose result a replay does not see"
    if text := harness.find_difference(course, direct):
        return f"{text}, with replays"
    return ""


@STEPPER_PROPERTIES
def parameters_stay_finite(harness: _Harness) -> None:
    """The other properties take NaN for equal to NaN."""
    for number, arrays in enumerate(_direct_course(harness), 1):
        if not np.isfinite(arrays["parameters"]).all():
            harness.fail(f"after step {number}, parameters are NaN or infinite")


@STEPPER_PROPERTIES
def steps_change_parameters(harness: _Harness) -> None:
    """Unless the stepper does not learn."""
    first, *_, last = _direct_course(harness)
    if harness.stepper.learns and np.array_equal(first["parameters"], last["parameters"]):
        harness.fail(
            "the parameters stay as they are. A step of its own calls do_passes, which computes "
            "the gradients, and finish_update, which calls update."
        )


@STEPPER_PROPERTIES
def only_operations_of_the_handler_touch_arrays(harness: _Harness) -> None:
    """Arrays on other devices have no arithmetic; a `DebugHandler` raises the error."""
    checked = _Harness(harness.stepper, DebugHandler(harness.handler), harness.seed)
    stepper = checked.copy()
    checked.start(stepper)
    checked.train(stepper, 0, 2)


@STEPPER_PROPERTIES
def a_state_continues_exactly(harness: _Harness) -> None:
    """What `get_state` returns, with the parameters, leads to what comes without interruption.

    So does a copy of the stepper, with that of its network.
    """
    whole, stepper, other = harness.copy(), harness.copy(), harness.copy()
    harness.start(whole)
    expected = harness.train(whole)
    before = harness.start(stepper)
    harness.train(stepper, 0, INTERRUPTED)
    other.set_state(stepper.get_state())
    next_number = harness.handler.stream.get_state()
    net = harness.network()
    harness.handler.set_from_numpy(net.buffer.parameters, before.get("parameters"))
    other.start(net)
    for how, continued in (("after set_state", other), ("of a copy", copy.deepcopy(stepper))):
        continued.handler.stream.set_state(next_number)
        rest = harness.train(continued, INTERRUPTED)
        if text := harness.find_difference(rest, expected[INTERRUPTED:], INTERRUPTED):
            harness.fail(
                f"{text}, {how}. What steps leave for later ones belongs into state_names."
            )


@STEPPER_PROPERTIES
def a_second_start_begins_anew(harness: _Harness) -> None:
    """Nothing of what was learned from one network is left when another one is taken over."""
    once, twice = harness.copy(), harness.copy()
    harness.start(once)
    expected = harness.train(once)
    harness.start(twice)
    harness.train(twice, 0, INTERRUPTED)
    harness.start(twice)
    if text := harness.find_difference(harness.train(twice), expected):
        harness.fail(f"{text}, after a second start")
