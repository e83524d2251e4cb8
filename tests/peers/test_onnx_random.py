"""Random ONNX graphs: a network computes what ONNX Runtime does, or it says what it cannot."""

import os
from collections import Counter

import numpy as np
import pytest

from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange import from_onnx
from brainstorm.handlers import NumpyHandler
from tests.peers.comparing import as_data
from tests.peers.random_graphs import B, T, draw_graph, is_moderate, run

#: How many graphs; a part of the test takes as many as fit into some seconds.
COUNT, PART = int(os.environ.get("BRAINSTORM_RANDOM_GRAPHS", "2000")), 100


def is_as_expected(graph, output, found, expected):
    """Return whether a network gives what was expected, whose T and B may be anywhere."""
    drawn = graph.values[output].shape
    lead = [drawn.index(size) for size in (T, B) if size in drawn]
    moved = np.moveaxis(expected, lead, range(len(lead)))
    if found.size != moved.size:
        return False
    return bool(np.allclose(found.reshape(moved.shape), moved, 2e-3, 2e-4, equal_nan=True))


def check_graph(seed):
    """Return what has become of a graph: 'same', 'other' numbers, 'refused' or nothing."""
    kind = ("free", "fixed", "one")[seed % 3]
    graph = draw_graph(seed, 1 if kind == "one" else B)
    x, made = graph.values["x"], sorted(graph.dependent - {"x"}, key=lambda name: int(name[1:]))
    shapes = {n: graph.values[n].shape for n in made if graph.values[n].dtype == np.float32}
    outputs = [n for n, s in shapes.items() if s.count(B) == (kind != "one") and s.count(T) < 2]
    if not outputs:
        return "nothing"
    output = outputs[-1]
    free = {"T": "time", "B": "batch"} if kind == "free" else {}
    dims = [free.get(letter, size) for letter, size in zip(graph.letters, x.shape, strict=True)]
    model = graph.model(output, dims)
    try:
        axes = {"x": graph.letters, output: "abdefghi"[: len(shapes[output])]}
        net = from_onnx(model, axes, NumpyHandler(np.float32))
    except NetworkValidationError as error:
        named = str(error).startswith("ONNX node ")
        REFUSED[str(error).split(": ", 1)[-1][:60]] += 1
        return "refused" if named else "other"
    where = graph.letters.index("B")
    for change in (x, np.concatenate([x, -x], where) if kind == "free" else 0.5 * x):
        expected = run(model, {"x": change})[0]
        if not is_moderate(expected):
            continue  # what comes of a division by next to nothing
        data = as_data(change, graph.letters)
        found = net.predict({next(n for n in net.input_names if "target" not in n): data})
        if not is_as_expected(graph, output, found, expected):
            return "other"
    return "same"


REFUSED = Counter()


@pytest.mark.parametrize("start", range(0, COUNT, PART))
def test_networks_of_random_graphs_compute_the_same_or_are_refused(start):
    results = {seed: check_graph(seed) for seed in range(start, start + PART)}
    assert [seed for seed, result in results.items() if result == "other"] == []
    assert list(results.values()).count("same") > PART / 5
