"""Recurrent layers against loops over single steps, with a context that is not zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.layers import Clockwork, ClockworkLstm, Gru, Lstm, Recurrent
from brainstorm.optree import Program
from brainstorm.optree.stages import split_into_stages
from brainstorm.testing import LayerHarness, approx_fprime, build_layer
from tests.layers.running import run, run_backward

RND = np.random.RandomState(2)
SIZES = [(1, 1), (1, 3), (5, 2)]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(("steps", "batch"), SIZES)
def test_recurrent_forward(steps: int, batch: int) -> None:
    x = RND.normal(size=(steps, batch, 3))
    harness = run(Recurrent(4, "tanh"), {"default": x})
    W, R, bias = (harness.get(f"parameters.{name}") for name in ("W", "R", "bias"))
    y = harness.values["context.outputs.default"][0]
    for t in range(steps):
        before = x[t] @ W.T + y @ R.T + bias
        y = np.tanh(before)
        np.testing.assert_allclose(harness.get("internals.Ha")[t], before)
        np.testing.assert_allclose(harness.get("outputs.default")[t], y)


def naive_lstm(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One sequence step after the other, one gate after the other."""
    p = {k.removeprefix("parameters."): v for k, v in values.items() if k.startswith("parameters.")}
    x = values["inputs.default"]
    y, c = values["context.outputs.default"][0], values["context.internals.Ca"][0]
    rows: dict[str, list[np.ndarray]] = {}
    for x_t in x:

        def before(gate: str, cell: np.ndarray | None = None) -> np.ndarray:
            sums = x_t @ p[f"W{gate}"].T + y @ p[f"R{gate}"].T + p[f"b{gate}"]  # noqa: B023
            return sums if cell is None else sums + p[f"p{gate}"] * cell

        Za, Ia, Fa = before("z"), before("i", c), before("f", c)
        Zb, Ib, Fb = np.tanh(Za), sigmoid(Ia), sigmoid(Fa)
        Ca = Ib * Zb + Fb * c
        Oa = before("o", Ca)
        Ob, Cb = sigmoid(Oa), np.tanh(Ca)
        y, c = Ob * Cb, Ca
        names = {"Za": Za, "Zb": Zb, "Ia": Ia, "Ib": Ib, "Fa": Fa, "Fb": Fb, "Oa": Oa, "Ob": Ob}
        for name, row in {**names, "Ca": Ca, "Cb": Cb, "y": y}.items():
            rows.setdefault(name, []).append(row)
    return {name: np.stack(steps) for name, steps in rows.items()}


@pytest.mark.parametrize(("steps", "batch"), SIZES)
def test_lstm_forward(steps: int, batch: int) -> None:
    harness = run(Lstm(4), {"default": RND.normal(size=(steps, batch, 3))})
    expected = naive_lstm(harness.values)
    np.testing.assert_allclose(harness.get("outputs.default"), expected.pop("y"))
    for name, rows in expected.items():
        np.testing.assert_allclose(harness.get(f"internals.{name}"), rows, err_msg=name)


@pytest.mark.parametrize("layer", [Lstm(3), Recurrent(3)])
def test_two_halves_with_context_equal_the_whole(layer: object) -> None:
    x = RND.normal(size=(6, 2, 4))
    whole = run(layer, {"default": x})
    half = run(layer, {"default": x[:3]})
    half.forward({**whole.values, "inputs.default": x[:3]})
    np.testing.assert_allclose(half.get("outputs.default"), whole.get("outputs.default")[:3])
    states = {f"context.{path}": half.get(path)[-1:] for path in half.context_paths}
    half.forward({**whole.values, "inputs.default": x[3:], **states})
    np.testing.assert_allclose(half.get("outputs.default"), whole.get("outputs.default")[3:])


def test_recurrent_gradient_contains_the_context() -> None:
    harness = run(Recurrent(3, "linear"), {"default": RND.normal(size=(1, 2, 4))})
    dy = run_backward(harness)["default"]
    state = harness.values["context.outputs.default"][0]
    np.testing.assert_allclose(harness.get("gradients.R"), dy[0].T @ state)


def test_lstm_gradients_contain_the_context() -> None:
    harness = run(Lstm(3), {"default": RND.normal(size=(1, 2, 4))})
    run_backward(harness)
    state, cell = (harness.values[f"context.{p}"][0] for p in ("outputs.default", "internals.Ca"))
    for gate in "zifo":
        delta = harness.get(f"internals.d{gate.upper()}a")[0]
        np.testing.assert_allclose(harness.get(f"gradients.R{gate}"), delta.T @ state)
        if gate in "if":
            expected = (delta * cell).sum(0, keepdims=True)
            np.testing.assert_allclose(harness.get(f"gradients.p{gate}"), expected)


def test_lstm_has_the_names_and_shapes_of_the_contract() -> None:
    layer = build_layer(Lstm(5), {"default": ("T", "B", 3)})
    assert " ".join(layer.parameter_shapes) == ("Wz Wi Wf Wo pi pf po Rz Ri Rf Ro bz bi bf bo")
    assert sum(s.feature_size for s in layer.parameter_shapes.values()) == 4 * 5 * 3 + 4 * 25 + 35
    assert " ".join(layer.internal_shapes).startswith(
        "Za Zb Ia Ib Fa Fb Oa Ob Ca Cb dZa dZb dIa dIb dFa dFb dOa dOb dCa dCb"
    )
    assert layer.out_shapes["default"].context_size == 1
    assert [n for n, s in layer.internal_shapes.items() if s.is_backward_only] == [
        *(n for n in layer.internal_shapes if n.startswith("d"))
    ]


