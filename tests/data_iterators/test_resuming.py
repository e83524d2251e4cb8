"""Epochs that are continued: every iterator, from every batch."""

import copy
import json
import re
import zlib

import numpy as np
import pytest

from brainstorm.data_iterators import (
    AddGaussianNoise,
    BucketedMinibatches,
    DataIterator,
    Hdf5Minibatches,
    Minibatches,
    SequenceChunks,
    Undivided,
    Wrapper,
)
from brainstorm.utils import get_inheritors
from tests.data_iterators.iterating import Counted, refused
from tests.runs import ITERATORS, LARGE, LENGTHS, SEQUENCES


def same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert type(batch) is type(other)
        assert getattr(batch, "continues", None) == getattr(other, "continues", None)
        for name, array in batch.items():
            np.testing.assert_array_equal(array, other[name])


@pytest.mark.parametrize("name", ITERATORS)
def test_the_rest_of_an_epoch(name):
    """With what has been drawn for other purposes in the middle of the epoch."""
    iterator = ITERATORS[name]()
    list(iterator())
    begin = copy.deepcopy(iterator.get_state())  # as a trainer does
    length = sum(1 for _ in iterator())
    for given in range(length + 1):
        iterator.set_state(begin)
        epoch = iterator()
        for _ in range(given):
            next(epoch)
        if given:  # an evaluation, for example
            list(iterator())
        present = copy.deepcopy(iterator.get_state())
        rest, following = list(epoch), list(iterator())

        again = ITERATORS[name]()
        again.set_state(begin)
        batches = again.resume_epoch(given)
        if given:
            again.set_state(present)
        same(list(batches), rest)
        same(list(again()), following)


def test_every_iterator_is_in_the_table():
    classes, made = set(), [make() for make in ITERATORS.values()]
    while made:
        iterator = made.pop()
        classes.add(type(iterator))
        made += [iterator.iter] if hasattr(iterator, "iter") else []
    own = {c for c in get_inheritors(DataIterator) if c.__module__.startswith("brainstorm.data_i")}
    missing = {c.__name__ for c in own - classes if not c.__name__.startswith("_")}
    assert missing == {"Wrapper", "PlannedBatches"}


def test_batches_that_were_given_are_not_read():
    data = Counted(SEQUENCES["default"])
    iterator = AddGaussianNoise(Minibatches(3, default=data), {"default": 0.1})
    rest = iterator.resume_epoch(3)
    assert data.read == []
    assert [batch["default"].shape for batch in rest] == [(5, 2, 3)]
    assert data.read == [5 * 2 * 3]


@pytest.mark.parametrize(
    ("iterator", "name", "count"),
    [
        (Undivided(**SEQUENCES), "Undivided", 1),
        (Minibatches(3, **SEQUENCES), "Minibatches", 4),
        (AddGaussianNoise(Minibatches(3, **SEQUENCES), {"default": 0.1}), "Minibatches", 4),
    ],
)
def test_too_few_batches(iterator, name, count):
    assert not list(iterator.resume_epoch(count))
    text = f"expected an epoch of at least 9 batches to be continued, got {count}. Give the data"
    with refused(f"^{name}: {text}"):
        iterator.resume_epoch(9)


def checksum(*lengths):
    return zlib.crc32(np.array(lengths, np.int64).tobytes())


class Every(Minibatches):
    """A user's iterator with an argument on which an epoch depends."""

    identity = ("step",)

    def __init__(self, step):
        self.step = step
        super().__init__(shuffle=False, **SEQUENCES)


SHORT = {name: array[:, :9] for name, array in SEQUENCES.items()}


@pytest.mark.parametrize(
    ("made", "other", "text"),
    [
        (ITERATORS["minibatches"], ITERATORS["online"],
         "Online: expected a Minibatches, as in the run that is"),
        (ITERATORS["minibatches"], ITERATORS["neighbours"],
         "Minibatches: expected batch_size = 3, as in the run that is continued, got 2. Give the "
         "data and arguments that the run began with; or, to go on with others, give stepper and "
         "network to a new trainer: Trainer(resumed.stepper).train(resumed.net, ...)."),
        (ITERATORS["in order"], ITERATORS["minibatches"],
         "Minibatches: expected shuffle = False, as in the run that is"),
        (ITERATORS["one hot"], ITERATORS["nested noise"],
         "AddGaussianNoise: expected a OneHot, as in the run"),
        (ITERATORS["noisy chunks"], ITERATORS["user's changed"],
         "EveryOther: expected a SequenceChunks"),
        (lambda: Minibatches(**SEQUENCES), lambda: Minibatches(**SHORT),
         "Minibatches: expected sample_size = 11, as in the run that is continued, got 9"),
        (lambda: Undivided(**SEQUENCES), lambda: Undivided(**SHORT),
         "Undivided: expected total_size = 220, as in the run that is continued, got 180"),
        (lambda: BucketedMinibatches(x=[np.ones((n, 1)) for n in (3, 4)]),
         lambda: BucketedMinibatches(x=[np.ones((n, 1)) for n in (3, 3)]),
         f"BucketedMinibatches: expected lengths = {{'T': {checksum(3, 4)}}}, as in the run that "
         f"is continued, got {{'T': {checksum(3, 3)}}}. "),
        (ITERATORS["chunks"], lambda: SequenceChunks(2, 3, **SEQUENCES),
         f"SequenceChunks: expected seq_lens = {checksum(*LENGTHS)}, as in the run that is "
         f"continued, got None. "),
        (lambda: Every(2), lambda: Every(3), "Every: expected step = 2, as in the run that is"),
        (lambda: Hdf5Minibatches(LARGE, 4, window=2, default="default"),
         lambda: Hdf5Minibatches(LARGE, 4, window=3, default="default"),
         "Hdf5Minibatches: expected window = 2, as in the run that is"),
    ],
)  # fmt: skip
def test_states_of_others(made, other, text):
    with refused(re.escape(text)):
        other().set_state(made().get_state())


def test_names_that_an_older_state_lacks_are_not_compared():
    state = Minibatches(3, cut_according_to=LENGTHS, **SEQUENCES).get_state()
    state["epoch"] = state.pop("identity")  # its name then
    del state["epoch"]["seq_lens"]
    Minibatches(3, **SEQUENCES).set_state(state)


def test_a_state_of_ones_own_may_be_the_number_of_the_epoch():
    class Growing(DataIterator):
        epoch = 0

        def get_state(self):
            return {**super().get_state(), "epoch": self.epoch}

        def set_state(self, state):
            super().set_state(state)
            self.epoch = state["epoch"]

    first, second = Growing({"default": (1,)}, None), Growing({"default": (1,)}, None)
    first.epoch = 3
    second.set_state(first.get_state())
    assert second.epoch == 3


def test_what_a_class_saves_it_must_restore():
    with refused("Own: expected also a method set_state, to restore what its get_state saves."):
        type("Own", (Wrapper,), {"get_state": lambda self: {"place": 3}})


def test_a_state_is_plain_data_and_a_copy():
    iterator = ITERATORS["images"]()
    state = iterator.get_state()
    before = json.dumps(state, default=lambda array: array.tolist())
    list(iterator())
    assert json.dumps(state, default=lambda array: array.tolist()) == before
