"""Reductions of integers, drawn by hypothesis, and what NumPy says that they are."""

import numpy as np
from hypothesis import strategies as st

from brainstorm.optree import Variable
from brainstorm.optree import functions as fn

DTYPES = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)] + ["bool"]
NAMES = ("sum", "prod", "max", "min", "argmax", "argmin", "mean")


def extremes(dtype):
    """Return the lowest and the highest number of a type, as Python's."""
    if np.dtype(dtype) == np.bool_:
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def mostly_highest(rnd, shape, dtype):
    """Return an array of the highest number of a type, and here and there of the lowest."""
    low, high = np.array(extremes(dtype), dtype)
    return np.where(rnd.random(shape) < 0.7, high, low)


@st.composite
def arrays(draw, dtypes=tuple(DTYPES)):
    """Draw an array of one to four axes, in any order of memory, and axes to reduce."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    low, high = extremes(dtype)
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 9]), min_size=1, max_size=3))
    if draw(st.booleans()):
        shape[draw(st.integers(0, len(shape) - 1))] = 300
    rnd = np.random.RandomState(draw(st.integers(0, 1000)))
    kinds = [rnd.randint(low, high, shape, dtype=np.int64 if low else np.uint64)]
    kinds += [np.full(shape, low), np.full(shape, high, np.uint64)]
    kinds += [np.full(shape, near, object) for near in (high - 1, low + 1, 0, 1)]
    mixed = np.choose(rnd.randint(0, draw(st.integers(1, len(kinds))), shape), kinds)
    array = mixed.astype(dtype)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()):
        array = array[..., ::-1]
    axes = draw(st.lists(st.integers(0, array.ndim - 1), min_size=1, unique=True))
    return array, draw(st.sampled_from([None, tuple(sorted(axes))]))


def trees(array, axis):
    """Return the variable and every reduction of it."""
    x = Variable(array.shape, array.dtype, "x")
    return x, [getattr(fn, name)(x, axis) for name in NAMES]


def wide(array):
    """Return arrays that hold every reduction exactly, to be computed into."""
    kind = np.uint64 if array.dtype.kind == "u" else np.int64
    return [kind, kind, array.dtype, array.dtype, np.int64, np.int64, np.float32]


def expected(array, axis):
    """Return what NumPy says; sums wrap around at 64 bits."""
    axis = tuple(range(array.ndim)) if axis is None else axis
    kept = [i for i in range(array.ndim) if i not in axis]
    shape = [1 if i in axis else n for i, n in enumerate(array.shape)]
    rows = array.transpose(*kept, *axis).reshape(*(array.shape[i] for i in kept), -1)
    total = rows.sum(-1, dtype=wide(array)[0])
    found = [
        total,
        rows.prod(-1, dtype=wide(array)[1]),
        rows.max(-1),
        rows.min(-1),
        rows.argmax(-1),
        rows.argmin(-1),
    ]
    return [value.reshape(shape) for value in (*found, total / rows.shape[-1])]


def check(array, axis, compute):
    """Compare what ``compute(trees, bindings, dtypes)`` returns with NumPy's numbers.

    Once it computes into arrays that hold the results exactly, once into those of the trees' type.
    """
    x, reductions = trees(array, axis)
    exact = compute(reductions, {x: array}, wide(array))
    rounded = compute(reductions, {x: array}, [np.float32] * len(NAMES))
    for name, a, b, value in zip(NAMES, exact, rounded, expected(array, axis), strict=True):
        if name == "mean":
            np.testing.assert_allclose(a, value, 1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(a, value, err_msg=name)
            np.testing.assert_array_equal(b, value.astype(np.float32), err_msg=name)
