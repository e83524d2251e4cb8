"""Numerical derivatives, and what is said about arrays that differ."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.errors import BrainstormError
from brainstorm.testing import KinkError, PropertyError, approx_fprime, check_close, differentiate


def test_approx_fprime_is_two_sided_and_keeps_the_point() -> None:
    x = np.array([[1.0, 2.0], [3.0, -4.0]], dtype=np.float32)
    before = x.copy()
    gradient = approx_fprime(x, lambda z, power: float(np.sum(z**power)), 1e-5, 3)
    assert gradient.dtype == np.float64
    np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-8)
    np.testing.assert_array_equal(x, before)


def test_approx_fprime_is_exact_for_parabolas() -> None:
    np.testing.assert_allclose(approx_fprime(np.array([3.0]), lambda z: z[0] ** 2, 0.5), [6.0])


def test_differentiate_refuses_a_kink() -> None:
    np.testing.assert_allclose(
        differentiate(np.array([1.0, -2.0]), lambda z: np.abs(z).sum()), [1, -1]
    )
    at_three = differentiate(np.array([3.0]), lambda z: (z**2).sum())  # from both sides
    np.testing.assert_allclose(at_three, [6.0], rtol=1e-8)
    match = r"element \[1\]: the slope is 0.2 to the left and 1 to the right.* Move away"
    with pytest.raises(KinkError, match=match):
        differentiate(np.array([1.0, 2e-6]), lambda z: np.maximum(z, 0).sum())


def test_check_close_names_the_worst_element() -> None:
    expected = np.zeros((2, 3))
    got = expected.copy()
    got[0, 1], got[1, 2] = 0.5, -2.0
    match = r"^somewhere\[1, 2\]: expected 0, got -2 \(2 of 6 elements differ\)$"
    with pytest.raises(PropertyError, match=match):
        check_close("somewhere", got, expected)
    check_close("somewhere", expected + 1e-8, expected)
    with pytest.raises(PropertyError, match=r"expected shape \(2, 3\), got \(3,\)"):
        check_close("somewhere", np.zeros(3), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_check_close_finds_what_is_not_finite(bad: float) -> None:
    with pytest.raises(PropertyError, match=r"\[1\]: expected 0, got (nan|inf)"):
        check_close("x", np.array([0.0, bad]), np.zeros(2))
    with pytest.raises(PropertyError, match=r"\[0\]: expected no NaN, got nan"):
        check_close("x", np.array([np.nan]), np.array([np.nan]))
    check_close("x", np.array([np.inf]), np.array([np.inf]))


def test_violations_are_assertions_and_errors_of_the_library() -> None:
    assert issubclass(PropertyError, AssertionError)
    assert issubclass(PropertyError, BrainstormError)
