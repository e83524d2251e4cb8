"""One training on many processes
==============================

Handwritten digits under MPI, on one process or on many, with the same losses.

For any number of ranks, the losses are those of one process with the same batches: for a fully
connected network, a convolutional one with batch normalization, and an LSTM that reads the rows of
an image in chunks. Rank 0 prints the losses of five epochs, within seconds.

To run it::

    pip install '.[examples,mpi]'
    python examples/mpi_digits.py
    mpiexec -n 4 python examples/mpi_digits.py
    mpiexec -n 4 python examples/mpi_digits.py lstm
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import brainstorm as bs
from brainstorm.data_iterators import Minibatches, SequenceChunks
from brainstorm.ext import mpi
from brainstorm.hooks import MonitorScores, StopAfterEpoch
from brainstorm.initializers import DenseSqrtFanIn
from brainstorm.layers import (
    BatchNorm,
    Convolution2D,
    FullyConnected,
    GlobalPooling2D,
    Lstm,
)
from brainstorm.scorers import Accuracy
from brainstorm.training import MomentumStepper

EPOCHS = 5
BATCH_SIZE = 100  # over all ranks; 1497 training digits make 14 batches and one of 97
RATES = {"mlp": 0.3, "cnn": 0.5, "lstm": 1.0}


def load_data(kind):
    """Return the iterators over training and validation data, the same on all ranks."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)
    targets = digits.target[None, :, None]
    if kind == "cnn":
        images = images[None, ..., None]  # (T=1, B, 8, 8, 1)
    elif kind == "lstm":
        images = images.transpose(1, 0, 2)  # (T=8 rows, B, 8)
        targets = targets.repeat(8, axis=0)
    else:
        images = images.reshape(1, -1, 64)
    parts = bs.tools.split(images, targets, ratios=(1497, 300))
    training, validation = ({"default": x, "targets": y} for x, y in zip(*parts, strict=True))
    if kind == "lstm":  # four rows at a time; the state is carried from chunk to chunk
        return (
            SequenceChunks(4, BATCH_SIZE, **training),
            SequenceChunks(4, BATCH_SIZE, shuffle=False, **validation),
        )
    return Minibatches(BATCH_SIZE, **training), Minibatches(BATCH_SIZE, False, **validation)


def make_network(kind):
    """Build and initialize one of the three networks."""
    shape = {"mlp": (64,), "cnn": (8, 8, 1), "lstm": (8,)}[kind]
    inp, projection = bs.tools.get_in_out_layers("classification", shape, 10)
    if kind == "mlp":
        inp >> FullyConnected(50) >> projection
    elif kind == "cnn":
        (
            inp
            >> Convolution2D(8, (3, 3), padding=1, activation="linear")
            >> BatchNorm()
            >> Convolution2D(16, (3, 3), stride=(2, 2))
            >> GlobalPooling2D(type="avg")
            >> projection
        )
    else:
        inp >> Lstm(20) >> projection
    net = bs.Network.from_layer(projection)
    net.output_name = "Output.outputs.predictions"
    normalization = {"BatchNorm": {"gamma": 1, "beta": 0}} if kind == "cnn" else {}
    net.initialize(normalization, default=DenseSqrtFanIn("rel"), fallback=0)
    return net


def main(kind="mlp"):
    """Train one of the networks; return the logs, which are the same on all ranks."""
    bs.global_rnd.set_seed(42)
    training, validation = load_data(kind)
    net = make_network(kind)
    trainer = bs.Trainer(MomentumStepper(learning_rate=RATES[kind], momentum=0.9))
    ranks = mpi.distribute(trainer, synchronize_batch_norm=True)
    trainer.train_scorers = [Accuracy()]
    trainer.add_hook(MonitorScores("validation", [Accuracy()], name="validation"))
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, training, validation=validation)
    if ranks.rank == 0:
        losses = trainer.logs["rolling_training.total_loss"]
        print(f"\n{kind}, {ranks.size} ranks:", *(f"{loss:.6f}" for loss in losses))
    return trainer.logs


if __name__ == "__main__":
    main(*sys.argv[1:])
