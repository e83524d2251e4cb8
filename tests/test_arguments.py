"""Every argument of every public constructor: what makes no sense is refused in our words."""

from __future__ import annotations

import copy
import inspect
import math
import re
import tempfile
from fractions import Fraction
from pathlib import Path

import h5py
import numpy as np
import pytest

import brainstorm as bs
from brainstorm import (
    data_iterators,
    hooks,
    initializers,
    scorers,
    testing,
    training,
    value_modifiers,
)
from brainstorm.constraints import number
from brainstorm.data_iterators import Minibatches
from brainstorm.describable import Describable
from brainstorm.errors import (
    BrainstormError,
    IteratorValidationError,
    TrainingError,
    ValidationError,
)
from brainstorm.handlers import DebugHandler, NumpyHandler

X = np.zeros((1, 4, 6, 6, 1))
IMAGES, CLASSES = Minibatches(2, default=X), Minibatches(2, default=np.zeros((1, 4, 1), int))
WAY = {"initial_value": 1, "final_value": 0, "num_changes": 3}
RUN = type("Run", (), {"info": {}})()
ADAM = training.AdamStepper()

#: What a constructor needs, for those that need something.
NEEDED = {
    **{name: {"log_name": "loss"} for name in ("EarlyStopper", "SaveBestNetwork")},
    **{name: {"log_names": "loss"} for name in ("BokehVisualizer", "LogPlotter")},
    **{name: {"filename": "a"} for name in ("SaveCheckpoint", "SaveLogs", "SaveNetwork")},
    **{f"MonitorLayer{what}": {"layer_name": "a"}
       for what in ("Deltas", "Gradients", "InOuts", "Parameters")},
    "StopAfterEpoch": {"max_epochs": 3},
    "StopAfterThresholdReached": {"log_name": "loss", "threshold": 0.1},
    "MonitorLoss": {"iter_name": "a"},
    "MonitorScores": {"iter_name": "a", "scorers": []},
    "InfoUpdater": {"run": RUN},
    "ModifyStepperAttribute": {"schedule": training.Linear(**WAY)},
    "WithAverages": {"hook": hooks.MonitorLoss("a")},
    **{name: {"default": X} for name in ("Minibatches", "Online", "Undivided")},
    "BucketedMinibatches": {"default": [np.zeros((3, 2))]},
    "DataIterator": {"data_shapes": {}, "length": 1},
    "DatasetMinibatches": {"dataset": [(np.zeros(3), np.zeros(1))]},
    "IterableBatches": {"batches": [{"default": X}]},
    "SequenceChunks": {"chunk_length": 2, "default": X},
    "Wrapper": {"iter": IMAGES, "settings": {}},
    "AddGaussianNoise": {"iter": IMAGES, "std_dict": {"default": 1.0}},
    "AddSaltNPepper": {"iter": IMAGES, "prob_dict": {"default": 0.1}},
    **{name: {"iter": IMAGES, "size_dict": {"default": 1}} for name in ("Cutout", "Pad")},
    **{name: {"iter": IMAGES, "prob_dict": {"default": 0.1}} for name in ("Flip", "Rotate90")},
    "MixUp": {"iter": IMAGES, "names": ["default"]},
    "Prefetch": {"iter": IMAGES},
    **{f"{n}Hot": {"iter": CLASSES, "vocab_size_dict": {"default": 3}} for n in ("Multi", "One")},
    "Normalize": {"iter": IMAGES, "statistics": {"default": (0.0, 1.0)}},
    "RandomCrop": {"iter": IMAGES, "shape_dict": {"default": (2, 2)}},
    **dict.fromkeys(("Cosine", "CosineRestarts", "Linear"), WAY),
    "DecreaseAfterEpoch": {"initial_value": 1, "T": 3},
    "Exponential": {"initial_value": 1, "factor": 0.5},
    "MultiStep": {"initial_value": 1, "steps": [2], "values": [0.1]},
    "OneCycle": {"largest_value": 1, "num_changes": 4},
    "ReduceOnPlateau": {"log_name": "loss", "initial_value": 0.1},
    "Warmup": {"num_changes": 3, "then": 0.1},
    "GradientAccumulation": {"batches": 2},
    "ParameterGroup": {"paths": "a"},
    "Trainer": {"stepper": training.SgdStepper()},
    "ConstrainL2Norm": {"limit": 1.0},
    **{name: {"factor": 0.1} for name in ("L1Decay", "L2Decay")},
    "MaskValues": {"mask": [1.0]},
    "ArrayInitializer": {"array": [1.0]},
    **{name: {"sub_initializer": 1.0} for name in ("SparseInputs", "SparseOutputs")},
}  # fmt: skip
ROOMS = (hooks, scorers, data_iterators, training, value_modifiers, initializers)
FOUND = {name: getattr(room, name) for room in ROOMS for name in room.__all__}
CASES = [
    (cls, name)
    for cls in FOUND.values()
    if inspect.isclass(cls) and issubclass(cls, Describable)
    for name, p in inspect.signature(cls).parameters.items()
    if p.kind is not p.VAR_KEYWORD
]
SENSELESS = [None, "no", -1, 5, 2.5, math.nan, [], object(), 10**400, np.zeros((2, 2))]


