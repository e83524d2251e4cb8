"""Connectionist temporal classification: what it refuses, and what of the inputs counts."""

import numpy as np
import pytest

from brainstorm.errors import LayerValidationError
from brainstorm.layers import CTC
from brainstorm.testing import build_layer
from tests.layers.running import run


def labels(*rows):
    return np.array(rows, dtype=float).T[:, :, None]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([[1, np.nan, 0]], r"whole numbers in \[0, 3\), got nan at index \(1, 0, 0\)"),
        ([[1, 3, 0]], r"whole numbers in \[0, 3\), got 3.0 at index \(1, 0, 0\)\. 0 is the blank"),
        ([[1, 0, 0], [1, 0, 2]], r"got a label after the 0 at t=1 of sequence 1\. Fill up"),
        ([[1, 0, 0], [2, 2, 1]], r"fit into T=3 steps, but those of sequence 1 need 4: one each"),
    ],
)
def test_bad_labels(rows, match):
    layer = build_layer(CTC(), {"default": ("T", "B", 3), "labels": ("T", "B", 1)})
    layer.validate_data("labels", labels([1, 2, 1], [1, 1, 0], [0, 0, 0]))
    layer.validate_data("default", np.full((3, 2, 3), np.nan))
    with pytest.raises(LayerValidationError, match=rf"'CTC' \(CTC\), input 'labels': .*{match}"):
        layer.validate_data("labels", labels(*rows))
    with pytest.raises(LayerValidationError, match="'mask': expected finite numbers, got -inf"):
        layer.validate_data("mask", np.full((3, 1, 1), -np.inf))


def test_steps_that_the_mask_leaves_out_do_not_count():
    x, rows = np.random.RandomState(7).normal(size=(6, 2, 3)), labels([1, 2, 1, 0, 0, 0], [0] * 6)
    counts = np.array([True, False, True, True, False, True])
    mask = np.repeat(counts, 2).reshape(6, 2, 1).astype(float)
    found = run(CTC(), {"default": x, "labels": rows, "mask": mask})
    kept = run(CTC(), {"default": x[counts], "labels": rows[:4]})
    np.testing.assert_allclose(found.get("outputs.loss"), kept.get("outputs.loss"))
    shares = np.exp(x) / np.exp(x).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(found.get("outputs.predictions"), shares)
    blanks = shares[counts, 1, 0]  # the only path without labels
    np.testing.assert_allclose(found.get("outputs.loss")[1, 0], -np.log(blanks).sum())
