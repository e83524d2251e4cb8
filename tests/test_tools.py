"""Helpers on networks and data sets."""

import math

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brainstorm as bs
from brainstorm import data_iterators as di
from brainstorm.errors import NetworkValidationError, UnknownPathError, ValidationError
from brainstorm.ext.onnx_exchange import save_onnx
from brainstorm.ext.safetensors_files import save_safetensors
from brainstorm.ext.state_dicts import load_state_dict, to_state_dict
from brainstorm.handlers import NumpyHandler
from brainstorm.layers import Accuracy as AccuracyLayer
from brainstorm.layers import (
    FullyConnected,
    Input,
    Loss,
    Mask,
    Recurrent,
    SoftmaxCE,
    TimePooling,
)
from brainstorm.scorers import Accuracy
from brainstorm.tools import evaluate, extract, extract_and_save, run_network, shuffle_data, split
from brainstorm.training import SgdStepper, Trainer
from tests.networks import checked, forward, wire_input, wire_loss

T, N = 4, 7
RND = np.random.RandomState(0)
X = RND.randn(T, N, 3)
Y = RND.randint(0, 2, (T, N, 1)).astype(float)
M = (np.arange(T)[:, None, None] < RND.randint(1, T + 1, (1, N, 1))).astype(float)


@pytest.fixture
def net():
    shapes = {"default": ("T", "B", 3), "targets": ("T", "B", 1), "mask": ("T", "B", 1)}
    inputs, output, mask = Input(out_shapes=shapes), SoftmaxCE(name="Output"), Mask()
    inputs >> Recurrent(5, name="Rnn") >> FullyConnected(2, "linear", name="Projection") >> output
    inputs - "targets" >> "targets" - output - "loss" >> mask >> Loss()
    inputs - "mask" >> "mask" - mask
    return checked(inputs, NumpyHandler(np.float64))


@pytest.fixture
def batches():
    return di.Minibatches(3, shuffle=False, cut_according_to=None, default=X, targets=Y, mask=M)


@pytest.fixture
def predictions(net):
    """The predictions (T, N, 2) and losses (T, N, 1) of one pass over everything."""
    forward(net, data={"default": X, "targets": Y, "mask": M}, training_pass=False)
    return net.get("Output.outputs.predictions"), net.get("Output.outputs.loss")


