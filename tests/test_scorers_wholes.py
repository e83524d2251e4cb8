"""Scores are those of scikit-learn, whatever the batches are, and NaN where there is none."""

import re
import warnings

import numpy as np
import pytest
from sklearn import metrics

import brainstorm as bs
from brainstorm.errors import ValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.layers import Input, NoOp
from brainstorm.scorers import (
    Accuracy,
    AreaUnderCurve,
    FScore,
    Hamming,
    MeanSquaredError,
    Precision,
    Recall,
    RSquared,
)
from brainstorm.tools import evaluate

RND = np.random.RandomState(0)
ROWS = 40


def classes(count):
    """Class numbers and probabilities, of which the last class is never true or predicted."""
    p = RND.random_sample((ROWS, count))
    p[:, -1] = 0
    return RND.randint(0, count - 1, (ROWS, 1)), p


def answers(columns):
    """Yes and no, and probabilities, some of which are equal."""
    return RND.randint(0, 2, (ROWS, columns)), RND.randint(0, 9, (ROWS, columns)) / 8


def numbers(columns):
    t = RND.normal(1e3, 1.0, (ROWS, columns))
    return t, t + 0.5 * RND.standard_normal((ROWS, columns))


def named(function, **options):
    """From predictions, as classes or answers, to a score of scikit-learn."""

    def score(t, p, sample_weight):
        if t.shape[1] < p.shape[1]:
            return function(t, p.argmax(1), sample_weight=sample_weight, **options)
        if t.shape[1] == 1:
            return function(
                t, p >= 0.5, sample_weight=sample_weight, **{**options, "average": "binary"}
            )
        return function(t, p >= 0.5, sample_weight=sample_weight, **options)

    return score


MACRO = {"average": "macro", "zero_division": 0}
OF_CLASSES = [
    (Precision(), named(metrics.precision_score, **MACRO)),
    (Recall(), named(metrics.recall_score, **MACRO)),
    (FScore(), named(metrics.f1_score, **MACRO)),
    (FScore(2.0), named(metrics.fbeta_score, beta=2.0, **MACRO)),
    (FScore(0.5), named(metrics.fbeta_score, beta=0.5, **MACRO)),
]
CASES = [
    (Accuracy(), lambda t, p, **w: metrics.accuracy_score(t, p.argmax(1), **w), classes(4)),
    (Accuracy(), metrics.accuracy_score, (classes(4)[0], classes(4)[0].astype(float))),
    (Accuracy(), lambda t, p, **w: metrics.accuracy_score(t.argmax(1), p.argmax(1), **w),
     (np.eye(4)[classes(4)[0][:, 0]], classes(4)[1])),
    *((Hamming(at), lambda t, p, at=at, **w: 1 - metrics.hamming_loss(t, p >= at, **w),
       answers(3)) for at in (0.5, 0.25)),
    (MeanSquaredError(), lambda t, p, **w: 1.5 * metrics.mean_squared_error(t, p, **w), numbers(3)),
    *((scorer, peer, data) for scorer, peer in OF_CLASSES
      for data in (classes(4), answers(1), answers(3))),
    *((scorer, named(function, labels=[1], **MACRO), classes(4)) for scorer, function in (
        (Precision(1), metrics.precision_score), (Recall(of_class=1), metrics.recall_score))),
    *((scorer, lambda t, p, f=f, **w: f(t > 0, p.argmax(1), **w), (t, answers(2)[1]))
      for t in (answers(1)[0], 2 * answers(1)[0] - 1)
      for scorer, f in ((Precision(), metrics.precision_score), (FScore(), metrics.f1_score))),
    (Precision(0), lambda t, p, **w: metrics.precision_score(t, p.argmax(1), pos_label=0, **w),
     (answers(1)[0], answers(2)[1])),
    (Recall(0), lambda t, p, **w: metrics.recall_score(t, p.argmax(1) * 2 - 1, pos_label=-1, **w),
     (2 * answers(1)[0] - 1, answers(2)[1])),
    (FScore(), lambda t, p, **w: metrics.f1_score(t, np.where(p >= 0.5, 1, -1), **w),
     (2 * answers(1)[0] - 1, answers(1)[1])),
    (AreaUnderCurve(), metrics.roc_auc_score, (2 * answers(1)[0] - 1, answers(1)[1])),
    (AreaUnderCurve(), metrics.roc_auc_score, (answers(1)[0] + 1, answers(1)[1])),
    (AreaUnderCurve(), metrics.roc_auc_score, answers(1)),
    (AreaUnderCurve(), lambda t, p, **w: metrics.roc_auc_score(t, p[:, 1], **w),
     (answers(1)[0], answers(2)[1])),
    (RSquared(), metrics.r2_score, numbers(1)),
    (RSquared(), lambda t, p, **w: 0.0, (np.full((ROWS, 1), 0.1), numbers(1)[0])),
    (RSquared(), lambda t, p, **w: 1.0, (np.full((ROWS, 1), 0.1), np.full((ROWS, 1), 0.1))),
    (RSquared(), metrics.r2_score, numbers(3)),
]  # fmt: skip


