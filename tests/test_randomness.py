"""Random states: seeds, resetting, and the tree of streams that are found by name."""

import copy
import json
import pickle
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.data_iterators import Undivided
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import DescriptionError, ValidationError
from brainstorm.randomness import RandomState, Seedable, global_rnd


def draw(rnd):
    return rnd.randint(0, 1 << 30, size=4).tolist()


@settings(max_examples=20)
@given(st.integers(0, 1 << 62))
def test_a_seed_determines_the_numbers(seed):
    rnd = RandomState(seed)
    first = draw(rnd)
    assert rnd.get_seed() == seed
    assert draw(rnd) != first
    rnd.reset()
    assert draw(rnd) == first
    assert draw(RandomState(seed)) == first
    rnd.set_seed(seed + 1)
    assert rnd.get_seed() == seed + 1
    assert draw(rnd) != first


@settings(max_examples=20)
@given(st.integers(0, 1 << 200), st.text(max_size=5))
def test_the_numbers_are_those_of_a_seed_sequence_of_numpy(seed, name):
    path = (zlib.crc32(name.encode()), len(name))
    sequence = np.random.SeedSequence(seed, spawn_key=path)
    numpys = np.random.RandomState(np.random.MT19937(sequence))
    assert draw(RandomState(seed).child(name)) == draw(numpys)


@pytest.mark.parametrize("seed", [-1, 1.5, "42", True])
def test_what_is_no_seed_changes_nothing(seed):
    rnd = RandomState(7)
    with pytest.raises(ValidationError) as caught:
        rnd.set_seed(seed)
    assert str(caught.value) == f"seed: expected an integer >= 0 or None, got {seed!r}."
    assert rnd.get_seed() == 7
    assert draw(rnd) == draw(RandomState(7))


def test_it_is_a_numpy_random_state():
    assert draw(Seedable(1).rnd) == draw(RandomState(1))
    assert isinstance(RandomState(1), np.random.RandomState)


def test_generated_seeds_lie_in_the_range():
    low, high = RandomState.seed_range
    assert (low, high) == (0, 1_000_000_000)
    assert all(low <= RandomState(seed).generate_seed() < high for seed in range(50))


def test_without_a_seed_it_is_drawn_from_the_global_state():
    global_rnd.set_seed(7)
    first, second = RandomState(), Seedable().rnd
    global_rnd.set_seed(7)
    seeds = [first.get_seed(), second.get_seed()]
    assert [RandomState().get_seed(), RandomState().get_seed()] == seeds
    assert seeds[0] != seeds[1]


def test_create_random_state():
    rnd = RandomState(1)
    a, b = rnd.create_random_state(), rnd.create_random_state()
    assert draw(a) != draw(b)
    rnd.reset()
    a.reset()
    assert draw(rnd.create_random_state()) == draw(a)
    assert draw(rnd.create_random_state(seed=5)) == draw(RandomState(5))


@pytest.mark.parametrize("position", [-1, 625, 1 << 30])
def test_a_state_that_lies_beyond_its_numbers_is_refused(position):
    state = RandomState(1).__getstate__()
    state["state"]["state"]["pos"] = position
    with pytest.raises(ValidationError, match=f"expected a position from 0 to 624, got {position}"):
        RandomState(2).__setstate__(state)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
@pytest.mark.parametrize(
    "make", [lambda: RandomState(3), lambda: RandomState(3).child("a").child("b")]
)
def test_a_copy_goes_on_from_where_it_is_and_resets_to_the_same_start(duplicate, make):
    rnd = make()
    start = draw(rnd)
    rnd.normal()  # leaves half a pair of normal numbers behind
    other = duplicate(rnd)
    assert other.normal() == rnd.normal()
    assert draw(other) == draw(rnd)
    other.reset()
    assert draw(other) == start
    assert draw(rnd) != start
    assert other.get_seed() == rnd.get_seed()


def test_copying_draws_nothing_from_the_global_state():
    rnd = RandomState(3)
    before = global_rnd.__getstate__()["state"]["state"]["pos"]
    copy.deepcopy(rnd)
    rnd.child("x")
    assert global_rnd.__getstate__()["state"]["state"]["pos"] == before


# -- the tree -----------------------------------------------------------------------------------


def test_all_branches_differ():
    root = RandomState(1)
    names = ["a", "b", "ab", "ba", "", "Dropout_1", "Dropout_2"]
    branches = [root, *(root.child(x) for x in names)]
    branches += [root.child(x).child(y) for x in names for y in names]
    assert len({tuple(draw(branch)) for branch in branches}) == len(branches)


def test_a_child_resets_and_reseeds_on_its_own_branch():
    child = RandomState(1).child("x")
    first = draw(child)
    child.reset()
    assert draw(child) == first
    child.set_seed(2)
    assert draw(child) == draw(RandomState(2).child("x"))


# -- descriptions ---------------------------------------------------------------------------------


class Shaker(Seedable):
    def __init__(self, strength, seed=None):
        super().__init__(seed)
        self.strength = strength


def test_a_generator_comes_back_from_its_description_at_its_beginning():
    for rnd in (RandomState(5), RandomState(5).child("a").child("b")):
        numbers = draw(rnd)
        description = json.loads(json.dumps(get_description(rnd)))
        assert description["@type"] == "RandomState"
        assert draw(create_from_description(description)) == numbers
    with pytest.raises(ValidationError, match="seed: expected an integer >= 0 or None, got -1"):
        create_from_description({"@type": "RandomState", "seed": -1, "path": []})
    for broken in ({"seed": 1}, {"seed": 1, "path": [-1]}, {"seed": 1, "path": 3}):
        with pytest.raises(DescriptionError, match="a RandomState cannot be made of"):
            create_from_description({"@type": "RandomState", **broken})


def test_what_is_seedable_has_a_description_without_its_numbers():
    description = get_description(Shaker(3, seed=1))
    assert description == {"@type": "Shaker", "strength": 3}
    again = create_from_description(description)
    assert (again.strength, draw(again.rnd) == draw(Shaker(3, seed=1).rnd)) == (3, False)


def test_threads_that_draw_first_at_once_find_one_generator():
    def seed():
        if not found:
            thread = threading.Thread(target=lambda: found.append(seedable.rnd))
            found.append(None)
            thread.start()
            thread.join()
        return 3

    found, seedable = [], Seedable(1)
    seedable.begin_at(seed)
    assert seedable.rnd is found[-1]


def test_data_are_no_part_of_a_description():
    data = Undivided(default=np.zeros((1, 2, 3)))
    text = r"a Undivided has no description: its data are not part of one\. Name the attribute in"
    with pytest.raises(DescriptionError, match=text):
        get_description({"data": data})
