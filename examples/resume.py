"""Resuming an interrupted run
===========================

A training is interrupted and resumed, with the same results as an uninterrupted one.

Shows how a run is saved during training, and ended by a signal (from Ctrl-C, a batch system or a
shutdown). The resumed run gives exactly the same numbers as an uninterrupted one. Prints the losses
of both, within seconds.

To run it::

    pip install '.[examples]'
    python examples/resume.py
"""

import os
import signal
from pathlib import Path

from sklearn.datasets import load_digits

import brainstorm as bs
from brainstorm.data_iterators import AddGaussianNoise, Minibatches
from brainstorm.hooks import Hook, SaveCheckpoint, StopAfterEpoch
from brainstorm.training import AdamStepper

EPOCHS = 5
RUN_FILE = Path("output") / "resume.hdf5"


def make_data():
    """Return the training data, shuffled and with new noise in every epoch."""
    digits = load_digits()
    x = (digits.data / 16.0)[None].astype("float32")  # (T=1, B=1797, 64)
    batches = Minibatches(100, default=x, targets=digits.target[None, :, None])
    return AddGaussianNoise(batches, {"default": 0.1})


def make_network():
    """Return a network with dropout, which also draws random numbers."""
    return bs.tools.create_net_from_spec("classification", 64, 10, "D.2 F100 D.5")


class CtrlC(Hook):
    """Send the signal of Ctrl-C in the middle of the third epoch."""

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        if update_nr == 45:
            os.kill(os.getpid(), signal.SIGINT)


def train(*hooks):
    """Train from the beginning; return the trainer."""
    bs.global_rnd.set_seed(42)
    trainer = bs.Trainer(AdamStepper(), verbose=False)
    for hook in (*hooks, StopAfterEpoch(EPOCHS)):
        trainer.add_hook(hook)
    trainer.train(make_network(), make_data())
    return trainer


def main():
    """Train with and without interruption, and return whether all parameters are equal."""
    RUN_FILE.parent.mkdir(exist_ok=True)
    whole = train()
    first = train(SaveCheckpoint(RUN_FILE, minutes=10), CtrlC(timescale="update"))
    print(f"ended after {first.current_update_nr} updates: {first.logs['interrupted'][0]}")

    # From here on, this could be another process on another day.
    resumed = bs.Trainer.resume(RUN_FILE)
    resumed.train(resumed.net, make_data())
    print(f"ended after {resumed.current_update_nr} updates: {resumed.logs['StopAfterEpoch'][0]}")

    for trainer, name in ((whole, "in one go:"), (resumed, "resumed:")):
        losses = trainer.logs["rolling_training.total_loss"]
        print(f"{name:<12}", *(f"{loss:.6f}" for loss in losses))
    equal = (whole.net.get("parameters") == resumed.net.get("parameters")).all()
    print("the parameters are equal, bit for bit" if equal else "the parameters differ")
    return bool(equal)


if __name__ == "__main__":
    main()
