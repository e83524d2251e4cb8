"""Weights by a map of names: both ways, and what is refused; the numbers are compared in peers."""

import re

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import NetworkValidationError, UnknownPathError
from brainstorm.ext.state_dicts import load_state_dict, to_state_dict
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from tests.networks import chain


@pytest.fixture
def net():
    inp = bl.Input({"default": ("T", "B", 4)})
    inp >> bl.FullyConnected(3, name="First") >> bl.Gru(2, name="Gru") >> bl.Clockwork(2, name="C")
    net = Network.from_layer(inp)
    net.initialize(0.25)
    return net


def gru(**changes):
    shapes = {"weight_ih": (6, 3), "weight_hh": (6, 2), "bias_ih": (6,), "bias_hh": (6,)}
    return {f"rnn.{name}_l0": np.ones(changes.get(name, shape)) for name, shape in shapes.items()}


LINEAR = {"fc.weight": np.arange(12.0).reshape(3, 4), "fc.bias": [1, 2, 3]}


def test_what_is_not_named_stays_and_what_is_not_used_is_returned(net):
    unused = load_state_dict(net, {**LINEAR, **gru(), "head.weight": 1}, {"First": "fc"})
    assert unused == ["head.weight", *sorted(gru())]
    np.testing.assert_array_equal(net.get("First.parameters.W"), LINEAR["fc.weight"])
    np.testing.assert_array_equal(net.get("First.parameters.bias"), [1, 2, 3])
    assert (net.get("Gru.parameters.Wr") == 0.25).all()


@pytest.mark.parametrize(
    ("layer", "stacked", "arrays"),
    [
        (bl.Lstm, "weight_ih", "Wi Wf Wz Wo"),
        (bl.Lstm, "weight_hh", "Ri Rf Rz Ro"),
        *((bl.Lstm, f"bias_{part}", "bi bf bz bo") for part in ("ih", "hh")),
        (bl.Gru, "weight_ih", "Wr Wz Wh"),
        (bl.Gru, "weight_hh", "Rr Rz Rh"),
        (bl.Gru, "bias_ih", "br bz bh"),
        (bl.Gru, "bias_hh", "br bz bRh"),
        (bl.MultiHeadSelfAttention, "in_proj_weight", "Wq Wk Wv"),
        (bl.MultiHeadSelfAttention, "in_proj_bias", "bq bk bv"),
    ],
)
def test_stacked_arrays_have_pytorchs_order(layer, stacked, arrays):
    net, name = network(layer(2), SEQUENCE), layer(2).layer.name
    state = {key: np.zeros_like(array) for key, array in to_state_dict(net, {name: "m"}).items()}
    key = next(key for key in state if key.startswith(f"m.{stacked}"))
    for number, part in enumerate(np.split(state[key], len(arrays.split()))):
        part[:] = number
    assert load_state_dict(net, state, {name: "m"}) == []
    found = [np.unique(net.get(f"{name}.parameters.{array}")) for array in arrays.split()]
    assert found == list(range(len(found)))


def test_tensors_of_inner_modules_and_counters_may_stay_unused():
    net, names = network(bl.BatchNorm(), (3,)), {"BatchNorm": "m"}
    others = {"m.head.weight": 1, "m.num_batches_tracked": 5}
    state = {**to_state_dict(net, names), **others}
    assert load_state_dict(net, state, names) == sorted(others)
    with pytest.raises(NetworkValidationError, match="m.scale is not used by this layer"):
        load_state_dict(net, {**state, "m.scale": 1}, names)


def test_a_star_stands_for_the_names_of_tensors(net):
    state = {name.replace("rnn.", "").replace("_l0", "_l1"): array for name, array in gru().items()}
    assert load_state_dict(net, state, {"Gru": "*_l1"}) == []
    assert (net.get("Gru.parameters.Rz") == 1).all()


