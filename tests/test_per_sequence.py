"""One label per sequence, from the iterator to the score: whole, padded, and in parts."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm import data_iterators as di
from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.scorers import Accuracy
from brainstorm.tools import evaluate
from tests.networks import forward, run_passes

T, N = 7, 6
RND = np.random.RandomState(6)
LENGTHS = np.array([3, 7, 1, 4, 2, 7])
X = RND.normal(size=(T, N, 2))
MASK = (np.arange(T)[:, None] < LENGTHS)[:, :, None] * 1.0
LABELS = np.array([0, 1, 1, 0, 1, 0])[:, None] * 1.0
DATA = {"default": X, "mask": MASK, "targets": LABELS}
WHOLE = {"per_sequence": ("targets",)}


def classifier(with_ends: bool = False, pooling: str = "avg") -> Network:
    """LSTM to the pooled state of each sequence to its class, and statistics of it."""
    shapes = {"default": ("T", "B", 2), "mask": ("T", "B", 1), "targets": ("B", 1)}
    inp = bl.Input({**shapes, **({"ends": ("B", 1)} if with_ends else {})})
    lstm, pool, out = bl.Lstm(4), bl.TimePooling(pooling), bl.SoftmaxCE(name="Out")
    loss, right = bl.Mask() if with_ends else bl.NoOp(), bl.Accuracy(name="Right")
    inp >> lstm >> pool >> bl.FullyConnected(2, "linear") >> out - "loss" >> loss >> bl.Loss()
    out - "predictions" >> right
    for target in (out, right):
        inp - "targets" >> "targets" - target
    for masked in (lstm, pool):
        inp - "mask" >> "mask" - masked
    if with_ends:
        for masked in (loss, right):
            inp - "ends" >> "mask" - masked
    net = Network.from_layer(inp, seed=1, handler=NumpyHandler(np.float64))
    net.output_name = "Out.outputs.predictions"
    net.initialize(Gaussian(1.0), seed=2)
    return net


ITERATORS = {
    "Undivided": di.Undivided(**DATA, **WHOLE),
    "Minibatches": di.Minibatches(2, **DATA, **WHOLE),
    "BucketedMinibatches": di.BucketedMinibatches(
        2, default=[X[:length, b] for b, length in enumerate(LENGTHS)], targets=LABELS, **WHOLE
    ),
}


@pytest.mark.parametrize("name", ITERATORS)
@pytest.mark.parametrize("pooling", ["last", "avg", "max", "sum"])
def test_batches_of_all_kinds_give_the_same_losses_and_scores(name: str, pooling: str) -> None:
    net = classifier(pooling=pooling)
    predictions = net.predict({"default": X, "mask": MASK}, batch_size=4)
    assert predictions.shape == (N, 2)
    of_targets = predictions[np.arange(N), LABELS[:, 0].astype(int)]
    scores = evaluate(net, ITERATORS[name], [Accuracy()])
    assert scores["total_loss"] == pytest.approx(-np.log(of_targets).mean())
    assert scores["Accuracy"] == scores["Right"] == (of_targets > 0.5).mean()
    assert "total_loss_per_step" not in scores


@pytest.mark.parametrize("length", [1, 3, 7])
def test_parts_count_each_sequence_once_where_it_ends(length: int) -> None:
    whole = evaluate(classifier(), ITERATORS["Undivided"], [Accuracy()])
    chunks = di.SequenceChunks(length, 4, shuffle=False, **DATA, **WHOLE)
    found = evaluate(classifier(with_ends=True), chunks, [Accuracy(mask_name="ends")])
    assert found["Accuracy"] == found["Right"] == whole["Accuracy"]
    # Losses are averaged over the batches: here over the parts.
    parts = sum(len(part["ends"]) for part in chunks())
    assert found["total_loss"] * parts / N == pytest.approx(whole["total_loss"])


def test_gradients_come_from_the_parts_in_which_sequences_end() -> None:
    """With weights that carry nothing back, they are those of the whole sequences."""
    net, whole = classifier(with_ends=True, pooling="last"), classifier(pooling="last")
    for network in (net, whole):
        recurrent = {f"R{gate}": 0.0 for gate in "zifo"} | {f"p{gate}": 0.0 for gate in "ifo"}
        network.initialize({"default": Gaussian(1.0)}, Lstm=recurrent, seed=2)
    total, state = 0.0, []
    for part in di.SequenceChunks(3, N, shuffle=False, **DATA, **WHOLE)():
        net.provide_external_data(part)
        net.carry_context(state, part.continues)
        net.forward_pass(training_pass=True)
        net.backward_pass()
        total = total + net.get("FullyConnected.gradients.W")
        assert net.get("gradients").any() == part["ends"].any()
    run_passes(whole, DATA)
    np.testing.assert_allclose(total, whole.get("FullyConnected.gradients.W"))


def test_rows_of_a_network_are_those_of_steps_or_of_sequences() -> None:
    net = classifier()
    forward(net, data=DATA, training_pass=False)
    steps = net.get("Lstm.outputs.default")[:T]  # without the context
    np.testing.assert_array_equal(net.get_rows("Lstm.outputs.default"), steps.reshape(T * N, 4))
    assert net.get_rows("Out.outputs.predictions").shape == (N, 2)
    assert net.get_rows("Input.outputs.mask").shape == (T * N, 1)


def test_rows_of_a_network_may_be_pixels() -> None:
    net = Network.from_layer(bl.Input({"default": ("T", "B", 4, 5, 3)}))
    x = np.random.RandomState(0).rand(2, 3, 4, 5, 3)
    net.provide_external_data({"default": x})
    for by_pixel, features in ((False, 60), (True, 3)):
        rows = net.get_rows("Input.outputs.default", by_pixel)
        np.testing.assert_allclose(rows, x.reshape(-1, features), rtol=1e-6)
