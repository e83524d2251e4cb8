"""Scorers: measures of a network's predictions that are reported, not trained on."""

from brainstorm.scorers.base import (
    Scorer,
    aggregate_losses_and_scores,
    check_scorers,
    gather_losses_and_scores,
    merge_scores,
)
from brainstorm.scorers.rows import Accuracy, Hamming, MeanSquaredError
from brainstorm.scorers.wholes import AreaUnderCurve, FScore, Precision, Recall, RSquared

__all__ = [
    "Accuracy",
    "AreaUnderCurve",
    "FScore",
    "Hamming",
    "MeanSquaredError",
    "Precision",
    "RSquared",
    "Recall",
    "Scorer",
    "aggregate_losses_and_scores",
    "check_scorers",
    "gather_losses_and_scores",
    "merge_scores",
]
