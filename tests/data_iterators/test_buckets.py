"""Batches of sequences of different lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.data_iterators import BucketedMinibatches
from tests.data_iterators.iterating import refused

RND = np.random.RandomState(0)
LENGTHS = RND.randint(1, 100, 1000)


def numbered(lengths):
    """Return sequences (T, 2) that hold their number, from 1 on."""
    return [np.full((steps, 2), number + 1, np.float32) for number, steps in enumerate(lengths)]


def padding(iterator, mask="mask"):
    """Return the share of steps behind the end of a sequence."""
    masks = [batch[mask] for batch in iterator()]
    return 1 - sum(mask.sum() for mask in masks) / sum(mask.size for mask in masks)


@settings(max_examples=80)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30),
    batch_size=st.integers(1, 8),
    pool=st.integers(1, 5),
    shuffle=st.sampled_from([True, False, "batches"]),
)
def test_every_sequence_comes_once_per_epoch_padded(lengths, batch_size, pool, shuffle):
    """With the other one of its pair, which has its own length and mask, and with its label."""
    default, source = (numbered(part) for part in zip(*lengths, strict=True))
    labels = list(range(len(lengths)))
    data = {"default": default, "source": source, "label": labels}
    options = {"over_s": "source", "per_sequence": "label"}
    iterator = BucketedMinibatches(batch_size, shuffle, pool, **options, **data)
    assert iterator.data_shapes["mask_s"] == (1,)
    for _ in range(2):
        found = []
        batches = list(iterator())
        assert len(batches) == iterator.length
        for batch in batches:
            numbers = batch["label"][:, 0]
            assert numbers.dtype == int
            for place, (name, mask_name) in enumerate([("default", "mask"), ("source", "mask_s")]):
                array, mask = batch[name], batch[mask_name]
                expected = [lengths[number][place] for number in numbers]
                assert (array.dtype, mask.dtype) == (np.float32, bool)
                assert mask.shape == (max(expected), len(numbers), 1)
                assert mask.sum(axis=0).ravel().tolist() == expected
                assert (np.diff(mask.astype(int), axis=0) <= 0).all()
                values = mask * (numbers[:, None] + 1)
                np.testing.assert_array_equal(array, np.repeat(values, 2, axis=2))
            found += numbers.tolist()
        assert sorted(found) == labels
        assert found == labels or shuffle is not False
        assert max(len(batch["label"]) for batch in batches) == min(batch_size, len(lengths))


def test_similar_lengths_are_together():
    data = numbered(LENGTHS)
    assert padding(BucketedMinibatches(10, shuffle=False, default=data)) > 0.4
    assert padding(BucketedMinibatches(10, pool=1, default=data)) > 0.4
    assert 0.02 < padding(BucketedMinibatches(10, pool=10, default=data)) < 0.1
    assert padding(BucketedMinibatches(10, default=data)) < 0.01


@pytest.mark.parametrize("shuffle", [True, "batches"])
def test_the_order_is_drawn(shuffle):
    iterators = [BucketedMinibatches(10, shuffle, default=numbered(LENGTHS)) for _ in range(2)]
    iterators[1].set_state(iterators[0].get_state())
    first, second = ([b["default"][0, :, 0].tolist() for b in it()] for it in iterators)
    assert first == second
    again = [b["default"][0, :, 0].tolist() for b in iterators[0]()]
    assert again != first
    assert (sorted(again) == sorted(first)) == (shuffle == "batches")
    assert (np.diff([len(b["mask"]) for b in iterators[0]()]) < 0).any()


A, B = np.zeros((3, 2)), np.zeros((4, 2))


LIST = "'y': expected a list with one array for each sequence, got "
NUMBERS = r"'x': sequence 1: expected numbers \(T, features...\), got shape "
SAME = r"'x': sequence 1: expected features \(2,\) and dtype float64 as in the first one, got "


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, r"BucketedMinibatches: expected at least one list of arrays, e.g. default=\[x, y\]"),
        ({"mask": [A]}, "'mask': expected another name, because this iterator adds its mask under"),
        ({"x": [A, B], "y": [A]}, "as many sequences under each name, got {'x': 2, 'y': 1"),
        ({"x": []}, "expected at least one sequence, got {'x': 0}"),
        ({"x": [A, A], "y": [A, B]}, r"'y': sequence 1: expected 3 time steps as in 'x', got 4\. "
         r"Labels of CTC are filled up with zeros; inputs of a second length, S, are for "
         r"BucketedMinibatches\(over_s=\['y'\]\)\.$"),
        ({"x": [A], "pool": 0}, "BucketedMinibatches.pool: expected an int >= 1, got 0"),
        *(({"x": [A], "y": wrong}, f"{LIST}{wrong}") for wrong in (3, None)),
        ({"x": [A], "y": np.array(3)}, rf"{LIST}array\(3\)"),
        ({"x": [A, A[:, 0]]}, rf"{NUMBERS}\(3,\) .* add an axis: x\[:, None\]\. If"),
        ({"x": [A], "y": [np.array(2)]}, r"got shape \(\) and dtype int64. If there is one row for "
         r"each sequence, say so: per_sequence=\['y'\]"),
        ({"x": [A, A[:0]]}, rf"{NUMBERS}\(0, 2\)"),
        ({"x": [A, A.astype(str)]}, rf"{NUMBERS}\(3, 2\) and dtype <U"),
        ({"x": [A, A[:, :1]]}, rf"{SAME}\(1,\)"),
        ({"x": [A, A.astype(int)]}, f"{SAME}.* and int64"),
        ({"x": np.ones((4, 3, 2))}, r"list with one array for each sequence, got one array of "
         r"shape \(4, 3, 2\)\. Use Minibatches for \(T, B, .* list\(x\.swapaxes\(0, 1\)\) if it"),
    ],
)  # fmt: skip
def test_unfit_arguments(arguments, text):
    with refused(text):
        BucketedMinibatches(**arguments)


# -- pairs of sequences -------------------------------------------------------------------------


def test_pairs_are_bucketed_by_both_lengths():
    rnd = np.random.RandomState(1)
    first = rnd.randint(1, 6, 2000)
    second = rnd.randint(1, 50, 2000)
    data = {"default": numbered(first), "source": numbered(second), "over_s": ["source"]}
    mixed, sorted_ = (BucketedMinibatches(10, shuffle, **data) for shuffle in (False, True))
    assert padding(mixed) > 0.3
    assert padding(sorted_) < 0.02
    assert padding(mixed, "mask_s") > 0.4
    assert padding(sorted_, "mask_s") < 0.1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"over_s": ["sauce"]}, "over_s: unknown data name 'sauce'. .* Did you mean 'source'"),
        ({"over_s": ["default", "source"]}, "expected data with time steps, got only da"),
        ({"over_s": ["source"], "per_sequence": ["source"]}, "'source': expected a name of over_s"),
        ({"mask_s": numbered([1, 2])}, "data 'mask_s': expected another name"),
        ({}, r"data 'source': sequence 0: expected 1 time steps as in 'default', got 3"),
        ({"over_s": ["source", "more"], "more": numbered([3, 3])},
         r"data 'more': sequence 1: expected 4 time steps as in 'source', got 3$"),
        ({"over_s": ["source"], "source": [np.zeros((3, 2)), np.zeros((0, 2))]},
         r"data 'source': sequence 1: expected numbers \(S, features\.\.\.\), got shape "
         r"\(0, 2\)"),
    ],
)  # fmt: skip
def test_pairs_that_are_not_in_order(change, match):
    data = {"default": numbered([1, 2]), "source": numbered([3, 4])}
    with refused(match):
        BucketedMinibatches(1, **{**data, **change})


def test_no_length_is_always_left_out():
    iterator = BucketedMinibatches(20, drop_last=True, default=numbered(range(1, 104)))
    left = [set(range(1, 104)) - {n for b in iterator() for n in b["default"].max((0, 2))}
            for _ in range(60)]  # fmt: skip
    assert all(len(numbers) == 3 for numbers in left)
    assert len(set.union(*left)) > 60