def test_one_parameter_can_have_been_written_by_another_layer() -> None:
    """A penalty on Rz alone has added to its gradient; the joint product must not lose that."""
    harness = LayerHarness(build_layer(Lstm(2), {"default": ("T", "B", 3)}))
    harness.resize(3, 2)
    values = harness.sample(np.random.RandomState(0))
    deltas = harness.sample_out_deltas(np.random.RandomState(1))
    results = []
    for start in (0.0, 1.0):
        harness.load({path: np.full((), start) for path in harness.gradient_paths})
        harness.load({"input_deltas.default": np.zeros(())})
        harness.forward(values)
        others = [path for path in harness.gradient_paths if path != "gradients.Rz"]
        harness.backward(deltas, overwritten=others)
        results.append({path: harness.get(path) for path in harness.gradient_paths})
    for path in harness.gradient_paths:
        kept = 1.0 if path == "gradients.Rz" else 0.0
        np.testing.assert_allclose(results[1][path], results[0][path] + kept, err_msg=path)


# -- deltas of internals ------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "linear"])
def test_deltas_of_the_lstm_after_the_nonlinearities(activation: str) -> None:
    harness = run(Lstm(3, activation), {"default": RND.normal(size=(4, 2, 5))})
    dy = run_backward(harness)["default"]
    b = {name: harness.get(f"internals.{name}") for name in harness.layer.internal_shapes}
    before = np.concatenate([harness.values["context.internals.Ca"], b["Ca"][:-1]])
    dy[:-1] += sum(b[f"d{g}a"][1:] @ harness.get(f"parameters.R{g.lower()}") for g in "ZIFO")
    dcell = {"dZb": b["Ib"], "dIb": b["Zb"], "dFb": before}
    expected = {name: b["dCa"] * factor for name, factor in dcell.items()}
    expected |= {"dOb": dy * b["Cb"], "dCb": dy * b["Ob"]}
    for name, delta in expected.items():
        np.testing.assert_allclose(b[name], delta, err_msg=name)
        if name[1] in "IFO":
            after = b[name[1:]]
            np.testing.assert_allclose(b[f"{name[:2]}a"], delta * after * (1 - after))


@pytest.mark.parametrize("masked", [False, True])
def test_the_context_of_the_cell_gets_a_delta(masked: bool) -> None:
    inputs = {"default": RND.normal(size=(4, 2, 3))}
    if masked:
        inputs["mask"] = np.array([[0, 1], [1, 0], [0, 1], [1, 1]])[:, :, None].astype(float)
    harness = run(Lstm(3), inputs)
    dy = run_backward(harness)["default"]
    cell = harness.values["context.internals.Ca"]

    def objective(changed: np.ndarray) -> float:
        harness.forward({**harness.values, "context.internals.Ca": changed.reshape(cell.shape)})
        return float((harness.get("outputs.default") * dy).sum())

    expected = approx_fprime(cell.ravel(), objective, 1e-6).reshape(cell.shape)
    np.testing.assert_allclose(harness.get("context.internals.dCa"), expected, rtol=1e-6)


# -- what is computed ---------------------------------------------------------------------------


class Listing(NumpyHandler):
    """Keeps the formulas of layers that it computes."""

    def __init__(self) -> None:
        super().__init__(np.float64)
        self.programs: list[Program] = []
        self.products = 0

    def run_program(self, program: Program, *arrays: Any) -> None:
        if program.name not in self.operations():
            self.programs.append(program)
        super().run_program(program, *arrays)

    def dot_add_packed(self, *args: Any, **kwargs: Any) -> None:
        self.products += 1
        super().dot_add_packed(*args, **kwargs)


def expensive(program: Program) -> int:
    """Return how often a program calls exp, tanh and the like."""
    return sum(not s.operator.cheap and s.operator.kind == "elementwise" for s in program.steps)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("create", "functions"),
    [(Recurrent, 1), (Lstm, 5), (Gru, 3), (Clockwork, 1), (ClockworkLstm, 5)],
)
def test_a_step_is_one_product_and_one_loop_and_computes_nothing_again(
    create: Callable, functions: int, masked: bool
) -> None:
    steps, handler = 6, Listing()
    shapes = {"default": ("T", "B", 3), **({"mask": ("T", "B", 1)} if masked else {})}
    harness = LayerHarness(build_layer(create(4), shapes), handler)
    harness.resize(steps, 2)
    harness.forward(harness.sample(np.random.RandomState(0)))
    forward = [program for program in handler.programs if expensive(program)]
    assert [expensive(program) for program in forward] == [functions] * steps
    assert handler.products == steps
    assert len(handler.programs) == steps + (create in (Clockwork, ClockworkLstm))
    handler.programs.clear()
    handler.products = 0
    paths = harness.delta_paths + harness.gradient_paths
    harness.backward(harness.sample_out_deltas(np.random.RandomState(1)), overwritten=paths)
    backward = [program for program in handler.programs if program.inputs][:steps]  # not zeros
    assert not any(expensive(program) for program in handler.programs)
    assert len({id(program) for program in backward}) == 1
    assert handler.products == steps - 1
    for program in forward[:1] + backward[:1]:
        assert len(split_into_stages(program).stages) == 1
