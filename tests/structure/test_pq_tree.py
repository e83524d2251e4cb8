"""The PQ-tree against brute force over all orders, and its growth."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.structure.pq_tree import PQTree


def is_consecutive(order, elements):
    places = sorted(order.index(element) for element in elements)
    return places[-1] - places[0] == len(places) - 1


@st.composite
def families(draw):
    size = draw(st.integers(1, 6))
    sets = st.sets(st.integers(0, size - 1), min_size=1)
    return size, draw(st.lists(sets, min_size=1, max_size=6))


@settings(max_examples=120)
@given(families())
def test_accepts_exactly_what_some_order_allows(family):
    size, sets = family
    tree = PQTree(size)
    orders = list(itertools.permutations(range(size)))
    for elements in sets:
        allowed = [order for order in orders if is_consecutive(order, elements)]
        assert tree.make_consecutive(elements) == bool(allowed)
        orders = allowed or orders  # a refused set changes nothing
        assert tuple(tree.order()) in orders


def test_prefers_the_natural_order():
    tree = PQTree(6)
    assert tree.make_consecutive({1, 2})
    assert tree.make_consecutive({2, 3})
    assert tree.order() == [0, 1, 2, 3, 4, 5]


def test_deep_nesting_needs_no_recursion():
    size = 1100
    tree = PQTree(size)
    assert all(tree.make_consecutive(range(stop)) for stop in range(2, size))
    assert tree.order() == list(range(size))
