"""Synchronized batch normalization, as one rank sees it; real jobs are in test_training."""

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.ext.mpi.reducer import Reducer
from brainstorm.ext.mpi.synchronized import synchronized
from brainstorm.handlers import NativeHandler, NumpyHandler
from brainstorm.training import SgdStepper
from tests.ext.mpi.fakes import FakeWorld

RND = np.random.RandomState(0)
BATCH = {"default": RND.normal(size=(1, 6, 4)), "targets": RND.randint(0, 3, (1, 6, 1))}


@pytest.mark.parametrize("handler", [NumpyHandler(np.float64), NativeHandler()], ids=repr)
def test_a_backward_pass_concerns_the_other_ranks_only_after_a_training_pass(handler, replay):
    net = bs.tools.create_net_from_spec("classification", 4, 3, "F5 B F5")
    net.set_handler(handler)
    net.initialize(bs.initializers.Gaussian(1.0), seed=1)
    alone, stepper = net.copy(), SgdStepper(0.0)
    stepper.reducer = Reducer(FakeWorld(0, 1))
    stepper.start(net)
    sums = stepper.reducer.world.summed
    with synchronized(net, stepper.reducer):
        for training in (False, True, False, True):
            if training:  # a step may be a replay
                net.provide_external_data(BATCH)
                stepper.run()
            sums.clear()
            for each in (net, alone):
                each.provide_external_data(BATCH)
                each.forward_pass(training_pass=training)
                each.backward_pass()
            np.testing.assert_allclose(net.get("gradients"), alone.get("gradients"), atol=1e-6)
            assert len(sums) == 2 * training
            alone.forward_pass(training_pass=training)  # running statistics, as in the step
