"""Iterators that wrap others: results, statistics, purity, and errors."""

import inspect
import math
import re
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm import data_iterators
from brainstorm import data_iterators as di
from brainstorm.randomness import global_rnd
from tests.data_iterators.iterating import Replacing, only, refused

IMAGES = np.arange(2 * 6 * 4 * 5 * 3, dtype=np.float32).reshape(2, 6, 4, 5, 3)
SQUARES = np.ascontiguousarray(IMAGES[:, :, :, :4])
CLASSES = np.arange(12).reshape(2, 6, 1) % 4
LABELS = np.stack([CLASSES[..., 0], CLASSES[..., 0] // 2], axis=2)


def source(**changes):
    return di.Undivided(**{"default": IMAGES, "targets": CLASSES, "labels": LABELS, **changes})


EXAMPLES = {
    "AddGaussianNoise": lambda it: di.AddGaussianNoise(it, {"default": 0.5, "targets": 0.1}),
    "AddSaltNPepper": lambda it: di.AddSaltNPepper(it, {"default": 0.3}),
    "Flip": lambda it: di.Flip(it),
    "Pad": lambda it: di.Pad(it, {"default": 2}),
    "RandomCrop": lambda it: di.RandomCrop(it, {"default": (2, 2)}),
    "OneHot": lambda it: di.OneHot(it, {"targets": 4}),
    "MultiHot": lambda it: di.MultiHot(it, {"labels": 4, "targets": 5}),
    "Rotate90": lambda it: di.Rotate90(it, {"default": 0.5}),
    "Cutout": lambda it: di.Cutout(it, {"default": 2}),
    "MixUp": lambda it: di.MixUp(it, ["default", "labels"]),
    "Prefetch": lambda it: di.Prefetch(it),
    "Normalize": lambda it: di.Normalize(it, {"default": ([1, 2, 3], 2), "targets": (1, [0.5])}),
}
each_example = pytest.mark.parametrize("name", EXAMPLES)


def test_every_wrapper_has_an_example():
    public = [getattr(data_iterators, name) for name in data_iterators.__all__]
    classes = [value for value in public if inspect.isclass(value)]
    wrappers = {c.__name__ for c in classes if issubclass(c, di.Wrapper)} - {"Wrapper"}
    assert wrappers == set(EXAMPLES)


# -- properties of all wrappers ------------------------------------------------------------------


@each_example
def test_data_are_never_changed_and_nothing_accumulates(name):
    data = {"default": SQUARES.copy(), "targets": CLASSES.copy(), "labels": LABELS.copy()}
    wrapper = EXAMPLES[name](source(**data))
    shapes = dict(wrapper.data_shapes)
    for _ in range(3):
        (batch,) = list(wrapper())
        assert {key: array.shape[2:] for key, array in batch.items()} == shapes
        for key in wrapper.settings:
            assert not np.shares_memory(batch[key], data[key])
    assert wrapper.data_shapes == shapes
    for key, before in (("default", SQUARES), ("targets", CLASSES), ("labels", LABELS)):
        assert np.array_equal(data[key], before)
        if key not in wrapper.settings:
            assert np.array_equal(batch[key], before)
    assert wrapper.iter.data_shapes == source(default=SQUARES).data_shapes


@each_example
def test_global_seed_reaches_wrappers(name):
    results = []
    for seed in (42, 42, 43):
        global_rnd.set_seed(seed)
        wrapper = EXAMPLES[name](
            di.Minibatches(2, False, default=SQUARES, labels=LABELS, targets=CLASSES)
        )
        assert wrapper.length == 3
        results.append([batch[key] for _ in range(2) for batch in wrapper() for key in batch])
    first, again, other = results
    assert all(map(np.array_equal, first, again))
    is_random = name not in ("Pad", "OneHot", "MultiHot", "Normalize", "Prefetch")
    assert all(map(np.array_equal, first, other)) != is_random


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "Prefetch"])
def test_unknown_names_and_wrong_kinds_of_arguments(name):
    cls, names = getattr(data_iterators, name), "a dictionary with data names as keys, got 0.5. For"
    for arguments, text in (
        ([source(), {"defualt": 1}], "unknown data name 'defualt'. Choices are: default, targets, "
         "labels. Did you mean 'default'"),
        ([source(), 0.5], "expected a list of data names, got 0.5" if name == "MixUp" else
         f"expected {names} all names: {{'default': ..., 'targets': ..., 'labels': ...}}"),
        ([IMAGES, {"default": 1}], "expected a DataIterator to wrap, got ndarray"),
    ):  # fmt: skip
        with refused(f"^{name}: {text}"):
            cls(*arguments)


