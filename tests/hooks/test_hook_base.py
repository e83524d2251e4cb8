"""What all hooks have in common."""

from __future__ import annotations

import inspect
import json
from typing import ClassVar

import pytest

from brainstorm import hooks
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import UnknownPathError
from brainstorm.hooks.base import ROLES, find_log
from brainstorm.training import Linear
from tests.trainings import refused

EXAMPLES = {
    "AverageWeights": lambda: hooks.AverageWeights(0.9),
    "EarlyStopper": lambda: hooks.EarlyStopper("valid.loss", 3, "max"),
    "InfoUpdater": lambda: hooks.InfoUpdater(type("Run", (), {"info": {}})()),
    "LivePage": lambda: hooks.LivePage(8080),
    "LogPlotter": lambda: hooks.LogPlotter("valid.loss", "plot.png"),
    "BokehVisualizer": lambda: hooks.BokehVisualizer(["a", "b"]),
    "ModifyStepperAttribute": lambda: hooks.ModifyStepperAttribute(Linear(1.0, 0.0, 4)),
    "MonitorLayerDeltas": lambda: hooks.MonitorLayerDeltas("Hidden"),
    "MonitorLayerGradients": lambda: hooks.MonitorLayerGradients("Hidden"),
    "MonitorLayerInOuts": lambda: hooks.MonitorLayerInOuts("Hidden"),
    "MonitorLayerParameters": lambda: hooks.MonitorLayerParameters("Hidden"),
    "MonitorLoss": lambda: hooks.MonitorLoss("valid"),
    "MonitorScores": lambda: hooks.MonitorScores("valid", []),
    "ProgressBar": lambda: hooks.ProgressBar(),
    "ReturnToCheckpoint": lambda: hooks.ReturnToCheckpoint(0.1, 2, "a"),
    "SaveBestNetwork": lambda: hooks.SaveBestNetwork("valid.loss", criterion="min"),
    "SaveCheckpoint": lambda: hooks.SaveCheckpoint("run.hdf5", keep=2, best="valid.loss"),
    "SaveLogs": lambda: hooks.SaveLogs("logs.hdf5"),
    "SaveNetwork": lambda: hooks.SaveNetwork("net.hdf5"),
    "StopAfterEpoch": lambda: hooks.StopAfterEpoch(5),
    "StopAfterThresholdReached": lambda: hooks.StopAfterThresholdReached("a", 0.5),
    "StopOnNan": lambda: hooks.StopOnNan("a"),
    "StopOnSigQuit": lambda: hooks.StopOnSigQuit(),
    "WithAverages": lambda: hooks.WithAverages(hooks.MonitorLoss("valid", interval=3), "slow"),
}


#: What has no options of when it fires: it always, or another hook, says so.
NOT_COMMON = {"ProgressBar", "InfoUpdater", "WithAverages"}


def test_every_hook_is_here():
    assert set(EXAMPLES) == set(hooks.__all__) - {"Hook"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_description_is_strict_json_and_gives_the_same_hook(name):
    hook = EXAMPLES[name]()
    description = get_description(hook)
    again = create_from_description(json.loads(json.dumps(description, allow_nan=False)))
    assert type(again) is type(hook)
    assert get_description(again) == description
    assert set(vars(again)) == set(vars(hook))
    assert hook.role in ROLES


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - NOT_COMMON))
def test_common_options(name):
    hook = type(EXAMPLES[name]())
    given = {
        k: v for k, v in vars(EXAMPLES[name]()).items() if k in inspect.signature(hook).parameters
    }
    given.update(name="other", timescale="update", interval=3)
    made = hook(**{k: v for k, v in given.items() if k != "verbose" and not k.startswith("_")})
    assert (made.__name__, made.timescale, made.interval) == ("other", "update", 3)


NAN = float("nan")
MIN_MAX = "one of 'min', 'max' or None"


