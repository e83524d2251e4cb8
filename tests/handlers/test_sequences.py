"""Operations on sequences: alignment against the sum over all paths, and large numbers."""

import itertools

import numpy as np
import pytest

from brainstorm.handlers import NativeHandler, NumpyHandler
from tests.handlers.running import needs_compiler, on

RND = np.random.RandomState(5)


def test_attention_softmax_of_large_scores(handler):
    out = handler.zeros((1, 1, 3))
    handler.attention_softmax(on(handler, [[[1e30, 1e30, -1e30]]]), None, False, out)
    np.testing.assert_array_equal(handler.get_numpy_copy(out), [[[0.5, 0.5, 0.0]]])


# -- rows ---------------------------------------------------------------------------------------


def test_fractions_of_numbers_of_rows_are_cut_off(kind):
    handler = kind(seed=1)
    rows, table = on(handler, [[-0.5], [2.5], [0.7]]), handler.zeros((3, 1))
    handler.add_rows_mv(on(handler, [[1], [2], [4]]), rows, table)
    np.testing.assert_array_equal(handler.get_numpy_copy(table), [[5], [0], [2]])
    handler.take_rows_mv(on(handler, [[1], [2], [3]]), rows, table)
    np.testing.assert_array_equal(handler.get_numpy_copy(table), [[1], [3], [1]])


def test_numbers_that_are_no_rows_give_nan_and_add_nothing(kind):
    handler = kind(seed=1)
    table, out = on(handler, [[0, 1], [2, 3], [4, 5]]), handler.zeros((7, 2))
    numbers = on(handler, [[-7], [1e9], [1e30], [np.nan], [1], [-1], [3]])
    handler.take_rows_mv(table, numbers, out)
    expected = [[np.nan] * 2] * 4 + [[2, 3]] + [[np.nan] * 2] * 2
    np.testing.assert_array_equal(handler.get_numpy_copy(out), expected)
    handler.add_rows_mv(handler.ones((7, 2)), numbers, table)
    np.testing.assert_array_equal(handler.get_numpy_copy(table), [[0, 1], [3, 4], [4, 5]])


@pytest.mark.parametrize("kind", [NumpyHandler, NativeHandler], indirect=True)
@pytest.mark.parametrize("turned", [np.s_[::-1], np.s_[:, ::-1], np.s_[::-1, ::-1], np.s_[::-2]])
def test_rows_of_reversed_views(kind, turned):
    handler, memory, expected = kind(np.float64, seed=1), np.zeros((6, 3)), np.zeros((6, 3))
    rows, numbers = np.arange(1.0, 7.0).reshape(2, 3), np.array([[0.0], [2.0]])
    np.add.at(expected[turned], [0, 2], rows)
    handler.add_rows_mv(rows, numbers, memory[turned])
    np.testing.assert_array_equal(memory, expected)
    out = np.zeros((4, 3))[::2, ::-1]
    handler.take_rows_mv(memory[turned], numbers, out)
    np.testing.assert_array_equal(out, rows)


@needs_compiler
def test_a_number_behind_a_long_table_is_none_of_its_rows():
    rows = 2**24 + 4  # float32 has no such number less one
    memory = np.zeros((rows + 1, 1), np.float32)
    numbers = np.array([[rows], [rows - 2]], np.float32)
    NativeHandler(seed=1).add_rows_mv(np.ones((2, 1), np.float32), numbers, memory[:rows])
    np.testing.assert_array_equal(memory[-4:, 0], [0, 1, 0, 0])


# -- alignment ----------------------------------------------------------------------------------


def collapse(path):
    return [k for k, _ in itertools.groupby(path) if k]


def enumerate_paths(x, labels):
    """Loss and derivatives of one sequence (T, K), by adding up all paths."""
    T, K = x.shape
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    total, by_class = 0.0, np.zeros((T, K))
    for path in itertools.product(range(K), repeat=T):
        if collapse(path) == labels:
            product = np.prod(p[np.arange(T), path])
            total += product
            by_class[np.arange(T), path] += product
    return -np.log(total), p - by_class / total


def ctc(handler, x, labels, mask=None):
    """Return loss and derivatives of sequences (T, B, K)."""
    loss, deltas = handler.zeros((x.shape[1], 1)), handler.ones(x.shape)
    given = None if mask is None else on(handler, mask)
    handler.ctc_loss(on(handler, x), on(handler, labels), given, loss, deltas)
    return handler.get_numpy_copy(loss)[:, 0], handler.get_numpy_copy(deltas)