#: Layer to name in the state dict.
NAMES = {"First": "fc", "Gru": "rnn", "C": "rnn"}


@pytest.mark.parametrize(
    ("state", "layers", "message"),
    [
        ({}, ["First"], r"First \(fc\): unknown tensor 'fc.weight'. There are none"),
        ({"fc.weigth": 1}, ["First"], r"unknown tensor 'fc.weight'. Choices are: fc.weigth. Did "
         r"you mean 'fc.weigth'\?$"),
        ({"fc.weight": np.ones((3, 5)), "fc.bias": np.ones(2)}, ["First"],
         r"First.parameters.W: expected shape \(3, 4\), got \(3, 5\); First.parameters.bias: "
         r"expected shape \(3,\), got \(2,\)\.$"),
        ({**LINEAR, "fc.scale": 1}, ["First"], "First: fc.scale is not used by this layer"),
        ({**LINEAR, "fc.bias": [1, np.nan, -1e39]}, ["First"],
         r"First.parameters.bias: expected values that float32 can hold, at most 3.40282e.38\.$"),
        ({**LINEAR, "fc.bias": [1, [2]]}, ["First"], r"load_state_dict: First \(fc\): "),
        *(
            (gru(**{name: got}), ["Gru"], re.escape(f"rnn.{name}_l0: expected shape {expected}."))
            for name, got, expected in [
                ("weight_ih", (7, 3), "(6, 3), got (7, 3)"),
                ("weight_hh", (), "(6, 2), got ()"),
                ("bias_ih", (1,), "(6,), got (1,)"),
                ("bias_hh", (), "(6,), got ()"),
            ]
        ),
        ({}, ["C"], r"C: no module of PyTorch for Clockwork, only for BatchNorm, Convolution1D.*, "
         r"RMSNorm, Recurrent\.$"),
        ({}, ["First", "Gru"], r"^load_state_dict: First \(fc\): .*; Gru \(rnn\): unknown tensor "
         r"'rnn.bias_ih_l0'|Gru \(rnn\): unknown tensor 'rnn.weight_ih_l0'"),
        (LINEAR, ["First", "Gru"], "Gru"),
        ({**LINEAR, "fc.bias": np.ones(1, complex)}, ["First"], "real numbers, got complex"),
        ({**LINEAR, "fc.bias": ["2"]}, ["First"], "fc.bias: expected real numbers, got <U1"),
        ({**LINEAR, 1: 2}, ["First"], "expected names of tensors, got 1"),
    ],
)  # fmt: skip
def test_differences_are_listed_and_nothing_is_changed(net, state, layers, message):
    before = net.get("parameters")
    with pytest.raises(NetworkValidationError, match=message):
        load_state_dict(net, state, {layer: NAMES[layer] for layer in layers})
    np.testing.assert_array_equal(net.get("parameters"), before)


def test_layers_that_share_parameters_take_the_same_tensors():
    first, second = bl.FullyConnected(2, name="First"), bl.FullyConnected(2, name="Second")
    bl.Input({"default": ("T", "B", 2)}) >> first >> second.share_parameters_with(first)
    net = Network.from_layer(second)
    state = {f"{name}.weight": np.ones((2, 2)) for name in "ab"}
    state |= {"a.bias": np.ones(2), "b.bias": np.zeros(2)}
    assert load_state_dict(net, state, {"First": "a", "Second": "a"}) == ["b.bias", "b.weight"]
    with pytest.raises(NetworkValidationError, match="Second.parameters.bias: it shares its mem"):
        load_state_dict(net, state, {"First": "a", "Second": "b"})


SEQUENCE, IMAGE = (4,), (5, 4, 2)
NORM = dict.fromkeys(("rnn.weight", "rnn.bias", "rnn.running_mean"), np.ones(3))


