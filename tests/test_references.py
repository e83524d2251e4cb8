"""References: merging of arguments, matching, precedence, and errors."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brainstorm import value_modifiers as vm
from brainstorm.errors import NetworkValidationError, UnknownTypeError
from brainstorm.initializers import ArrayInitializer, Gaussian, as_initializer
from brainstorm.references import get_references, matches, resolve_initializers, resolve_modifiers

STRUCTURE = {
    "Input": (),
    "Conv_1": ("W", "bias"),
    "Conv_2": ("W", "bias"),
    "Lstm": ("Wz", "Rz", "bz"),
    "Loss": (),
}


def same(value):
    return value


def initializers(structure=STRUCTURE, **refs):
    return resolve_initializers(structure, refs, same)


def flat(resolved):
    return {f"{layer}.{p}": value for layer, ps in resolved.items() for p, value in ps.items()}


def modifiers(refs, structure=STRUCTURE, check=vm.check_gradient_modifier):
    return resolve_modifiers(structure, refs, check)


# -- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "kwargs", "expected"),
    [
        (None, {}, {}),
        (1, {}, {"default": 1}),
        ([1, 2], {}, {"default": [1, 2]}),
        ({"A": 1}, {}, {"A": 1}),
        ({"A": 1}, {"B": 2, "default": 3}, {"A": 1, "B": 2, "default": 3}),
        (0.5, {"fallback": 2}, {"default": 0.5, "fallback": 2}),
        (None, {"A": {"W": 1}}, {"A": {"W": 1}}),
    ],
)
def test_argument_forms(first, kwargs, expected):
    assert get_references(first, kwargs) == expected


def test_arguments_are_not_altered_or_shared():
    given_dict = {"A": {"W": [1, [2]], "b": (initializer := Gaussian())}, "B": 3}
    merged = get_references(given_dict, {"C": 4})
    merged["A"]["W"][1].append(5)
    merged["A"]["new"] = 6
    assert given_dict == {"A": {"W": [1, [2]], "b": initializer}, "B": 3}
    assert merged["A"]["b"] is initializer


def test_repeated_keys():
    with pytest.raises(TypeError, match="every reference once, got 'A', 'B' both in the first"):
        get_references({"A": 1, "B": 2, "C": 3}, {"A": 1, "B": 1})
    with pytest.raises(UnknownTypeError, match="got 'default' both"):
        get_references(1, {"default": 2})


# -- initializers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refs", "expected"),
    [
        ({"default": 1}, "1111 111"),
        # a value on the first level is for all parameters of the layers
        ({"Conv*": 1, "Lstm": 2}, "1111 222"),
        # parameters by name and pattern
        ({"Conv*": {"W": 1, "bias": 2}, "default": 3}, "1212 333"),
        ({"*": {"W*": 1, "b*": 2, "R*": 3}}, "1212 312"),
        ({"*": {"bias": 1}, "default": 2}, "2121 222"),
        # the innermost default wins, and only where nothing else matched
        ({"Conv_1": {"W": 1, "default": 2}, "default": 3}, "1233 333"),
        ({"Conv_1": {"default": 2}, "Conv*": {"W": 1}, "default": 3}, "1213 333"),
        # the more specific key wins, in any order
        ({"*": 1, "Conv*": 2, "Conv_1": 3}, "3322 111"),
        ({"Conv_1": 3, "Con*": 1, "Conv*": 2, "default": 0}, "3322 000"),
        ({"Conv*": 1, "Conv_1": {"W": 2}, "default": 0}, "2111 000"),
        ({"Conv*": {"*": 1, "W": 2}, "default": 0}, "2121 000"),
        ({"*": {"*": 1, "b*": 2}, "Lstm": {"b*": 3}}, "1212 113"),
        ({"*_*": 1, "*_1": 2, "default": 0}, "2211 000"),
        ({"Conv*": {"default": 1}, "Conv_2": {"default": 2}, "default": 0}, "1122 000"),
        # a dictionary as outer default
        ({"Lstm": 1, "default": {"W": 2, "default": 3}}, "2323 111"),
        ({"Lstm": {"Wz": 1}, "default": {"*z": 2, "default": 3}}, "3333 212"),
    ],
)
def test_which_value_applies(refs, expected):
    values = [first for first, _ in flat(initializers(**refs)).values()]
    assert values == [int(digit) for digit in expected.replace(" ", "")]


@pytest.mark.parametrize(
    ("refs", "expected"),
    [
        ({"fallback": 1}, "1111 111"),
        ({"Conv*": {"fallback": 2}, "fallback": 1}, "2222 111"),
        ({"Conv*": {"fallback": 2}, "Conv_1": {"W": 5}}, "2222 NNN"),
        ({"Conv*": {"W": 5}, "fallback": 1}, "1111 111"),
        ({"Conv*": {"fallback": 2}, "Conv_2": {"fallback": 3}, "fallback": 1}, "2233 111"),
        ({"Lstm": {"fallback": 2}, "default": {"*": 0, "fallback": 3}, "fallback": 1}, "3333 222"),
    ],
)
def test_which_fallback_applies(refs, expected):
    resolved = initializers(**{"default": 0, **refs})
    values = [fallback for _, fallback in flat(resolved).values()]
    assert values == [None if c == "N" else int(c) for c in expected.replace(" ", "")]


def test_values_are_converted_and_references_not_altered():
    refs = {"default": 1, "Lstm": {"*": [[1], [2]]}, "fallback": [3]}
    resolved = resolve_initializers(STRUCTURE, refs, as_initializer)
    assert refs == {"default": 1, "Lstm": {"*": [[1], [2]]}, "fallback": [3]}
    assert all(isinstance(i, ArrayInitializer) for pair in flat(resolved).values() for i in pair)


@given(key=st.text("ab*", max_size=7), name=st.text("ab", max_size=6))
def test_stars_stand_for_any_text(key, name):
    assert matches(key, name) == bool(re.fullmatch(".*".join(key.split("*")), name))


def test_dictionaries_for_patterns_may_name_what_other_networks_have():
    refs = {"*": {"W*": 1, "b*": 2, "gamma": 3, "*": 4}, "Conv*": {"timing": 5, "W": 6}}
    assert [first for first, _ in flat(initializers(**refs)).values()] == [6, 2, 6, 2, 4, 1, 2]
    with pytest.raises(NetworkValidationError, match="unknown parameter 'timing'"):
        resolve_modifiers(STRUCTURE, {"Conv*": {"timing": 1}}, same)


@pytest.mark.parametrize(
    ("refs", "text"),
    [
        ({"Conv_3": 1, "default": 0},
         "reference 'Conv_3': unknown layer 'Conv_3'. Choices are: Input, Conv_1, Conv_2, "
         "Lstm, Loss. Did you mean 'Conv_2' or 'Conv_1'?"),
        ({"Conv_1": {"W": 1, "bais": 1, "default": 1}},
         "reference 'Conv_1.bais': unknown parameter 'bais'. Choices are: W, bias. Did you "
         "mean 'bias'?"),
        ({"default": {"W": 1, "bais": 1, "default": 1}},
         "reference 'default.bais': unknown parameter 'bais'. Choices are: W, bias, "),
        ({"Input": {"W": 1}, "default": 0},
         "reference 'Input.W': unknown parameter 'W'. There are none."),
        ({"Lstm": {"W*": 1}, "Conv*": {"bias": 0}},
         "expected an initializer for every parameter, got none for 'Conv_1.W', 'Conv_2.W', "
         "'Lstm.Rz', 'Lstm.bz'. Name them, or give a default, as in "
         "initialize(default=Gaussian(0.1), ...)."),
        ({1: 0}, "reference 1: expected a name or a pattern, got "),
        ({"Conv*": {2: 0}}, "reference 2: expected a name or a pattern, got "),
        ({"Conv_1.parameters.W": 1, "default": 0},
         "reference 'Conv_1.parameters.W': unknown layer 'Conv_1.parameters.W'. Choices are: "
         "Input, Conv_1, Conv_2, Lstm, Loss. Write {'Conv_1': {'W': ...}}."),
        *(({key: 1, "default": 0}, f"reference {key!r}: unknown layer")
          for key in ("Conv", "onv_1", "conv_1", "Conv_1*x", "Conv.1", "Con[v]_1", "")),
    ],
)  # fmt: skip
def test_what_is_unknown_or_missing_is_named(refs, text):
    with pytest.raises(NetworkValidationError, match=f"^{re.escape(text)}"):
        resolve_initializers(STRUCTURE, refs, same)


@pytest.mark.parametrize(
    ("refs", "sources"),
    [
        ({"Conv*": 1, "*_1": 2}, "'Conv*' and '*_1'"),
        ({"Conv*": {"*": 1}, "C*v_1": 2}, "'Conv*.*' and 'C*v_1'"),
        ({"Conv_1": 1, "Conv*": {"W": 2}}, "'Conv_1' and 'Conv*.W'"),
        ({"Conv*": 1, "Conv**": 2}, "'Conv*' and 'Conv**'"),
        ({"Conv*": {"default": 1}, "*_1": {"default": 2}}, "'Conv*.default' and '*_1.default'"),
        ({"Conv*": {"fallback": 1}, "*_1": {"fallback": 2}}, "'Conv*.fallback' and '*_1.fallback'"),
    ],
)
def test_more_than_one_initializer(refs, sources):
    refs = dict(refs)
    kind = "fallback" if "fallback" in sources else "initializer"
    name = "fallback" if kind == "fallback" else "W"
    with pytest.raises(NetworkValidationError) as error:
        initializers(**refs, default=0)
    assert str(error.value) == (
        f"expected one {kind} for 'Conv_1.W', got 2: from {sources}, none of which is more "
        "specific than the other in both names. Name both in full: "
        f"{{'Conv_1': {{'{name}': ...}}}}."
    )
    refs |= {layer: {name: 3, "bias": 1} for layer in ("Conv_1", "Conv_2")}  # follow the advice
    assert 3 in flat(initializers(**refs, default=0))["Conv_1.W"]


def test_wrong_values_name_the_reference():
    for refs, path in [
        ({"Conv*": {"W": "x"}}, "Conv*.W"),
        ({"Conv*": {"W": {"deep": 1}}}, "Conv*.W"),
        ({"fallback": {"W": 1}}, "fallback"),
        ({"default": None}, "default"),
    ]:
        with pytest.raises(TypeError) as error:
            resolve_initializers(STRUCTURE, {"default": 0, **refs}, as_initializer)
        assert str(error.value).startswith(f"reference '{path}': expected an Initializer")


# -- modifiers ----------------------------------------------------------------------------------


def test_modifiers_keep_order_and_are_copies():
    clip, norm, decay = vm.ClipValues(), vm.ConstrainL2Norm(1.0), vm.L2Decay(0.1)
    resolved = modifiers({"Conv*": {"W": [clip, norm]}, "*": {"W*": decay}})
    assert set(flat(resolved)) == {"Conv_1.W", "Conv_2.W", "Lstm.Wz"}
    for layer in ("Conv_1", "Conv_2"):
        found = resolved[layer]["W"]
        assert [type(m) for m in found] == [vm.ClipValues, vm.ConstrainL2Norm, vm.L2Decay]
        assert all((m.layer_name, m.view_name) == (layer, "W") for m in found)
    first, second = resolved["Conv_1"]["W"][0], resolved["Conv_2"]["W"][0]
    assert first is not clip
    assert first is not second
    assert clip.layer_name is None


def test_order_of_patterns_is_that_of_the_dictionary():
    refs = {"Conv_1": vm.L1Decay(1), "*": {"W": vm.ClipValues()}, "Conv*": vm.L2Decay(1)}
    for ordered in (refs, dict(reversed(refs.items()))):
        expected = [type(m["W"] if isinstance(m, dict) else m) for m in ordered.values()]
        assert [type(m) for m in modifiers(ordered)["Conv_1"]["W"]] == expected


def test_default_modifier_and_none_at_all():
    resolved = modifiers({"default": vm.ClipValues(), "Conv*": {"bias": []}, "Lstm": []})
    assert [(path, len(found)) for path, found in flat(resolved).items()] == [
        ("Conv_1.W", 1), ("Conv_2.W", 1),
    ]  # fmt: skip
    assert modifiers({"*": []}) == modifiers({}) == initializers({"Input": ()}) == {}


@pytest.mark.parametrize(
    ("refs", "text"),
    [
        ({"Conv*": {"W": [vm.ClipValues(), 3]}},
         "reference 'Conv*.W': expected a GradientModifier or a ValueModifier, got 3"),
        ({"Dense": vm.ClipValues()}, "unknown layer 'Dense'"),
        ({"*": {"w": vm.ClipValues()}}, "unknown parameter 'w'"),
        ({"fallback": vm.ClipValues()}, "modifiers have no 'fallback'"),
        ({"Conv*": {"fallback": vm.ClipValues()}}, "modifiers have no 'fallback'"),
    ],
)  # fmt: skip
def test_modifiers_are_checked(refs, text):
    with pytest.raises(NetworkValidationError, match=re.escape(text)):
        modifiers(refs)
    with pytest.raises(NetworkValidationError, match="reference 'default': expected a ValueModi"):
        modifiers({"default": vm.L2Decay(1)}, check=vm.check_weight_modifier)


def test_users_modifier_needs_no_constructor():
    class Double(vm.ValueModifier):
        def __init__(self):
            pass

    assert modifiers({"Lstm": {"bz": Double()}})["Lstm"]["bz"][0].view_name == "bz"


def test_many_stars_take_no_time():
    names = {"a" * 60: ["W"]}
    given = {"*a" * 25 + "*b": 1.0, "default": 2.0}
    with pytest.raises(NetworkValidationError, match="unknown layer"):
        resolve_initializers(names, given, lambda value: value)
    found = resolve_initializers(names, {"*a" * 25 + "*": 1.0}, lambda value: value)
    assert found == {"a" * 60: {"W": (1.0, None)}}