@each_example
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tiny_numbers_are_no_error(name, dtype):
    tiny = SQUARES.astype(dtype) * np.finfo(dtype).smallest_subnormal
    with np.errstate(all="raise"):
        list(EXAMPLES[name](source(default=tiny))())
        di.channel_statistics(source(default=tiny), "default")


def test_wrappers_nest():
    cropped = di.RandomCrop(source(), {"default": (2, 3)})
    wrapped = di.OneHot(di.Flip(di.Pad(cropped, {"default": 1})), {"targets": 4})
    (batch,) = list(wrapped())
    assert batch["default"].shape == (2, 6, 4, 5, 3)
    assert wrapped.data_shapes == {"default": (4, 5, 3), "targets": (4,), "labels": (2,)}


def test_own_iterators_can_be_wrapped_and_own_wrappers_define_transform():
    class Own(di.DataIterator):
        def __call__(self, handler=None):
            yield {"default": np.zeros((1, 2, 3))}

    assert only(di.AddGaussianNoise(Own({"default": (3,)}, 1), {"default": 1.0})).std() > 0
    with pytest.raises(NotImplementedError, match="Wrapper does not define transform"):
        next(di.Wrapper(source(), {"default": 1})())


# -- noise --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "result"),
    [(t, t) for t in (np.float16, np.float32, np.float64)]
    + [(np.uint8, np.float32), (bool, np.float32)],
)
def test_gaussian_noise_statistics_stay_the_same_every_epoch(dtype, result):
    data = np.ones((1, 100, 400), dtype)
    wrapper = di.AddGaussianNoise(di.Undivided(default=data), {"default": 0.5}, {"default": -2.0})
    epochs = [only(wrapper) for _ in range(3)]
    for noisy in epochs:
        assert noisy.dtype == result
        assert noisy.mean() == pytest.approx(-1.0, abs=0.02)
        assert noisy.std() == pytest.approx(0.5, abs=0.01)
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize(("ratio_dict", "ratio"), [(None, 0.5), ({"default": 0.9}, 0.9)])
def test_salt_and_pepper_statistics(ratio_dict, ratio):
    data = np.full((1, 100, 400), 0.3, np.float32)
    wrapper = di.AddSaltNPepper(di.Undivided(default=data), {"default": 0.4}, ratio_dict)
    for _ in range(2):
        noisy = only(wrapper)
        assert noisy.dtype == np.float32
        assert set(np.unique(noisy)) == {0, np.float32(0.3), 1}
        assert (noisy == 1).mean() == pytest.approx(0.4 * ratio, abs=0.01)
        assert (noisy == 0).mean() == pytest.approx(0.4 * (1 - ratio), abs=0.01)


@pytest.mark.parametrize(("prob", "ratio", "value"), [(0, 0.5, 9), (1, 1, 255), (1, 0, 0)])
def test_salt_in_images_of_bytes_is_white(prob, ratio, value):
    data = di.Undivided(default=np.full((1, 9, 9), 9, np.uint8))
    salted = only(di.AddSaltNPepper(data, {"default": prob}, {"default": ratio}))
    assert salted.dtype == np.uint8
    assert (salted == value).all()


