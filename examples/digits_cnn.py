"""A convolutional network for digits
==================================

Build, train, save, reload and test a convolutional network for images of 8 x 8 pixels.

Trains on the 1,797 handwritten digits of scikit-learn, and reaches 98 % on held-out digits within a
minute on two cores. Writes the best network (HDF5), the logs, and a picture of the learning curve
and of some misclassified digits to the folder `output`.

To run it::

    pip install '.[examples,plot]'
    python examples/digits_cnn.py
"""

from pathlib import Path

import matplotlib
import numpy as np
from sklearn.datasets import load_digits

import brainstorm as bs
from brainstorm.data_iterators import Minibatches, Pad, RandomCrop
from brainstorm.hooks import (
    EarlyStopper,
    ModifyStepperAttribute,
    MonitorScores,
    ProgressBar,
    SaveBestNetwork,
    StopAfterEpoch,
    StopOnNan,
)
from brainstorm.initializers import DenseSqrtFanIn
from brainstorm.layers import (
    BatchNorm,
    Convolution2D,
    Dropout,
    Elementwise,
    FullyConnected,
    Pooling2D,
)
from brainstorm.scorers import Accuracy
from brainstorm.training import AdamStepper, Cosine

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OUTPUT = Path("output")
EPOCHS = 40


def load_data():
    """Return (training, validation, test) as dicts of arrays (T=1, B, features...)."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[None, ..., None]
    targets = digits.target[None, :, None]
    images, targets = bs.tools.shuffle_data(images, targets, seed=7)
    parts = bs.tools.split(images, targets, ratios=(1300, 200, 297))
    return [{"default": x, "targets": y} for x, y in zip(*parts, strict=True)]


def convolution(last, filters):
    """Connect a 3x3 convolution with batch normalization to the layer `last`."""
    last >>= Convolution2D(filters, (3, 3), padding=1, activation="linear")
    return last >> BatchNorm() >> Elementwise("rel")


def make_network():
    """Build and initialize the network."""
    inp, projection = bs.tools.get_in_out_layers("classification", (8, 8, 1), 10)
    last = convolution(inp, 32)
    last = convolution(last, 32) >> Pooling2D((2, 2), stride=(2, 2)) >> Dropout(0.2)
    last = convolution(last, 64) >> Pooling2D((2, 2), stride=(2, 2)) >> Dropout(0.2)
    last >> FullyConnected(128) >> Dropout(0.3) >> projection
    net = bs.Network.from_layer(projection)
    net.output_name = "Output.outputs.predictions"
    net.initialize({"*": {"W": DenseSqrtFanIn("rel"), "bias": 0, "gamma": 1, "beta": 0}})
    return net


def train(net, training, validation, best_file):
    """Train `net`; the best network on the validation digits is saved in `best_file`."""
    # Random crops of a padded image: shifts by one pixel.
    batches = Minibatches(batch_size=50, **training)
    batches = RandomCrop(Pad(batches, {"default": 1}), {"default": (8, 8)})
    trainer = bs.Trainer(AdamStepper(learning_rate=0.003))
    trainer.add_hook(ProgressBar())
    trainer.add_hook(ModifyStepperAttribute(Cosine(0.003, 0.0, EPOCHS)))
    trainer.add_hook(MonitorScores("validation_data", [Accuracy()], name="validation"))
    trainer.add_hook(SaveBestNetwork("validation.total_loss", filename=best_file))
    trainer.add_hook(EarlyStopper("validation.total_loss", patience=15))
    trainer.add_hook(StopOnNan())
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, batches, validation_data=Minibatches(200, shuffle=False, **validation))
    return trainer.logs


def draw(logs, test, predicted, filename):
    """Draw the learning curve and up to eight misclassified digits."""
    figure = plt.figure(figsize=(9, 3.6), layout="constrained")
    curve, pictures = figure.subfigures(1, 2, width_ratios=(3, 2))
    axes = curve.subplots()
    axes.plot(logs["rolling_training"]["total_loss"], label="training")
    axes.plot(logs["validation"]["total_loss"][1:], label="validation")
    axes.set(xlabel="epoch", ylabel="loss", yscale="log", title="learning curve")
    axes.legend()
    images, targets = test["default"][0, ..., 0], test["targets"][0, :, 0]
    misread = np.flatnonzero(predicted != targets)[:8]
    pictures.suptitle(f"misread: {(predicted != targets).sum()} of {len(targets)}")
    for axis, index in zip(pictures.subplots(2, 4).flat, [*misread, *[None] * 8], strict=False):
        axis.axis("off")
        if index is not None:
            axis.imshow(images[index], cmap="gray_r")
            axis.set_title(f"{targets[index]} as {predicted[index]}", fontsize=9)
    figure.savefig(filename, dpi=120)


def main():
    """Run the whole example and return the accuracy on the test digits."""
    bs.global_rnd.set_seed(42)
    OUTPUT.mkdir(exist_ok=True)
    training, validation, test = load_data()
    net = make_network()
    print(net, "", net.memory(T=1, B=50), "", sep="\n")

    best_file = OUTPUT / "digits_cnn.hdf5"
    logs = train(net, training, validation, best_file)
    logs.to_json(OUTPUT / "digits_cnn_logs.json")

    best = bs.Network.from_hdf5(best_file)
    predicted = best.predict(test["default"])[0].argmax(axis=-1)
    accuracy = float(np.mean(predicted == test["targets"][0, :, 0]))
    draw(logs, test, predicted, OUTPUT / "digits_cnn.png")
    print(f"\naccuracy on {len(predicted)} held-out digits: {accuracy:.2%}")
    print(f"written: {best_file}, {OUTPUT / 'digits_cnn.png'}, {OUTPUT / 'digits_cnn_logs.json'}")
    return accuracy


if __name__ == "__main__":
    main()
