"""The exclusive or
================

The exclusive or, learned by a very small network with 17 parameters, and a look inside it.

Shows how layers are connected, how a network is trained until a threshold is reached, and how every
number in it is read by its name: parameters, outputs, gradients. Takes less than a second.

To run it::

    python examples/xor.py
"""

import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import Undivided
from brainstorm.hooks import StopAfterEpoch, StopAfterThresholdReached
from brainstorm.initializers import Gaussian
from brainstorm.layers import FullyConnected, Input, Loss, SigmoidCE
from brainstorm.training import MomentumStepper

MAX_EPOCHS = 2000
DATA = {  # (T=1, B=4, features)
    "default": np.array([[[0, 0], [0, 1], [1, 0], [1, 1]]], dtype=np.float32),
    "targets": np.array([[[0], [1], [1], [0]]], dtype=np.float32),
}


def make_network():
    """Connect Input >> Hidden >> Out >> Output >> Loss, and initialize the network."""
    inp = Input(out_shapes={"default": ("T", "B", 2), "targets": ("T", "B", 1)})
    output = SigmoidCE(name="Output")
    (
        inp
        >> FullyConnected(4, "tanh", name="Hidden")
        >> FullyConnected(1, "linear", name="Out")
        >> output
    )
    inp - "targets" >> "targets" - output - "loss" >> Loss()
    net = bs.Network.from_layer(inp)
    net.output_name = "Output.outputs.predictions"
    net.initialize(Gaussian(1.0))
    return net


def main():
    """Train until solved, print the network, and return the four predictions."""
    bs.global_rnd.set_seed(42)
    net = make_network()
    print(net, "", sep="\n")

    trainer = bs.Trainer(MomentumStepper(learning_rate=1.0, momentum=0.9), verbose=False)
    trainer.add_hook(StopAfterThresholdReached("rolling_training.total_loss", 0.01))
    trainer.add_hook(StopAfterEpoch(MAX_EPOCHS))
    trainer.train(net, Undivided(**DATA))
    loss = trainer.logs["rolling_training.total_loss"][-1]
    print(f"loss {loss:.3f} after {trainer.current_epoch_nr} epochs\n")

    answers = net.predict(DATA["default"])[0, :, 0]
    for (a, b), answer in zip(DATA["default"][0], answers, strict=True):
        print(f"  {a:.0f} xor {b:.0f} = {answer:.3f}")

    print("\nEvery buffer has a name. The tree of one layer:", net.buffer.Hidden, sep="\n")
    W, bias = net.buffer.Hidden.parameters  # NumPy arrays: read them, change them
    for unit in range(4):
        print(
            f"hidden unit {unit}: tanh({W[unit, 0]:+.2f} a {W[unit, 1]:+.2f} b {bias[unit]:+.2f})"
        )
    print(
        "their outputs for the four pairs:", net.get("Hidden.outputs.default")[0].round(2), sep="\n"
    )
    return answers


if __name__ == "__main__":
    main()