# -- images -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, bool])
def test_flip_mirrors_whole_sequences(dtype):
    images = np.random.RandomState(0).randint(0, 2, (2, 200, 9, 4, 1)).astype(dtype)
    flipped = only(di.Flip(di.Undivided(default=images), {"default": 0.3}))
    assert flipped.dtype == dtype
    mirrored = (flipped == images[..., ::-1, :]).all(axis=(0, 2, 3, 4))
    assert (mirrored | (flipped == images).all(axis=(0, 2, 3, 4))).all()
    assert np.mean(mirrored) == pytest.approx(0.3, abs=0.15)


IMAGE_WRAPPERS = {
    "Flip": (di.Flip, 0.5),
    "RandomCrop": (di.RandomCrop, (2, 2)),
    "Rotate90": (di.Rotate90, 0.5),
    "Cutout": (di.Cutout, 2),
}
each_of_images = pytest.mark.parametrize("name", IMAGE_WRAPPERS)


@each_of_images
def test_images_and_their_label_maps_are_changed_alike(name):
    make, setting = IMAGE_WRAPPERS[name]
    maps = (SQUARES.sum(axis=-1, keepdims=True) + 1).astype(np.int64)
    data = di.Minibatches(4, shuffle=False, default=SQUARES + 1, targets=maps)
    changed = make(data, {"default": setting, "targets": setting})
    for batch in [*changed(), *changed()]:
        sums = (batch["default"] - (batch["targets"] > 0)).sum(axis=-1, keepdims=True)
        np.testing.assert_array_equal(sums + (batch["targets"] > 0), batch["targets"])


def test_images_and_their_label_maps_are_changed_alike_while_another_thread_draws():
    class Disturbed(di.Flip):
        def transform(self, name, array):
            if name == "targets" and threading.current_thread() is threading.main_thread():
                others.append(threading.Thread(target=lambda: list(changed())))
                others[-1].start()
                others[-1].join(0.05)  # it waits
            return super().transform(name, array)

    others: list[threading.Thread] = []
    images = np.random.RandomState(0).random_sample((1, 40, 2, 2, 1))
    data = di.Minibatches(20, default=images, targets=images)
    changed = Disturbed(data, {"default": 0.5, "targets": 0.5})
    for batch in changed():
        np.testing.assert_array_equal(batch["default"], batch["targets"])
    for thread in others:
        thread.join()


@pytest.mark.parametrize("factors", [(2, 2), (3, 1), (1, 4)])
def test_label_maps_of_a_fraction_of_the_size_are_cropped_alike(factors):
    maps = np.random.RandomState(0).random_sample((2, 99, 4, 5, 1))
    others = np.broadcast_to(np.arange(10.0)[:, None, None], (2, 99, 10, 7, 1))  # the rows
    images = maps.repeat(factors[0], axis=2).repeat(factors[1], axis=3)
    shapes = {"default": (2 * factors[0], 3 * factors[1]), "targets": (2, 3), "others": (5, 5)}
    data = di.Undivided(default=images, targets=maps, others=others)
    (batch,) = list(di.RandomCrop(data, shapes)())
    large = batch["targets"].repeat(factors[0], axis=2).repeat(factors[1], axis=3)
    np.testing.assert_array_equal(batch["default"], large)
    assert len(np.unique(batch["targets"][0, :, 0, 0])) > 90
    assert set(batch["others"][0, :, 0, 0, 0]) == set(range(6))  # 10 is no multiple of 4


