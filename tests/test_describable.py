"""Descriptions: what is written, what comes back, and what is refused."""

import enum
import inspect
import json
import math
import re
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import brainstorm.all as ba
from brainstorm.describable import Describable, create_from_description, get_description
from brainstorm.errors import DescriptionError, UnknownTypeError, ValidationError
from brainstorm.randomness import RandomState
from brainstorm.registry import Registry
from brainstorm.structure import UniquelyNamed
from brainstorm.testing import LayerHarness, build_layer
from tests import test_arguments
from tests.trainings import refused


class Animal(Describable):
    __undescribed__ = {"thoughts"}
    __default_values__ = {"legs": 4, "colours": ["brown"]}

    def __init__(self, name, legs=4):
        self.name = name
        self.legs = legs
        self.colours = ["brown"]
        self.thoughts = "private"


class Bird(Animal):
    __undescribed__ = {"nest": []}
    __default_values__ = {"legs": 2}

    def __init__(self, name, mate=None, legs=2):
        super().__init__(name, legs)
        self.mate = mate
        self.nest = ["egg"]

    def __init_from_description__(self, description):
        self.born_from = set(description)


# -- writing ------------------------------------------------------------------------------------


def test_attributes_but_the_undescribed_and_defaults_are_beside_the_class_name():
    assert get_description(Animal("Rex", 3)) == {"@type": "Animal", "name": "Rex", "legs": 3}
    # Declarations are merged over the classes, and the subclass wins.
    assert get_description(Bird("Tweety")) == {"@type": "Bird", "name": "Tweety", "mate": None}
    assert get_description(Bird("Tweety", legs=4))["legs"] == 4


def test_a_default_is_left_out_only_if_it_is_equal():
    animal = Animal("Rex")
    animal.colours.append("black")
    assert get_description(animal)["colours"] == ["brown", "black"]
    assert get_description(Animal("Rex", legs=4.0))["legs"] == 4.0  # a float is not that int


def test_defaults_may_be_those_of_the_class():
    @dataclass
    class Kept(Describable):
        __default_values__ = {"a", "b"}

        a: float | None = None
        b: int = 3

    described = get_description(Kept(None, 4))
    assert described == {"@type": "Kept", "b": 4}
    assert create_from_description(described) == Kept(b=4)
    assert create_from_description({"@type": "Kept"}) == Kept()


def test_defaults_that_are_arrays_are_compared():
    class Carrier(Describable):
        __default_values__ = {"load": np.zeros(2)}

        def __init__(self, load):
            self.load = load

    assert get_description(Carrier(np.zeros(2))) == {"@type": "Carrier"}
    assert get_description(Carrier(np.ones(2))) == {"@type": "Carrier", "load": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.longdouble(0.5), 0.5),
        (np.ones(2, np.longdouble), [1.0, 1.0]),
        ((1, (2,)), [1, [2]]),
        (-np.inf, {"@float": "-inf"}),
        (np.array([np.inf, 1.0]), [{"@float": "inf"}, 1.0]),
        (enum.Enum("Choice", {"LOW": "min"}, type=str).LOW, "min"),
        ({"all": (Bird("A", mate=Animal("B")), None)},
         {"all": [{"@type": "Bird", "name": "A", "mate": {"@type": "Animal", "name": "B"}}, None]}),
    ],
)  # fmt: skip
def test_objects_numpy_and_tuples_become_plain_data(value, described):
    result = get_description(value)
    assert result == described
    assert json.loads(json.dumps(result)) == described


# -- reading ------------------------------------------------------------------------------------


def test_an_object_comes_back_without_its_constructor():
    bird = create_from_description({"@type": "Bird", "name": "Tweety", "mate": None})
    assert type(bird) is Bird
    assert (bird.name, bird.legs, bird.colours) == ("Tweety", 2, ["brown"])
    assert (bird.nest, bird.thoughts) == ([], None)
    assert bird.born_from == {"@type", "name", "mate"}


def test_defaults_are_not_shared_between_objects():
    first, second = (create_from_description(get_description(Animal("x"))) for _ in range(2))
    first.colours.append("black")
    assert second.colours == Animal.__default_values__["colours"] == ["brown"]


json_data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3).filter(lambda key: key != "@type"), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.parametrize(
    "kind", [{}, {"frozen": True}, {"slots": True}, {"frozen": True, "slots": True}]
)
def test_dataclasses(kind):
    @dataclass(**kind)
    class Point(Describable):
        x: float
        near: list = field(default_factory=list)

    point = Point(1.5, [Point(2.5)])
    described = get_description(point)
    inner = {"@type": "Point", "x": 2.5, "near": []}
    assert described == {"@type": "Point", "x": 1.5, "near": [inner]}
    assert create_from_description(described) == point


