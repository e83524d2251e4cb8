"""What all hooks have in common."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from brainstorm import hooks
from brainstorm.describable import create_from_description, get_description
from brainstorm.hooks.base import ROLES
from tests.test_arguments import NEEDED
from tests.trainings import refused

#: Options beside those that a hook needs.
OPTIONS = {
    "AverageWeights": {"decay": 0.9},
    "BokehVisualizer": {"log_names": ["a", "b"]},
    "EarlyStopper": {"patience": 3, "criterion": "max"},
    "LivePage": {"port": 8080},
    "LogPlotter": {"filename": "plot.png"},
    "ReturnToCheckpoint": {"factor": 0.1, "most_returns": 2, "name": "a"},
    "SaveBestNetwork": {"criterion": "min"},
    "SaveCheckpoint": {"keep": 2, "best": "valid.loss"},
    "StopOnNan": {"logs_to_check": "a"},
    "WithAverages": {"averages": "slow"},
}
HOOKS = sorted(set(hooks.__all__) - {"Hook"})


def example(kind, **options):
    """Return a hook of some class."""
    return getattr(hooks, kind)(**{**NEEDED.get(kind, {}), **OPTIONS.get(kind, {}), **options})


#: What has no options of when it fires: it always, or another hook, says so.
NOT_COMMON = {"ProgressBar", "InfoUpdater", "WithAverages"}


@pytest.mark.parametrize("name", HOOKS)
def test_description_is_strict_json_and_gives_the_same_hook(name):
    hook = example(name)
    description = get_description(hook)
    again = create_from_description(json.loads(json.dumps(description, allow_nan=False)))
    assert type(again) is type(hook)
    assert get_description(again) == description
    assert set(vars(again)) == set(vars(hook))
    assert hook.role in ROLES


@pytest.mark.parametrize("name", sorted(set(HOOKS) - NOT_COMMON))
def test_common_options(name):
    made = example(name, name="other", timescale="update", interval=3)
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
    for value in wrong:
        made = value if option == "name" else name
        with refused(f"hook {made!r} ({name}), {option}: expected {expected}, got {value!r}."):
            getattr(hooks, name)(**{**NEEDED.get(name, {}), option: value})


def test_hooks_can_be_called_by_hand(net):
    with pytest.raises(StopIteration):
        hooks.StopAfterEpoch(2)(2, 10, net, None, {})
    assert hooks.StopAfterEpoch(2)(1, 10, net, None, {}) is None
    with pytest.raises(NotImplementedError, match="Hook does not define __call__"):
        hooks.Hook()(0, 0, net, None, {})


def test_message_speaks_only_when_verbose(capsys):
    hook = hooks.Hook("H")
    hook.message("nothing")
    hook.start(None, None, True, {})
    hook.message("hello\x1b[2J")
    quiet = hooks.Hook("Q", verbose=False)
    quiet.start(None, None, True, {})
    quiet.message("nothing")
    assert capsys.readouterr().out == "H >> hello\\x1b[2J\n"


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


@pytest.mark.parametrize("name", ["AverageWeights", "ModifyStepperAttribute", "EarlyStopper"])
def test_hooks_derived_from_those_with_a_state_have_one_of_their_own_too(name):
    cls = type("Mine", (getattr(hooks, name),), {"state_names": ("calls",), "calls": 0})
    first, second = (cls(**NEEDED.get(name, {})) for _ in range(2))
    first.calls = 3
    assert set(first.get_state()) == {"calls", *example(name).get_state()}
    second.set_state(first.get_state())
    assert second.calls == 3
    first.begin_anew({})
    assert (first.calls, second.calls) == (0, 3)


@pytest.mark.parametrize(
    ("base", "attributes", "text"),
    [
        (hooks.Hook, {}, "names of attributes with a first value in the class, got 'count'. Write "
         "one there, e.g. count = 0."),
        (hooks.AverageWeights, {"count": 0}, "names that differ not only in a leading underscore, "
         "got 'count' and '_count'. Rename one."),
    ],
)  # fmt: skip
def test_the_names_of_a_state_have_first_values_and_differ(base, attributes, text):
    with refused(f"Mine.state_names: expected {text}"):
        type("Mine", (base,), {"state_names": ("count",), **attributes})
