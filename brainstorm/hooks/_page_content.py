"""The content of the live page, as HTML and SVG; all text that contains names is escaped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

import numpy as np

from brainstorm import tools
from brainstorm.errors import MissingDependencyError
from brainstorm.tools.plotting import COLORS, places_of
from brainstorm.utils import Array, flatten_items, is_number

WIDTH, HEIGHT = 360, 150

#: More points than this are not visible in a chart of that width.
MOST_POINTS = 300

#: Number of charts on the page, and of arrays with statistics.
MOST_CHARTS, MOST_ARRAYS = 24, 2000

SCRIPT = """"use strict";
const main = document.querySelector("main");

async function refresh() {
  const answer = await fetch("content");
  if (!answer.ok) throw new Error(answer.status);
  const text = await answer.text();
  const open = new Map();
  for (const part of main.querySelectorAll("details")) open.set(part.title, part.open);
  main.innerHTML = text;
  for (const part of main.querySelectorAll("details"))
    if (open.has(part.title)) part.open = open.get(part.title);
  setTimeout(attempt, 2000);
}

function attempt() {
  refresh().catch(() => {
    document.querySelector("#ended").hidden = false;
  });
}

setTimeout(attempt, 1000);
"""

STYLE = """
body { font-family: sans-serif; margin: 1.5em; color: #222; }
h1 { font-size: 1.3em; }
h2 { font-size: 1.05em; margin-top: 1.5em; }
small { color: #666; }
summary { cursor: pointer; }
td, th { font-size: .85em; white-space: nowrap; }
figure { margin: 0; width: 360px; }
figcaption, pre { font-size: .8em; }
section svg { max-width: 28em; max-height: 85vh; width: auto; height: auto; }
.columns, .charts { display: flex; flex-wrap: wrap; gap: 1em 2em; }
main { flex: 0 1 48em; }
#ended { background: #fbeec2; padding: .5em 1em; }
"""


def make_page(net: Any, content: str) -> str:
    """Return the whole page: the present content, and the script that renews it."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>brainstorm</title>'
        f'<style>{STYLE}</style></head><body><div id="ended" hidden>The training has ended. Below '
        f'is its last state.</div><div class="columns"><main>{content}</main><section>'
        f"<h2>Network</h2>{_draw(net)}</section></div>"
        '<script src="page.js"></script></body></html>\n'
    )


def _draw(net: Any) -> str:
    try:
        drawing = tools.network_as_svg(net)
    except MissingDependencyError:
        drawing = f"<pre>{escape(tools.get_network_info(net))}</pre>"
    return f"<details open><summary>{len(net.layers)} layers</summary>{drawing}</details>"


def make_content(net: Any, logs: Mapping[str, Any], heading: str) -> str:
    """Return the part that changes: the heading, the curves of the logs, and the buffers."""
    groups = _group(logs)
    lengths = {path: len(curve) for group in groups.values() for _, path, curve in group}
    places, unit = places_of(logs, lengths)
    charts = [
        _chart(title, unit, {label: (places[path], curve) for label, path, curve in group})
        for title, group in groups.items()
    ]
    more = f"<p>and {len(charts) - MOST_CHARTS} more</p>" if len(charts) > MOST_CHARTS else ""
    has_statistics = len(net.buffer.paths()) <= MOST_ARRAYS
    tree = net.buffer.tree(values=True) if has_statistics else net.buffer.tree().folded()
    return (
        f"<h1>{escape(heading)}</h1>"
        f'<h2>Logs</h2><div class="charts">{"".join(charts[:MOST_CHARTS])}</div>{more}'
        f"<h2>Buffers <small>T={net.time_size}, B={net.batch_size}</small></h2>"
        f"{tree._repr_html_()}"
    )


# -- charts ---------------------------------------------------------------------------------------


#: Places and values of a curve, or those of its points that are shown.
Curve: TypeAlias = tuple[Sequence[float] | Array, Sequence[Any]]
Points: TypeAlias = list[tuple[float, float]]


def _group(logs: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Sequence[Any]]]]:
    """Return (label, path, values) by title: the name of a loss or score, or the buffer."""
    groups: dict[str, list[tuple[str, str, Sequence[Any]]]] = {}
    for path, values in flatten_items(logs):
        if not len(values) or not is_number(values[-1]):
            continue
        start, _, last = path.rpartition(".")
        is_band = last.removesuffix("_L2_norm") in ("min", "avg", "max")
        title, label = (start, last) if is_band else (last, start or last)
        groups.setdefault(title, []).append((label, path, values))
    return groups


def _chart(title: str, unit: str, curves: Mapping[str, Curve]) -> str:
    """Return a figure with curves from place 0 (left) to the last one (right)."""
    sampled = {label: _sample(*curve) for label, curve in curves.items()}
    finite = [y for points in sampled.values() for _, y in points if math.isfinite(y)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    last = max(float(places[-1]) for places, _ in curves.values())
    span = (high - low) or 1.0

    def place(x: float, y: float) -> str:
        across = x / (last or 1.0) * (WIDTH - 10) + 5
        return f"{across:.1f},{(high - y) / span * (HEIGHT - 30) + 15:.1f}"

    lines, legend = [], []
    for number, (label, points) in enumerate(sampled.items()):
        color = COLORS[number % len(COLORS)]
        for part in _finite_parts(points):
            path = " ".join(place(x, y) for x, y in part)
            lines.append(
                f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5" '
                f'stroke-linecap="round"/>'
            )
        value = f"{points[-1][1]:.5g}"
        legend.append(f'<span style="color:{color}">{escape(label)}: {value}</span>')
    texts = "".join(
        f'<text x="4" y="{y}" font-size="10" fill="#666">{value:.4g}</text>'
        for y, value in ((10, high), (HEIGHT - 3, low))
    )
    return (
        f"<figure><small><b>{escape(title)}</b>, to {unit} {last:.6g}</small><br>"
        f'<svg width="{WIDTH}" height="{HEIGHT}" style="background:#f7f7f7">'
        f"{''.join(lines)}{texts}</svg><figcaption>{'<br>'.join(legend)}</figcaption></figure>"
    )


def _sample(places: Sequence[float] | Array, values: Sequence[Any]) -> Points:
    """Return at most as many points as are visible: the ends, and the extremes of neighbours."""
    is_long = hasattr(values, "__array__")  # and so holds numbers alone
    known = values if is_long else [v if is_number(v) else math.nan for v in values]
    numbers = np.asarray(known, float)
    low, high = (np.where(np.isfinite(numbers), numbers, other) for other in (math.inf, -math.inf))
    step = math.ceil(2 * len(numbers) / MOST_POINTS)
    chosen = {0, len(numbers) - 1}
    for start in range(0, len(numbers), step):
        part = slice(start, start + step)
        chosen |= {start + int(low[part].argmin()), start + int(high[part].argmax())}
    return [(float(places[i]), float(numbers[i])) for i in sorted(chosen)]


def _finite_parts(points: Points) -> Iterator[Points]:
    """Yield the runs of finite points; a single point is doubled, to show as a dot."""
    for is_finite, part in itertools.groupby(points, lambda point: math.isfinite(point[1])):
        if is_finite:
            found = list(part)
            yield found if len(found) > 1 else found * 2