def scored(scorer, t, p, mask, cuts):
    """Return the score of parts, as they come and as a run file keeps them."""
    rows = []
    for part in np.split(np.arange(ROWS), cuts):
        found = scorer(t[part], p[part], None if mask is None else mask[part])
        weight = len(part) if mask is None else mask[part].sum()
        found = [[weight, found]] if np.ndim(found) == 0 else np.atleast_2d(found).tolist()
        rows += map(tuple, found)
    kept = np.array(rows, float).tolist()
    assert scorer.aggregate(iter(rows)) == scorer.aggregate(kept)
    return scorer.aggregate(rows)


@pytest.mark.parametrize(("scorer", "peer", "data"), CASES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("cuts", [[], [1, 30], list(range(1, ROWS))], ids=len)
@pytest.mark.parametrize("masked", [False, True])
def test_scores_are_those_of_scikit_learn(scorer, peer, data, cuts, masked):
    mask = RND.randint(0, 3, (ROWS, 1)) if masked else None
    weights = None if mask is None else mask[:, 0]
    expected = peer(*data, sample_weight=weights)
    assert scored(scorer, *data, mask, cuts) == pytest.approx(expected, rel=1e-9)


def test_what_cannot_be_told_is_not_a_number():
    t = np.ones((3, 1))
    assert np.isnan(AreaUnderCurve().aggregate(AreaUnderCurve()(t, t)))
    assert np.isnan(RSquared().aggregate([RSquared()(t[:1], t[:1])]))
    for scorer in (AreaUnderCurve(), RSquared()):
        assert np.isnan(scorer.aggregate(np.atleast_2d(scorer(t, t, 0 * t))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert RSquared().aggregate([RSquared()(t, t)]) == metrics.r2_score(t, t) == 1
        assert RSquared().aggregate([RSquared()(t, 2 * t)]) == metrics.r2_score(t, 2 * t) == 0


@pytest.mark.parametrize("of_class", [None, 0])
@pytest.mark.parametrize("kind", [Precision, Recall, FScore])
def test_of_no_yes_the_score_is_0_as_in_scikit_learn(kind, of_class):
    none, scorer = np.zeros((3, 1)), kind(of_class=of_class)
    assert scorer.aggregate([scorer(none, none)]) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = metrics.precision_recall_fscore_support(none, none, average="binary", pos_label=1)
    assert found[:3] == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("kind", [Hamming, Precision, Recall, FScore, AreaUnderCurve])
def test_batches_that_do_not_count_are_not_looked_at(kind):
    """Their targets may be anything, such as the mark of what is unknown."""
    scorer, there = kind(mask_name="mask"), np.ones((3, 1))
    t, p = np.array([[0.0], [1], [1]]), np.array([[0.2], [0.9], [0.4]])
    padded, mask = np.concatenate([t, -100 * there]), np.concatenate([there, 0 * there])
    twice = np.concatenate([p, p])
    expected = evaluated(np.concatenate([t, t]), twice, mask + 1 - mask, [scorer])
    assert evaluated(padded, twice, mask, [scorer]) == expected
    assert np.isnan(evaluated(padded, twice, 0 * mask, [scorer])[scorer.__name__])


ALL = [Accuracy, AreaUnderCurve, FScore, Hamming, MeanSquaredError, Precision, RSquared, Recall]


def evaluated(t, p, mask, scorers):
    """Return the scores of predictions, given in two batches."""
    data = {"default": p, "targets": t, "mask": mask}
    inputs = Input({name: ("T", "B", array.shape[1]) for name, array in data.items()})
    for name in ("default", "targets", "mask"):
        inputs - name >> NoOp(name=f"{name}_out")
    net = bs.Network.from_layer(inputs, handler=NumpyHandler(np.float64))
    net.output_name = "default_out.outputs.default"
    batches = [{name: a[None, rows] for name, a in data.items()}
               for rows in (slice(3), slice(3, None))]  # fmt: skip
    scores = evaluate(net, lambda handler: iter(batches), scorers)
    return {scorer.__name__: scores[scorer.__name__] for scorer in scorers}


@pytest.mark.parametrize("columns", [1, 3])
def test_of_a_nan_there_is_no_score_unless_it_does_not_count(columns):
    t, p = RND.randint(0, 2, (ROWS, columns)), RND.randint(0, 2, (ROWS, columns)).astype(float)
    kinds = [kind for kind in ALL if columns == 1 or kind is not AreaUnderCurve]
    mask = np.ones((ROWS, 1))
    mask[[0, 1, 2, 5, 6, 20]] = 0  # with the first batch
    mask[10] = 0.5
    scorers = [kind(mask_name="mask") for kind in kinds]
    expected = pytest.approx(evaluated(t, p, mask, scorers), rel=1e-12)
    rest = mask[:, 0] != 0
    assert evaluated(t[rest], p[rest], mask[rest], scorers) == expected
    p[[0, 5, 6]] = np.nan
    assert evaluated(t, p, mask, scorers) == expected
    p[10] = np.nan
    assert np.isnan([*evaluated(t, p, mask, scorers).values()]).all()
    assert np.isnan([*evaluated(t, p, 0 * mask, scorers).values()]).all()


@pytest.mark.parametrize(("columns", "kind"), [(1, Accuracy), (3, Accuracy), (3, FScore)])
def test_of_a_target_that_is_nan_there_is_no_score_unless_it_does_not_count(columns, kind):
    t, p, mask = np.zeros((ROWS, 1)), np.zeros((ROWS, columns)), np.ones((ROWS, 1))
    t[5], mask[5] = np.nan, 0
    assert evaluated(t, p, mask, [kind(mask_name="mask")])[kind.__name__] == 1
    assert np.isnan(evaluated(t, p, mask, [kind()])[kind.__name__])


def test_of_two_classes_minus_one_is_the_first():
    t, p = np.array([[-1], [1], [-1]]), np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])
    assert Accuracy()(t, p) == 2
    assert Recall().aggregate([Recall()(t, p)]) == 1


@pytest.mark.parametrize(
    ("scorer", "t", "p", "text"),
    [
        (Precision(2), [0], [[1, 0]],
         "Precision.of_class: expected one of the 2 columns of the predictions, got 2"),
        (Recall(), [2], [[1]],
         "scorer 'Recall': expected targets 1 for yes and 0 or -1 for no, got 2"),
        (Hamming(), [0.5], [[1]], "scorer 'Hamming': expected targets 1 for yes"),
        *((kind(), [bad], [[1, 0, 0]],
           f"scorer {kind.__name__!r}: expected targets that number the 3 columns of the "
           f"predictions from 0, got {np.array([bad])[0]}")
          for kind in (Precision, Recall, FScore, Accuracy) for bad in (3, -1, 0.5)),
        (AreaUnderCurve(), [0], [[1, 0, 0]],
         "expected targets with one column and predictions with one or two, got 1 and 3. Score the "
         "columns one by one: out_name='Slice.outputs.default'."),
        (FScore(), [0, 0], [[1, 0, 0]],
         "scorer 'FScore': expected targets of shape (1, 3) like the predictions"),
        (RSquared(), [0], [[1, 0, 0]], "scorer 'RSquared': expected targets of shape (1, 3)"),
    ],
)  # fmt: skip
def test_targets_and_classes_that_do_not_fit(scorer, t, p, text):
    with pytest.raises(ValidationError, match=re.escape(text)):
        scorer(np.array([t]), np.array(p))


def test_more_than_two_kinds_of_targets_have_no_area():
    text = "scorer 'AreaUnderCurve': expected two kinds of targets, for yes and no, got 3: [0.0"
    with pytest.raises(ValidationError, match=re.escape(text)):
        AreaUnderCurve().aggregate([(1, 0.1, 0), (1, 0.2, 1), (1, 0.2, 2)])


@pytest.mark.parametrize("kind", ALL)
def test_of_nothing_there_is_no_score(kind):
    assert np.isnan(kind().aggregate([]))


@pytest.mark.parametrize("kind", [AreaUnderCurve, RSquared])
def test_a_nan_that_was_kept_is_in_the_score(kind):
    rows = np.atleast_2d(kind()(np.eye(4)[:, :1], np.ones((4, 1))))
    assert np.isfinite(kind().aggregate(rows))
    assert np.isnan(kind().aggregate([*rows, np.full_like(rows[0], np.nan)]))
