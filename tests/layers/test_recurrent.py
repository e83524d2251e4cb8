"""Recurrent layers against loops over single steps, with a context that is not zero."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.layers import Clockwork, ClockworkLstm, Gru, Lstm, Recurrent
from brainstorm.optree.stages import split_into_stages
from brainstorm.testing import LayerHarness, approx_fprime, build_layer
from tests.layers.running import run, run_backward
from tests.layers.test_formulas import sigmoid

RND = np.random.RandomState(2)


def recurrent_step(x, y, c, p, f):
    before = x @ p["W"].T + y @ p["R"].T + p["bias"]
    return {"Ha": before, "y": f(before)}


def lstm_step(x, y, c, p, f):
    def before(gate, cell=0.0):
        sums = x @ p[f"W{gate}"].T + y @ p[f"R{gate}"].T + p[f"b{gate}"]
        return sums + p.get(f"p{gate}", 0.0) * cell

    Za, Ia, Fa = before("z"), before("i", c), before("f", c)
    Zb, Ib, Fb = f(Za), sigmoid(Ia), sigmoid(Fa)
    Ca = Ib * Zb + Fb * c
    Oa = before("o", Ca)
    Ob, Cb = sigmoid(Oa), f(Ca)
    names = {"Za": Za, "Zb": Zb, "Ia": Ia, "Ib": Ib, "Fa": Fa, "Fb": Fb, "Oa": Oa, "Ob": Ob}
    return {**names, "Ca": Ca, "Cb": Cb, "y": Ob * Cb}


def gru_step(x, y, c, p, f):
    R = sigmoid(x @ p["Wr"].T + y @ p["Rr"].T + p["br"])
    Z = sigmoid(x @ p["Wz"].T + y @ p["Rz"].T + p["bz"])
    H = f(x @ p["Wh"].T + p["bh"] + R * (y @ p["Rh"].T + p["bRh"]))
    return {"Rb": R, "Zb": Z, "Hb": H, "y": (1 - Z) * H + Z * y}


STEPS = {
    "Recurrent": recurrent_step,
    "Lstm": lstm_step,
    "Gru": gru_step,
    "Clockwork": recurrent_step,
    "ClockworkLstm": lstm_step,
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 3), (5, 2)])
@pytest.mark.parametrize("kind", STEPS)
def test_a_sequence_is_computed_step_by_step(kind, steps, batch, masked):
    """Where the mask is 0, and between the ticks of its clock, a unit holds its state."""
    x = RND.normal(size=(steps, batch, 3))
    mask = RND.choice([0, 0.5, 2] if masked else [1], (steps, batch, 1))
    inputs = {"default": x, "mask": mask} if masked else {"default": x}
    clocks = {"timing": np.array([1, 2, 3, 4])} if kind.startswith("Clockwork") else {}
    activation, f = ("sigmoid", sigmoid) if masked else ("tanh", np.tanh)
    harness = run(getattr(bl, kind)(4, activation), inputs, **clocks)
    p = {name: harness.get(f"parameters.{name}") for name in harness.layer.parameter_shapes}
    state = {"y": harness.values["context.outputs.default"][0]}
    if kind.endswith("Lstm"):
        state["Ca"] = harness.values["context.internals.Ca"][0]
    for t in range(steps):
        rows = STEPS[kind](x[t], state["y"], state.get("Ca"), p, f)
        holds = (mask[t] == 0) | (t % p.get("timing", 1) != 0)
        state = {name: np.where(holds, old, rows[name]) for name, old in state.items()}
        rows |= state
        np.testing.assert_allclose(harness.get("outputs.default")[t], rows.pop("y"))
        for name, row in rows.items():
            np.testing.assert_allclose(harness.get(f"internals.{name}")[t], row, err_msg=name)


LSTM_PARAMETERS = "Wz Wi Wf Wo pi pf po Rz Ri Rf Ro bz bi bf bo"
LSTM_INTERNALS = "Za Zb Ia Ib Fa Fb Oa Ob Ca Cb dZa dZb dIa dIb dFa dFb dOa dOb dCa dCb"


@pytest.mark.parametrize(
    ("create", "parameters", "internals", "size"),
    [
        (Recurrent, "W R bias", "Ha dHa dHb", 5 * 8 + 5),
        (Clockwork, "W R bias timing", "Ha dHa dHb carry time active", 5 * 8 + 10),
        (Lstm, LSTM_PARAMETERS, LSTM_INTERNALS, 4 * 5 * 8 + 35),
        (ClockworkLstm, f"{LSTM_PARAMETERS} timing", f"{LSTM_INTERNALS} carry time active",
         4 * 5 * 8 + 40),
        (Gru, "Wr Wz Wh Rh Rr Rz bRh br bz bh", "Qa Ra Za Ha Rb Zb Hb dQa dRa dZa dHa carry",
         3 * 5 * 8 + 4 * 5),
    ],
)  # fmt: skip
def test_names_and_shapes_are_those_of_the_contract(create, parameters, internals, size):
    layer = build_layer(create(5), {"default": ("T", "B", 3)})
    assert " ".join(layer.parameter_shapes) == parameters
    assert sum(s.feature_size for s in layer.parameter_shapes.values()) == size
    assert " ".join(layer.internal_shapes) == internals
    assert set(layer.computes_no_gradients_for) == {"timing"} & layer.parameter_shapes.keys()
    assert layer.out_shapes["default"].context_size == 1
    for name, structure in layer.internal_shapes.items():
        assert structure.is_backward_only == name.startswith(("d", "carry"))


def test_one_parameter_can_have_been_written_by_another_layer():
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
def test_deltas_of_the_lstm_after_the_nonlinearities(activation):
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
def test_the_context_of_the_cell_gets_a_delta(masked):
    mask = np.array([[0, 1], [1, 0], [0, 1], [1, 1]])[:, :, None].astype(float)
    inputs = {"default": RND.normal(size=(4, 2, 3)), **({"mask": mask} if masked else {})}
    harness = run(Lstm(3), inputs)
    dy = run_backward(harness)["default"]
    cell = harness.values["context.internals.Ca"]

    def objective(changed):
        harness.forward({**harness.values, "context.internals.Ca": changed.reshape(cell.shape)})
        return float((harness.get("outputs.default") * dy).sum())

    expected = approx_fprime(cell.ravel(), objective, 1e-6).reshape(cell.shape)
    np.testing.assert_allclose(harness.get("context.internals.dCa"), expected, rtol=1e-6)


# -- what is computed ---------------------------------------------------------------------------


class Listing(NumpyHandler):
    """Keeps the formulas of layers that it computes."""

    def __init__(self):
        super().__init__(np.float64)
        self.programs = []
        self.products = 0

    def run_program(self, program, *arrays):
        if program.name not in self.operations():
            self.programs.append(program)
        super().run_program(program, *arrays)

    def dot_add_packed(self, *args, **kwargs):
        self.products += 1
        super().dot_add_packed(*args, **kwargs)


def expensive(program):
    """Return how often a program calls exp, tanh and the like."""
    return sum(not s.operator.cheap and s.operator.kind == "elementwise" for s in program.steps)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("create", "functions"),
    [(Recurrent, 1), (Lstm, 5), (Gru, 3), (Clockwork, 1), (ClockworkLstm, 5)],
)
def test_a_step_is_one_product_and_one_loop_and_computes_nothing_again(create, functions, masked):
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