@pytest.mark.parametrize(
    ("layer", "features", "state", "message"),
    [
        (bl.Lstm(2, "rel"), (3,), gru(), "its activation is 'rel', that of PyTorch 'tanh'."),
        (bl.Gru(2, "el"), (3,), gru(), "its activation is 'el', that of PyTorch 'tanh'."),
        (bl.Recurrent(2, "el"), (3,), gru(), "is 'el', that of PyTorch 'tanh' or 'rel' or 'relu'."),
        (bl.MultiHeadSelfAttention(2, 4), (3,), {"rnn.in_proj_weight": np.ones((12, 3))},
         "its size is 4, that of its input 3; those of PyTorch are equal."),
        (bl.FullyConnected(3), IMAGE, {"rnn.weight": np.ones((40, 3)), "rnn.bias": np.ones(3)},
         "FullyConnected (rnn): expected 40 (5 x 4 x 2) features, got 3."),
        (bl.BatchNorm(), (3,), {**NORM, "rnn.running_var": [1, -2, 3]},
         "layer 'BatchNorm' (BatchNorm): running_var: expected variances >= 0, got -2."),
    ],
)  # fmt: skip
def test_what_a_layer_cannot_take_is_named(layer, features, state, message):
    with pytest.raises(NetworkValidationError, match=f"{re.escape(message)}$"):
        load_state_dict(network(layer, features), state, {layer.layer.name: "rnn"})


def test_nan_is_a_value_like_others(net):
    state = {**LINEAR, "fc.bias": [1, np.nan, 3]}
    assert load_state_dict(net, state, {"First": "fc"}) == []
    np.testing.assert_array_equal(net.get("First.parameters.bias"), [1, np.nan, 3])


def test_a_path_is_not_a_state_dict(net):
    text = r": expected a dict of tensors, got 'net.pt'\. Read a file with torch\.load"
    with pytest.raises(NetworkValidationError, match=text):
        load_state_dict(net, "net.pt", {"First": "fc"})


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ({"Firts": "fc"}, UnknownPathError, "unknown layer 'Firts'.*Did you mean 'First'"),
        *(
            (names, NetworkValidationError,
             re.escape(f"expected names such as {{'Hidden': 'fc1'}}, got {names!r}"))
            for names in (None, "First", ["First"], {"First": 5})
        ),
    ],
)  # fmt: skip
def test_names_are_texts_by_layer(net, names, error, text):
    with pytest.raises(error, match=f"^load_state_dict: {text}"):
        load_state_dict(net, LINEAR, names)
    with pytest.raises(error, match=f"^to_state_dict: {text}"):
        to_state_dict(net, names)


# -- the way back ---------------------------------------------------------------------------------

#: Layer, feature shape of its input.
KINDS = {
    "FullyConnected": (lambda: bl.FullyConnected(3), SEQUENCE),
    "FullyConnected of images": (lambda: bl.FullyConnected((2, 3, 2)), IMAGE),
    "Convolution1D": (lambda: bl.Convolution1D(3, 2), (5, 2)),
    "Convolution2D in groups": (lambda: bl.Convolution2D(4, 2, groups=2), IMAGE),
    "ConvolutionTranspose2D": (lambda: bl.ConvolutionTranspose2D(3, 2), IMAGE),
    "Embedding": (lambda: bl.Embedding(5, 3), (1,)),
    "BatchNorm": (lambda: bl.BatchNorm(), IMAGE),
    "LayerNorm": (lambda: bl.LayerNorm(), IMAGE),
    "RMSNorm": (lambda: bl.RMSNorm(), SEQUENCE),
    "Recurrent": (lambda: bl.Recurrent(3), SEQUENCE),
    "Lstm": (lambda: bl.Lstm(3), SEQUENCE),
    "Gru": (lambda: bl.Gru(3), SEQUENCE),
    "MultiHeadSelfAttention": (lambda: bl.MultiHeadSelfAttention(2), SEQUENCE),
}


