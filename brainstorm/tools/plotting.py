"""Figures of logs and of buffers. They need the extra ``plot``, and neither a display nor pyplot.

Every function returns a figure of Matplotlib: a notebook shows it, ``figure.savefig('a.png')``
writes it. Where colors stand for values, white is zero, red positive, blue negative, and gray NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real
from operator import index
from typing import Any

import numpy as np

from brainstorm.errors import UnknownPathError, ValidationError, escaped, shown, unknown
from brainstorm.optional import require
from brainstorm.utils import Array, flatten_items

#: Colors for people with color vision deficiency too (Okabe and Ito 2008).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
STYLES = ("-", "--", ":", "-.")

#: The logs that a trainer writes itself, at the end of every epoch.
TRAINING = "rolling_training"

#: Entries of curves are marked if there are at most this many.
MARKED = 30


def plot_logs(
    logs: Mapping[str, Any], names: str | Sequence[str] = "*", log_scale: bool = False
) -> Any:
    """Plot logs as curves over the epochs: 0 is before the training, 1 after the first epoch.

    Logs by updates lie in between. Logs read from a file begin at epoch 0 and end at the last one,
    except that those with as many entries as epochs begin at 1. If there is no log of the training
    itself, curves are drawn over their entries, and the axis label says so.

    Args:
        logs: The logs of a trainer.
        names: Dotted path or paths, or patterns with ``*``; logs without numbers are left out.
        log_scale: Whether the vertical axis is logarithmic.

    Raises:
        UnknownPathError: A path or pattern matches no log.
        ValidationError: `names` are no texts.
        MissingDependencyError: Matplotlib is not installed.
    """
    found: dict[str, Any] = {}
    known = dict(flatten_items(logs))
    for pattern in _patterns(names):
        paths = [path for path in known if fnmatchcase(path, pattern)]
        if not paths:
            raise UnknownPathError(unknown("log", pattern, known))
        found.update((path, known[path]) for path in paths)
    figure, axes = _figure(8, 5)
    curves = {
        path: values
        for path, values in found.items()
        if len(values) and all(isinstance(value, Real) for value in values)
    }
    places, unit = places_of(logs, {path: len(values) for path, values in curves.items()})
    for number, (path, values) in enumerate(curves.items()):
        axes.plot(
            places[path],
            values,
            label=_as_written(path),
            marker="." if len(values) <= MARKED else None,
            color=COLORS[number % len(COLORS)],
            linestyle=STYLES[number // len(COLORS) % len(STYLES)],
        )
    if axes.lines:
        # Named, because one that begins with "_" would be left out.
        axes.legend(axes.lines, [line.get_label() for line in axes.lines], fontsize=9)
    if log_scale:
        axes.set_yscale("log")
    axes.set_xlabel(unit)
    _finish_curves(axes)
    return figure


def _as_written(path: str) -> str:
    """Return a path as Matplotlib shows it: not as a formula, which it may not be."""
    return escaped(path).replace("$", r"\$").encode(errors="replace").decode()


def plot_bands(logs: Mapping[str, Any], monitors: str = "*") -> Any:
    """Plot the logs of layer monitors: averages as curves, in bands from min to max.

    They are plotted over the epochs, as in `plot_logs`. For example,
    ``MonitorLayerGradients('Hidden')`` logs the gradients of each parameter under
    ``MonitorGradients_Hidden``.

    Args:
        logs: The logs of a trainer.
        monitors: The name of a monitor, or a pattern with ``*``: ``'MonitorGradients_*'``.

    Raises:
        UnknownPathError: There are no such logs.
        MissingDependencyError: Matplotlib is not installed.
    """
    known = dict(flatten_items(logs))
    averages = [
        path
        for path in known
        if path.endswith(".avg") and {f"{path[:-3]}min", f"{path[:-3]}max"} <= known.keys()
    ]
    names = {path: path.partition(".")[0] for path in averages}
    found = [path for path in averages if fnmatchcase(names[path], monitors)]
    if not found:
        raise UnknownPathError(unknown("log of a monitor", monitors, sorted({*names.values()})))
    figure = _new_figure(8, 1 + 1.6 * len(found))
    rows = figure.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    places, unit = places_of(logs, {path: len(known[path]) for path in found})
    for number, (axes, path) in enumerate(zip(rows, found, strict=True)):
        x, path = places[path], path.removesuffix(".avg")
        low, middle, high = (known[f"{path}.{kind}"] for kind in ("min", "avg", "max"))
        color = COLORS[number % len(COLORS)]
        axes.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0)
        axes.plot(x, middle, color=color)
        axes.set_title(_as_written(path), fontsize=10, loc="left")
        _finish_curves(axes)
    rows[-1].set_xlabel(unit)
    return figure


def plot_learning_rates(search: Any) -> Any:
    """Plot the loss over the learning rate, and mark the suggested one.

    Args:
        search: The result of `brainstorm.training.find_learning_rate`.
    """
    figure, axes = _figure(8, 5)
    axes.plot(search.rates, search.losses, ".", color=COLORS[0], alpha=0.4, label="loss")
    axes.plot(search.rates, search.smoothed, color=COLORS[0], label="smoothed")
    axes.axvline(
        search.suggestion,
        color=COLORS[1],
        linestyle="--",
        label=f"suggestion: {search.suggestion:.2g}",
    )
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    first, low = search.losses[0], min(search.losses)
    axes.set_ylim(min(0, low), first + (max(abs(first), first - low) or 1.0))
    axes.legend(fontsize=9)
    axes.grid(alpha=0.3)
    return figure


def plot_weights(net: Any, path: str) -> Any:
    """Plot a parameter (or any constant buffer) as an image, one row for each of its rows.

    Args:
        net: The network.
        path: Its dotted path: ``'Hidden.parameters.W'``. All dimensions but the first are merged.
    """
    values = net.get(path)
    image = values.reshape(len(values), -1)
    figure, axes = _draw_image(image, path)
    axes.set(xlabel=f"value of each row {tuple(values.shape[1:]) or ''}".strip(), ylabel="row")
    return figure


def plot_filters(net: Any, path: str) -> Any:
    """Plot the filters of a convolution: a row for each filter, a column for each input channel.

    Args:
        net: The network.
        path: The dotted path of its parameter ``W`` (filters, height, width, channels).

    Raises:
        ValidationError: The buffer has other dimensions.
    """
    filters = net.get(path)
    if filters.ndim != 4:
        raise ValidationError(
            f"plot_filters, {path!r}: expected four dimensions (filters, height, width, channels), "
            f"got shape {filters.shape}. plot_weights takes any."
        )
    count, channels = filters.shape[0], filters.shape[3]
    return _draw_maps(filters, path, f"channels: {channels}", f"filters: {count}")


def plot_activations(net: Any, path: str, sequence: int = 0) -> Any:
    """Plot an output, internal or delta over time for one sequence, or over the batch if T = 1.

    Images are plotted as maps, one for each channel: a row of them for each time step of the
    sequence, or all of one step.

    Args:
        net: The network, after a pass.
        path: Its dotted path: ``'Lstm.outputs.default'``.
        sequence: The number of the sequence (or image) in the batch.

    Raises:
        ValidationError: The buffer does not grow with the sequences, or there is no such sequence.
    """
    values, length = net.get(path), _count_steps(net, path)
    if length == 0:
        raise ValidationError(
            f"plot_activations, {path!r}: expected a buffer (T, B, features...) after a pass, got "
            f"shape {values.shape}."
        )
    try:
        sequence = range(net.batch_size)[index(sequence)]
    except (IndexError, TypeError):
        raise ValidationError(
            f"plot_activations: expected a sequence below {net.batch_size}, got {shown(sequence)}."
        ) from None
    over_time = length > 1
    if values.ndim == 5:
        maps, title = values[:length, sequence], f"{path}, sequence {sequence}"
        return _draw_maps(maps, title, f"channels: {maps.shape[3]}", f"time steps: {len(maps)}")
    steps = values[:length, sequence] if over_time else values[0]
    image = steps.reshape(len(steps), -1).T
    figure, axes = _draw_image(image, f"{path}, sequence {sequence}" if over_time else path)
    axes.set(xlabel="time step" if over_time else "sequence", ylabel="feature")
    return figure


def _count_steps(net: Any, path: str) -> int:
    """Return the length of the sequences in a buffer: T or S, or 0 if it has no time axis."""
    layer, _, port = path.partition(".")
    port = port.replace("put_deltas.", "puts.", 1)  # deltas have the shape of what they belong to
    if not port.startswith(("inputs.", "outputs.", "internals.")):
        return 0
    structure = net.layers[layer].get_shape(port)
    length = net.source_size if structure.time == "S" else net.time_size
    return int(length) if structure.scales_with_time else 0


# -- parts ----------------------------------------------------------------------------------------


def _patterns(names: Any) -> list[str]:
    found = [names] if isinstance(names, str) else names
    found = list(found) if isinstance(found, Iterable) else [found]
    if not all(isinstance(name, str) for name in found):
        raise ValidationError(
            f"plot_logs, names: expected a path or a list of paths, got {names!r}."
        )
    return found


def _new_figure(width: float, height: float) -> Any:
    # A figure not created by pyplot uses Agg: no display, no global state.
    figure = require("matplotlib.figure", "plot").Figure
    return figure(figsize=(width, height), layout="constrained")


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure = _new_figure(width, height)
    return figure, figure.add_subplot()


def places_of(logs: Mapping[str, Any], lengths: Mapping[str, int]) -> tuple[dict[str, Array], str]:
    """Return the positions of the entries of each log, and the unit: epochs if these are known."""
    places = {path: _epochs_of(logs, path, count) for path, count in lengths.items()}
    if all(epochs is not None for epochs in places.values()):
        return places, "epoch"
    return {path: np.arange(count) for path, count in lengths.items()}, "entry"


def _epochs_of(logs: Mapping[str, Any], path: str, count: int) -> Array | None:
    """Return the epochs of the entries of a log; `None` if they are unknown.

    Those of logs from a file are guessed: they are spread over all epochs.
    """
    known = getattr(logs, "places", {})
    name = max((name for name in known if f"{path}.".startswith(f"{name}.")), key=len, default="")
    if not known and logs.get(TRAINING):
        last = max(len(values) for _, values in flatten_items(logs[TRAINING]))
        return np.linspace(count == last, last, count)
    # Of copies: nothing can be appended while NumPy looks into the memory.
    epochs, updates = (np.asarray(counts[:]) for counts in known.get(name, ((), ())))
    if len(epochs) != count:
        return None
    if logs.moments[name].timescale == "epoch":  # type: ignore[attr-defined]
        return epochs
    if TRAINING not in known:
        return None
    # How many updates there were at the end of each epoch; the present one is like the last.
    ends = [np.array([0, *counts]) for counts in known[TRAINING]]
    numbers, counts = (np.append(end, 2 * end[-1] - end[-2]) for end in ends)
    begin, end = (np.interp(epochs - k, numbers, counts) for k in (1, 0))
    parts = np.clip((updates - begin) / np.maximum(end - begin, 1), 0, 1)
    return np.maximum(epochs - 1 + parts, 0)


def _finish_curves(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)


def _draw_maps(maps: Array, title: str, below: str, beside: str) -> Any:
    """Return a figure of maps (N, height, width, channels): a row for each of N.

    If each has one channel, or there is one of them, they are drawn in a square.
    """
    count, height, width, channels = maps.shape
    rows = count if min(count, channels) > 1 else math.ceil(math.sqrt(count * channels))
    columns = math.ceil(count * channels / rows)
    framed = np.full((rows * columns, height + 1, width + 1), np.nan)  # a gap below and beside
    in_order = np.moveaxis(maps, 3, 1).reshape(count * channels, height, width)
    framed[: count * channels, :height, :width] = in_order
    grid = framed.reshape(rows, columns, height + 1, width + 1).swapaxes(1, 2)
    image = grid.reshape(rows * (height + 1), -1)[:-1, :-1]
    figure, axes = _draw_image(image, title)
    axes.set(xticks=[], yticks=[], xlabel=below, ylabel=beside)
    axes.set_aspect("equal")
    return figure


def _draw_image(image: Array, title: str) -> tuple[Any, Any]:
    """Return a figure of limited size with some room for each value, and its axes."""
    height, width = image.shape
    across = np.clip(2.5 + 0.12 * width, max(4.0, 0.1 * len(title)), 12)
    figure, axes = _figure(float(across), float(np.clip(1.2 + 0.12 * height, 2.4, 10)))
    finite = image[np.isfinite(image)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    limit = largest or 1.0
    shown = axes.imshow(
        image, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
    )
    axes.set_facecolor("#d0d0d0")  # the color of missing values
    axes.set_title(title, fontsize=10, loc="left")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.colorbar(shown, ax=axes, fraction=0.05, pad=0.02)
    return figure, axes
