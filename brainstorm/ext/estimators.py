"""Networks as estimators of scikit-learn: `NetClassifier` and `NetRegressor`.

    search = GridSearchCV(NetClassifier(max_epochs=20), {"spec": ["F50", "F100", "F100 D F50"]})
    search.fit(X, y)

Everything of the library is behind them: ``estimator.network_`` is the trained `Network`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.data_iterators import Minibatches
from brainstorm.describable import create_from_description
from brainstorm.errors import ValidationError
from brainstorm.handlers import NumpyHandler, get_default_handler
from brainstorm.hooks import StopAfterEpoch
from brainstorm.network import Network
from brainstorm.optional import require
from brainstorm.tools import create_net_from_spec
from brainstorm.training import AdamStepper, Trainer, TrainingStepper

_base: Any = require("sklearn.base", "sklearn")
_multiclass: Any = require("sklearn.utils.multiclass", "sklearn")
_utils: Any = require("sklearn.utils", "sklearn")
_validation: Any = require("sklearn.utils.validation", "sklearn")

__all__ = ["NetClassifier", "NetRegressor"]


class _NetEstimator(_base.BaseEstimator):
    """What both estimators have in common; `NetClassifier` documents the arguments."""

    def __init__(
        self,
        spec: str = "F100",
        in_shape: Sequence[int | str] | None = None,
        stepper: TrainingStepper | None = None,
        max_epochs: int = 100,
        batch_size: int = 32,
        random_state: Any = None,
    ) -> None:
        self.spec = spec
        self.in_shape = in_shape
        self.stepper = stepper
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.random_state = random_state

    def _train(self, task: str, X: np.ndarray, targets: np.ndarray, out_size: int) -> None:
        """Build a network and train it; X is (N, features), the targets are (N, columns)."""
        seed = int(_utils.check_random_state(self.random_state).randint(2**31 - 1))
        data = self._as_data(X)
        model = create_net_from_spec(task, data.shape[2:], out_size, self.spec)
        is_pooled = "T" not in model.layers["Input"].out_shapes["targets"].shape
        if len(data) > 1 and not is_pooled:
            raise ValidationError(
                f"{type(self).__name__}.fit: expected a spec with T, which makes one vector of the "
                f"steps of a sequence, got {self.spec!r}."
            )
        net = Network.from_architecture(model.architecture, seed, _double_handler(seed))
        net.output_name = model.output_name
        net.initialize(create_from_description(model.initializers), seed=seed)
        batches = Minibatches(
            self.batch_size,
            default=data,
            targets=targets if is_pooled else targets[None],
            per_sequence=("targets",) if is_pooled else (),
        )
        batches.rnd.set_seed(seed)
        stepper = AdamStepper(0.01) if self.stepper is None else copy.deepcopy(self.stepper)
        trainer = Trainer(stepper, verbose=False)
        trainer.add_hook(StopAfterEpoch(self.max_epochs))
        trainer.train(net, batches)
        self.network_ = net
        self.loss_curve_ = list(trainer.logs.get("rolling_training", {}).get("total_loss", ()))

    def _as_data(self, X: np.ndarray) -> np.ndarray:
        """Return rows as (T, N, features...)."""
        shape = (self.n_features_in_,) if self.in_shape is None else tuple(self.in_shape)
        is_sequence = shape[:1] == ("T",)
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
        return outputs.reshape(len(X), -1)


class NetClassifier(_base.ClassifierMixin, _NetEstimator):
    """A network with a softmax as classifier.

    Args:
        spec: The hidden layers, as in `create_net_from_spec`: ``'F100 D F50'``.
        in_shape: Feature shape that each row of X is given, e.g. (8, 8, 1) for ``'C16:3p1 Pm2s2'``;
            `None`: the row as it is. With ("T", 3) a row is a sequence, step after step with 3
            features each, and the spec makes one vector of it: ``'L20 T'``.
        stepper: The optimiser, which is copied; `None`: ``AdamStepper(0.01)``.
        max_epochs: How many times the network sees all rows.
        batch_size: How many rows it sees at once.
        random_state: An int makes `fit` repeatable; also `None` and a NumPy RandomState.

    Attributes:
        network_: The trained network, in float64.
        loss_curve_: The average loss of each epoch.
        n_features_in_: The number of columns of X.
        classes_: The labels, sorted.
    """

    def fit(self, X: Any, y: Any) -> NetClassifier:
        """Train a new network.

        Args:
            X: Array-like of shape (n_samples, n_features).
            y: Array-like of shape (n_samples,): labels.
        """
        X, y = _validation.validate_data(self, X, y, dtype=np.float64)
        _multiclass.check_classification_targets(y)
        self.classes_, indices = np.unique(y, return_inverse=True)
        self._train("classification", X, indices[:, None].astype(float), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, of shape (n_samples, n_classes)."""
        return self._outputs(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable labels, of shape (n_samples,)."""
        probabilities = self._outputs(X)  # first, because it says if nothing was fitted
        return self.classes_[probabilities.argmax(axis=1)]


class NetRegressor(_base.RegressorMixin, _NetEstimator):
    """A network with a squared error as regressor, of one or several targets.

    Arguments and attributes are those of `NetClassifier`, without ``classes_``.
    """

    def fit(self, X: Any, y: Any) -> NetRegressor:
        """Train a new network.

        Args:
            X: Array-like of shape (n_samples, n_features).
            y: Array-like of shape (n_samples,) or (n_samples, n_targets).
        """
        X, y = _validation.validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True
        )
        self._has_columns = y.ndim == 2
        targets = np.asarray(y, np.float64).reshape(len(y), -1)
        self._train("regression", X, targets, targets.shape[1])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the predicted targets, in the shape that they had in `fit`."""
        outputs = self._outputs(X)
        return outputs if self._has_columns else outputs[:, 0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _double_handler(seed: int) -> NumpyHandler:
    """Return a handler in float64, of the kind of the default one where that is on the CPU."""
    kind = type(get_default_handler())
    return (kind if issubclass(kind, NumpyHandler) else NumpyHandler)(np.float64, seed=seed)