@settings(max_examples=20)
@given(json_data)
@example([math.inf, -math.inf])
def test_a_round_trip_through_json(data):
    animal = Animal("Rex")
    animal.colours = data
    text = json.dumps(get_description([animal, data]), allow_nan=False)
    again, same = create_from_description(json.loads(text))
    assert again.colours == data
    assert same == data


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2, {"key": object()}],
         "[2][key]: a object has no description. Derive it from Describable, or name the "
         "attribute in __undescribed__."),
        ({"net": [Bird("x", mate=Animal({1, 2}))]},
         "[net][0][Bird.mate][Animal.name]: a set has no description."),
        ({"a": {1: 2}}, "[a][1]: keys must be strings, got 1"),
        (np.array([0.0, np.nan]), "[1]: nan cannot be written as JSON."),
        ({"id": -(10**20)}, "[id]: an integer of more than 20 digits cannot be read"),
        (Bird("x", mate=[{"@type": "Bird"}]),
         "[Bird.mate][0][@type]: this key is that of an object. Choose another one."),
    ],
)  # fmt: skip
def test_what_has_no_description_is_found_by_its_path(value, message):
    with pytest.raises(DescriptionError, match=f"^{re.escape(message)}"):
        get_description(value)


def test_an_unknown_class_is_refused_with_near_misses():
    text = (
        r"^unknown class in '@type' 'Animla'\. A class of your own must be imported before it can "
        r"be loaded\. Did you mean 'Animal'\?$"
    )
    type("_Animl", (Animal,), {})  # private ones are no choice
    with pytest.raises(UnknownTypeError, match=text):
        create_from_description({"@type": "Animla"})


# -- the registry -------------------------------------------------------------------------------


def test_one_name_for_two_classes_is_refused_unless_one_was_defined_again():
    registry = Registry("thing", "Import it.")
    text = r"^unknown thing 'x'\. Import it\.$"
    with pytest.raises(UnknownTypeError, match=text):
        registry.get("x")
    first, again, other = (type("Thing", (), {"__module__": module}) for module in "bba")
    for thing in (first, again):
        registry.add("Thing", thing)
    assert registry.get("Thing") is again
    registry.add("Thing", other)
    text = r"^several classes stand for thing 'Thing': a\.Thing, b\.Thing\. Rename all but one"
    with pytest.raises(UnknownTypeError, match=text):
        registry.get("Thing")


# -- hostile descriptions -------------------------------------------------------------------------


class Guarded(Describable):
    limit = 5

    def __init__(self, name):
        self.name = name
        self.half = name[:2]

    def __init_from_description__(self, description):
        self.half = self.name[:2]

    def run(self):
        return self.name

    @property
    def loud(self):
        return self.name.upper()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("Guarded", name) for name in ("run", "loud", "__class__", "__dict__", "__init__")),
        ("Guarded", "__describe__"),
        ("Bird", "thoughts"),
        ("Bird", "nest"),
    ],
)
def test_no_description_sets_what_a_class_defines_or_leaves_out(kind, name):
    text = rf"^\[{kind}.{name}\]: no description can set this$"
    with pytest.raises(DescriptionError, match=text):
        create_from_description({"@type": kind, "name": "abc", "mate": None, name: {"a": 1}})


def test_values_on_the_class_and_names_may_be_set():
    made = create_from_description({"@type": "Guarded", "name": "abc", "limit": 6, "__name__": "x"})
    assert (made.limit, made.__name__, made.half) == (6, "x", "ab")


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ({"@type": "Animal", "name": {1}}, r"\[Animal.name\]: a set is not a description$"),
        ({"@type": "ClipValues", "low": -1.0, "high": 1.0, "lower": 2},
         r"\[ClipValues.lower\]: ClipValues: unknown attribute 'lower'. Choices are: low, "),
        ([{"x": {"@type": "Guarded"}}],
         r"a Guarded cannot be made of '@type': AttributeError\(.*'name'"),
        ({"@type": "ClipValues", "high": 1}, "a ClipValues cannot be made without 'low'. get"),
        ({"@type": "Bird", "name": "Tit"}, "a Bird cannot be made without 'mate'"),
        ({"@type": "Bird", "mate": None}, "a Bird cannot be made without 'name'"),
        ({"@type": "SgdStepper"}, "a SgdStepper cannot be made without 'learning_rate'"),
        ([{"@type": "SaveNetwork"}], "a SaveNetwork cannot be made without 'filename'"),
    ],
)  # fmt: skip
def test_a_description_of_what_no_constructor_makes(description, text):
    with pytest.raises(DescriptionError, match=f"^{text}"):
        create_from_description(description)


