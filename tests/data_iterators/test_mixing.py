"""Turned, covered, mixed and normalized data."""

import json

import numpy as np
import pytest

from brainstorm.data_iterators import (
    AddGaussianNoise,
    BucketedMinibatches,
    Cutout,
    Minibatches,
    MixUp,
    Normalize,
    OneHot,
    Rotate90,
    SequenceChunks,
    Undivided,
    channel_statistics,
)
from tests.data_iterators.iterating import Replacing, only, refused

RND = np.random.RandomState(0)
IMAGES = RND.random_sample((2, 300, 6, 6, 3)).astype(np.float32)
CLASSES = RND.randint(0, 4, (2, 300, 1))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool])
def test_rotate_turns_whole_sequences(dtype):
    images = IMAGES.round().astype(dtype)
    turned = only(Rotate90(Undivided(default=images), {"default": 0.6}))
    assert turned.dtype == dtype
    turns = []
    for b in range(300):
        fits = [k for k in range(4)
                if np.array_equal(turned[:, b], np.rot90(images[:, b], k, (1, 2)))]  # fmt: skip
        turns += fits[:1] or [None]
    shares = [turns.count(k) / 300 for k in range(4)]
    np.testing.assert_allclose(shares, [0.4, 0.2, 0.2, 0.2], atol=0.09)
    assert None not in turns


@pytest.mark.parametrize("size", [1, 2, 3, 12])
@pytest.mark.parametrize("value", [None, -1.0])
def test_cutout_covers_a_square(size, value):
    wrapper = Cutout(Undivided(default=IMAGES), {"default": size}, value and {"default": value})
    covered = only(wrapper)
    changed = covered != IMAGES
    assert (covered[changed] == (value or 0)).all()
    assert (changed[0] == changed[1]).all()
    masks = changed[0].all(axis=3)
    spans = set(), set()
    for mask in masks:
        places = [np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0)]
        assert mask[np.ix_(*places)].all()
        assert mask.sum() == len(places[0]) * len(places[1])
        for found, place in zip(spans, places, strict=True):
            found.add((place[0], place[-1]))
    # The centre is any pixel, so the square is cut at the borders.
    firsts = np.arange(6) - size // 2
    expected = set(zip(firsts.clip(0), (firsts + size - 1).clip(None, 5), strict=True))
    assert spans == (expected, expected)
    if size == 1:
        np.testing.assert_allclose(masks.mean(axis=0), 1 / 36, atol=0.04)


def test_mixtures_have_the_same_partners_and_parts_under_all_names():
    numbers = np.arange(300.0).reshape(1, 300, 1)
    marks = np.eye(300)[None]
    mixed = MixUp(Undivided(default=numbers, targets=marks), alpha=1.0)
    (batch,) = list(mixed())
    parts = batch["targets"][0]
    np.testing.assert_allclose(parts.sum(axis=1), 1)
    assert ((parts > 0).sum(axis=1) <= 2).all()
    np.testing.assert_allclose(parts @ np.arange(300), batch["default"][0, :, 0])
    own = np.diag(parts)
    assert own[own < 1].std() == pytest.approx(12**-0.5, abs=0.05)  # uniform for alpha 1
    assert own[own < 1].mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [(np.uint8, np.float32), (np.int64, np.float32), (bool, np.float32), (np.float64, np.float64)],
)
def test_mixtures_are_floats(dtype, result):
    images = (IMAGES * 255).astype(dtype)
    mixed = only(MixUp(Undivided(default=images), ["default"]))
    assert mixed.dtype == result
    assert mixed.min() >= images.min()
    assert mixed.max() <= images.max() * (1 + 1e-6)


