"""Scorers: values, weights, aggregation over batches, and errors."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from brainstorm.errors import UnknownPathError, UnknownTypeError, ValidationError
from brainstorm.hooks import MonitorScores
from brainstorm.scorers import (
    Accuracy,
    AreaUnderCurve,
    FScore,
    Hamming,
    MeanSquaredError,
    RSquared,
    Scorer,
    aggregate_losses_and_scores,
    check_scorers,
    gather_losses_and_scores,
    merge_scores,
)
from brainstorm.structure import BufferStructure

OUT = "Output.outputs.predictions"


class FakeNet:
    """What the helpers ask of a network."""

    loss_layers = ("Loss",)
    layers = {
        "Loss": SimpleNamespace(in_shapes={"default": BufferStructure("T", "B", 1)}, incoming=())
    }

    def __init__(self, predictions, losses=None, output_name=OUT, **inputs):
        self.buffers = {f"Input.outputs.{name}": np.asarray(x) for name, x in inputs.items()}
        self.buffers[OUT] = predictions
        self.losses = {"total_loss": 2.0} if losses is None else losses
        self.output_name = output_name
        self.input_names = tuple(inputs)
        self.time_size, self.batch_size = predictions.shape[:2]

    def get_rows(self, path, by_pixel=False):
        array = self.buffers[path]
        features = array.shape[-1:] if by_pixel else array.shape[2:]
        return array.reshape(-1, np.prod(features, dtype=int))

    def get_loss_values(self):
        return dict(self.losses)

    def name_losses(self, values):
        return dict(self.losses)


def scored(net, *used, **names):
    scores = {}
    gather_losses_and_scores(net, used, scores, **names)
    return scores


@pytest.mark.parametrize(
    ("found", "got"),
    [
        (np.ones((6, 1), bool), r"an array of shape \(6, 1\)"),
        (np.ones(6), r"an array of shape \(6,\)"),
        (None, "None"),
        ("good", "'good'"),
    ],
    ids=repr,
)
def test_a_scorer_returns_a_number_unless_it_aggregates_arrays(found, got):
    class Mine(Scorer):
        def __call__(self, true_labels, predicted, mask=None):
            return found

    net = FakeNet(np.zeros((2, 3, 1)), targets=np.zeros((2, 3, 1)))
    text = rf"scorer 'Mine': expected a number, got {got}\. Return the sum over the rows; a scorer"
    with pytest.raises(ValidationError, match=text):
        scored(net, Mine())


def test_a_scorer_returns_rows_of_one_length():
    net, scores = FakeNet(np.zeros((1, 1, 1)), losses={}), {"Mine": [(1.0,) * 4, (1.0,) * 3]}
    with pytest.raises(ValidationError, match="'Mine': expected .* as many columns.* got 3 and 4"):
        aggregate_losses_and_scores(scores, net, [RSquared(name="Mine")])


# -- single scorers -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.float16])
def test_squared_errors_are_computed_in_double_precision(dtype):
    true_labels, predicted = np.array([[255, 0]], dtype), np.array([[0, 255]], dtype)
    assert MeanSquaredError()(true_labels, predicted) == 255**2


def test_sums_are_exact_in_float32():
    ones, mask = np.ones((2, 1), np.float32), np.array([[2**24], [1]], np.float32)
    assert Accuracy()(ones, ones, mask) == 2**24 + 1


def test_base_is_abstract():
    with pytest.raises(NotImplementedError, match="Scorer does not define __call__"):
        Scorer()(None, None)


# -- batches ------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(lengths=st.lists(st.integers(2, 4), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_the_length_of_parts_does_not_change_the_loss_per_step(lengths, seed):
    losses = np.random.RandomState(seed).random_sample(sum(lengths))  # of each time step

    def evaluated(parts):
        scores = {}
        for part in parts:
            net = FakeNet(np.zeros((len(part), 3, 1)), {"total_loss": part.sum()})
            gather_losses_and_scores(net, [], scores)
        return aggregate_losses_and_scores(scores, net, [])

    whole, parts = evaluated([losses]), evaluated(np.split(losses, np.cumsum(lengths)[:-1]))
    assert parts["total_loss_per_step"] == pytest.approx(whole["total_loss_per_step"])
    assert parts["total_loss"] < whole["total_loss"]


@pytest.mark.parametrize("mask_shape", [None, (1, 6, 4, 5, 1), (1, 6, 1)])
@pytest.mark.parametrize("classes", [1, 3])
def test_classes_of_images_are_scored_pixel_by_pixel(classes, mask_shape):
    rnd = np.random.RandomState(0)
    shape = (1, 6, 4, 5, 1)
    targets, predictions = rnd.randint(0, max(classes, 2), shape), rnd.rand(*shape[:-1], classes)
    mask = np.ones(shape) if mask_shape is None else rnd.randint(0, 2, mask_shape)
    net = FakeNet(predictions, targets=targets, mask=mask)
    weights = (mask.reshape(1, 6, -1, 1, 1) if mask.ndim == 3 else mask) * np.ones(shape)
    true, counts = targets.ravel(), weights.ravel()
    rows = predictions.reshape(-1, classes)
    found = rows.argmax(axis=1) if classes > 1 else rows[:, 0] >= 0.5
    average = "binary" if classes == 1 else "macro"
    expected = {
        "FScore": metrics.f1_score(true, found, average=average, sample_weight=counts),
        "Right": metrics.accuracy_score(true, found, sample_weight=counts),
    }
    used = [FScore(), Hamming(name="Right") if classes == 1 else Accuracy(name="Right")]
    if classes == 1:
        used.append(AreaUnderCurve())
        expected["AreaUnderCurve"] = metrics.roc_auc_score(true, rows, sample_weight=counts)
    scores = scored(net, *used, mask_name=None if mask_shape is None else "mask")
    found = aggregate_losses_and_scores(scores, net, used)
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_errors_of_images_are_sums_over_pixels_unless_these_are_masked():
    rnd = np.random.RandomState(0)
    x, y = rnd.rand(2, 1, 6, 4, 5, 2)
    mask = rnd.randint(0, 2, (1, 6, 4, 5, 1))
    net, squares = FakeNet(x, targets=y, mask=mask), (x - y) ** 2 / 2
    for mask_name, expected in (
        (None, squares.sum() / 6),
        ("mask", (squares * mask).sum() / mask.sum()),
    ):
        scores = scored(net, MeanSquaredError(), mask_name=mask_name)
        found = aggregate_losses_and_scores(scores, net, [MeanSquaredError()])
        assert found["MeanSquaredError"] == pytest.approx(expected)


def test_one_hot_pixels_are_classes_of_their_own():
    shape = 1, 2, 3, 3, 4
    classes = np.eye(4)[np.random.RandomState(0).randint(0, 4, shape[:-1])]
    net = FakeNet(
        np.where(np.arange(3)[:, None] == 1, classes, classes[..., ::-1]), targets=classes
    )
    assert scored(net, Accuracy())["Accuracy"] == [(18, 6.0)]


def test_where_predictions_and_targets_come_from():
    targets = np.zeros((1, 2, 1))
    net = FakeNet(np.zeros((1, 2, 1)), output_name=None, targets=targets + 1, labels=targets)
    net.buffers["Other"] = np.ones((1, 2, 1))
    assert scored(net, Accuracy(out_name=OUT))["Accuracy"] == [(2, 0.0)]
    assert scored(net, Accuracy(), out_name=OUT, targets_name="labels")["Accuracy"] == [(2, 2.0)]
    assert scored(net, Accuracy(OUT, "labels"), out_name="Other")["Accuracy"] == [(2, 2.0)]
    assert scored(net, Accuracy(OUT, "labels"), targets_name="x")["Accuracy"] == [(2, 2.0)]
    assert scored(net, Hamming(0.5, OUT, "labels", None))["Hamming"] == [(2, 2.0)]
    net.output_name = "Other"
    assert scored(net, Accuracy())["Accuracy"] == [(2, 2.0)]


def test_several_losses():
    net = FakeNet(np.zeros((1, 2, 1)), {"A": 1.0, "B": 2.0, "total_loss": 3.0})
    scores = scored(net)
    total = {"total_loss": [(2, 6.0)], "total_loss_per_step": [(2, 6.0)]}
    assert scores == {"A": [(2, 2.0)], "B": [(2, 4.0)], **total}
    assert dict(aggregate_losses_and_scores(scores, net, [])) == net.losses


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scorers", "text"),
    [
        (Accuracy(name="it"), "such as [brainstorm.scorers.Accuracy()], got Accuracy("),
        (None, "scorers: expected a list such as [brainstorm.scorers.Accuracy()], got None."),
        ([Accuracy], "got one with the class Accuracy instead of an object, Accuracy(...)."),
        (["Accuracy"], "got one with 'Accuracy'."),
        ([object.__new__(Scorer)], "derives from Scorer and calls super().__init__()."),
        ([type("Own", (Scorer,), {"criterion": "maximum"})()],
         "Own.criterion: expected 'min', 'max' or None, got 'maximum'."),
    ],
)  # fmt: skip
def test_what_is_no_list_of_scorers(scorers, text):
    for use in (check_scorers, lambda s: MonitorScores("valid", s)):
        with pytest.raises(ValidationError, match=re.escape(text)):
            use(scorers)


UNKNOWN = "scorer 'Accuracy': unknown input"


@pytest.mark.parametrize(
    ("used", "names", "error", "text"),
    [
        ([Accuracy("", "labels", name="acc")], {}, UnknownTypeError,
         "scorer 'acc': expected the path of the predictions, got none. Set net.output_name, or "
         "give out_name, e.g. 'Output.outputs.predictions'."),
        ([Accuracy(OUT)], {}, UnknownPathError,
         f"{UNKNOWN} 'targets'. Choices are: labels, mask."),
        ([Accuracy(OUT, "label")], {}, KeyError,
         f"{UNKNOWN} 'label'. Choices are: labels, mask. Did you mean 'labels'?"),
        ([Accuracy(OUT)], {"targets_name": "labels", "mask_name": "msk"}, KeyError,
         f"{UNKNOWN} 'msk'. Choices are: labels, mask. Did you mean 'mask'?"),
        ([Accuracy(), Accuracy("other")], {}, ValidationError, "expected different names "
         "for all scorers and losses, got 'Accuracy' more than once. Give the scorer another one: "
         "name='...'."),
        ([Accuracy(name="total_loss")], {}, ValidationError, "'total_loss' more than once. Give "),
    ],
)  # fmt: skip
def test_names_that_are_unknown_or_repeated(used, names, error, text):
    zeros = np.zeros((1, 2, 1))
    net = FakeNet(zeros, output_name=None, labels=zeros, mask=zeros)
    with pytest.raises(error) as caught:
        scored(net, *used, **names)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("scorer", "targets", "mask", "text"),
    [
        (Accuracy(), (3, 1), (2, 1), "many rows of predictions as of targets, 3, got 2"),
        (Hamming(), (2, 3), (2, 1), "'Hamming': expected targets of shape (2, 2) like the"),
        (MeanSquaredError(), (2, 1), (2, 1), "like the predictions, got (2, 1) (rows, features)"),
        (Accuracy(), (2, 3), (2, 1), "expected targets of shape (2, 2)"),
        (Accuracy(mask_name="mask"), (2, 1), (3, 1), "many rows of mask as of targets, 2, got 3"),
        (Accuracy(mask_name="mask"), (2, 1), (2, 2), "one feature, got 2. For a mask of single"),
    ],
)
def test_shapes_that_do_not_fit(scorer, targets, mask, text):
    net = FakeNet(np.zeros((1, 2, 2)), targets=np.zeros((1, *targets)), mask=np.zeros((1, *mask)))
    with pytest.raises(ValidationError, match=re.escape(text)):
        scored(net, scorer)


def test_no_batch():
    net = FakeNet(np.zeros((1, 2, 1)))
    text = "^losses and scores: expected those of at least one batch, but the data iterator"
    with pytest.raises(ValidationError, match=text):
        aggregate_losses_and_scores({}, net, [])
    net.losses = {}
    assert aggregate_losses_and_scores({}, net, []) == {}


def test_scores_of_several_processes_are_those_of_one():
    parts = [{"loss": [(2, 3.0)]}, {}, {"loss": [(1, 1.0)], "Accuracy": [(4, 2.0)]}]
    merged = merge_scores(parts)
    assert merged == {"loss": [(2, 3.0), (1, 1.0)], "Accuracy": [(4, 2.0)]}
    assert parts[0] == {"loss": [(2, 3.0)]}


def test_one_column_of_probabilities_has_no_classes():
    text = (
        r"scorer 'Accuracy': expected predictions with a column for each class, or classes, got "
        r"one column of numbers such as 0\.9\. For the output of one sigmoid there is Hamming"
    )
    with pytest.raises(ValidationError, match=text):
        Accuracy()(np.array([[0], [1]]), np.array([[0.1], [0.9]]))
    assert Accuracy()(np.array([[0], [1]]), np.array([[0.0], [1.0]])) == 2
