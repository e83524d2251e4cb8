"""Networks as estimators of scikit-learn: its own checks, and what they do not look at."""

import importlib
import pickle
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import brainstorm as bs
from brainstorm.errors import MissingDependencyError
from brainstorm.ext.estimators import NetClassifier, NetRegressor
from brainstorm.handlers import NumpyHandler, set_default_handler
from brainstorm.training import MomentumStepper

RND = np.random.RandomState(0)
X = RND.normal(size=(60, 4))
LABELS = np.where(X[:, 0] > 0, "positive", "negative")
SMALL = {"spec": "F5", "max_epochs": 2, "random_state": 0}


@parametrize_with_checks(
    [make(spec="F20", max_epochs=30) for make in (NetClassifier, NetRegressor)]
)
def test_estimator_checks(estimator, check):
    check(estimator)


def test_images():
    digits = load_digits(n_class=4)
    classifier = NetClassifier("C8:3p1 Pm2s2 F20", (8, 8, 1), max_epochs=8, random_state=1)
    classifier.fit(digits.data[:500] / 16, digits.target[:500])
    assert classifier.score(digits.data[500:] / 16, digits.target[500:]) > 0.9
    assert classifier.network_.layers["Convolution2D"].kwargs["kernel_size"] == (3, 3)
    assert len(classifier.loss_curve_) == 8
    assert classifier.loss_curve_[7] < classifier.loss_curve_[0]


def test_the_network_gives_the_probabilities():
    classifier = NetClassifier(**SMALL).fit(X, LABELS)
    probabilities = classifier.predict_proba(X)
    np.testing.assert_array_equal(classifier.network_.predict(X[None])[0], probabilities)
    assert probabilities.dtype == np.float64
    assert list(classifier.classes_) == ["negative", "positive"]
    assert classifier.predict(X)[3] == classifier.classes_[probabilities[3].argmax()]


def test_several_targets():
    targets = np.column_stack([X[:, 0], X[:, 1] + 1])
    regressor = NetRegressor("F20", max_epochs=50, random_state=0).fit(X, targets)
    assert regressor.score(X, targets) > 0.9
    assert regressor.predict(X).shape == (60, 2)
    assert NetRegressor(**SMALL).fit(X, targets[:, :1]).predict(X).shape == (60, 1)
    assert NetRegressor(**SMALL).fit(X, targets[:, 0]).predict(X).shape == (60,)


def test_the_stepper_is_copied_and_random_state_repeats_a_fit():
    stepper = MomentumStepper(0.1, 0.5)
    first = NetClassifier("F5 D", stepper=stepper, max_epochs=2, random_state=3).fit(X, LABELS)
    assert stepper.net is None
    bs.global_rnd.randint(10)
    second = clone(first).fit(X, LABELS)
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    third = clone(first).set_params(random_state=4).fit(X, LABELS)
    assert not np.array_equal(first.predict_proba(X), third.predict_proba(X))


def test_copies_have_the_trained_network():
    classifier = NetClassifier("F5 B", max_epochs=2, random_state=0).fit(X, LABELS)
    same = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(same.predict_proba(X), classifier.predict_proba(X))
    assert same.network_ is not classifier.network_


def test_grid_search():
    search = GridSearchCV(NetClassifier(max_epochs=30, random_state=0), {"spec": ["", "F8"]}, cv=2)
    search.fit(X, LABELS)
    assert search.best_score_ > 0.7
    assert set(search.cv_results_["param_spec"]) == {"", "F8"}


def test_networks_compute_in_float64_on_the_default_kind_of_handler():
    class OtherHandler(NumpyHandler):
        pass

    set_default_handler(OtherHandler(np.float32))
    try:
        handler = NetClassifier(**SMALL).fit(X, LABELS).network_.handler
    finally:
        set_default_handler(None)
    assert type(handler) is OtherHandler
    assert handler.dtype == np.float64


def test_a_row_that_does_not_fit_the_shape_is_reported():
    with pytest.raises(ValueError, match="expected 8 features in each row"):
        NetClassifier(in_shape=(2, 4), max_epochs=1).fit(X, LABELS)


def test_rows_as_sequences():
    """The class is whether the second feature of three has risen more than it has fallen."""
    rnd = np.random.RandomState(0)
    steps = rnd.normal(size=(60, 6, 3))
    labels = np.where(steps[:, :, 1].sum(axis=1) > 0, "up", "down")
    rows = steps.reshape(60, 18)
    classifier = NetClassifier("L8 T", ("T", 3), max_epochs=60, random_state=0).fit(rows, labels)
    assert classifier.score(rows, labels) > 0.95
    assert classifier.predict_proba(rows[:5]).shape == (5, 2)
    assert classifier.network_.layers["Input"].out_shapes["default"].shape == ("T", "B", 3)
    regressor = NetRegressor("Ts", ("T", 3), max_epochs=150, random_state=0)
    assert regressor.fit(rows, steps.sum(axis=1)).score(rows, steps.sum(axis=1)) > 0.95


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (
            NetClassifier("L4 T", ("T", 3)),
            r"a multiple of 3 features .* in_shape=\('T', 3\), got 4",
        ),
        (NetClassifier("L4", ("T", 2)), "expected a spec with T, which makes one vector of the "),
    ],
)
def test_sequences_that_do_not_fit_are_reported(estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(np.ones((6, 4)), [0, 1] * 3)


def test_scikit_learn_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.delitem(sys.modules, "brainstorm.ext.estimators")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'brainstorm\[sklearn\]'"):
        importlib.import_module("brainstorm.ext.estimators")
