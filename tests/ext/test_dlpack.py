"""Every buffer speaks DLPack, the protocol by which libraries share arrays without copying them."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.network import Network


@pytest.mark.skipif(
    not np.from_dlpack(np.zeros(1)).flags.writeable,
    reason="THIS NUMPY TAKES ARRAYS TO READ ONLY: WRITING INTO A NETWORK BY DLPACK IS NOT TESTED",
)
@pytest.mark.parametrize(
    "path",
    [
        "parameters",
        "gradients",
        "Hidden.parameters.W",
        "Hidden.inputs.default",
        "Hidden.outputs.default",
        "Lstm.outputs.default",
        "Lstm.internals.Ca",
    ],
)
def test_a_consumer_writes_into_the_network(path):
    inp = bl.Input({"default": ("T", "B", 5)})
    inp >> bl.FullyConnected(4, name="Hidden") >> bl.Lstm(3, name="Lstm")
    net = Network.from_layer(inp, handler=NumpyHandler(np.float32))
    net.provide_external_data({"default": np.ones((2, 3, 5))})
    taken = np.from_dlpack(net.buffer[path])
    assert taken.shape == net.buffer[path].shape
    taken[...] = 3.5
    assert (net.get(path) == 3.5).all()
