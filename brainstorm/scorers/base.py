"""The base of scorers, and how losses and scores are gathered from batch to batch.

A scorer sums a measure over the rows of one batch; `Scorer.aggregate` divides the sums of all
batches by their total weight, so that the batch size does not change the result. If the measure
is not a mean over rows, a scorer keeps other numbers of each batch.

A row is a time step of a sequence, with all features; or a pixel, if the scorer counts pixels or
the mask has a value for each.

Rows where a mask is 0 are left out before a scorer gets them. NaN in the other rows makes the score
NaN; predictions that are NaN are replaced by 0 before a scorer gets them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from brainstorm.describable import Describable
from brainstorm.errors import UnknownPathError, UnknownTypeError, ValidationError, shown, unknown
from brainstorm.utils import Array, warn_once

#: A weight, and a value with this weight; or other numbers that a scorer keeps.
Weighted = tuple[float, ...]

#: The name of the total loss divided by the number of time steps that count.
PER_STEP = "total_loss_per_step"


class Scorer(Describable):
    """Base class of all scorers; a subclass overrides ``__call__``.

    Args:
        out_name: Path of the predictions, e.g. ``'Output.outputs.predictions'``; if empty, that of
            the evaluation or of the network.
        targets_name: Name of the Input's output with the targets.
        mask_name: Name of the Input's output with the mask ('T', 'B', 1), or ('B', 1) if
            predictions and targets are those of whole sequences, or ('T', 'B', ..., 1) with a value
            for each pixel; empty or `None` for none.
        name: Name in logs; the class name if not given.

    Attributes:
        criterion: ``'max'`` if more is better, ``'min'`` if less is: the default of hooks that look
            for the best value. Set by the class; `None` for no default.
        by_pixel: Whether rows are the pixels of images, that is the vectors along the last
            dimension, and not whole steps. Set by the class.
    """

    criterion: str | None = None
    by_pixel = False

    def __init__(
        self,
        out_name: str = "",
        targets_name: str = "targets",
        mask_name: str | None = "",
        name: str | None = None,
    ) -> None:
        self.out_name = out_name
        self.targets_name = targets_name
        self.mask_name = mask_name
        self.__name__ = type(self).__name__ if name is None else name

    def __call__(self, true_labels: Array, predicted: Array, mask: Array | None = None) -> Any:
        """Return the measure, summed over the rows.

        Args:
            true_labels: Targets (rows, features).
            predicted: Predictions (rows, features).
            mask: Weight (rows, 1) of each row.

        Returns:
            A number; or an array of numbers, always with as many columns, of which `aggregate` gets
            all rows of all batches.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    @staticmethod
    def aggregate(errors: Iterable[Weighted]) -> float:
        """Return the sum of the values over the sum of the weights of (weight, value) pairs.

        A scorer that returns arrays overrides it. It is NaN if all weights are 0.
        """
        weights, values = np.array(list(errors), dtype=float).reshape(-1, 2).sum(axis=0)
        return float(values / weights) if weights else float("nan")

    def check_columns(self, true_labels: Array, predicted: Array) -> None:
        """Check that targets have the shape of the predictions.

        Raises:
            ValidationError: They differ.
        """
        if true_labels.shape != predicted.shape:
            raise ValidationError(
                f"scorer {self.__name__!r}: expected targets of shape {predicted.shape} like the "
                f"predictions, got {true_labels.shape} (rows, features)"
            )

    def is_yes(self, true_labels: Array) -> Array:
        """Return which binary targets are positive.

        Raises:
            ValidationError: Some are neither 1, nor 0 or -1.
        """
        if not (known := np.isin(true_labels, (-1, 0, 1))).all():
            raise ValidationError(
                f"scorer {self.__name__!r}: expected targets 1 for yes and 0 or -1 for no, got "
                f"{true_labels[~known][0]}"
            )
        return true_labels == 1

    def numbered(self, true_labels: Array, classes: int) -> Array:
        """Return the class of each row as (rows, classes); of two classes, -1 is the first one.

        Raises:
            ValidationError: Some are not the number of a class.
        """
        is_no = (true_labels == -1) & (classes == 2)
        there = np.where(is_no, 0, true_labels) == np.arange(classes)
        strange = ~there.any(axis=1, keepdims=True) & ~np.isnan(true_labels)
        if strange.any():
            raise ValidationError(
                f"scorer {self.__name__!r}: expected targets that number the {classes} columns of "
                f"the predictions from 0, got {true_labels[strange][0]}"
            )
        return there


