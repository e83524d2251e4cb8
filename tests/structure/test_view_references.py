"""References in single steps, as code of 2015 takes them."""

import pytest

from brainstorm.errors import NetworkValidationError
from brainstorm.references import resolve_modifiers
from brainstorm.structure.view_references import (
    copy_modifier_for,
    get_key_to_references_mapping,
    get_regex_for_reference,
    order_and_copy_modifiers,
    prune_view_references,
    resolve_references,
)
from brainstorm.value_modifiers import ClipValues

STRUCTURE = {"Input": (), "Conv_1": ("W", "bias"), "Lstm": ("Wz",)}


@pytest.mark.parametrize(
    ("reference", "name", "fits"),
    [
        ("Conv_1", "Conv_1", True),
        ("Conv*", "Conv_1", True),
        ("Conv*", "Conv.1", False),
        ("*_*", "Conv_1", True),
        ("Conv", "Conv_1", False),
    ],
)
def test_a_reference_as_a_regular_expression(reference, name, fits):
    assert bool(get_regex_for_reference(reference).match(name)) == fits


def test_which_references_are_for_a_name():
    keys = get_key_to_references_mapping(["Conv_1", "Lstm"], ["Conv*", "*_1", "default"])
    assert keys == {"Conv_1": {"Conv*", "*_1"}, "Lstm": {"default"}}


def test_values_of_every_parameter():
    references = {"Conv*": {"W": [1, 2]}, "default": 3}
    expected = {"Conv_1": {"W": [1, 2], "bias": [3]}, "Lstm": {"Wz": [3]}}
    assert resolve_references(STRUCTURE, references) == expected
    with pytest.raises(NetworkValidationError, match="unknown layer 'Dense'"):
        resolve_references(STRUCTURE, {"Dense": 1})
    assert prune_view_references({"A": {"W": [], "b": [1]}, "B": {"W": []}}) == {"A": {"b": [1]}}


@pytest.mark.parametrize(
    ("structure", "references", "text"),
    [
        (1, 1, r"structure: expected a dictionary such as {'Hidden': \['W', 'bias'\]}, got 1\."),
        ({"A": 1}, {}, "structure, layer 'A': expected a list of parameter names, got 1."),
        ({"A": "W"}, {}, "structure, layer 'A': expected a list of parameter names, got 'W'."),
        ({}, 1, "references: expected a dictionary such as {'Hidden': {'W': 0}, .*}, got 1."),
    ],
)
def test_arguments_are_dictionaries(structure, references, text):
    for resolve in (resolve_references, resolve_modifiers):
        with pytest.raises(NetworkValidationError, match=f"^{text}$"):
            resolve(structure, references, lambda value: value)


def test_modifiers_are_copied_for_each_parameter():
    clip = ClipValues()
    resolved = order_and_copy_modifiers(resolve_references(STRUCTURE, {"Conv*": clip}))
    first, second = (resolved["Conv_1"][name][0] for name in ("W", "bias"))
    assert (first.layer_name, first.view_name) == ("Conv_1", "W")
    assert first is not clip
    assert second.view_name == "bias"
    assert copy_modifier_for(clip, "A", "b").layer_name == "A"
    assert clip.layer_name is None
