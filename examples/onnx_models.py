"""Import and export of ONNX models
================================

A network is exported as an ONNX model for other runtimes, and imported again.

A small convolutional network is trained on handwritten digits and exported as ONNX. The reference
runtime of onnx computes the same results, to 1e-6. The imported network can be trained further.
from about 94 % of digits that it has never seen to 97 %, within seconds.

To run it::

    pip install '.[examples,onnx]'
    python examples/onnx_models.py
"""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.ext.onnx_exchange import load_onnx, save_onnx
from brainstorm.hooks import StopAfterEpoch
from brainstorm.scorers import Accuracy
from brainstorm.training import AdamStepper

EPOCHS = 3
MODEL = Path("output") / "digits.onnx"


def load_data():
    """Return (training, test) as dicts of arrays (T=1, B, features)."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[None, ..., None]
    images, targets = bs.tools.shuffle_data(images, digits.target[None, :, None], seed=7)
    parts = bs.tools.split(images, targets, ratios=(1500, 297))
    return [{"default": x, "targets": y} for x, y in zip(*parts, strict=True)]


def train(net, data):
    """Train a network for a few epochs."""
    trainer = bs.Trainer(AdamStepper(0.005), verbose=False)
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, Minibatches(50, **data))


def accuracy(net, data):
    """Return the accuracy."""
    return bs.tools.evaluate(net, Minibatches(100, **data), [Accuracy()])["Accuracy"]


def main():
    """Train, export, import and train again; return the largest difference and accuracies."""
    bs.global_rnd.set_seed(42)
    training, test = load_data()
    spec = "C8:3p1 B Pm2s2 C16:3p1 Pm2s2 F50 D0.2"
    net = bs.tools.create_net_from_spec("classification", (8, 8, 1), 10, spec)
    train(net, training)

    MODEL.parent.mkdir(exist_ok=True)
    save_onnx(net, MODEL)
    model = onnx.load(MODEL)
    print(Counter(node.op_type for node in model.graph.node))
    elsewhere = ReferenceEvaluator(model).run(None, {"default": test["default"]})[0]
    difference = np.abs(elsewhere - net.predict(test["default"])).max()
    print(f"largest difference of the probabilities in the runtime: {difference:.1e}")

    same = load_onnx(MODEL)
    print(same)
    before = accuracy(same, test)
    train(same, training)
    after = accuracy(same, test)
    print(f"accuracy {before:.2%}, and {after:.2%} after more training")
    return difference, before, after


if __name__ == "__main__":
    main()
