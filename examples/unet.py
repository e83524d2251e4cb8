"""Segmentation with a U-Net
=========================

Find the pixels of a noisy image that belong to a disc, among squares and bars of the same color.

Shows a network that reduces the resolution (`Pooling2D`), increases it again (`Upsampling2D`), and
has skip connections (`Merge`): shapes are recognized at low resolution, their borders at full
resolution. A `Mask` after the loss gives pixels at borders a larger weight. Generated data, half a
minute on two cores. Writes a picture of images, targets and predictions to `output/unet.png`.

To run it::

    pip install '.[plot]'
    python examples/unet.py
"""

from pathlib import Path

import matplotlib
import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.hooks import ModifyStepperAttribute, MonitorScores, StopAfterEpoch, StopOnNan
from brainstorm.initializers import DenseSqrtFanIn
from brainstorm.layers import (
    BatchNorm,
    Convolution2D,
    Elementwise,
    Input,
    Loss,
    Mask,
    Merge,
    Pooling2D,
    SigmoidCE,
    Upsampling2D,
)
from brainstorm.scorers import FScore
from brainstorm.training import AdamStepper, Cosine

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OUTPUT = Path("output")
SIZE = 32  # rows and columns of an image
TRAINING, HELD_OUT = 600, 100  # images
NOISE = 0.25
BORDER = 3.0  # the weight of a pixel at the border of a disc
FILTERS = (8, 16, 32)  # at full size, half and a quarter
EPOCHS = 10
RATE = 0.01  # in the beginning


def draw_image(rnd):
    """Return an image of squares, bars and discs, and a mask of the discs: (rows, columns)."""
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    image, truth = np.zeros((SIZE, SIZE)), np.zeros((SIZE, SIZE), bool)
    kinds = rnd.choice(["bar", "disc", "square"], size=rnd.randint(3, 6))
    for kind in sorted(kinds, key="disc".__eq__):  # discs are drawn last
        y, x = (np.abs(place - rnd.randint(3, SIZE - 3)) for place in (rows, columns))
        r = rnd.uniform(3.5, 6.5)
        thing = {
            "disc": y**2 + x**2 < r**2,
            "square": np.maximum(y, x) < 0.9 * r,
            "bar": (y < 2) & (x < 2 * r),
        }[kind]
        image[thing], truth[thing] = rnd.uniform(0.7, 1.3), kind == "disc"
    return image + NOISE * rnd.normal(size=image.shape), truth


def borders(truth):
    """Return which pixels have a neighbour of the other kind; the last two axes are the image."""
    found = np.zeros(truth.shape, bool)
    for axis in (-2, -1):
        differs = np.diff(truth.astype(int), axis=axis) != 0
        for place in (0, 1):
            part = [slice(None)] * truth.ndim
            part[axis] = slice(place, SIZE - 1 + place)
            found[tuple(part)] |= differs
    return found


def make_data(count, rnd):
    """Return images, targets and weights of pixels: arrays (T=1, B, rows, columns, 1)."""
    pairs = zip(*(draw_image(rnd) for _ in range(count)), strict=True)
    images, truths = (np.array(arrays)[None, ..., None] for arrays in pairs)
    weights = np.where(borders(truths[..., 0]), BORDER, 1.0)[..., None]
    return {"default": images, "targets": truths, "weights": weights}


def convolutions(last, filters):
    """Connect two 3x3 convolutions with batch normalization to the layer `last`."""
    for _ in range(2):
        last >>= Convolution2D(filters, 3, padding=1, activation="linear")
        last = last >> BatchNorm() >> Elementwise("rel")
    return last


def make_network():
    """Connect the path down and up again, with skip connections."""
    image = ("T", "B", SIZE, SIZE, 1)
    inp = Input({"default": image, "targets": image, "weights": image})
    last, passed = inp, []
    for filters in FILTERS[:-1]:
        last = convolutions(last, filters)
        passed.append(last)
        last >>= Pooling2D(2, stride=2)
    last = convolutions(last, FILTERS[-1])
    for filters, before in zip(FILTERS[-2::-1], passed[::-1], strict=True):
        both = Merge()
        last >> Upsampling2D(2, "bilinear") >> "inputs_1" - both
        before >> "inputs_2" - both
        last = convolutions(both, filters)
    output, weighted = SigmoidCE(name="Output"), Mask()
    last >> Convolution2D(1, 1, activation="linear") >> output - "loss" >> weighted >> Loss()
    inp - "targets" >> "targets" - output
    inp - "weights" >> "mask" - weighted
    net = bs.Network.from_layer(inp)
    net.output_name = "Output.outputs.predictions"
    net.initialize({"*": {"W": DenseSqrtFanIn("rel"), "bias": 0, "gamma": 1, "beta": 0}})
    return net


def draw(data, found, filename):
    """Draw some images, their targets and the predictions."""
    rows = {"image": data["default"], "truth": data["targets"], "found": found}
    figure, axes = plt.subplots(3, 6, figsize=(9, 4.8), layout="constrained")
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name)
        for axis, picture in zip(line, images[0, :, :, :, 0], strict=False):
            limits = {} if name == "image" else {"vmin": 0, "vmax": 1}
            axis.imshow(picture, cmap="gray", **limits)
            axis.set(xticks=[], yticks=[])
    figure.savefig(filename, dpi=120)
    plt.close(figure)


def main():
    """Return the intersection over union of predicted and true pixels."""
    bs.global_rnd.set_seed(42)
    OUTPUT.mkdir(exist_ok=True)
    rnd = np.random.RandomState(0)
    training, held_out = make_data(TRAINING, rnd), make_data(HELD_OUT, rnd)
    net = make_network()
    print(net)
    trainer = bs.Trainer(AdamStepper(RATE))
    trainer.add_hook(ModifyStepperAttribute(Cosine(RATE, 0.0, EPOCHS)))
    trainer.add_hook(MonitorScores("held_out", [FScore()], name="held_out_images", verbose=True))
    trainer.add_hook(StopOnNan())
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    batches, others = Minibatches(20, **training), Minibatches(50, shuffle=False, **held_out)
    trainer.train(net, batches, held_out=others)

    found, truth = net.predict(held_out["default"]), held_out["targets"]
    overlap = (truth & (found > 0.5)).sum() / (truth | (found > 0.5)).sum()
    print(f"intersection over union: {overlap:.0%}")
    draw(held_out, found, OUTPUT / "unet.png")
    return overlap


if __name__ == "__main__":
    main()