@pytest.fixture(scope="module")
def needed(tmp_path_factory):
    filename = tmp_path_factory.mktemp("data") / "data.hdf5"
    with h5py.File(filename, "w") as file:
        file["x"] = X
    return {**NEEDED, "Hdf5Minibatches": {"filename": filename, "default": "x"}}


def refusals(action):
    """Return the positions of the senseless values that an action refuses in our words."""
    found = set()
    for position, value in enumerate(SENSELESS):
        try:
            action(value)
        except (BrainstormError, FileNotFoundError):
            found.add(position)
    return found


#: Arguments that constructors compare with others or with files, or turn into something else.
COMPARED = {
    "array", "dataset", "filename", "high", "hook", "iter", "log_name", "low", "names", "over_s",
    "per_sequence", "run", "scale", "schedule", "scorers", "settings", "statistics", "steps",
    "stepper", "sub_initializer", "values",
    *("input_block", "input_gate", "forget_gate", "output_gate"),
}  # fmt: skip


@pytest.mark.parametrize(("cls", "name"), CASES, ids=lambda v: getattr(v, "__name__", v))
def test_an_argument_is_refused_in_our_words_or_taken_and_an_attribute_as_well(cls, name, needed):
    arguments = needed.get(cls.__name__, {})
    made, kind = cls(**arguments), inspect.signature(cls).parameters[name].annotation
    refused = refusals(lambda value: repr(cls(**{**arguments, name: value})))
    for value in (value for i, value in enumerate(SENSELESS) if i not in refused):
        assert kind != "bool" or value in (0, 1)
        assert kind != "str" or isinstance(value, str)
        assert kind != "float" or math.isfinite(value)
    if name in vars(made) and name not in COMPARED and not name.endswith("_dict"):
        assert refusals(lambda value: setattr(made, name, value)) >= refused


#: Functions that are given a class instead of an object.
GIVEN_A_CLASS = {
    "DebugHandler": lambda net: DebugHandler(NumpyHandler),
    "check_handler": lambda net: testing.check_handler(NumpyHandler),
    "check_stepper": lambda net: testing.check_stepper(training.SgdStepper),
    "check_modifier": lambda net: testing.check_modifier(value_modifiers.L2Decay),
    "gradient modifiers": lambda net: net.set_gradient_modifiers(value_modifiers.ClipValues),
    "run_network": lambda net: next(bs.tools.run_network(bs.Network, ())),
    "evaluate": lambda net: bs.tools.evaluate(net, Minibatches),
    "train": lambda net: bs.Trainer(training.SgdStepper()).train(net, Minibatches),
    "stepper of search": lambda net: training.find_learning_rate(net, training.SgdStepper, IMAGES),
    "data of search": lambda net: training.find_learning_rate(net, ADAM, Minibatches),
    "Flip": lambda net: data_iterators.Flip(Minibatches, {}),
    "channel_statistics": lambda net: data_iterators.channel_statistics(Minibatches, "default"),
    "Warmup": lambda net: training.Warmup(3, training.Linear),
    "ModifyStepperAttribute": lambda net: hooks.ModifyStepperAttribute(training.OneCycle),
    "WithAverages": lambda net: hooks.WithAverages(hooks.MonitorLoss),
}  # fmt: skip


@pytest.mark.parametrize("give", GIVEN_A_CLASS.values(), ids=GIVEN_A_CLASS)
def test_a_class_instead_of_an_object_is_named(give):
    net = bs.tools.create_net_from_spec("classification", 3, 2, "")
    with pytest.raises(ValidationError, match=r"the class \w+ instead of an object, \w+\(\.\.\.\)"):
        give(net)


