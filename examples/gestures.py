"""Gestures: classification of sequences
=====================================

A network classifies circles, spirals, zigzags and strokes, drawn by a trembling hand at any speed.

Shows sequences of different lengths with one label each: `BucketedMinibatches` pads them, adds a
mask, and yields the labels as (B, 1); a GRU reads the movements, `TimePooling` reduces each
sequence to one vector, and the layers after it classify this vector. Takes a few seconds.

To run it::

    python examples/gestures.py
"""

import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import BucketedMinibatches
from brainstorm.hooks import MonitorScores, StopAfterEpoch, StopOnNan
from brainstorm.initializers import DenseSqrtFanIn, Orthogonal
from brainstorm.layers import FullyConnected, Gru, Input, Loss, SoftmaxCE, TimePooling
from brainstorm.scorers import Accuracy
from brainstorm.training import AdamStepper

NAMES = ("circle", "spiral", "zigzag", "stroke")
TRAINING, HELD_OUT = 600, 200  # sequences
STEPS = (12, 60)  # of the shortest and the longest
TREMBLING = 0.15
SIZE = 24  # of the GRU
EPOCHS = 10


def draw(kind, steps, rnd):
    """Return a gesture as movements (steps, 2), with random position, direction and speed."""
    t = np.linspace(0, 1, steps + 1)
    turns = rnd.choice([-1, 1]) * rnd.uniform(1.5, 3)
    start, angle = rnd.uniform(0, 2 * np.pi, 2)
    along = {
        "circle": np.exp(2j * np.pi * turns * t),
        "spiral": t * np.exp(2j * np.pi * turns * t),
        "zigzag": 2 * t + 0.3j * np.abs((4 * turns * t) % 2 - 1),
        "stroke": 2 * t + 0.3j * t**2,
    }[kind]
    path = rnd.uniform(0.5, 2) * along * np.exp(1j * (start + angle))
    movements = np.diff(path)
    movements = np.stack([movements.real, movements.imag], axis=1)
    size = np.abs(movements).mean()
    return (movements + TREMBLING * size * rnd.normal(size=movements.shape)) / size


def make_gestures(count, rnd):
    """Return lists of gestures (steps, 2), and of their classes."""
    classes = rnd.randint(len(NAMES), size=count)
    lengths = rnd.randint(STEPS[0], STEPS[1] + 1, size=count)
    return [draw(NAMES[c], n, rnd) for c, n in zip(classes, lengths, strict=True)], list(classes)


def batches(gestures, classes, **options):
    """Return padded batches: ``default`` and ``mask`` (T, B, ...), ``targets`` (B, 1)."""
    return BucketedMinibatches(
        50, default=gestures, targets=classes, per_sequence=["targets"], **options
    )


def make_network():
    """Connect Gru >> TimePooling >> classes, with the mask for the first two layers."""
    inp = Input({"default": ("T", "B", 2), "mask": ("T", "B", 1), "targets": ("B", 1)})
    gru, pooling, output = Gru(SIZE, name="Gru"), TimePooling("avg"), SoftmaxCE(name="Output")
    last = FullyConnected(len(NAMES), "linear", name="Last")
    inp >> gru >> pooling >> last >> output - "loss" >> Loss()
    inp - "mask" >> "mask" - gru
    inp - "mask" >> "mask" - pooling
    inp - "targets" >> "targets" - output
    net = bs.Network.from_layer(inp)
    net.output_name = "Output.outputs.predictions"
    net.initialize(
        {
            "Gru": {"W*": DenseSqrtFanIn("tanh"), "R*": Orthogonal(), "default": 0},
            "Last": {"W": DenseSqrtFanIn("linear"), "bias": 0},
        }
    )
    return net


def main():
    """Return the accuracy on held-out gestures."""
    bs.global_rnd.set_seed(42)
    rnd = np.random.RandomState(0)
    training, held_out = make_gestures(TRAINING, rnd), make_gestures(HELD_OUT, rnd)
    net = make_network()
    print(net)
    trainer = bs.Trainer(AdamStepper(0.01))
    trainer.add_hook(
        MonitorScores("held_out", [Accuracy()], name="held_out_gestures", verbose=True)
    )
    trainer.add_hook(StopOnNan())
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, batches(*training), held_out=batches(*held_out, shuffle=False))

    for name in NAMES:  # a batch of one sequence
        movements = draw(name, 20, rnd)[:, None]
        found = net.predict({"default": movements, "mask": np.ones((20, 1, 1))})
        print(f"a new {name}: {found[0].max():.2f} {NAMES[found[0].argmax()]}")
    return trainer.logs["held_out_gestures.Accuracy"][-1]


if __name__ == "__main__":
    main()