def test_evaluate(net, batches, predictions):
    before = net.get("parameters")
    right = predictions[0].argmax(axis=2)[..., None] == Y
    found = evaluate(net, batches, [Accuracy()], out_name="Output.outputs.predictions")
    assert list(found) == ["total_loss", "total_loss_per_step", "Accuracy"]
    assert found["total_loss"] == pytest.approx((predictions[1] * M).sum() / N)
    assert found["Accuracy"] == pytest.approx(right.mean())

    text = "^scorer 'Accuracy', out_name: output 'Output': expected the path of an output, such as"
    with pytest.raises(UnknownPathError, match=text):
        evaluate(net, batches, [Accuracy()], out_name="Output")
    net.output_name = "Output.outputs.predictions"
    found = evaluate(net, batches, [Accuracy()], mask_name="mask")
    assert found["Accuracy"] == pytest.approx((right * M).sum() / M.sum())
    found = evaluate(net, batches, iter([Accuracy()]), targets_name="mask")
    ones = predictions[0].argmax(axis=2)[..., None] == M
    assert found["Accuracy"] == pytest.approx(ones.mean())
    np.testing.assert_array_equal(net.get("parameters"), before)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (X, "expected a data iterator, such as Minibatches.*, got ndarray"),
        (lambda handler: iter(()), "expected (those of )?at least one batch"),
    ],
)
def test_arrays_are_no_iterators_and_there_must_be_batches(net, tmp_path, data, text):
    with pytest.raises(ValidationError, match=text):
        evaluate(net, data)
    with pytest.raises(ValidationError, match=f"^extract: {text}"):
        extract(net, data, PATHS)
    with pytest.raises(ValidationError, match=f"^extract: {text}"):
        extract_and_save(net, data, PATHS, tmp_path / "features.hdf5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("evaluate", lambda net, data, file: evaluate(net, data)),
        ("extract", lambda net, data, file: extract(net, data, "Rnn.outputs.default")),
        ("extract", lambda net, data, file: extract_and_save(net, data, "Rnn", file)),
        ("generate", lambda net, data, file: bs.tools.generate(net, [0, 1], 3)),
        ("get_network_info", lambda net, data, file: bs.tools.get_network_info(net)),
        ("network_as_dot", lambda net, data, file: bs.tools.draw_network(net, file)),
        ("save_safetensors", lambda net, data, file: save_safetensors(net, file)),
        ("to_onnx", lambda net, data, file: save_onnx(net, file)),
        ("to_state_dict", lambda net, data, file: to_state_dict(net, {})),
        ("load_state_dict", lambda net, data, file: load_state_dict(net, {}, {})),
        ("Trainer.train", lambda net, data, file: Trainer(SgdStepper()).train(net, data)),
    ],
)
def test_what_is_no_network_is_named(function, call, batches, tmp_path):
    text = rf"^{function}: expected a network, got 'net\.hdf5'\.$"
    with pytest.raises(NetworkValidationError, match=text):
        call("net.hdf5", batches, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_evaluate_replays_the_forward_pass_with_present_parameters(net, batches, monkeypatch):
    handler, traced = net.handler, []
    trace = handler.trace
    monkeypatch.setattr(handler, "trace", lambda f: traced.append(f) or trace(f))
    for scale in (1.0, -0.5):
        net.buffer.Projection.parameters.W[:] *= scale
        found = evaluate(net, batches)
        losses = []
        for batch in batches(net.handler):
            forward(net, data=batch, training_pass=False)
            losses.append(net.get_loss_values()["total_loss"] * net.batch_size)
        assert found["total_loss"] == pytest.approx(sum(losses) / N)
    assert len(traced) == 2  # for three sequences, and for the last one


def test_run_network_loads_batch_after_batch(net, batches):
    seen = []
    for number in run_network(net, batches(handler=net.handler)):
        seen.append((number, net.batch_size))
        np.testing.assert_array_equal(net.get_input("default"), X[:, 3 * number : 3 * number + 3])
    assert seen == [(0, 3), (1, 3), (2, 1)]
    part = [{"default": X}]
    with pytest.raises(bs.errors.MissingDataError, match="targets"):
        list(run_network(net, part))
    assert list(run_network(net, part, all_inputs=False)) == [0]


PATHS = ["Output.outputs.predictions", "Rnn.outputs.default", "Rnn.internals.Ha"]


def test_extract(net, batches, predictions):
    expected = {path: net.get(path) for path in PATHS}
    found = extract(net, batches, PATHS)
    assert list(found) == PATHS
    for path in PATHS:
        np.testing.assert_allclose(found[path], expected[path])
    assert found["Rnn.outputs.default"].shape == (T + 1, N, 5)
    single = extract(net, batches, "Projection.inputs.default")
    assert single["Projection.inputs.default"].shape == (T, N, 5)


def test_what_is_extracted_does_not_count_in_statistics():
    inputs, last = wire_input((3,)), FullyConnected(2, "linear")
    wire_loss(inputs, inputs >> last)
    inputs - "targets" >> "targets" - (last >> AccuracyLayer())
    net = checked(inputs, NumpyHandler(np.float64))
    forward(net, data={"default": X, "targets": Y})
    before = net.dump_statistics()
    extract(net, di.Undivided(default=X, targets=1 - Y), "Out.outputs.predictions")
    assert net.dump_statistics() == before


def test_extract_and_save(net, batches, tmp_path):
    file = tmp_path / "features.hdf5"
    extract_and_save(net, batches, PATHS, file)
    found = extract(net, batches, PATHS)
    with h5py.File(file) as saved:
        assert str(np.asarray(saved.attrs["format"]).astype(str)) == "Buffers file v1.0"
        assert "Created with brainstorm" in str(saved.attrs["info"])
        assert set(saved) == set(PATHS)
        for path in PATHS:
            np.testing.assert_array_equal(saved[path][:], found[path])
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("batches", "error", "text"),
    [
        (di.Minibatches(1, shuffle=False, default=X, targets=Y, mask=M), NetworkValidationError,
         r"extract, batch \d: expected sequences of length \d as before, got \d. Pad .* or give"),
        (di.SequenceChunks(2, 3, shuffle=False, default=X, targets=Y, mask=M), ValidationError,
         "expected whole sequences, got parts of some. Us"),
        (di.Undivided(default=X[:, :, :1], targets=Y, mask=M), NetworkValidationError,
         r"^Undivided: data 'default': expected \(T, B, 3\), got \(4, 7, 1\)"),
    ],
    ids=["different lengths", "parts", "other features"],
)  # fmt: skip
def test_only_whole_sequences_of_one_length_are_extracted(net, tmp_path, batches, error, text):
    file = tmp_path / "features.hdf5"
    file.write_bytes(b"old")
    for run, more in ((extract, []), (extract_and_save, [file])):
        with pytest.raises(error, match=text):
            run(net, batches, PATHS, *more)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_rows_of_unknown_order_are_not_extracted(net, tmp_path, predictions):
    data = {"cut_according_to": None, "default": X, "targets": Y, "mask": M}
    shuffled, balanced = di.Minibatches(3, **data), di.Minibatches(3, np.ones(N), **data)
    text = (
        r"^extract: expected rows in the order of the data, but this Minibatches shuffles them\. U"
    )
    for batches in (shuffled, balanced, di.AddGaussianNoise(shuffled, {"default": 0.0})):
        for run, more in ((extract, []), (extract_and_save, [tmp_path / "rows.hdf5"])):
            with pytest.raises(ValidationError, match=text):
                run(net, batches, ["Output.outputs.predictions"], *more)
    path = "Output.outputs.predictions"
    found = extract(net, shuffled, ["Input.outputs.default", path])
    rows = found["Input.outputs.default"]
    order = [np.abs(X - rows[:, i : i + 1]).sum(axis=(0, 2)).argmin() for i in range(N)]
    assert sorted(order) == list(range(N))
    np.testing.assert_allclose(found[path], predictions[0][:, order])