CTC_CASES = {
    "no steps": ([[], []], [0, 0]),
    "one step": ([[1], []], [1, 1]),
    "repetitions": ([[1, 1], [2, 1], [2, 2], []], [4, 4, 4, 4]),
    "lengths": ([[1, 2], [2], []], [5, 2, 1]),
    "gaps": ([[1, 2], [2]], [[1, 0, 1, 1, 0], [0, 0, 1, 0, 1]]),
}


@pytest.mark.parametrize("case", CTC_CASES)
def test_ctc_loss_is_the_sum_over_all_paths(handler, case):
    labels, steps = CTC_CASES[case]
    if isinstance(steps[0], int):
        steps = [[1] * n + [0] * (max(steps) - n) for n in steps]
    mask = np.array(steps, dtype=bool).T
    T, B = mask.shape
    x, padded = RND.normal(size=(T, B, 3)), np.zeros((T, B, 1))
    for b, sequence in enumerate(labels):
        padded[: len(sequence), b, 0] = sequence
    losses, deltas = ctc(handler, x, padded, None if mask.all() else mask[:, :, None])
    for b, sequence in enumerate(labels):
        expected, derivatives = enumerate_paths(x[mask[:, b], b], sequence)
        np.testing.assert_allclose(losses[b], expected, rtol=1e-5)
        got = deltas[:, b]
        np.testing.assert_allclose(got[mask[:, b]], derivatives, rtol=1e-4, atol=1e-6)
        assert not got[~mask[:, b]].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_labels_that_do_not_fit_have_an_infinite_loss_and_no_deltas(dtype):
    handler = NumpyHandler(dtype)
    labels = np.zeros((3, 3, 1), dtype)
    labels[:, 0, 0], labels[:2, 1, 0], labels[:2, 2, 0] = (1, 2, 2), (1, 1), (1, 2)
    losses, deltas = ctc(handler, RND.normal(size=(3, 3, 4)), labels)
    np.testing.assert_array_equal(np.isinf(losses), [True, False, False])
    assert not deltas[:, 0].any()
    assert np.isfinite(deltas).all()


@pytest.mark.parametrize("wrong", [4.0, 1e30, -1.0, np.nan])
def test_labels_that_are_no_classes_have_no_loss(kind, wrong):
    labels = np.array([[[1.0], [1], [2]], [[wrong], [2], [0]], [[0], [0], [wrong]]])
    losses, deltas = ctc(kind(seed=1), RND.normal(size=(3, 3, 4)), labels)
    assert np.isnan(losses).tolist() == [True, False, False]  # after a 0 anything may follow
    assert np.isnan(deltas).all(axis=(0, 2)).tolist() == [True, False, False]
    assert np.isfinite(deltas[:, 1:]).all()


def test_a_number_that_is_added_to_all_scores_has_no_effect_on_ctc(kind):
    handler, labels = kind(seed=1), np.zeros((6, 2, 1))
    labels[:2, :, 0] = [[1, 3], [2, 3]]
    x = np.round(RND.normal(size=(6, 2, 4)) * 32) / 32  # exact also if 2**17 is added
    (losses, deltas), (shifted, others) = (ctc(handler, x + n, labels) for n in (0, 2**17))
    np.testing.assert_allclose(shifted, losses, rtol=1e-6)
    np.testing.assert_allclose(others, deltas, atol=1e-6)


@pytest.mark.parametrize("score", [np.nan, np.inf, -np.inf])
def test_ctc_of_scores_that_are_not_finite(kind, score):
    """They are those of one sequence, and no warning of NumPy, which may be an exception."""
    x, labels = RND.normal(size=(3, 2, 4)), np.array([[[1], [2]], [[2], [0]], [[0], [0]]])
    expected, _ = ctc(kind(seed=1), x, labels)
    x[1, 0, 2] = score
    losses, deltas = ctc(kind(seed=1), x, labels)
    np.testing.assert_array_equal(losses[1], expected[1])
    assert np.isfinite(deltas[:, 1]).all()
    assert not np.isfinite(losses[0]) or score < 0


def test_ctc_of_long_sequences_and_large_scores():
    labels = np.zeros((300, 2, 1))
    labels[:40, :, 0] = RND.randint(1, 20, size=(40, 2))
    losses, deltas = ctc(NumpyHandler(np.float32), RND.normal(size=(300, 2, 20)) * 50, labels)
    assert np.isfinite(losses).all()
    np.testing.assert_allclose(deltas.sum(axis=2), 0, atol=1e-4)
