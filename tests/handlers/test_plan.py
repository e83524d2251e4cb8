"""Plans: what is recorded, what is refused, and that replaying does the same."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.plan import (
    NotRecordableError,
    Plan,
    Recorder,
    StandIn,
    Watched,
    plans_are_enabled,
    recording,
)
from brainstorm.optree import formula


@pytest.fixture
def handler():
    return NumpyHandler(np.float64, seed=1)


@pytest.fixture
def recorder(handler):
    return Recorder(handler)


def test_operations_are_taken_down_and_not_done(handler, recorder):
    a, b, out = np.full((2, 3), 2.0), np.full((3, 4), 5.0), np.zeros((2, 4))
    guarded = [recorder.guard(x) for x in (a, b, out)]
    recorder.dot_mm(*guarded)
    recorder.mult_st(2.0, guarded[2], guarded[2])
    assert not out.any()
    plan = Plan(handler, recorder.steps)
    for _ in range(2):
        plan.replay()
        np.testing.assert_array_equal(out, np.full((2, 4), 60.0))
    a[...] = 1.0  # a replay reads what is in the arrays then
    plan.replay()
    np.testing.assert_array_equal(out, np.full((2, 4), 30.0))


def test_formulas_and_activations_are_taken_down(handler, recorder):
    x, y = np.linspace(-1, 1, 6).reshape(2, 3), np.zeros((2, 3))
    guarded_x, guarded_y = recorder.guard(x), recorder.guard(y)
    recorder.compute(formula(lambda x: x * 2.0), [guarded_x], [guarded_y])
    recorder.act_func["tanh"](guarded_y, guarded_y)
    Plan(handler, recorder.steps).replay()
    np.testing.assert_allclose(y, np.tanh(2 * x), rtol=1e-15)


def test_random_numbers_go_on_from_replay_to_replay(handler, recorder):
    stream, same = handler.create_random_stream(3), handler.create_random_stream(3)
    out, expected = np.zeros(4), np.zeros(4)
    recorder.fill_gaussian(0.0, 1.0, recorder.guard(out), stream)
    plan = Plan(handler, recorder.steps)
    for _ in range(3):
        plan.replay()
        handler.fill_gaussian(0.0, 1.0, expected, same)
        np.testing.assert_array_equal(out, expected)


def test_views_may_be_cut_and_reshaped(handler, recorder):
    memory = np.zeros(12)
    guarded = recorder.guard(memory)
    recorder.fill(guarded.reshape(3, 4)[1:, 2], 7.0)
    assert type(recorder.steps[0].arguments["mem"]) is np.ndarray
    Plan(handler, recorder.steps).replay()
    np.testing.assert_array_equal(np.flatnonzero(memory), [6, 10])


def set_first(x):
    x[0] = 1.0


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda x: x + 1, "numpy.add"),
        (lambda x: x.sum(), "array method 'sum'"),
        (lambda x: x[0, 0], "an element"),
        (float, "the values of an array"),
        (bool, "the values of an array"),
        (set_first, "the values of an array"),
        (np.sum, "numpy.sum"),
        (lambda x: x.tolist(), "array method 'tolist'"),
    ],
)
def test_guarded_arrays_refuse_everything_else(recorder, use, what):
    guarded = recorder.guard(np.zeros((2, 2)))
    with pytest.raises(NotRecordableError, match=rf"a plan cannot repeat the use of .*{what}"):
        use(guarded)


def test_writing_to_a_guarded_array_behind_its_back_is_refused(recorder):
    guarded = recorder.guard(np.zeros(3))
    with pytest.raises(NotRecordableError, match="NumPy's writing"), recording():
        np.asarray(guarded)[0] = 1.0
    with pytest.raises(ValueError, match="other"), recording():
        raise ValueError("other")


@pytest.mark.parametrize(
    "use",
    [
        lambda r, x: r.allocate((2,)),
        lambda r, x: r.zeros((2,)),
        lambda r, x: r.is_fully_finite(x),
        lambda r, x: r.get_numpy_copy(x),
        lambda r, x: r.create_random_stream(1),
    ],
)
def test_operations_with_a_result_are_refused(recorder, use):
    with pytest.raises(NotRecordableError, match="the result of"):
        use(recorder, recorder.guard(np.zeros(2)))


def test_a_reshaped_copy_is_refused(recorder):
    turned = recorder.guard(np.zeros((2, 3))).T
    with pytest.raises(NotRecordableError, match="a reshaped copy"):
        recorder.fill(turned.reshape(6), 1.0)


class Doubler:
    """Doubles an array, and keeps count if it is told to."""

    def __init__(self, handler, counts=False):
        self.handler, self.counts, self.calls = handler, counts, 0

    def run(self, array):
        self.handler.mult_st(2.0, array, array)
        if self.counts:
            self.calls += 1


@pytest.mark.parametrize("counts", [False, True])
def test_what_sets_attributes_is_called_instead(handler, recorder, counts):
    array = np.ones(2)
    doubler, guarded = Doubler(handler, counts), recorder.guard(array)
    recorder.attempt("it", doubler, lambda it: it.run(guarded), lambda: doubler.run(array))
    (operation,) = recorder.steps
    assert (operation.name, operation.place) == ("python" if counts else "mult_st", "it")
    plan = Plan(handler, recorder.steps)
    plan.replay()
    plan.replay()
    np.testing.assert_array_equal(array, [4.0, 4.0])
    assert doubler.calls == (2 if counts else 0)
    assert doubler.handler is handler


def test_hidden_attributes_must_not_be_used(handler, recorder):
    doubler = StandIn(Doubler(handler), hidden=["calls"], counts=True, handler=recorder).copy
    with pytest.raises(NotRecordableError, match=r"the use of Doubler\.calls"):
        doubler.run(recorder.guard(np.ones(2)))
    with pytest.raises(NotRecordableError, match=r"the use of Doubler\.calls"):
        recorder.mult_st(doubler.calls, np.ones(2), np.ones(2))


def test_changes_of_public_attributes_are_counted():
    class Thing(Watched):
        pass

    thing = Thing()
    value = object()
    counts = []
    for name, new in (("a", value), ("a", value), ("a", object()), ("_b", 1)):
        before = Watched.changes
        setattr(thing, name, new)
        counts.append(Watched.changes - before)
    assert counts == [1, 0, 1, 0]


def test_report_and_repr_name_place_operation_and_shapes(handler, recorder):
    recorder.place = "Out, forward"
    recorder.dot_mm(np.ones((2, 3)), np.ones((3, 4)), np.zeros((2, 4)))
    plan = Plan(handler, recorder.steps)
    assert "Out, forward" in repr(plan)
    assert "dot_mm (2, 3) (3, 4) (2, 4)" in repr(plan)
    first, last = plan.report(repeats=2).splitlines()
    assert "us 100.0 %  Out, forward" in first
    assert last.endswith("1 operations")


def test_switch(monkeypatch):
    assert plans_are_enabled()
    monkeypatch.setenv("BRAINSTORM_REPLAY", "0")
    assert not plans_are_enabled()
