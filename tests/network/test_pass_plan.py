"""The plan of the backward pass: every delta is the sum of what its consumers write, and no more.

The plan is carried out on memory full of NaN by layers that write a one into each delta and
gradient; each element must then count its writers.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.layers import Input
from brainstorm.layers.base_layer import Layer
from brainstorm.network.pass_plan import _Coverage, plan_backward_pass
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.layout import (
    create_layout,
    gather_array_nodes,
    get_backward_connection,
    get_connections,
)
from tests.networks import WIRINGS, chain, layers_of, wire_input, wire_loss


class PlannedLayerImpl(Layer):
    """Declares what the options say and computes nothing."""

    expected_kwargs = {"size", "trainable", "overwrites", "null"}

    def setup(self, kwargs, in_shapes):
        self.can_overwrite, self.accepts_null_deltas = kwargs["overwrites"], kwargs["null"]
        parameters = {"W": BufferStructure(2, 2), "b": BufferStructure(2)}
        output = BufferStructure("T", "B", kwargs["size"])
        return {"default": output}, parameters if kwargs["trainable"] else {}, {}


OVERWRITTEN = ("input_deltas", "gradients")


def planned(name, size=1, layer_type=PlannedLayerImpl, **options):
    options = {"trainable": True, "overwrites": OVERWRITTEN, "null": True} | options
    return ConstructionWrapper.create(layer_type, name=name, size=size, **options)


class Rehearsal:
    """Carries a plan out.

    Attributes:
        layers: Name to layer.
        nodes: Path to the array nodes of the layout.
        cleared: Number of elements that were filled with zeros.
        run: Names of the layers in the order of their passes.
    """

    def __init__(self, wiring, keep_input_deltas=False, accumulate=False):
        self.layers = layers_of(wiring)
        hubs, layout = create_layout(self.layers, keep_input_deltas)
        self.nodes = dict(gather_array_nodes(layout))
        self.memory = [np.full(hub.size, np.nan) for hub in hubs]
        if accumulate:
            self.part("gradients")[:] = 100.0
        self.cleared, self.run = 0, []
        self.steps = plan_backward_pass(self.layers, layout, accumulate)
        for step in self.steps:
            for hub, start, stop in step.clear:
                self.memory[hub][start:stop] = 0.0
                self.cleared += stop - start
            if step.layer:
                self.run_layer(step)

    def part(self, path):
        node = self.nodes[path]
        if "@hub" not in node:
            return np.zeros(0)
        return self.memory[node["@hub"]][slice(*node["@slice"])]

    def run_layer(self, step):
        name, layer = step.layer, self.layers[step.layer]
        self.run.append(name)
        for output in set(layer.out_shapes) - set(layer.takes_no_output_deltas_from):
            assert not np.isnan(self.part(f"{name}.output_deltas.{output}")).any()
        if not layer.accepts_null_deltas:
            assert step.unneeded <= set(layer.computes_no_input_deltas_for)
        ports = set(layer.in_shapes) - step.unneeded - set(layer.computes_no_input_deltas_for)
        parameters = set(layer.parameter_shapes) - set(layer.computes_no_gradients_for)
        written = [f"input_deltas.{port}" for port in ports]
        written += [f"gradients.{parameter}" for parameter in parameters]
        assert step.overwritten <= {p for p in written if p.split(".")[0] in layer.can_overwrite}
        for path in written:
            if path in step.overwritten:
                self.part(f"{name}.{path}")[:] = 1.0
            else:
                self.part(f"{name}.{path}")[:] += 1.0
        for sink, adds in step.copies.items():
            sources = [s for s in self.nodes[sink]["@copy_of"] if "@null" not in self.nodes[s]]
            for source, add in zip(sources, adds, strict=True):
                delta = self.part(source)
                delta[:] = 1.0 + (delta if add else 0.0)

    def expected(self):
        """Return for each delta and gradient how often it is written to: by all that use it."""
        counts = Counter(
            f"{name}.gradients.{parameter}"
            for name, layer in self.layers.items()
            for parameter in layer.parameter_shapes
            if parameter not in layer.computes_no_gradients_for
        )
        for connection in get_connections(self.layers):
            source, _ = get_backward_connection(connection, self.layers)
            skipped = self.layers[connection.end_layer].computes_no_input_deltas_for
            if "@null" not in self.nodes[source] and connection.input_name not in skipped:
                counts[source] += 1
        return counts

    def check(self, offset=0):
        for path, count in self.expected().items():
            is_gradient = path.split(".")[1] == "gradients"
            expected = count + (offset if is_gradient else 0)
            assert (self.part(path) == expected).all(), (path, self.part(path), expected)
        assert not np.isnan(self.part("gradients")).any()


# -- any wiring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_delta_counts_its_consumers(wiring):
    for keep in (False, True):
        Rehearsal(WIRINGS[wiring](), keep).check()
    rehearsal = Rehearsal(WIRINGS[wiring](), accumulate=True)
    rehearsal.check(offset=100)  # accumulated gradients are added to those before
    overwritten = {path for step in rehearsal.steps for path in step.overwritten}
    assert not [path for path in overwritten if path.startswith("gradients")]


layer_options = st.fixed_dictionaries({
    "size": st.integers(1, 3),
    "trainable": st.booleans(),
    "overwrites": st.sampled_from([(), OVERWRITTEN[:1], OVERWRITTEN[1:], OVERWRITTEN]),
    "null": st.booleans(),
})  # fmt: skip


@st.composite
def wirings(draw):
    """A random acyclic wiring of up to seven layers behind an Input of two outputs."""
    inp = Input({"default": ("T", "B", 2), "other": ("T", "B", 1)})
    sources = [inp, inp - "other"]
    for number in range(draw(st.integers(1, 7))):
        layer = planned(f"L{number}", **draw(layer_options))
        chosen = draw(st.sets(st.sampled_from(range(len(sources))), min_size=1, max_size=4))
        for i in chosen:
            sources[i] >> layer
        sources.append(layer)
    return inp


@settings(max_examples=60)
@given(wirings(), st.booleans(), st.booleans())
def test_any_wiring_of_any_layers(wiring, keep, accumulate):
    Rehearsal(wiring, keep, accumulate).check(offset=100 if accumulate else 0)


# -- economy --------------------------------------------------------------------------------------


def in_a_chain(*layers, **arguments):
    inp = wire_input((2,))
    chain(inp, *layers)
    return Rehearsal(inp, **arguments)


def test_in_a_chain_of_overwriting_layers_only_the_last_delta_is_cleared():
    rehearsal = in_a_chain(planned("A", 3), planned("B", 4), planned("C", 5))
    assert rehearsal.run == ["C", "B", "A"]
    assert rehearsal.cleared == 5  # the delta of C's output, which nobody else writes


def test_layers_that_only_add_get_zeros():
    adding = {"overwrites": ()}
    rehearsal = in_a_chain(planned("A", 3, **adding), planned("B", 4, **adding))
    # the output deltas of both, and twice W (2, 2) and b (2,)
    assert rehearsal.cleared == 4 + 3 + 2 * 6
    rehearsal.check()


def test_the_last_consumer_in_the_order_of_layers_overwrites_and_the_others_add():
    inp, a = wire_input((2,)), planned("A", 3)
    inp >> a
    for name in "BCD":
        a >> planned(name)
    rehearsal = Rehearsal(inp)
    overwriting = [s.layer for s in rehearsal.steps if "input_deltas.default" in s.overwritten]
    assert rehearsal.run == ["D", "C", "B", "A"]
    assert overwriting == ["D"]


def test_layers_with_nothing_to_learn_upstream_do_not_run():
    def layers():
        yield from (planned("Start", trainable=False), planned("A"), planned("B", trainable=False))

    rehearsal = in_a_chain(*layers())
    assert rehearsal.run == ["B", "A"]
    assert [step.unneeded for step in rehearsal.steps] == [set(), {"default"}]
    assert in_a_chain(*layers(), keep_input_deltas=True).run == ["B", "A", "Start", "Input"]
    assert in_a_chain(planned("A", trainable=False)).steps == []


def test_a_layer_that_cannot_leave_a_delta_out_gets_memory_for_it():
    rehearsal = in_a_chain(planned("A", null=False))
    assert rehearsal.steps[0].unneeded == set()
    assert "@null" not in rehearsal.nodes["A.input_deltas.default"]


def test_targets_get_no_delta():
    inp = wire_input((2,))
    steps = Rehearsal(wire_loss(inp, inp >> planned("A", 3))).steps
    step = next(step for step in steps if step.layer == "Out")
    assert step.unneeded == {"targets"}
    assert step.overwritten == {"input_deltas.default"}


def test_a_gradient_that_nobody_writes_is_cleared_at_the_end():
    class FrozenLayerImpl(PlannedLayerImpl):
        computes_no_gradients_for = ("b",)

    rehearsal = in_a_chain(planned("A", 1, FrozenLayerImpl))
    assert rehearsal.steps[-1].layer == ""
    assert rehearsal.part("A.gradients.b").tolist() == [0, 0]
    assert rehearsal.part("A.gradients.W").tolist() == [1, 1, 1, 1]


def test_a_covered_range_inside_another_hides_nothing():
    coverage = _Coverage()
    coverage.add((0, 0, 10))
    coverage.add((0, 2, 5))
    assert coverage.missing((0, 1, 12)) == [(0, 10, 12)]
    assert coverage.missing((1, 1, 2)) == [(1, 1, 2)]
