"""Import and export of weights
============================

Import and export of weights, and memory that is shared with other libraries.

The weights are a state dict as in PyTorch, here with arrays, so that PyTorch is not required. They
are copied according to a map of names, shared with another library by DLPack, and saved as
safetensors. Prints the reloaded network; takes less than a second.

To run it::

    pip install '.[safetensors]'
    python examples/exchange_weights.py
"""

from pathlib import Path

import numpy as np

import brainstorm as bs
from brainstorm.ext.safetensors_files import load_safetensors, save_safetensors
from brainstorm.ext.state_dicts import load_state_dict
from brainstorm.layers import FullyConnected, Gru, Input

FILE = Path("output") / "weights.safetensors"


def foreign_weights():
    """Return a dictionary like the `state_dict()` of a module with a GRU and a linear layer."""
    rnd = np.random.RandomState(0)
    shapes = {
        "encoder.weight_ih_l0": (3 * 8, 4),  # gates r, z, n, one above the other
        "encoder.weight_hh_l0": (3 * 8, 8),
        "encoder.bias_ih_l0": (3 * 8,),
        "encoder.bias_hh_l0": (3 * 8,),
        "head.weight": (2, 8),
        "head.bias": (2,),
        "unrelated.weight": (5, 5),
    }
    return {name: rnd.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def main():
    """Import, share, save and load weights; return whether they are equal."""
    inp = Input(out_shapes={"default": ("T", "B", 4)})
    inp >> Gru(8, name="Gru") >> FullyConnected(2, "linear", name="Last")
    net = bs.Network.from_layer(inp)
    # with PyTorch: module.state_dict()
    unused = load_state_dict(net, foreign_weights(), {"Gru": "encoder", "Last": "head"})
    print("no layer for:", unused)
    x = np.random.RandomState(1).normal(size=(5, 3, 4))
    before = net.predict(x)

    # with PyTorch: torch.from_dlpack, with CuPy and JAX their from_dlpack
    shared = np.from_dlpack(net.buffer.Last.parameters.W)
    shared *= 2.0
    ratio = (net.predict(x) - shared_bias(net)) / (before - shared_bias(net))
    print(f"twice as large after a change of shared memory: {np.allclose(ratio, 2, 1e-3)}")

    FILE.parent.mkdir(exist_ok=True)
    save_safetensors(net, FILE)
    same = load_safetensors(FILE)
    print(same)
    return np.array_equal(same.predict(x), net.predict(x)) and np.allclose(ratio, 2, 1e-3)


def shared_bias(net):
    """Return the biases of the last layer."""
    return net.get("Last.parameters.bias")


if __name__ == "__main__":
    main()