#: Package to its errors, where these are not plain ones.
ERRORS = {
    **dict.fromkeys(("hooks", "training"), TrainingError),
    "data_iterators": IteratorValidationError,
}


@pytest.mark.parametrize(
    ("cls", "name", "value", "expected"),
    [
        (hooks.EarlyStopper, "log_name", 5, "a string"),
        (hooks.EarlyStopper, "restore_best", np.array([True]), "True or False"),
        (hooks.SaveNetwork, "filename", 5, "a string or a path or None"),
        (hooks.StopOnNan, "logs_to_check", 5, "a string or a list of strings"),
        (training.MultiStep, "steps", 5, "a list of increasing integers >= 1"),
        (bs.Trainer, "verbose", "no", "True or False"),
        (Minibatches, "per_sequence", 5, "a string or a list of strings"),
        (data_iterators.Pad, "value_dict", 5, "a dictionary or None"),
        (scorers.FScore, "beta", -1, "a finite number >= 0"),
        (scorers.Precision, "of_class", 1.5, "an integer >= 0 or None"),
        (scorers.AreaUnderCurve, "name", 5, "a string or None"),
        (initializers.Gaussian, "mean", math.nan, "a finite number"),
    ],
)
def test_what_is_of_another_kind_is_refused(cls, name, value, expected):
    kind = ERRORS.get(cls.__module__.split(".")[1], ValidationError)
    place = (
        f"hook '{cls.__name__}' ({cls.__name__}), "
        if issubclass(cls, hooks.Hook)
        else f"{cls.__name__}."
    )
    text = re.escape(f"{place}{name}: expected {expected}, got {value!r}.")
    with pytest.raises(kind, match=f"^{text}$"):
        cls(**{**NEEDED.get(cls.__name__, {}), name: value})


@pytest.mark.parametrize(
    ("made", "name", "value", "kept"),
    [
        (training.Linear(**WAY), "num_changes", np.int8(5), 5),
        (training.SgdStepper(0.1), "learning_rate", np.float16(0.5), 0.5),
        (training.SgdStepper(0.1), "learning_rate", Fraction(1, 4), 0.25),
        (training.LossScaling(), "initial", np.float16(3), 4.0),
        (training.MultiStep(1, [1], [1]), "steps", range(1, 3), [1, 2]),
        (training.MultiStep(1, [1], [1]), "values", np.float32([2, 3]), [2.0, 3.0]),
        (training.ParameterGroup("a"), "paths", {"b"}, ["b"]),
        (hooks.StopAfterEpoch(3), "interval", 2.0, 2),
        (hooks.StopAfterEpoch(3), "verbose", np.True_, True),
        (hooks.SaveCheckpoint("a"), "keep", 2.0, 2),
        (hooks.SaveCheckpoint("a"), "filename", Path("b"), "b"),
        (hooks.StopOnNan(), "logs_to_check", "loss", ["loss"]),
        (hooks.StopOnNan(), "logs_to_check", {"loss"}, ["loss"]),
        (hooks.StopOnNan(), "logs_to_check", {"loss": 1}.keys(), ["loss"]),
        (hooks.LogPlotter("a"), "log_names", "loss", ["loss"]),
        (IMAGES, "shuffle", 1, True),
    ],
)
def test_what_is_set_is_kept_as_it_is_described(made, name, value, kept):
    made = copy.copy(made)
    setattr(made, name, value)
    assert repr(getattr(made, name)) == repr(kept)  # of the same type


def test_a_list_that_is_given_is_copied():
    names = ["loss"]
    hook = hooks.StopOnNan(names)
    names.append(3)
    assert hook.logs_to_check == ["loss"]


def test_small_integers_of_numpy_do_not_overflow():
    assert Minibatches(np.uint8(200), default=np.zeros((1, 600, 1))).length == 3
    chunks = data_iterators.SequenceChunks(np.int8(100), default=np.zeros((300, 1, 1)))
    assert chunks.length == 3


def test_options_that_are_handed_on_are_checked_and_own_annotations_are_not():
    class Mine(hooks.Hook):
        def __init__(self, count: bool = 5, **options):
            super().__init__(**options)

    Mine(count="many")
    with pytest.raises(
        TrainingError, match=r"hook 'Mine' \(Mine\), verbose: expected True or False or None, got 3"
    ):
        Mine(verbose=3)
    with pytest.raises(ValidationError, match=r"Precision.out_name: expected a string, got 3"):
        scorers.Precision(out_name=3)


