"""Placement: hubs that live at the same time never overlap, and little memory is wasted."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.structure.hubs import Hub
from brainstorm.structure.placement import (
    get_total_size_slices_and_shapes,
    measure_bytes,
    without_sharing,
)

STEP = 16  # values of four bytes


def make_hub(size, lifetime, buffer_type=2, context=0, square=False):
    return Hub(
        ["x"], [], buffer_type, False, context, size, columns="T" * square, lifetime=lifetime
    )


lifetimes = st.none() | st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple)
hub_lists = st.lists(
    st.builds(
        make_hub,
        st.integers(0, 60),
        lifetimes,
        buffer_type=st.sampled_from([1, 2]),
        context=st.integers(0, 2),
        square=st.booleans(),
    ),
    max_size=25,
)


def lives_at(hub, position):
    return hub.lifetime is None or hub.lifetime[0] <= position <= hub.lifetime[1]


@pytest.mark.parametrize(("item_size", "step"), [(4, 16), (8, 8)])
def test_hubs_that_live_always_follow_each_other_in_the_buffer_of_their_type(item_size, step):
    hubs = [make_hub(size, None, buffer_type) for size, buffer_type in ((8, 0), (3, 0), (3, 1))]
    hubs += [make_hub(8, None, context=2), make_hub(4, None, context=2)]
    totals, slices, shapes = get_total_size_slices_and_shapes(hubs, 3, 5, item_size)
    assert shapes == [(8,), (3,), (5, 3), (5, 5, 8), (5, 5, 4)]
    for (start, stop), shape in zip(slices, shapes, strict=True):
        assert stop - start == np.prod(shape)
        assert start % step == 0
    assert slices[1][0] == -(-8 // step) * step
    assert slices[4][0] == -(-200 // step) * step
    assert totals == [-(-(slices[i][1]) // step) * step for i in (1, 2, 4)]


@settings(max_examples=50)
@given(hub_lists, st.integers(1, 5), st.integers(1, 5))
def test_hubs_that_live_together_have_memory_of_their_own(hubs, T, B):
    totals, slices, shapes = get_total_size_slices_and_shapes(hubs, T, B)
    assert (totals, slices, shapes) == get_total_size_slices_and_shapes(hubs, T, B)
    placed = list(zip(hubs, slices, strict=True))
    for (hub, (start, stop)), shape in zip(placed, shapes, strict=True):
        assert start % STEP == 0
        assert stop - start == np.prod(shape)
        assert stop <= totals[hub.buffer_type]
    for position, buffer_type in itertools.product(range(31), (1, 2)):
        living = [
            part
            for hub, part in placed
            if hub.buffer_type == buffer_type and hub.size and lives_at(hub, position)
        ]
        for (_, stop), (start, _) in itertools.pairwise(sorted(living)):
            assert stop <= start


@settings(max_examples=50)
@given(hub_lists)
def test_sharing_never_takes_more(hubs):
    assert measure_bytes(hubs, 3, 2, 4) <= measure_bytes(without_sharing(hubs), 3, 2, 4)


def test_the_smallest_gap_that_is_large_enough_is_taken():
    always, early, late = (0, 9), (0, 4), (5, 9)
    spans = [always, early, always, early, always, late]
    hubs = [make_hub(n, span) for n, span in zip([96, 64, 48, 32, 16, 16], spans, strict=True)]
    totals, slices, _ = get_total_size_slices_and_shapes(hubs, 1, 1)
    # The largest first. For the last one 96 to 160 and 208 to 240 are free.
    assert slices == [(0, 96), (96, 160), (160, 208), (208, 240), (240, 256), (208, 224)]
    assert totals == [0, 0, 256]


def test_what_lives_always_comes_first_in_its_order():
    hubs = [make_hub(5, (0, 1)), make_hub(7, None), make_hub(90, (2, 3)), make_hub(20, None)]
    totals, slices, _ = get_total_size_slices_and_shapes(hubs, 1, 1)
    assert slices == [(48, 53), (0, 7), (48, 138), (16, 36)]
    assert totals == [0, 0, 144]


def test_a_chain_needs_hardly_more_than_what_lives_at_once():
    """As the deltas of 60 layers of different widths follow each other."""
    sizes = np.random.RandomState(0).randint(1, 300, 60).tolist()
    hubs = [make_hub(size, (i, i + 1)) for i, size in enumerate(sizes)]
    rooms = [-(-size * 8 // STEP) * STEP for size in sizes]
    bound = max(a + b for a, b in itertools.pairwise(rooms))
    assert 4 * bound <= measure_bytes(hubs, 2, 4, 4) <= 1.05 * 4 * bound