def test_extract_of_one_row_per_sequence_over_different_lengths():
    inp, pooled = Input({"default": ("T", "B", 2)}), TimePooling("avg", name="Pooled")
    inp >> pooled
    net = bs.Network.from_layer(pooled)
    sequences = [np.full((T, 2), float(T)) for T in (2, 5, 3)]
    batches = di.BucketedMinibatches(1, shuffle=False, default=sequences)
    found = extract(net, batches, "Pooled.outputs.default")["Pooled.outputs.default"]
    assert found[:, 0].tolist() == [2, 5, 3]


GROWS = "expected inputs, outputs or internals that grow with"


@pytest.mark.parametrize(
    ("path", "error", "text"),
    [
        ("parameters", NetworkValidationError, GROWS),
        ("Projection.parameters.W", NetworkValidationError, GROWS),
        ("Loss.outputs.loss", NetworkValidationError, GROWS),
        ("Outpt.outputs.predictions", UnknownPathError, "unknown name 'Outpt'"),
        ("Output.parameters.W", UnknownPathError, "unknown name 'W'"),
        ("Output.outputs.x", UnknownPathError, "unknown name 'x'"),
        ("Output", UnknownPathError, "such as Output.outputs.predictions, Output.outputs.loss."),
        (5, ValidationError, "extract: expected a path or a list of paths, got 5."),
        ([], ValidationError, r"extract: expected a path or a list of paths, got \[\]\."),
    ],
)
def test_what_cannot_be_extracted(net, batches, path, error, text):
    with pytest.raises(error, match=text) as caught:
        extract(net, batches, path)
    assert text != GROWS or str(caught.value).startswith(f"extract, buffer '{path}': {GROWS}")


@settings(max_examples=20)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(0, 100))
def test_shuffle_data_keeps_sequences_together(time, size, seed):
    x = np.arange(time * size).reshape(time, size, 1)
    y = 10 * x[:1]
    a, b = shuffle_data(x, y, seed=seed)
    np.testing.assert_array_equal(10 * a[:1], b)
    np.testing.assert_array_equal(a - a[:1], x - x[:1])
    np.testing.assert_array_equal(np.sort(a, axis=1), x)
    np.testing.assert_array_equal(shuffle_data(x, y, seed=seed)[0], a)


def test_shuffle_data_follows_the_global_seed():
    def shuffled():
        bs.global_rnd.set_seed(3)
        return shuffle_data(np.arange(50).reshape(1, 50, 1))[0].ravel()

    np.testing.assert_array_equal(shuffled(), shuffled())
    assert (shuffled() != np.arange(50)).any()


@settings(max_examples=30)
@given(st.integers(0, 30), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_split_is_a_partition_in_the_given_ratios(size, ratios):
    x = np.arange(2 * size).reshape(2, size, 1)
    parts, again = split(x, x, ratios=ratios)
    assert len(parts) == len(again) == len(ratios)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), x)
    for part, ratio in zip(parts, ratios, strict=True):
        assert abs(part.shape[1] - size * ratio / sum(ratios)) <= 1
    first, second = split(np.zeros((1, 20, 3)))[0]  # by default nine to one
    assert (first.shape, second.shape) == ((1, 18, 3), (1, 2, 3))


@pytest.mark.parametrize("function", [shuffle_data, split])
def test_arrays_must_fit(function):
    class Tensor:
        def __array__(self, *args, **kwargs):
            raise TypeError("Got unsupported ScalarType BFloat16")

    one, name = np.zeros((1, 2, 1)), function.__name__
    for arrays, text in (
        ((one, Tensor()), ", argument 2: expected data for numpy.asarray, got a Tensor"),
        ((one, [[[1], [2]], [[3]]]), ", argument 2: .* Its items need equal shapes; BucketedMinib"),
        ((one, one[:, :1]),
         r": expected arrays \(T, B, features...\) with equal B, got the shapes \[\(1, 2"),
        ((), ": expected arrays"),
        ((np.zeros((9, 4)), np.zeros((9, 4))),
         r": expected arrays .* \[\(9, 4\), \(9, 4\)\]\. Rows without time steps need an axis"),
    ):  # fmt: skip
        with pytest.raises(ValidationError, match=f"^{name}{text}"):
            function(*arrays)


@pytest.mark.parametrize("ratios", [(), (1, 0), (-1, 2), 5, ("a", 1), (math.nan, 1), (math.inf, 1)])
def test_ratios_must_be_positive(ratios):
    with pytest.raises(ValidationError, match=r"split, ratios: expected positive numbers, got"):
        split(np.zeros((1, 4, 1)), ratios=ratios)
