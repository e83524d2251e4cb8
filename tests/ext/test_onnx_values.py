"""Tensors as views: what is said about their axes, against what NumPy does with an array."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.ext.onnx_exchange._values import Value, parts, regroup

sizes = st.lists(st.integers(1, 4), min_size=3, max_size=6).map(tuple)


def seen(value, array):
    """Return the tensor that a value says an array (T, B, features...) to be."""
    missing = [i for i in range(array.ndim) if i not in value.flat]
    assert all(array.shape[i] == 1 for i in missing)
    return array.transpose([*value.flat, *missing]).reshape(value.shape)


def cut(data, flat):
    """Draw where a list of axes is cut into groups."""
    ends = data.draw(st.sets(st.integers(1, len(flat)), max_size=len(flat)))
    starts = [0, *sorted(ends - {len(flat)})]
    return [flat[a:b] for a, b in zip(starts, [*starts[1:], len(flat)], strict=True)]


@settings(max_examples=200)
@given(data=st.data(), sizes=sizes)
def test_a_new_shape_of_permuted_axes(data, sizes):
    array = np.arange(np.prod(sizes)).reshape(sizes)
    order = data.draw(st.permutations(range(len(sizes))))
    value = Value("x", sizes, tuple((i,) for i in order))
    tensor = array.transpose(order)
    np.testing.assert_array_equal(seen(value, array), tensor)

    shape = tuple(int(np.prod([sizes[i] for i in part])) for part in cut(data, order))
    groups = regroup(sizes, value.flat, shape)
    assert groups is not None
    merged = replace(value, axes=groups)
    assert merged.shape == shape
    np.testing.assert_array_equal(seen(merged, array), tensor.reshape(shape))
    assert regroup(sizes, merged.flat, tensor.shape) is not None or 1 in sizes


@settings(max_examples=100)
@given(data=st.data(), features=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_the_place_of_each_feature(data, features):
    order = data.draw(st.permutations(range(2, 2 + len(features))))
    value = Value("x", (1, 1, *features), ((0,), (1,), tuple(order)))
    array = np.arange(np.prod(features))
    tensor = seen(value, array.reshape(1, 1, *features))[0, 0]
    np.testing.assert_array_equal(tensor, array[value.permutation(2)])


def test_axes_that_would_be_cut():
    assert regroup((2, 3, 4), (0, 1, 2), (2, 2, 6)) is None
    assert regroup((2, 3, 4), (0, 1, 2), (6, 2, 2)) is None
    assert regroup((2, 3, 4), (0, 2, 1), (2, 1, 12)) == ((0,), (), (2, 1))


def test_time_and_batch():
    value = Value("x", (5, 3, 4, 2), ((0, 1), (3,), (), (2,)))
    assert value.shape == (15, 2, 1, 4)
    assert (value.lead, value.features) == ((0,), (1, 2, 3))
    assert value.memory_order([1, 2, 3]) == [3, 1, 2]
    assert [value.is_mixed(i) for i in range(4)] == [True, False, False, False]
    assert replace(value, axes=((0,), (1, 2, 3))).is_mixed(1)


def test_what_stands_before_and_behind_the_features_of_an_axis():
    assert parts((0, 1, 3, 2)) == ((0, 1), (3, 2), ())
    assert parts((2, 3, 1)) == ((), (2, 3), (1,))
    assert parts((0,)) == ((0,), (), ())
    assert parts(()) == ((), (), ())
    assert parts((2, 1, 3)) is None