def test_label_maps_of_two_fractions_that_are_none_of_each_other_are_cropped_alike():
    places = {n: np.arange(12).reshape(n, -1)[:, :1] for n in (12, 6, 4)}  # where a row begins
    data = {f"of_{n}": np.broadcast_to(p[:, None], (1, 50, n, n, 1)) for n, p in places.items()}
    shapes = {f"of_{n}": (n // 2, n // 2) for n in places}
    (batch,) = list(di.RandomCrop(di.Undivided(**data), shapes)())
    assert {tuple(parts[0, :, 0, 0, 0]) for parts in batch.values()} == {
        tuple(batch["of_12"][0, :, 0, 0, 0])
    }
    assert set(batch["of_12"][0, :, 0, 0, 0]) == {0, 6}


def test_parts_go_on_when_another_iteration_that_began_before_ends():
    data = np.repeat(SQUARES[:1] + 1, 6, axis=0)
    changed = di.MixUp(di.SequenceChunks(2, 3, shuffle=False, default=data), ["default"])
    begin, epoch = changed.get_state(), changed()
    next(epoch)
    other = changed()
    next(other)
    for _ in range(4):
        next(epoch)  # the second chunk of other sequences
    other.close()
    state, expected = changed.get_state(), next(epoch)["default"]
    changed.set_state(begin)
    epoch = changed.resume_epoch(5)
    changed.set_state(state)
    np.testing.assert_array_equal(next(epoch)["default"], expected)


@pytest.mark.parametrize("name", [*IMAGE_WRAPPERS, "MixUp"])
@pytest.mark.parametrize("interrupts", [False, True])
def test_parts_of_sequences_are_changed_like_the_first(name, interrupts):
    """Also if the same data are used for something else in between."""
    chunks = di.SequenceChunks(2, 4, default=np.repeat(SQUARES[:1] + 1, 6, axis=0))
    if name == "MixUp":
        changed = di.MixUp(chunks, ["default"])
    else:
        make, setting = IMAGE_WRAPPERS[name]
        changed = make(chunks, {"default": setting})
    seen = []
    for batch in changed():
        if batch.continues:
            np.testing.assert_array_equal(batch["default"], seen[-1])
        seen.append(batch["default"])
        if interrupts:
            list(changed())
    assert len(seen) == 6
    assert not np.array_equal(seen[0], seen[-1])


@pytest.mark.parametrize("size", [0, 1, 3, np.int64(2)])
@pytest.mark.parametrize("value", [None, 0, 0.1])
def test_pad(size, value):
    wrapper = di.Pad(source(), {"default": size}, None if value is None else {"default": value})
    for _ in range(2):
        padded = only(wrapper)
        assert padded.shape == (2, 6, 4 + 2 * size, 5 + 2 * size, 3)
        assert padded.dtype == IMAGES.dtype
        assert np.array_equal(padded[:, :, size : size + 4, size : size + 5], IMAGES)
        border = padded.size - IMAGES.size
        assert padded.sum() == pytest.approx(IMAGES.sum() + border * (value or 0))
    assert wrapper.data_shapes["default"] == (4 + 2 * size, 5 + 2 * size, 3)


@pytest.mark.parametrize("cls", [di.Pad, di.Cutout])
@pytest.mark.parametrize(
    ("dtype", "fit", "unfit"),
    [
        (np.uint8, 255, 256),
        (np.uint8, 2.0, 0.5),
        (np.int16, -1, 1e9),
        (bool, True, 2),
        (np.uint32, 2**32 - 1, 2**32),
        (np.uint32, 7.0, 2**64),
        (np.uint64, 2**64 - 1, 2.0**64),
        (np.uint64, np.uint64(2**64 - 1), 10**20),
        (np.float16, 60000, 70000),
        (np.float32, 2**70, 1e39),
    ],
)
def test_values_are_those_that_the_data_can_have(cls, dtype, fit, unfit):
    images = di.Undivided(default=np.zeros((1, 2, 3, 3, 1), dtype))
    changed = only(cls(images, {"default": 1}, {"default": fit}))
    assert changed.dtype == dtype
    assert set(np.unique(changed).tolist()) == {0, fit}
    text = f"expected a value that data of {np.dtype(dtype)} can have, got {unfit}."
    text += " Make them float32." * (np.dtype(dtype).kind != "f")
    with refused(f"^{cls.__name__}, data 'default': {re.escape(text)}$"):
        only(cls(images, {"default": 1}, {"default": unfit}))


@settings(max_examples=30)
@given(rows=st.integers(1, 4), columns=st.integers(1, 5), seed=st.integers(0, 99))
def test_random_crop_is_a_part_of_the_sequence(rows, columns, seed):
    wrapper = di.RandomCrop(source(), {"default": (rows, columns)})
    wrapper.rnd.set_seed(seed)
    cropped = only(wrapper)
    assert wrapper.data_shapes["default"] == cropped.shape[2:] == (rows, columns, 3)
    for b in range(6):
        # each pixel of IMAGES holds its own flat index, which tells where the part begins
        top, left = np.unravel_index(int(cropped[0, b, 0, 0, 0]), IMAGES.shape)[2:4]
        part = IMAGES[:, b, top : top + rows, left : left + columns]
        assert np.array_equal(cropped[:, b], part)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, bool, np.int64])