def test_classes_are_mixed_as_vectors():
    iterator = OneHot(Minibatches(100, default=IMAGES, targets=CLASSES), {"targets": 4})
    for batch in MixUp(iterator)():
        np.testing.assert_allclose(batch["targets"].sum(axis=2), 1, rtol=1e-6)
    text = "expected data that can be mixed, got class numbers. Wrap the iterator into a OneHot fir"
    with refused(f"^MixUp, data 'targets': {text}st."):
        next(MixUp(Undivided(default=IMAGES, targets=CLASSES))())
    numbers = Undivided(default=IMAGES, targets=CLASSES.astype(float))  # a regression
    assert only(MixUp(numbers), "targets").shape == CLASSES.shape


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"names": "default"}, "MixUp: expected a list of data names, got 'default'"),
        ({"names": []}, "MixUp: expected names of data to mix, got none"),
        ({"names": ["x"]}, "MixUp: unknown data name 'x'. Choices are: default"),
        ({"names": ["default"], "alpha": 0},
         r"MixUp.alpha: expected a number in \[0.001, 1000\], got 0."),
    ],
)  # fmt: skip
def test_mixing_arguments(arguments, match):
    with refused(match):
        MixUp(Undivided(default=IMAGES), **arguments)


@pytest.mark.parametrize("batch_size", [1, 7, 300])
@pytest.mark.parametrize("offset", [0, 1e6])
def test_statistics_are_those_of_all_data(batch_size, offset):
    data = IMAGES[:, :60].astype(float) * [1, 2, 0] + offset + 0.1
    found = channel_statistics(Minibatches(batch_size, default=data), "default")
    np.testing.assert_allclose(found["default"][0], data.mean(axis=(0, 1, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(found["default"][1][:2], data.std(axis=(0, 1, 2, 3))[:2], rtol=1e-9)
    assert found["default"][1][2] == 1  # it is constant, but for rounding


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
def test_normalized_data(dtype):
    images = (IMAGES * 255 * [1, 0.5, 0.2]).astype(dtype)
    source = Minibatches(64, default=images, targets=CLASSES)
    statistics = json.loads(json.dumps(channel_statistics(source, "default")))
    batches = list(Normalize(source, statistics)())
    assert batches[0]["default"].dtype == (np.float64 if dtype == np.float64 else np.float32)
    found = np.concatenate([batch["default"] for batch in batches], axis=1)
    np.testing.assert_allclose(found.mean(axis=(0, 1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=(0, 1, 2, 3)), 1, rtol=1e-5)


def test_large_whole_numbers_are_normalized_before_they_are_rounded():
    times = np.arange(1_700_000_000, 1_700_000_300).reshape(1, 300, 1)
    source = Undivided(default=times)
    found = only(Normalize(source, channel_statistics(source, "default")))
    np.testing.assert_allclose(found.ravel(), (np.arange(300) - 149.5) / np.arange(300).std(), 1e-6)


def test_one_number_for_all_channels():
    found = only(Normalize(Undivided(default=IMAGES), {"default": (0.5, 2)}))
    np.testing.assert_allclose(found, (IMAGES - 0.5) / 2, rtol=1e-6)


SEQUENCES = [RND.normal(3, 2, (n, 2)) for n in (1, 9, 4, 6)]
X, MASK = RND.normal(3, 2, (4, 6, 2)), np.arange(6)[:, None] % 3 > 0


@pytest.mark.parametrize(
    ("iterator", "kept"),
    [
        (BucketedMinibatches(2, default=SEQUENCES), np.concatenate(SEQUENCES)),
        (Undivided(default=X, mask=MASK, per_sequence=["mask"]), X[:, MASK[:, 0]].reshape(-1, 2)),
        (Undivided(default=IMAGES, mask=IMAGES[..., :1] > 0.5), IMAGES[IMAGES[..., 0] > 0.5]),
    ],
    ids=["what is padded", "sequences", "pixels"],
)
def test_statistics_leave_out_what_a_mask_does(iterator, kept):
    found = channel_statistics(iterator, "default", mask_name="mask")["default"]
    np.testing.assert_allclose(
        found, [kept.mean(axis=0, dtype=float), kept.std(axis=0, dtype=float)]
    )


def test_statistics_leave_out_the_padding_that_an_iterator_adds_and_count_each_sequence_once():
    labels = [[float(len(s))] for s in SEQUENCES]
    pairs = {"default": SEQUENCES, "source": SEQUENCES[::-1], "label": labels}
    ragged = BucketedMinibatches(3, over_s="source", per_sequence="label", **pairs)
    found = channel_statistics(AddGaussianNoise(ragged, {"label": 0}), "default", "source", "label")
    whole = np.concatenate(SEQUENCES)
    for name in ("default", "source"):
        np.testing.assert_allclose(found[name], [whole.mean(axis=0), whole.std(axis=0)])
    np.testing.assert_allclose(found["label"], [np.mean(labels, 0), np.std(labels, 0)])
    mask = np.arange(4)[:, None, None] < np.array([1, 4, 2, 3, 4, 1])[:, None]
    chunks = SequenceChunks(2, 2, default=X, mask=mask, label=np.c_[:6.0], per_sequence="label")
    assert channel_statistics(chunks, "label")["label"] == ([2.5], [np.std(np.arange(6))])


@pytest.mark.parametrize(("mean", "std"), [(1.7e9, 0.3), (1e6, 1e-3), (1.0, 1e-12)])
def test_what_varies_little_is_not_constant(mean, std):
    data = mean + std * np.resize([-1.0, 1.0], (1, 1_000_000, 1))
    found = channel_statistics(Minibatches(250_000, False, default=data), "default")
    np.testing.assert_allclose(found["default"][1], data.std(), rtol=1e-3)


@pytest.mark.parametrize("mean", [0.0, 1000.0, 60000.0])
def test_halves_are_normalized_with_more_digits(mean):
    x = (mean + RND.randint(-9, 9, (1, 300, 1)) * max(mean / 1000, 1)).astype(np.float16)
    source = Undivided(default=np.concatenate([x, -x[:, : int(mean > 1e4)]], axis=1))
    statistics = channel_statistics(source, "default")
    found, (means, stds) = only(Normalize(source, statistics)), statistics["default"]
    expected = (source.data["default"].astype(float) - means) / stds
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=6e-4, atol=2e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_statistics_that_are_not_finite(bad):
    data = IMAGES.astype(float)
    data[1, 2, 3, 4, 1] = bad
    with refused(
        r"^channel_statistics, data 'default': expected finite numbers, got 129600 values per chan"
    ):
        channel_statistics(Replacing(Minibatches(50, default=IMAGES), {"default": data}), "default")


PLAIN = Undivided(default=IMAGES)


@pytest.mark.parametrize(
    ("iterator", "names", "mask_name", "text"),
    [
        (PLAIN, [], None, r"expected data names, got none. Choices are: default\."),
        (PLAIN, ["x"], None, "unknown data name 'x'. Choices are: default"),
        (PLAIN, ["default"], "m", "unknown data name 'm'. Choices are: default"),
        (PLAIN, [["default"]], None, r"expected data names one by one, got \['"),
        (PLAIN, ["default"], ["m"], r"expected data names one by one, got \['"),
        (Undivided(x=X, m=0 * X[..., :1]), ["x"], "m", ".* got 0 values per channel"),
        (Minibatches(6, over_s=["x"], x=X, m=X[:2, :, :1]), ["x"], "m",
         r"data 'x': expected a mask \(4, 6, 1\), got 'm' \(2, 6, 1\)\. Compute those of other"),
        (Undivided(x=X, m=X > 0), ["x"], "m", r".* a mask \(4, 6, 1\), got 'm' \(4, 6, 2\)"),
        (X, ["x"], None, r"expected a data iterator, such as Undivided.*, got ndarray\.$"),
    ],
)  # fmt: skip
def test_statistics_that_there_are_not(iterator, names, mask_name, text):
    with refused(f"^channel_statistics(: |, ){text}"):
        channel_statistics(iterator, *names, mask_name=mask_name)
