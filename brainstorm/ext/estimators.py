"""Networks as estimators of scikit-learn: `NetClassifier` and `NetRegressor`.

    search = GridSearchCV(NetClassifier("F100 D0.2"), {
        "spec__F1": [50, 100], "spec__D1": [0.2, 0.5], "stepper__learning_rate": [1e-3, 1e-2]})
    search.fit(X, y)

The whole library is available behind them: ``estimator.network_`` is the trained `Network`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from brainstorm.data_iterators import Minibatches
from brainstorm.describable import create_from_description
from brainstorm.errors import ValidationError, shown
from brainstorm.ext._tunable_estimator import TunableEstimator, all_or_nothing, complete
from brainstorm.handlers import NumpyHandler, get_default_handler
from brainstorm.hooks import EarlyStopper, Hook, StopAfterEpoch
from brainstorm.network import Network
from brainstorm.optional import require
from brainstorm.tools import create_net_from_spec
from brainstorm.training import Trainer, TrainingStepper
from brainstorm.utils import is_whole

_base: Any = require("sklearn.base", "sklearn")
_metrics: Any = require("sklearn.metrics", "sklearn")
_class_weight: Any = require("sklearn.utils.class_weight", "sklearn")
_multiclass: Any = require("sklearn.utils.multiclass", "sklearn")
_selection: Any = require("sklearn.model_selection", "sklearn")
_utils: Any = require("sklearn.utils", "sklearn")
_validation: Any = require("sklearn.utils.validation", "sklearn")

__all__ = ["NetClassifier", "NetRegressor"]

E = TypeVar("E", bound="_NetEstimator")


class _Validation(Hook):
    """Log the result of a function."""

    def __init__(self, score: Callable[[], float]) -> None:
        super().__init__("validation")
        self.score = score

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> float:
        return self.score()


@dataclass(eq=False, repr=False)
class _NetEstimator(TunableEstimator):
    """Common base of both estimators; `NetClassifier` documents the arguments."""

    spec: str = "F100"
    in_shape: Sequence[int | str] | None = None
    stepper: TrainingStepper | None = None
    max_epochs: int = 50
    batch_size: int = 32
    random_state: Any = None
    warm_start: bool = False
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    tol: float = 1e-4
    scoring: Any = None

    _task = ""

    @all_or_nothing
    def fit(self: E, X: Any, y: Any, sample_weight: Any = None) -> E:
        """Train a new network, or with ``warm_start`` the existing one.

        An error leaves the estimator as it was, except for what an existing network has learned.

        Args:
            X: Array-like of shape (n_samples, n_features).
            y: Array-like of shape (n_samples,) or (n_samples, n_columns): for a classifier the
                labels, or 0 and 1 in a column for each of several independent labels.
            sample_weight: Weight of each row, >= 0; only their proportions matter.
        """
        is_new = not (self.warm_start and hasattr(self, "network_"))
        if is_new:
            self.__dict__.pop("classes_", None)
        X, y, weights = self._checked(X, y, sample_weight, is_new)
        if not weights.any():
            where = f"{type(self).__name__}.fit"
            raise ValidationError(f"{where}: expected a row with a weight above 0, got none.")
        X, y, weights = (array[weights > 0] for array in (X, y, weights))
        weights /= weights.max()
        weights /= weights.mean()
        targets = self._encode(y, weights, is_new)
        if not self.early_stopping:
            return self._train(X, targets, weights, self.max_epochs, is_new)
        classes = y if self._task == "classification" else None
        X, X_kept, _, y_kept, targets, _, weights, weights_kept = _selection.train_test_split(
            X, y, targets, weights,
            test_size=self.validation_fraction, random_state=self.random_state, stratify=classes,
        )  # fmt: skip
        scorer = _metrics.check_scoring(self, self.scoring)
        given = {} if sample_weight is None else {"sample_weight": weights_kept}

        def score() -> float:
            scored = copy.copy(self)  # without names of columns
            scored.__dict__.pop("feature_names_in_", None)
            return float(scorer(scored, X_kept, y_kept, **given))

        return self._train(X, targets, weights, self.max_epochs, is_new, score=score)

    @all_or_nothing
    def partial_fit(self: E, X: Any, y: Any, sample_weight: Any = None) -> E:
        """Train for one more epoch, continuing with the state of the stepper.

        Args:
            X: As in `fit`.
            y: As in `fit`.
            sample_weight: Weight of each row.
        """
        if self.early_stopping:
            where = f"{type(self).__name__}.partial_fit"
            raise ValidationError(f"{where}: expected early_stopping=False: it needs all rows.")
        is_new = not hasattr(self, "network_")
        X, y, weights = self._checked(X, y, sample_weight, is_new)
        targets = self._encode(y, weights, is_new)
        return self._train(X, targets, weights, 1, is_new, goes_on=not is_new)

    def _checked(self, X: Any, y: Any, sample_weight: Any, is_new: bool) -> tuple[Any, Any, Any]:
        is_regression = _base.is_regressor(self)
        X, y = _validation.validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=is_regression, reset=is_new
        )
        weights = _validation._check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
        return X, y, weights

    def _encode(self, y: np.ndarray, weights: np.ndarray, is_new: bool) -> np.ndarray:
        """Return the targets of the network (N, columns)."""
        raise NotImplementedError

    def _new_network(self, data: np.ndarray, out_size: int, seed: int) -> Network:
        model = create_net_from_spec(
            self._task, data.shape[2:], out_size, self.spec, weights_name="weights"
        )
        if len(data) > 1 and "T" in model.layers["Input"].out_shapes["targets"].shape:
            raise ValidationError(
                f"{type(self).__name__}.fit: expected a spec with T, which makes one vector of the "
                f"steps of a sequence, got {self.spec!r}."
            )
        default = type(get_default_handler())
        kind = default if issubclass(default, NumpyHandler) else NumpyHandler  # on the CPU
        net = Network.from_architecture(model.architecture, seed, kind(np.float64, seed=seed))
        net.output_name = model.output_name
        net.initialize(create_from_description(model.initializers), seed=seed)
        return net

    def _train(
        self: E,
        X: np.ndarray,
        targets: np.ndarray,
        weights: np.ndarray,
        epochs: int,
        is_new: bool,
        *,
        goes_on: bool = False,
        score: Callable[[], float] | None = None,
    ) -> E:
        """Train a network, new or existing, perhaps with the existing stepper or early stopping."""
        where = type(self).__name__
        if not is_whole(epochs):
            raise ValidationError(f"{where}.max_epochs: expected an int >= 1, got {shown(epochs)}.")
        if not is_new and self.spec != self._spec:
            raise ValidationError(
                f"{where}.spec: expected {self._spec!r} as in the network to be continued, got "
                f"{self.spec!r}. For a new network fit a clone, or use warm_start=False."
            )
        seed = int(_utils.check_random_state(self.random_state).randint(2**31 - 1))
        data = self._as_data(X)
        if is_new:
            self._spec: str = self.spec
            out_size = len(self.classes_) if self._task == "classification" else targets.shape[1]
            self.network_ = self._new_network(data, out_size, seed)
            self.loss_curve_: list[float] = []
            self.n_iter_ = 0
        trainer = Trainer(stepper := self.own_stepper(), verbose=False)
        if goes_on and self._stepper_state[0] is type(stepper):
            chosen = {name: getattr(stepper, name) for name in stepper.hyperparameters}
            stepper.set_state({**self._stepper_state[1], **chosen})
        if score is not None:
            trainer.add_hook(_Validation(score))
            stopper = EarlyStopper("validation", self.n_iter_no_change, "max",
                                   min_delta=self.tol, restore_best=True)  # fmt: skip
            trainer.add_hook(stopper)
        trainer.add_hook(StopAfterEpoch(epochs))
        complete(trainer, self.network_, self._batches(data, targets, weights, seed + self.n_iter_))
        self.n_iter_ += trainer.current_epoch_nr
        losses = trainer.logs.get("rolling_training", {}).get("total_loss", ())
        self.loss_curve_ = [*self.loss_curve_, *losses]
        self._stepper_state: tuple[type, dict[str, Any]] = type(stepper), stepper.get_state()
        if score is not None:
            self.validation_scores_ = list(trainer.logs["validation"])[1:]
            kept = trainer.logs["validation"][stopper.get_state()["best"]]
            self.best_validation_score_ = None if math.isnan(kept) else kept
        return self

    def _batches(
        self, data: np.ndarray, targets: np.ndarray, weights: np.ndarray, seed: int
    ) -> Minibatches:
        columns: dict[str, Any] = {"targets": targets, "weights": weights[:, None]}
        is_pooled = "T" not in self.network_.layers["Input"].out_shapes["targets"].shape
        if not is_pooled:
            columns = {name: array[None] for name, array in columns.items()}
        names = tuple(columns) if is_pooled else ()
        batches = Minibatches(self.batch_size, per_sequence=names, default=data, **columns)
        batches.rnd.set_seed(seed)
        return batches

    def _as_data(self, X: np.ndarray) -> np.ndarray:
        """Return rows as (T, N, features...)."""
        given: Any = (self.n_features_in_,) if self.in_shape is None else self.in_shape
        shape = tuple(given) if isinstance(given, (list, tuple, np.ndarray)) else ()
        is_sequence = shape[:1] == ("T",)
        if not shape or not all(map(is_whole, shape[is_sequence:])):
            raise ValidationError(
                f"{type(self).__name__}.in_shape: expected a list of integers >= 1, perhaps after "
                f"'T', got {shown(given)}."
            )
        shape = (*shape[:is_sequence], *map(int, shape[is_sequence:]))
        size = math.prod(shape[is_sequence:])
        if self.n_features_in_ % size or (self.n_features_in_ != size and not is_sequence):
            raise ValidationError(
                f"{type(self).__name__}.fit: expected {'a multiple of ' * is_sequence}{size} "
                f"features in each row for in_shape={shape}, got {self.n_features_in_}."
            )
        return np.ascontiguousarray(X.reshape(len(X), -1, *shape[is_sequence:]).swapaxes(0, 1))

    def _outputs(self, X: Any) -> np.ndarray:
        """Return the predictions of the network (N, columns)."""
        _validation.check_is_fitted(self)
        X = _validation.validate_data(self, X, dtype=np.float64, reset=False)
        outputs = self.network_.predict(self._as_data(X))
        if np.isnan(outputs).any():
            raise ValidationError(
                f"{type(self).__name__}: expected predictions that are numbers, got NaN. Did the "
                f"training diverge? Scale X, or use a smaller learning_rate."
            )
        return outputs.reshape(len(X), -1)


@dataclass(eq=False, repr=False)
class NetClassifier(_base.ClassifierMixin, _NetEstimator):
    """A network as classifier: with a softmax, or sigmoids for independent labels.

    Args:
        spec: The hidden layers, as in `create_net_from_spec`: ``'F100 D F50'``.
        in_shape: Feature shape of each row of X, e.g. (8, 8, 1) for ``'C16:3p1 Pm2s2'``; `None`:
            that of the row. With ("T", 3) a row is a sequence, step after step with 3 features
            each, and the spec must pool over time: ``'L20 T'``.
        stepper: The optimiser, which is copied; `None`: ``AdamWStepper(0.003, weight_decay=0.3)``.
        max_epochs: Number of epochs.
        batch_size: Number of rows in a batch.
        random_state: An int makes `fit` repeatable; also `None` and a NumPy RandomState.
        warm_start: Whether `fit` continues with the existing network, which has the same spec.
        early_stopping: Whether `fit` holds out rows, stops when their score no longer improves, and
            keeps the best network.
        validation_fraction: Fraction of the rows that are held out.
        n_iter_no_change: Stop after this many epochs without a better score.
        tol: The least improvement of a score that counts.
        scoring: The score: one of scikit-learn's, such as ``'f1_macro'`` or ``'roc_auc'``; `None`:
            that of `score`.
        class_weight: Weight of the rows of each class, ``{label: weight}``; ``'balanced'``: equal
            total weights of all classes.

    Attributes:
        network_: The trained network, in float64.
        loss_curve_: The average loss of each epoch.
        validation_scores_: With ``early_stopping``, the score after each epoch.
        best_validation_score_: That of `network_`, the best; improvements below `tol` do not count.
        n_iter_: The number of epochs.
        n_features_in_: The number of columns of X.
        classes_: The labels, sorted; or the numbers of the columns of y.
    """

    class_weight: Any = None

    @all_or_nothing
    def partial_fit(  # type: ignore[override]  # scikit-learn's order of the arguments
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> NetClassifier:
        """Train for one more epoch, continuing with the state of the stepper.

        Args:
            X: As in `fit`.
            y: As in `fit`.
            classes: All labels that will ever occur; required in the first call.
            sample_weight: Weight of each row.
        """
        if self.class_weight == "balanced":
            raise ValidationError(
                "NetClassifier.partial_fit, class_weight: expected weights, got 'balanced', which "
                "needs all rows. Give the result of compute_class_weight."
            )
        _multiclass._check_partial_fit_first_call(self, classes)
        return super().partial_fit(X, y, sample_weight)

    def _checked(self, X: Any, y: Any, sample_weight: Any, is_new: bool) -> tuple[Any, Any, Any]:
        X, y, weights = super()._checked(X, y, sample_weight, is_new)
        y = y.toarray() if hasattr(y, "toarray") else y
        _multiclass.check_classification_targets(y)
        if _multiclass.type_of_target(y) != "multilabel-indicator":
            y = _validation.column_or_1d(y, warn=True)
        if self.class_weight is not None:
            factors = _class_weight.compute_sample_weight(self.class_weight, y)
            if not (np.isfinite(factors) & (factors >= 0)).all():
                raise ValidationError(
                    f"{type(self).__name__}.class_weight: expected finite weights >= 0, got "
                    f"{shown(self.class_weight)}."
                )
            weights = weights * factors
        return X, y, weights

    def _encode(self, y: np.ndarray, weights: np.ndarray, is_new: bool) -> np.ndarray:
        is_multilabel = y.ndim == 2
        labels = np.arange(y.shape[1]) if is_multilabel else np.unique(y)
        self.classes_ = getattr(self, "classes_", labels)
        task = "multi-label" if is_multilabel else "classification"
        self._task = task if is_new else self._task
        fits = np.isin(labels, self.classes_).all() and task == self._task
        if not fits or (is_multilabel and len(labels) != len(self.classes_)):
            raise ValidationError(
                f"{type(self).__name__}: expected labels among {shown(self.classes_.tolist())} for "
                f"{self._task}, got {shown(labels.tolist())} for {task}."
            )
        if is_multilabel:
            return y.astype(float)
        return np.searchsorted(self.classes_, y)[:, None].astype(float)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, of shape (n_samples, n_classes)."""
        return self._outputs(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable labels (n_samples,), or 0 and 1 for each of several labels."""
        probabilities = self._outputs(X)  # first, because it raises if nothing was fitted
        if self._task == "multi-label":
            return (probabilities >= 0.5).astype(int)
        return self.classes_[probabilities.argmax(axis=1)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class NetRegressor(_base.RegressorMixin, _NetEstimator):
    """A network with a squared error as regressor, for one or several targets.

    The network learns ``(y - y_mean_) / y_scale_``, so that targets need not be scaled.

    Arguments and attributes are those of `NetClassifier`, without classes, and:

    Attributes:
        y_mean_: The means of the targets in the first training.
        y_scale_: Their standard deviations.
    """

    _task = "regression"

    def _encode(self, y: np.ndarray, weights: np.ndarray, is_new: bool) -> np.ndarray:
        targets = np.asarray(y, np.float64).reshape(len(y), -1)
        if is_new:
            self._has_columns = y.ndim == 2
            share = weights[:, None] / max(weights.sum(), np.finfo(float).tiny)
            origin = targets[0]  # so that the mean of a constant is that constant
            self.y_mean_ = origin + (share * (targets - origin)).sum(axis=0)
            deviations = targets - self.y_mean_
            largest = np.abs(deviations).max(axis=0).clip(np.finfo(float).tiny)  # squares may be 0
            scale = largest * np.sqrt((share * (deviations / largest) ** 2).sum(axis=0))
            self.y_scale_ = np.where(scale > 0, scale, 1.0)
        if targets.shape[1] != len(self.y_mean_):
            raise ValidationError(
                f"{type(self).__name__}: expected {len(self.y_mean_)} targets as in the first "
                f"training, got {targets.shape[1]}."
            )
        return (targets - self.y_mean_) / self.y_scale_

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted targets, in the same shape as in `fit`."""
        outputs = self._outputs(X) * self.y_scale_ + self.y_mean_
        return outputs if self._has_columns else outputs[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