def test_random_crop_takes_every_place_and_dtype(dtype):
    images = np.zeros((1, 300, 4, 3, 1), dtype)
    images[:, :, 1, 2] = 1
    cropped = only(di.RandomCrop(di.Undivided(default=images), {"default": (2, 2)}))
    assert cropped.dtype == dtype
    # the pixel is seen from the parts at columns 1, and rows 0 and 1 of 0, 1, 2
    assert cropped.any(axis=(2, 3, 4)).mean() == pytest.approx(1 / 2 * 2 / 3, abs=0.1)
    assert np.array_equal(only(di.RandomCrop(source(), {"default": (4, 5)})), IMAGES)


# -- classes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_one_hot(dtype):
    wrapper = di.OneHot(source(targets=CLASSES.astype(dtype), b=CLASSES), {"targets": 5, "b": 6})
    (batch,) = list(wrapper())
    assert batch["b"].shape[2] == 6
    assert (wrapper.data_shapes["targets"], wrapper.data_shapes["b"]) == ((5,), (6,))
    encoded = batch["targets"]
    assert encoded.dtype == bool
    assert encoded.shape == (2, 6, 5)
    assert (encoded.sum(axis=2) == 1).all()
    assert np.array_equal(encoded.argmax(axis=2), CLASSES[..., 0])


def test_one_hot_of_each_pixel():
    maps = np.random.RandomState(0).randint(0, 3, (2, 6, 4, 5, 1))
    wrapper = di.OneHot(source(targets=maps), {"targets": 3})
    assert wrapper.data_shapes["targets"] == (4, 5, 3)
    assert np.array_equal(only(wrapper, "targets"), maps == np.arange(3))


def test_multi_hot():
    encoded = only(di.MultiHot(source(), {"labels": 4}), "labels")
    assert encoded.dtype == bool
    assert encoded.shape == (2, 6, 4)
    for place in np.ndindex(2, 6):
        assert set(np.flatnonzero(encoded[place])) == set(LABELS[place])


@pytest.mark.parametrize(
    "value", [-1, 4, 0.5, float("nan"), float("inf"), 1e30], ids=lambda v: str(v)
)
@pytest.mark.parametrize("cls", [di.OneHot, di.MultiHot])
def test_classes_out_of_range(cls, value):
    targets = CLASSES.astype(float)
    targets[1, 2] = value
    given = Replacing(source(targets=CLASSES), {"targets": targets})
    text = re.escape(f"expected whole numbers from 0 to 3, got {float(value)}")
    with refused(f"^{cls.__name__}, data 'targets': {text}$"):
        next(cls(given, {"targets": 4})())


# -- arguments ----------------------------------------------------------------------------------

PAIR = r"expected \(means, standard deviations\) of 3 channels, got "
PART = r"expected \(rows, columns\) from \(1, 1\) to \(4, 5\), got "
PROBABILITY = r"probability: expected a number in \[0, 1\], got "
STD = "standard deviation: expected a finite number >= 0, got "


