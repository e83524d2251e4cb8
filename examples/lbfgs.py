"""Regression with L-BFGS
======================

A small regression with SciPy's L-BFGS on all data at once, much closer to the minimum than Adam.

Shows a stepper that uses the optimizer of another library, over the flat arrays of all parameters
and gradients. Within two seconds its loss is hundreds of times smaller than that of Adam after the
same number of passes.

To run it::

    pip install '.[scipy]'
    python examples/lbfgs.py
"""

import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import Undivided
from brainstorm.ext.optimize import LbfgsStepper
from brainstorm.hooks import StopAfterEpoch
from brainstorm.training import AdamStepper

STEPS = 10
PASSES = 500
x = np.linspace(-3, 3, 200)[None, :, None]
DATA = {"default": x, "targets": np.sin(2 * x)}


def train(stepper, epochs):
    """Return the last loss of a new network with the same initial parameters."""
    bs.global_rnd.set_seed(42)
    net = bs.tools.create_net_from_spec("regression", 1, 1, "Ft20")
    trainer = bs.Trainer(stepper, verbose=False)
    trainer.add_hook(StopAfterEpoch(epochs))
    trainer.train(net, Undivided(**DATA))
    return trainer.logs["rolling_training.total_loss"][-1]


def main():
    """Compare with Adam, and return both losses."""
    lbfgs = train(LbfgsStepper(iterations=PASSES // STEPS), epochs=STEPS)
    adam = train(AdamStepper(0.01), epochs=PASSES)
    print(f"L-BFGS, {STEPS} steps of at most {PASSES // STEPS} iterations: loss {lbfgs:.6f}")
    print(f"Adam, {PASSES} passes:                     loss {adam:.6f}")
    return lbfgs, adam


if __name__ == "__main__":
    main()