def network(layer, features):
    inp = bl.Input({"default": ("T", "B", *features)})
    inp >> layer
    net = Network.from_layer(inp, handler=NumpyHandler(np.float64))
    net.initialize(Gaussian(1.0), seed=1)
    for path in net.buffer.paths("Lstm.parameters.p*"):
        net.buffer[path][...] = 0
    return net


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["model.inner", "*_l1_reverse"])
def test_what_is_written_is_read_again(kind, prefix):
    make, features = KINDS[kind]
    net, name = network(make(), features), kind.partition(" ")[0]
    state = to_state_dict(net, {name: prefix})
    assert all(array.flags.c_contiguous and array.dtype == np.float64 for array in state.values())
    same = net.copy()
    same.initialize(0.0)
    assert load_state_dict(same, state, {name: prefix}) == []
    np.testing.assert_array_equal(same.get("parameters"), net.get("parameters"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_needs_its_number_of_axes(kind):
    make, features = KINDS[kind]
    net, layer = network(make(), features), kind.partition(" ")[0]
    state = to_state_dict(net, {layer: "m"})
    for name, array in state.items():
        text = f"{layer} (m): {name}: expected shape {array.shape}, got {{}}."
        for wrong in (np.float32(1), array[None]):
            with pytest.raises(NetworkValidationError, match=re.escape(text.format(wrong.shape))):
                load_state_dict(net, {**state, name: wrong}, {layer: "m"})


@pytest.mark.parametrize("kind", ["Recurrent", "Lstm", "Gru", "MultiHeadSelfAttention"])
def test_of_two_biases_there_are_both_or_none(kind):
    make, features = KINDS[kind]
    net = network(make(), features)
    state = to_state_dict(net, {kind: "inner"})
    first, second = (name for name in state if "bias" in name)
    for kept, missing in ((first, second), (second, first)):
        damaged = {name: array for name, array in state.items() if name != missing}
        with pytest.raises(NetworkValidationError, match=f"tensor '{missing}'.*{kept}"):
            load_state_dict(net, damaged, {kind: "inner"})
    without = {name: array for name, array in state.items() if "bias" not in name}
    assert load_state_dict(net, without, {kind: "inner"}) == []
    written = to_state_dict(net, {kind: "inner"})
    assert not written[first].any()
    assert not written[second].any()


def test_tensors_are_copies_in_the_order_of_the_names():
    inp = bl.Input({"default": ("T", "B", 4)})
    inp >> bl.FullyConnected(3, name="A") >> bl.FullyConnected(2, name="B")
    net = Network.from_layer(inp)
    net.initialize(1.0)
    state = to_state_dict(net, {"B": "second", "A": "first"})
    assert list(state) == ["second.weight", "second.bias", "first.weight", "first.bias"]
    state["first.bias"][:] = 7
    assert (net.get("A.parameters.bias") == 1).all()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([bl.Lstm(2)], r"^to_state_dict: Lstm \(m\): its peepholes \(pi, pf, po\) are not 0; "
         r"PyTorch has none\.$"),
        ([bl.Gru(2, "rel")], r"is 'rel', that of PyTorch 'tanh'\.$"),
        ([bl.MultiHeadSelfAttention(2, 6, name="A")],
         r"A \(m\): its size is 6, that of its input 4; those of PyTorch are equal\.$"),
        ([bl.Clockwork(2)], "no module of PyTorch for Clockwork, only for"),
        ([bl.FullyConnected(4, name="A"), bl.FullyConnected(4, name="B")],
         "B: another layer is written to m.weight, too; B: another layer is written to m.bias"),
    ],
)  # fmt: skip
def test_what_no_module_computes_is_not_written(layers, message):
    net = Network.from_layer(chain(bl.Input({"default": ("T", "B", 4)}), *layers))
    net.initialize(1.0)
    with pytest.raises(NetworkValidationError, match=message):
        to_state_dict(net, {layer.layer.name: "m" for layer in layers})