@pytest.mark.parametrize(
    ("cls", "arguments", "text"),
    [
        *((di.AddGaussianNoise, [wrong], f"{STD}{wrong!r}") for wrong in (-1, "1", True)),
        *((di.AddGaussianNoise, [wrong], f"{STD}{wrong}") for wrong in (math.nan, math.inf)),
        (di.AddGaussianNoise, [1, "x"], "mean: expected a finite number, got 'x'"),
        (di.AddSaltNPepper, [1.1], f"{PROBABILITY}1.1"),
        (di.AddSaltNPepper, [1, -0.1], r"ratio: expected a number in \[0, 1\], got -0.1"),
        (di.Flip, [2], f"{PROBABILITY}2"),
        (di.Rotate90, [1.5], f"{PROBABILITY}1.5"),
        (di.Rotate90, [1],
         "expected as many rows as columns, got 4 and 5. RandomCrop makes images"),
        *((di.Pad, [wrong], f"size: expected an int >= 0, got {wrong}") for wrong in (-1, 1.0)),
        (di.Pad, [1, "x"], "value: expected a finite number, got 'x'"),
        (di.Cutout, [0], "size: expected an int >= 1, got 0"),
        *((di.RandomCrop, [wrong], PART + re.escape(f"{wrong}"))
          for wrong in [(5, 5), (0, 5), (1, 2, 3), 3, (1.0, 2.0)]),
        (di.OneHot, [4],
         r"expected one class number \(T, B, ..., 1\), got features \(4, 5, 3\)\. Sever"),
        (di.MultiHot, [4], r"expected class numbers \(T, B, n\), got features \(4, 5, 3\)"),
        *((di.OneHot, [wrong], f"vocabulary size: expected an int >= 1, got {wrong}")
          for wrong in (0, 2.5)),
        *((di.Normalize, [wrong], PAIR) for wrong in (([1, 2], 1), ("a", 1), (1, 2, 3))),
        (di.Normalize, [1], f"{PAIR}1"),
        (di.Normalize, [(1, [1, 0, 1])], "above 0, got .*. For a channel that is constant give 1."),
        (di.Normalize, [(math.nan, 1)], "expected finite means and standard deviations above 0"),
    ],
)  # fmt: skip
def test_unfit_arguments(cls, arguments, text):
    with refused(f"^{cls.__name__}, data 'default': .*{text}"):
        cls(source(), *({"default": argument} for argument in arguments))


@pytest.mark.parametrize("cls", [di.AddGaussianNoise, di.AddSaltNPepper, di.Pad, di.Cutout])
def test_further_arguments_are_for_the_same_names(cls):
    with refused(f"^{cls.__name__}: unknown data name 'targets'. Choices are: default"):
        cls(source(), {"default": 1}, {"targets": 1})


@pytest.mark.parametrize("cls", [di.Flip, di.Pad, di.RandomCrop, di.Rotate90, di.Cutout])
def test_what_is_no_image(cls):
    text = r"expected images of shape \(T, B, rows, columns, channels\), got \(T, B, 2\)"
    with refused(f"^{cls.__name__}, data 'labels': {text}"):
        cls(source(), {"labels": 1})
    if cls in (di.Pad, di.Cutout):  # wrong values are found before
        with refused(rf"^{cls.__name__}\.value_dict: expected a dictionary or None, got 1\."):
            cls(source(), {"labels": 1}, 1)


def test_images_and_label_maps_are_not_mirrored_apart_by_default():
    maps = di.Undivided(default=IMAGES, maps=IMAGES[..., :1], small=IMAGES[:, :, 1:])
    text = (
        "Flip: expected the names of the images, because 'maps' are as large as 'default', e.g. "
        "Flip(iter, {'default': 0.5, 'maps': 0.5})"
    )
    with refused(f"^{re.escape(text)}$"):
        di.Flip(maps)
    assert set(di.Flip(maps, {"default": 0.5}).prob_dict) == {"default"}
    other = di.Undivided(default=IMAGES, small=IMAGES[:, :, 1:])
    assert di.Flip(other).prob_dict == {"default": 0.5}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"defalt": IMAGES}, "unknown data name 'defalt'.*'default'"),
        (None, "expected a dictionary"),
    ],
)
def test_changes_of_data_that_a_batch_does_not_have(changed, text):
    class Misspelt(di.Wrapper):
        def transform_batch(self, batch):
            return changed

    with refused(f"^Misspelt: {text}"):
        next(Misspelt(source(), {"default": 1})())
