"""Data with one row for each sequence, (B, features...), beside those of every time step."""

import re

import numpy as np
import pytest

from brainstorm import data_iterators as di
from brainstorm.errors import FileFormatError
from tests.data_iterators.iterating import (
    LABELS,
    MASK,
    NUMBERS,
    SEQUENCES,
    N,
    iterators_of_every_kind,
    refused,
    store_sequences,
)

WHOLE = {"per_sequence": ("targets",)}
DATA = {"default": NUMBERS, "mask": MASK, "targets": LABELS, **WHOLE}
ITERATORS = {
    **iterators_of_every_kind(with_labels=True),
    "BucketedMinibatches of numbers": lambda _: di.BucketedMinibatches(
        3, default=SEQUENCES, targets=list(range(N)), **WHOLE
    ),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_rows_stay_with_their_sequences(tmp_path, name):
    iterator = ITERATORS[name](store_sequences(tmp_path))
    assert iterator.data_shapes["targets"] == (1,)
    for _ in range(2):
        for batch in iterator():
            first = batch["default"][0] if name != "SequenceChunks" or not batch.continues else None
            assert batch["targets"].shape == (batch["default"].shape[1], 1)
            if first is not None:
                np.testing.assert_array_equal(batch["targets"], first)


def test_parts_say_which_sequences_end_in_them():
    """Each sequence ends once, also one that is shorter than a part, or empty."""
    mask = MASK * (LABELS != 2)
    iterator = di.SequenceChunks(2, 7, shuffle=False, **{**DATA, "mask": mask})
    assert iterator.data_shapes["ends"] == (1,)
    ends = [part["ends"] for part in iterator()]
    assert {array.dtype for array in ends} == {np.dtype(bool)}
    assert [np.flatnonzero(array).tolist() for array in ends] == [[2, 4], [0, 3, 6], [1, 5]]


def test_without_a_mask_all_sequences_end_in_the_last_part():
    iterator = di.SequenceChunks(4, 3, default=NUMBERS, targets=LABELS, **WHOLE)
    assert [part["ends"].all() for part in iterator()] == [False, True] * 3
    assert [part["ends"].any() for part in iterator()] == [False, True] * 3
    assert set(next(di.SequenceChunks(2, default=NUMBERS)())) == {"default"}  # no rows, no ends
    with refused("data 'ends': expected another name: this one is that of the ends"):
        di.SequenceChunks(2, default=NUMBERS, ends=LABELS, per_sequence=["ends"])


def test_wrappers_see_a_time_axis_and_give_none():
    images = np.arange(N * 8, dtype=np.float32).reshape(N, 2, 4, 1)
    source = di.Undivided(
        default=NUMBERS, picture=images, targets=LABELS, per_sequence=("picture", "targets")
    )
    flipped = next(di.Flip(source, {"picture": 1.0})())["picture"]
    np.testing.assert_array_equal(flipped, images[:, :, ::-1])
    noisy = di.AddGaussianNoise(source, {"picture": 1.0})
    assert (next(noisy())["picture"] != images).all()
    encoded = di.OneHot(noisy, {"targets": N})
    batch = next(di.MixUp(encoded, ["default", "picture", "targets"])())
    assert batch["picture"].shape == images.shape
    assert batch["targets"].shape == (N, N)
    # Mixtures of numbers up to 6 in float32 are rounded at 4e-7.
    mixed = batch["targets"] @ np.arange(N)
    np.testing.assert_allclose(mixed, batch["default"][0, :, 0], 1e-5, 1e-6)


def test_statistics_of_rows_do_not_look_at_masks():
    iterator = di.Undivided(default=NUMBERS, mask=MASK, rows=LABELS * 2, per_sequence="rows")
    statistics = di.channel_statistics(iterator, "default", "rows", mask_name="mask")
    assert statistics["rows"] == ([6.0], [4.0])
    assert statistics["default"] == pytest.approx((NUMBERS[MASK].mean(), NUMBERS[MASK].std()))
    np.testing.assert_allclose(next(di.Normalize(iterator, statistics)())["rows"].mean(), 0)


def test_rows_that_are_no_sequences_need_no_time_axis():
    iterator = di.Minibatches(
        3, default=LABELS, targets=LABELS, per_sequence=("default", "targets")
    )
    assert (iterator.time_size, iterator.sample_size) == (1, N)
    assert [batch["default"].shape for batch in iterator()] == [(3, 1), (3, 1), (1, 1)]


SAY_SO = (
    "expected a numeric array (T, B, features...), got shape (7, 1). Add an axis: x[None] for rows "
    "that are not sequences, x[:, None] for the steps of one. If there is one row for each "
    "sequence, say so: per_sequence=['targets']."
)
ROWS = "expected a numeric array (B, features...), got shape (7,). Add a feature axis: x[..., None]"


@pytest.mark.parametrize(
    ("cls", "name", "value", "text"),
    [
        (di.Minibatches, "per_sequence", (), f"'targets': {SAY_SO}"),
        (di.Minibatches, "targets", LABELS[:5],
         "'targets': expected B = 7 as 'default' has, got shape (5, 1)"),
        (di.Minibatches, "targets", LABELS[:, 0], f"'targets': {ROWS}."),
        (di.Minibatches, "targets", LABELS * np.nan,
         "'targets': expected finite numbers, got nan in sequence 0"),
        (di.Minibatches, "x", NUMBERS[:, :5],
         "'x': expected (T, B) = (6, 7) as 'default' has, got shape (6, 5, "),
        (di.Minibatches, "per_sequence", "no",
         "per_sequence: unknown data name 'no'. Choices are: default, t"),
        (di.Minibatches, "cut_according_to", "targets",
         "unknown data name 'targets'. Choices are: default"),
        (di.BucketedMinibatches, "per_sequence", ["default", "targets"],
         "got only data of whole sequences. For"),
        (di.BucketedMinibatches, "targets", LABELS[:5],
         "sequences under each name, got {'default': 7, 'targets': 5}"),
        (di.BucketedMinibatches, "targets", [[0, 1], *LABELS[1:]],
         "sequence 1: expected features (2,) and dtype int64 as"),
        (di.BucketedMinibatches, "targets", ["a"] * 7,
         "sequence 0: expected numbers (features...), got shape (1,) and"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(cls, name, value, text):
    default = NUMBERS if cls is di.Minibatches else SEQUENCES
    with refused(re.escape(text)):
        cls(2, **{"default": default, "targets": LABELS, **WHOLE, name: value})


def test_numbers_that_are_not_finite_are_found_in_files(tmp_path):
    file = store_sequences(tmp_path)
    iterator = di.Hdf5Minibatches(file.filename, 3, default="x", y="bad", per_sequence="y")
    with pytest.raises(FileFormatError, match=r"data 'y': expected finite .* nan in sequence 4\."):
        list(iterator())