@pytest.mark.parametrize("name", [*NEEDED, "Hdf5Minibatches"])
def test_an_error_about_missing_arguments_names_the_class(name):
    text = rf"^{FOUND[name].__name__}(.__init__\(\) miss|:)"
    with pytest.raises((TypeError, BrainstormError), match=text):
        FOUND[name]()


def test_what_python_says_about_a_wrong_call_stays():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'log_name'"):
        hooks.EarlyStopper()
    with pytest.raises(TypeError, match="unexpected keyword argument 'patients'"):
        hooks.EarlyStopper("loss", patients=3)


def network():
    inp, out = bs.tools.get_in_out_layers("classification", (3,), 2)
    inp >> out
    return bs.Network.from_layer(inp, handler=NumpyHandler())


def huge():
    inp, out = bs.tools.get_in_out_layers("classification", (100_000,), 2)
    inp >> bs.layers.FullyConnected(10**9) >> out
    return bs.Network.from_layer(inp, handler=NumpyHandler())


def endless():
    found = {}
    found["again"] = found
    return found


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (huge, "\nUse smaller layers: 745080.4 GiB do not depend on T and B."),
        (lambda: network().predict({}), "expected data for default, targets, got none."),
        *((lambda wrong=wrong: network().forward_pass(context=wrong),
           "forward_pass, context: expected what get_context of this network returned, or None, "
           f"got a {type(wrong).__name__}.") for wrong in (3.0, [1, 2])),
        (lambda: network().forward_pass({"default": X}),
         "forward_pass, training_pass: expected True or False, got {'default': array("),
        (lambda: network().backward_pass({"Out": X}),
         "backward_pass, accumulate: expected True or False, got {'Out': array("),
        (lambda: data_iterators.save_data(f"{tempfile.gettempdir()}/endless.hdf5", endless()),
         "save_data: expected at most 100 dictionaries in each other, got more. Does one contain "
         "itself?"),
        (lambda: training.SgdStepper(1e39),
         "SgdStepper.learning_rate: expected a number in [0, 3.40282e+38], got 1e+39."),
        (lambda: network().initialize({"In*": 1, "default": 0}),
         "reference 'In*': expected a layer with parameters of its own, got Input."),
        (lambda: training.LearningRateSearch([], [], []),
         "LearningRateSearch: expected lists of equal length, not empty."),
        (lambda: training.Logs().append(3, 1), "log 3: expected a name that is not empty, got 3."),
        (lambda: training.find_learning_rate(3, training.SgdStepper(), IMAGES),
         "find_learning_rate: expected a network, got 3."),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(call, text):
    with pytest.raises(BrainstormError, match=re.escape(text)):
        call()


STATEFUL = (
    *("EarlyStopper", "SaveBestNetwork", "SaveCheckpoint", "AverageWeights", "ReturnToCheckpoint"),
    *("Minibatches", "Undivided", "Normalize", "SequenceChunks"),
    *("Trainer", "AdamStepper", "GradientAccumulation", "LossScaling"),
)


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("state", [{}, [], None, 5, "x", {"type": "Minibatches", "epoch": 5}])
def test_a_state_of_something_else_is_refused(name, state):
    stateful = FOUND[name](**NEEDED.get(name, {}))
    with pytest.raises(BrainstormError, match=name):
        stateful.set_state(state)


@pytest.mark.parametrize(
    ("limits", "text", "within", "outside"),
    [
        ({}, "a finite number", [-1e300, 0], [math.inf, math.nan, True, "1"]),
        ({"low": 0}, "a finite number >= 0", [0, 1e300], [-1]),
        ({"low": 0, "low_open": True}, "a finite number > 0", [1e-300], [0]),
        ({"high": 2}, "a finite number <= 2", [2, -1e300], [2.5, -math.inf]),
        ({"high": 2, "high_open": True}, "a finite number < 2", [1.5], [2]),
        ({"low": 0, "high": 1, "high_open": True}, "a number in [0, 1)", [0, 0.5], [1, -0.5]),
    ],
)
def test_intervals_of_numbers(limits, text, within, outside):
    interval = number(**limits)
    assert interval.expected == text
    assert all(value in interval for value in within)
    assert not any(value in interval for value in outside)