# -- over the batches of an evaluation ------------------------------------------------------------


def check_scorers(scorers: Any) -> list[Scorer]:
    """Return scorers as a list.

    Raises:
        ValidationError: They are not a list, an element is not a scorer, or its criterion is none.
    """
    expected = "scorers: expected a list such as [brainstorm.scorers.Accuracy()], got"
    if isinstance(scorers, Scorer) or not isinstance(scorers, Iterable):
        raise ValidationError(f"{expected} {shown(scorers)}.")
    scorers = list(scorers)
    for scorer in scorers:
        if not (isinstance(scorer, Scorer) and hasattr(scorer, "__name__")):
            raise ValidationError(
                f"{expected} one with {shown(scorer)}. A scorer of your own derives from Scorer "
                f"and calls super().__init__()."
            )
        if scorer.criterion not in (None, "min", "max"):
            raise scorer.fail("criterion", "'min', 'max' or None", scorer.criterion)
    return scorers


def gather_losses_and_scores(
    net: Any,
    scorers: Sequence[Scorer],
    scores: MutableMapping[str, list[Weighted]],
    out_name: str = "",
    targets_name: str = "targets",
    mask_name: str | None = None,
) -> None:
    """Append the losses and scores of the batch that `net` has just processed.

    Args:
        net: A network after a forward pass.
        scorers: Measures to compute.
        scores: Gets one (weight, weighted sum) pair for each loss and scorer. The weight is the
            number of sequences for losses, and of rows or the sum of the mask for scorers. If a
            scorer returns an array, its rows are added instead.
        out_name: Path of the predictions, for scorers without one.
        targets_name: Name of the targets, for scorers that leave it at ``'targets'``.
        mask_name: Name of the mask, for scorers without one.

    Raises:
        UnknownTypeError: Neither the scorer, `out_name` nor the network names the predictions; it
            is a `TypeError` too.
        UnknownPathError: The Input has no data of that name.
        ValidationError: Two scorers or losses share a name, or shapes do not fit.
    """
    losses = net.get_loss_values()
    _check_names([*losses, PER_STEP, *(scorer.__name__ for scorer in scorers)])
    loss_mask = find_loss_mask(net)
    steps = all_steps = getattr(net, find_loss_length(net)) * net.batch_size
    if loss_mask is not None:
        steps = np.count_nonzero(net.get_rows(f"Input.outputs.{loss_mask}"))
    add_losses(scores, losses, int(steps), net.batch_size)
    for scorer in scorers:
        own_targets = scorer.targets_name not in ("", "targets")
        targets_of = _input_path(net, scorer, scorer.targets_name if own_targets else targets_name)
        mask, by_pixel = None, scorer.by_pixel
        if masked_by := scorer.mask_name or mask_name:
            mask = net.get_rows(path := _input_path(net, scorer, masked_by))
            if mask.shape[1] > 1:
                mask, by_pixel = net.get_rows(path, by_pixel=True), True
        elif steps < all_steps:
            _warn_of_padding(net, scorer, targets_of.rpartition(".")[2], loss_mask)
        targets, path = net.get_rows(targets_of, by_pixel), _output_path(net, scorer, out_name)
        try:
            predicted = net.get_rows(path, by_pixel)
        except (UnknownPathError, ValidationError) as error:
            raise type(error)(f"scorer {scorer.__name__!r}, out_name: {error}") from None
        if mask is not None and by_pixel and len(targets) % len(mask) == 0:
            mask = mask.repeat(len(targets) // len(mask), axis=0)
        scores.setdefault(scorer.__name__, []).extend(_score(scorer, targets, predicted, mask))


def _warn_of_padding(net: Any, scorer: Scorer, targets: str, loss_mask: str | None) -> None:
    """Warn that a scorer of time steps counts some that are left out of all losses."""
    shapes = net.layers["Input"].out_shapes
    is_same_time = shapes[targets].scaling_shape == shapes[loss_mask].scaling_shape
    if is_same_time and getattr(net, find_loss_length(net)) > 1:
        warn_once(
            net,
            f"scorer {scorer.__name__!r}: {loss_mask!r} leaves steps out of the losses, but not "
            f"out of this score, which counts the padding. Write {type(scorer).__name__}(..., "
            f"mask_name={loss_mask!r}).",
        )


def add_losses(
    scores: MutableMapping[str, list[Weighted]],
    losses: Mapping[str, float],
    steps: int,
    sequences: int,
) -> None:
    """Append the losses of a batch, with its number of sequences and of time steps that count."""
    for name, loss in losses.items():
        scores.setdefault(name, []).append((sequences, sequences * loss))
    if losses:
        scores.setdefault(PER_STEP, []).append((steps, sequences * losses["total_loss"]))


def find_loss_mask(net: Any) -> str | None:
    """Return the name of the data (T, B, 1) or (S, B, 1) that mask all losses over time, if any."""
    sources = [net.layers[c.start_layer] for loss in _over_time(net) for c in loss.incoming]
    names = {_mask_of(net, layer) for layer in sources}
    return names.pop() if len(names) == 1 else None


def find_loss_length(net: Any) -> str:
    """Return the network's attribute with the length that losses are sums over: of T, or of S."""
    times = {loss.in_shapes["default"].time for loss in _over_time(net)}
    return "source_size" if times == {"S"} else "time_size"


def _over_time(net: Any) -> list[Any]:
    """Return the losses that are sums over time."""
    losses = [net.layers[name] for name in net.loss_layers]
    return [loss for loss in losses if loss.in_shapes["default"].scales_with_time]


def _mask_of(net: Any, layer: Any) -> str | None:
    """Return the mask of a layer, or of the one before it if it only passes values on."""
    for c in layer.incoming:
        if (c.start_layer, c.input_name) == ("Input", "mask"):
            return c.output_name if layer.in_shapes["mask"].shape[1:] == ("B", 1) else None
    ins = [structure.shape for structure in layer.in_shapes.values()]
    outs = [structure.shape for structure in layer.out_shapes.values()]
    if len(ins) == 1 and ins == outs and not layer.parameter_shapes:
        (connection,) = layer.incoming
        return _mask_of(net, net.layers[connection.start_layer])
    return None


def merge_scores(
    parts: Iterable[Mapping[str, Sequence[Weighted]]],
) -> dict[str, list[Weighted]]:
    """Return the results of `gather_losses_and_scores` in several processes, combined."""
    merged: dict[str, list[Weighted]] = OrderedDict()
    for part in parts:
        for name, pairs in part.items():
            merged.setdefault(name, []).extend(pairs)
    return merged


def aggregate_losses_and_scores(
    scores: Mapping[str, Iterable[Weighted]], net: Any, scorers: Sequence[Scorer]
) -> OrderedDict[str, float]:
    """Return the mean of each loss and score that `gather_losses_and_scores` has collected.

    Losses are sums over time, so those of parts of sequences depend on the lengths of the parts.
    If T > 1 and some loss is a sum over time, ``total_loss_per_step`` does not; nor does it depend
    on padding, if one mask of the Input leads into the layers before all losses over time: then it
    is the mean over the unmasked steps.

    Raises:
        ValidationError: There was no batch, or a scorer returned rows of different lengths.
    """
    losses = net.name_losses([0.0] * len(net.loss_layers))  # only for their names
    if not scores and (losses or scorers):
        raise ValidationError(
            "losses and scores: expected those of at least one batch, but the data iterator gave "
            "none."
        )
    results = OrderedDict((name, Scorer.aggregate(scores[name])) for name in losses)
    weights = [sum(n for n, _ in scores.get(name, ())) for name in (PER_STEP, "total_loss")]
    if weights[0] != weights[1] and _over_time(net):  # more than one time step
        results[PER_STEP] = Scorer.aggregate(scores[PER_STEP])
    for scorer in scorers:
        rows = list(scores.get(scorer.__name__, ()))  # none if it was set after the last batch
        if len(lengths := {len(row) for row in rows}) > 1:
            raise ValidationError(
                f"scorer {scorer.__name__!r}: expected arrays with as many columns for each batch, "
                f"got {' and '.join(map(str, sorted(lengths)))}. For values of each row return an "
                f"array (rows, values)."
            )
        is_known = not np.isnan(rows).any()
        results[scorer.__name__] = scorer.aggregate(rows) if rows and is_known else float("nan")
    return results


def _score(
    scorer: Scorer, true_labels: Array, predicted: Array, mask: Array | None
) -> list[Weighted]:
    for what, array in (("predictions", predicted), ("mask", mask)):
        if array is not None and len(array) != len(true_labels):
            raise ValidationError(
                f"scorer {scorer.__name__!r}: expected as many rows of {what} as of targets, "
                f"{len(true_labels)}, got {len(array)}"
            )
    if mask is not None and mask.shape[1] != 1:
        raise ValidationError(
            f"scorer {scorer.__name__!r}: expected a mask with one feature, got {mask.shape[1]}. "
            f"For a mask of single elements, give predictions, targets and mask a last axis of 1."
        )
    weight = len(true_labels) if mask is None else float(mask.sum(dtype=float))
    if mask is not None:
        counts = mask[:, 0] != 0
        if not counts.any():
            return []
        true_labels, predicted, mask = true_labels[counts], predicted[counts], mask[counts]
    unknown_values = np.isnan(predicted)
    is_unknown = unknown_values.any() or np.isnan(true_labels).any()
    if unknown_values.any():
        predicted = np.where(unknown_values, 0, predicted)
    found = scorer(true_labels, predicted, mask)
    values, has_own = np.asarray(found), type(scorer).aggregate is not Scorer.aggregate
    if values.dtype.kind not in "biuf" or (values.ndim and not has_own):
        got = f"an array of shape {values.shape}" if values.ndim else shown(found)
        raise ValidationError(
            f"scorer {scorer.__name__!r}: expected a number, got {got}. Return the sum over the "
            f"rows; a scorer that returns an array defines `aggregate`."
        )
    if is_unknown and weight:
        found = np.full_like(found, np.nan, dtype=float)
    if np.ndim(found) == 0:
        return [(weight, found)]
    return [tuple(row) for row in np.atleast_2d(found).tolist()]


def _check_names(names: list[str]) -> None:
    repeated = sorted({repr(name) for name in names if names.count(name) > 1})
    if repeated:
        raise ValidationError(
            f"expected different names for all scorers and losses, got {', '.join(repeated)} more "
            f"than once. Give the scorer another one: name='...'."
        )


def _output_path(net: Any, scorer: Scorer, out_name: str) -> str:
    path = scorer.out_name or out_name or net.output_name
    if not path:
        raise UnknownTypeError(
            f"scorer {scorer.__name__!r}: expected the path of the predictions, got none. Set "
            f"net.output_name, or give out_name, e.g. 'Output.outputs.predictions'."
        )
    return path


def _input_path(net: Any, scorer: Scorer, name: str) -> str:
    if name not in net.input_names:
        raise UnknownPathError(
            f"scorer {scorer.__name__!r}: {unknown('input', name, net.input_names)}"
        )
    return f"Input.outputs.{name}"