@pytest.mark.parametrize(
    ("name", "option", "expected", "wrong"),
    [
        ("Hook", "timescale", "one of 'epoch', 'update'", ["batch"]),
        ("Hook", "interval", "an integer >= 1", [0, 1.5, float("inf"), None]),
        ("Hook", "name", "a non-empty string without dots", ["a.b", "", 3]),
        ("AverageWeights", "decay", "a number in [0, 1)", [-0.1, 1.0, "x", None]),
        ("EarlyStopper", "patience", "a number in [1, inf]", [0]),
        ("EarlyStopper", "criterion", MIN_MAX, ["up"]),
        ("EarlyStopper", "min_delta", "a finite number >= 0", [-1]),
        ("EarlyStopper", "first_epoch", "an integer >= 1", [0]),
        ("LivePage", "port", "an integer from 0 to 65535", [-1, 65536, "80", 1.5, True, None]),
        ("ReturnToCheckpoint", "factor", "a number in (0, 1]", [0, 1.5]),
        ("ReturnToCheckpoint", "most_returns", "an integer >= 1", [0.5]),
        ("SaveBestNetwork", "criterion", MIN_MAX, ["best"]),
        ("SaveCheckpoint", "minutes", "a finite number >= 0 or None", [-1, NAN]),
        ("SaveCheckpoint", "keep", "an integer >= 1", [0, 1.5]),
        ("SaveCheckpoint", "criterion", MIN_MAX, ["best"]),
        ("StopAfterEpoch", "max_epochs", "a number in [0, inf]", [-1, "5"]),
        ("StopAfterThresholdReached", "threshold", "a number", [NAN]),
        ("StopAfterThresholdReached", "criterion", MIN_MAX, ["x"]),
    ],
)
def test_options_are_checked(name, option, expected, wrong):
    needed = {
        **{key: {"log_name": "a"} for key in ("EarlyStopper", "SaveBestNetwork")},
        "SaveCheckpoint": {"filename": "run.hdf5"},
        "StopAfterThresholdReached": {"log_name": "a", "threshold": 1},
    }
    for value in wrong:
        made = value if option == "name" else name
        with refused(f"hook {made!r} ({name}), {option}: expected {expected}, got {value!r}."):
            getattr(hooks, name)(**{**needed.get(name, {}), option: value})


def test_hooks_can_be_called_by_hand(net):
    with pytest.raises(StopIteration):
        hooks.StopAfterEpoch(2)(2, 10, net, None, {})
    assert hooks.StopAfterEpoch(2)(1, 10, net, None, {}) is None
    with pytest.raises(NotImplementedError):
        hooks.Hook()(0, 0, net, None, {})


def test_message_speaks_only_when_verbose(capsys):
    hook = hooks.Hook("H")
    hook.message("nothing")
    hook.start(None, None, True, {})
    hook.message("hello")
    quiet = hooks.Hook("Q", verbose=False)
    quiet.start(None, None, True, {})
    quiet.message("nothing")
    assert capsys.readouterr().out == "H >> hello\n"


def test_find_log_works_on_plain_dicts():
    logs = {"a": {"b": [1], "c.d": [2]}, "e": [3]}
    assert find_log(logs, "a.b") == [1]
    assert find_log(logs, "a.c.d") == [2]
    assert find_log(logs, "e") == [3]
    for wrong in ("a.x", "e.f", "x"):
        with refused(f"unknown log '{wrong}'. Choices are: a.b, a.c", UnknownPathError):
            find_log(logs, wrong)


class Counts(hooks.Hook):
    state_names = ("_seen", "names")
    _seen = 0
    names: ClassVar[list] = []


def test_what_a_hook_names_as_its_state_is_saved_restored_and_reset():
    first, second = Counts(), create_from_description(get_description(Counts()))
    first._seen = 3
    first.names.append("a")
    assert (second._seen, second.names) == (0, [])
    assert not {"_seen", "names"} & set(get_description(first))
    assert first.get_state() == {"seen": 3, "names": ["a"]}
    second.set_state(state := first.get_state())
    first.names.append("b")
    assert state["names"] == ["a"]
    assert (second._seen, second.names) == (3, ["a"])
    first.begin_anew({})
    assert (first._seen, first.names) == (0, [])
    assert (second._seen, second.names) == (3, ["a"])


def test_a_hook_has_the_state_of_its_base_classes_too():
    mine = type("Mine", (hooks.EarlyStopper,), {"state_names": ("count",), "count": 0})
    first, second = mine("a.b"), mine("a.b")
    first._seen, first.count = 3, 4
    second.set_state(first.get_state())
    assert set(second.get_state()) == {"ignored", "seen", "best", "kept", "count"}
    assert (second._seen, second.count) == (3, 4)


def test_the_state_of_a_hook_needs_first_values():
    text = "Late.state_names: expected names of attributes with a first value in the class, got "
    with refused(f"{text}'count'. Write one there, e.g. "):
        type("Late", (hooks.Hook,), {"state_names": ("count",)})
