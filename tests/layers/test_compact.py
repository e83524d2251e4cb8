"""Every layer in a network with memory strategy `compact`: the same bits, whatever its options."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.testing import LayerHarness, build_layer
from tests.layers.cases import CASES, numbers_for
from tests.networks import checked
from tests.poisoning import poison

FLOAT64 = NumpyHandler(np.float64)
SIZES = ((2, 2), (1, 1), (3, 3))
#: A layer that shares its parameters needs the owner: tests/structure/test_compact.py has one.
ALONE = [case for case in CASES if not case.name.startswith("Tied")]


def make(case, memory):
    """Put a no-op in front of every input over time, and a loss behind every output."""
    source, layer = bl.Input({**case.in_shapes, "beside": ("T", "B", 1)}), case.create()
    for port, shape in case.in_shapes.items():
        before = source - port >> bl.NoOp() if shape[0] == "T" else source - port
        before >> port - layer
    for output in build_layer(layer, case.in_shapes).out_shapes:
        layer - output >> bl.Loss(name=f"loss_of_{output}")
    source - "beside" >> bl.Loss(name="loss_beside")
    net = checked(source, FLOAT64, memory=memory)
    net.keep_input_deltas = True
    for path, draw in case.inputs.items():
        kind, _, name = path.partition(".")
        if kind == "parameters":
            target = net.buffer[layer.layer.name].parameters[name]
            FLOAT64.set_from_numpy(target, draw(tuple(target.shape), np.random.RandomState(0)))
    return net


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_a_layer_gives_the_same_bits_from_what_the_plan_keeps(case):
    """That what lives at the same time lies apart: tests/structure/test_placement.py."""
    nets = [make(case, memory) for memory in ("inspectable", "compact")]
    poison(nets[1])
    shapes = {**case.in_shapes, "beside": ("T", "B", 1)}
    for T, B in SIZES if (1, 1) in case.sizes else SIZES[::2]:
        sizes = {"T": T, "B": B, "S": 1}
        for net in nets:
            net.provide_external_data(numbers_for(case, shapes, np.random.RandomState(T), sizes))
            net.forward_pass(training_pass=True)
        assert nets[0].get_loss_values() == nets[1].get_loss_values()
        for net in nets:
            net.backward_pass()
        paths = ["gradients", *nets[0]._buffer_manager.persistent_paths]
        deltas = nets[0].buffer.Input.output_deltas
        paths += [f"Input.output_deltas.{name}" for name, array in deltas.items() if array.size]
        for path in paths:
            ours, theirs = (net.get(path) for net in nets)
            np.testing.assert_array_equal(ours, theirs, err_msg=path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_forward_pass_leaves_alone_what_only_the_backward_pass_uses(case):
    harness = LayerHarness(build_layer(case.create(), case.in_shapes), FLOAT64, case.inputs)
    harness.resize(3, 2)
    structures = harness.layer.internal_shapes
    paths = [f"internals.{name}" for name, s in structures.items() if s.is_backward_only]
    harness.spoil(paths, 7.0)
    harness.forward(harness.sample(np.random.RandomState(0)))
    for path in paths:
        np.testing.assert_array_equal(harness.buffers[path], 7.0)