def test_a_name_of_a_base_class_for_an_argument_is_told():
    class Periodic(ba.SgdStepper):
        def __init__(self, steps=5):
            super().__init__()
            self.steps = steps

    text = "a Periodic cannot be made without 'steps'. It is in __undescribed__, perhaps of a base"
    with refused(text, DescriptionError):
        create_from_description(get_description(Periodic()))


#: All public classes with a description; it does not have the run of an InfoUpdater.
CHECKED = {
    name: cls(**test_arguments.NEEDED.get(name, {}))
    for name, cls in test_arguments.FOUND.items()
    if inspect.isclass(cls) and issubclass(cls, Describable)
    if not issubclass(cls, (ba.DataIterator, ba.InfoUpdater))
} | {"ClipValues": ba.ClipValues(-0.5, None)}


@pytest.mark.parametrize("name", CHECKED)
def test_a_description_is_taken_and_checked_as_arguments_are(name):
    this = CHECKED[name]
    cls, description = type(this), get_description(this)
    names = inspect.signature(cls).parameters.keys() & vars(this).keys()
    for option in sorted(names & (description.keys() | cls._merged("__default_values__").keys())):
        for value in (-1, 0, 2.5, 1e9, {"@float": "inf"}, "x", [1]):
            changed = {**description, option: value}
            arguments = create_from_description({k: v for k, v in changed.items() if k in names})
            found = []
            for make in (lambda: cls(**arguments), lambda: create_from_description(changed)):  # noqa: B023
                try:
                    made = get_description(make())
                    found.append({n: made.get(n) for n in names})  # a hook's own name can differ
                except ValidationError as error:
                    found.append(str(error))
            assert found[0] == found[1], (option, value)


def test_a_description_without_end():
    endless = {"@type": "Guarded"}
    endless["name"] = endless
    with pytest.raises(DescriptionError, match="RecursionError"):
        create_from_description(endless)


@pytest.mark.parametrize(
    ("this", "text"),
    [
        (ba.SgdStepper(0.1), "SgdStepper(learning_rate=0.1)"),
        (ba.AdamStepper(beta1=0.5), "AdamStepper(learning_rate=0.001, beta1=0.5)"),
        (ba.NumpyHandler(np.float64), "NumpyHandler(dtype=float64)"),
        (ba.ArrayInitializer(np.zeros((3, 4))), "ArrayInitializer(array=array of shape (3, 4))"),
        (ba.Accuracy(), "Accuracy()"),
        (ba.StopOnNan(), "StopOnNan()"),
        (ba.Warmup(10, ba.Cosine(0.1, 5, 7)),
         "Warmup(num_changes=10, then=Cosine(initial_value=0.1, final_value=5, num_changes=7))"),
        (RandomState(3), "RandomState(seed=3)"),
        (ba.Minibatches(8, default=np.zeros((2, 20, 4)), targets=np.zeros((2, 20, 1))),
         "Minibatches: 3 batches of default (4,), targets (1,)"),
        (ba.Trainer(ba.SgdStepper(0.5)),
         "Trainer(SgdStepper(learning_rate=0.5)): 0 epochs trained; no hooks"),
        (ba.Trainer(ba.SgdStepper()).team, "Team: rank 0 of 1"),
        (UniquelyNamed("name"), "UniquelyNamed('name')"),
        (LayerHarness(build_layer(ba.Lstm(3, name="L"), {"default": ("T", "B", 2)})),
         "LayerHarness: layer 'L' (Lstm), T=0, B=0"),
        (ba.Network.from_layer(ba.Input({"default": ("T", "B", 4)}))._buffer_manager,
         "BufferManager: T=0, B=0, 0 B"),
        (ba.Network.from_layer(ba.Input({"default": ("T", "B", 4)}) >> ba.Lstm(3, name="L"))
         .layers["L"],
         "L: Lstm(size=3, activation='tanh'), default ('T', 'B', 4) -> default ('T', 'B', 3)"),
    ],
)  # fmt: skip
def test_objects_print_as_what_they_are(this, text):
    assert repr(this) == text


def test_what_holds_itself_prints_in_short():
    hook = ba.MonitorScores("valid", [])
    hook.scorers = [hook, hook]
    assert len(repr(hook)) < 300
