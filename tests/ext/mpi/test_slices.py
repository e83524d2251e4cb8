"""Which slices of the gradients are sent when, and that their sum is that of the whole."""

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.errors import TrainingError
from brainstorm.ext.mpi.reducer import Reducer
from brainstorm.ext.mpi.slices import plan_slices
from brainstorm.training import GradientAccumulation, LossScaling, SgdStepper
from tests.ext.mpi.fakes import FakeWorld

FINISHED = [("c", [(7, 10)]), ("b", [(3, 5), (5, 7)]), ("noop", []), ("a", [(0, 3)])]


@pytest.mark.parametrize(
    ("smallest", "expected"),
    [
        (1, {"c": [(7, 10)], "b": [(3, 7)], "a": [(0, 3)]}),
        (7, {"b": [(3, 10)], "a": [(0, 3)]}),
        (9, {"a": [(0, 10)]}),
        (99, {"a": [(0, 10)]}),
    ],
)
def test_slices_are_sent_when_they_are_large_enough(smallest, expected):
    assert plan_slices(FINISHED, smallest) == expected


def make_stepper(slice_bytes, world):
    net = bs.tools.create_net_from_spec("classification", 4, 3, "F5 F6")
    net.initialize(bs.initializers.Gaussian(1.0), seed=1)
    stepper = SgdStepper(0.0)
    stepper.reducer = Reducer(world, check_every=0, slice_bytes=slice_bytes)
    return net, stepper


def test_slices_start_from_the_last_layer_on_and_give_the_same():
    rnd = np.random.RandomState(0)
    batch = {"default": rnd.rand(1, 6, 4), "targets": rnd.randint(0, 3, (1, 6, 1))}
    gradients = []
    for slice_bytes in (None, 1, 10**6):
        world = FakeWorld(0, 2)
        net, stepper = make_stepper(slice_bytes, world)
        stepper.start(net)
        for _ in range(4):  # recorded and replayed
            net.provide_external_data(batch)
            world.summed.clear()
            stepper.run()
        gradients.append(net.get("gradients"))
        sizes = [array.size for array in world.summed]
        assert sum(sizes) == net.parameters_size
        assert sizes == ([3 + 18, 6 + 30, 5 + 20] if slice_bytes == 1 else [net.parameters_size])
    np.testing.assert_array_equal(gradients[0], gradients[1])
    np.testing.assert_array_equal(gradients[0], gradients[2])


@pytest.mark.parametrize(
    ("what", "part"),
    [("accumulation", GradientAccumulation(2)), ("loss_scaling", LossScaling())],
)
def test_what_changes_gradients_after_the_pass_is_refused(what, part):
    net, stepper = make_stepper(1, FakeWorld(0, 2))
    setattr(stepper, what, part)
    with pytest.raises(TrainingError) as error:
        stepper.start(net)
    assert str(error.value) == (
        f"Reducer.start: expected no {what} where gradients are summed in slices while they are "
        f"computed. Leave slice_bytes at None."
    )
