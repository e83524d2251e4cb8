"""Data with one row for each sequence, (B, features...), beside those of every time step."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest

from brainstorm.data_iterators import (
    AddGaussianNoise,
    BucketedMinibatches,
    DatasetMinibatches,
    Flip,
    Hdf5Minibatches,
    IterableBatches,
    Minibatches,
    MixUp,
    Normalize,
    OneHot,
    Online,
    SequenceChunks,
    Undivided,
    channel_statistics,
)
from brainstorm.errors import FileFormatError
from tests.data_iterators.iterating import refused

T, N = 6, 7
LENGTHS = np.array([3, 6, 1, 4, 2, 5, 3])
NUMBERS = np.arange(N, dtype=np.float32)[None, :, None] + np.arange(T)[:, None, None] / 10
MASK = (np.arange(T)[:, None] < LENGTHS)[:, :, None]
#: Which sequence it is: what belongs to a sequence must stay with it.
LABELS = np.arange(N)[:, None]
WHOLE = {"per_sequence": ("targets",)}
DATA = {"default": NUMBERS, "mask": MASK, "targets": LABELS, **WHOLE}
SEQUENCES = [NUMBERS[:length, b] for b, length in enumerate(LENGTHS)]


@pytest.fixture
def filename(tmp_path):
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file.create_dataset("x", data=NUMBERS, chunks=(T, 2, 1))
        file.create_dataset("m", data=MASK)
        file.create_dataset("y", data=LABELS, chunks=(3, 1))
        file.create_dataset("bad", data=np.where(LABELS == 4, np.nan, LABELS))
    return tmp_path / "data.hdf5"


ITERATORS = {
    "Undivided": lambda _: Undivided(default=NUMBERS, targets=LABELS, **WHOLE),
    "Minibatches": lambda _: Minibatches(3, **DATA),
    "Minibatches of a file": lambda name: Minibatches(3, **{**DATA, **opened(name)}),
    "Online": lambda _: Online(**DATA),
    "SequenceChunks": lambda _: SequenceChunks(2, 3, **DATA),
    **{
        f"BucketedMinibatches of {kind}": lambda _, targets=targets: BucketedMinibatches(
            3, default=SEQUENCES, targets=targets, **WHOLE
        )
        for kind, targets in (("rows", LABELS), ("numbers", list(range(N))))
    },
    "Hdf5Minibatches": lambda name: Hdf5Minibatches(
        name, 3, window=2, default="x", mask="m", targets="y", **WHOLE
    ),
    "DatasetMinibatches": lambda _: DatasetMinibatches([(i, i) for i in range(N)], 3, **WHOLE),
    "IterableBatches": lambda _: IterableBatches(
        [{"default": NUMBERS[:, :3], "targets": LABELS[:3]}], **WHOLE
    ),
}


def opened(filename):
    file = h5py.File(filename)
    return {"default": file["x"], "targets": file["y"]}


@pytest.mark.parametrize("name", ITERATORS)
def test_rows_stay_with_their_sequences(filename, name):
    iterator = ITERATORS[name](filename)
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
    iterator = SequenceChunks(2, 7, shuffle=False, **{**DATA, "mask": mask})
    assert iterator.data_shapes["ends"] == (1,)
    ends = [part["ends"] for part in iterator()]
    assert {array.dtype for array in ends} == {np.dtype(bool)}
    assert [np.flatnonzero(array).tolist() for array in ends] == [[2, 4], [0, 3, 6], [1, 5]]


def test_without_a_mask_all_sequences_end_in_the_last_part():
    iterator = SequenceChunks(4, 3, default=NUMBERS, targets=LABELS, **WHOLE)
    assert [part["ends"].all() for part in iterator()] == [False, True] * 3
    assert [part["ends"].any() for part in iterator()] == [False, True] * 3
    assert set(next(SequenceChunks(2, default=NUMBERS)())) == {"default"}  # no rows, no ends
    with refused("data 'ends': expected another name: this one is that of the ends"):
        SequenceChunks(2, default=NUMBERS, ends=LABELS, per_sequence=["ends"])


def test_wrappers_see_a_time_axis_and_give_none():
    images = np.arange(N * 8, dtype=np.float32).reshape(N, 2, 4, 1)
    source = Undivided(
        default=NUMBERS, picture=images, targets=LABELS, per_sequence=("picture", "targets")
    )
    flipped = next(Flip(source, {"picture": 1.0})())["picture"]
    np.testing.assert_array_equal(flipped, images[:, :, ::-1])
    noisy = AddGaussianNoise(source, {"picture": 1.0})
    assert (next(noisy())["picture"] != images).all()
    encoded = OneHot(noisy, {"targets": N})
    batch = next(MixUp(encoded, ["default", "picture", "targets"])())
    assert batch["picture"].shape == images.shape
    assert batch["targets"].shape == (N, N)
    # Mixtures of numbers up to 6 in float32 are rounded at 4e-7.
    mixed = batch["targets"] @ np.arange(N)
    np.testing.assert_allclose(mixed, batch["default"][0, :, 0], 1e-5, 1e-6)


def test_statistics_of_rows_do_not_look_at_masks():
    iterator = Undivided(default=NUMBERS, mask=MASK, rows=LABELS * 2, per_sequence="rows")
    statistics = channel_statistics(iterator, "default", "rows", mask_name="mask")
    assert statistics["rows"] == ([6.0], [4.0])
    assert statistics["default"] == pytest.approx((NUMBERS[MASK].mean(), NUMBERS[MASK].std()))
    np.testing.assert_allclose(next(Normalize(iterator, statistics)())["rows"].mean(), 0)


def test_rows_that_are_no_sequences_need_no_time_axis():
    iterator = Minibatches(3, default=LABELS, targets=LABELS, per_sequence=("default", "targets"))
    assert (iterator.time_size, iterator.sample_size) == (1, N)
    assert [batch["default"].shape for batch in iterator()] == [(3, 1), (3, 1), (1, 1)]


SAY_SO = (
    "expected a numeric array (T, B, features...), got shape (7, 1). Add a time axis for rows that "
    "are not sequences: x[None]. If there is one row for each sequence, say so: "
    "per_sequence=['targets']."
)
ROWS = "expected a numeric array (B, features...), got shape (7,). Add a feature axis: x[..., None]"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("per_sequence", (), f"'targets': {SAY_SO}"),
        ("targets", LABELS[:5], "'targets': expected B = 7 as 'default' has, got shape (5, 1)"),
        ("targets", LABELS[:, 0], f"'targets': {ROWS}."),
        ("targets", LABELS * np.nan, "'targets': expected finite numbers, got nan in sequence 0"),
        ("x", NUMBERS[:, :5], "'x': expected (T, B) = (6, 7) as 'default' has, got shape (6, 5, "),
        ("per_sequence", "no", "per_sequence: unknown data name 'no'. Choices are: targets, def"),
        ("cut_according_to", "targets", "unknown data name 'targets'. Choices are: default"),
    ],
)
def test_what_does_not_fit_is_refused(name, value, text):
    with refused(re.escape(text)):
        Minibatches(2, **{"targets": LABELS, "default": NUMBERS, **WHOLE, name: value})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("per_sequence", ["default", "targets"], "got only data of whole sequences. For"),
        ("targets", LABELS[:5], "sequences under each name, got {'default': 7, 'targets': 5}"),
        ("targets", [[0, 1], *LABELS[1:]], "sequence 1: expected features (2,) and dtype int64 as"),
        ("targets", ["a"] * 7, "sequence 0: expected numbers (features...), got shape (1,) and"),
    ],
)
def test_what_does_not_fit_sequences_is_refused(name, value, text):
    with refused(re.escape(text)):
        BucketedMinibatches(2, **{"default": SEQUENCES, "targets": LABELS, **WHOLE, name: value})


def test_numbers_that_are_not_finite_are_found_in_files(filename):
    iterator = Hdf5Minibatches(filename, 3, default="x", y="bad", per_sequence="y")
    with pytest.raises(FileFormatError, match=r"data 'y': expected finite .* nan in sequence 4\."):
        list(iterator())
