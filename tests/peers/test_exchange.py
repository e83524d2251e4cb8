"""Weights and memory exchanged with PyTorch and JAX."""

import numpy as np
import pytest
import torch
from torch import nn

from brainstorm import layers as bl
from brainstorm.ext.state_dicts import load_state_dict, to_state_dict
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from tests.peers.comparing import channels_first, channels_last

T, B = 3, 4
RND = np.random.RandomState(0)


class Wrapped(nn.Module):
    """A module under a name of its own, as in a larger model."""

    def __init__(self, module):
        super().__init__()
        self.inner = module


def images(module):
    return lambda x: channels_last(module(channels_first(x)), x)


def first_of(module):
    return lambda x: module(x)[0]


def flattened(module):
    return lambda x: module(channels_first(x).flatten(1)).unflatten(0, x.shape[:2])


def attention(module):
    return lambda x: module(x, x, x, need_weights=False)[0]


#: Layer, module, feature shape of the input, how the module is called.
ROWS = {
    "Linear": (bl.FullyConnected(4, "linear"), nn.Linear(5, 4), (5,), None),
    "Linear without bias": (
        bl.FullyConnected(4, "linear"), nn.Linear(5, 4, bias=False), (5,), None
    ),
    "Linear of images": (
        bl.FullyConnected(4, "linear"), nn.Linear(2 * 3 * 5, 4), (3, 5, 2), flattened
    ),
    "Linear to images": (
        bl.FullyConnected((3, 5, 2), "linear"), nn.Linear(4, 2 * 3 * 5), (4,),
        lambda module: lambda x: module(x).unflatten(-1, (2, 3, 5)).movedim(2, -1),
    ),
    "Conv1d": (bl.Convolution1D(6, 3, activation="linear"), nn.Conv1d(2, 6, 3), (7, 2), images),
    "Conv2d": (
        bl.Convolution2D(6, (3, 2), (2, 1), 1, "linear"),
        nn.Conv2d(2, 6, (3, 2), (2, 1), 1), (7, 5, 2), images,
    ),
    "Conv2d in groups": (
        bl.Convolution2D(6, (3, 3), activation="linear", groups=2),
        nn.Conv2d(4, 6, 3, groups=2, bias=False), (7, 5, 4), images,
    ),
    "Conv3d": (
        bl.Convolution3D(3, (2, 3, 2), activation="linear"), nn.Conv3d(2, 3, (2, 3, 2)),
        (3, 4, 3, 2), images,
    ),
    "ConvTranspose2d": (
        bl.ConvolutionTranspose2D(3, (3, 2), (2, 2), activation="linear"),
        nn.ConvTranspose2d(2, 3, (3, 2), (2, 2)), (4, 3, 2), images,
    ),
    "LSTM": (bl.Lstm(4), nn.LSTM(5, 4), (5,), first_of),
    "LSTM without bias": (bl.Lstm(4), nn.LSTM(5, 4, bias=False), (5,), first_of),
    "GRU": (bl.Gru(4), nn.GRU(5, 4), (5,), first_of),
    "RNN": (bl.Recurrent(4), nn.RNN(5, 4), (5,), first_of),
    "RNN relu": (bl.Recurrent(4, "rel"), nn.RNN(5, 4, nonlinearity="relu"), (5,), first_of),
    "LayerNorm": (bl.LayerNorm(), nn.LayerNorm(5), (5,), None),
    "LayerNorm of images": (bl.LayerNorm(), nn.LayerNorm((2, 3, 4)), (3, 4, 2), images),
    "RMSNorm": (bl.RMSNorm(), nn.RMSNorm(5, eps=1e-5), (5,), None),
    "GroupNorm": (bl.GroupNorm(2), nn.GroupNorm(2, 4), (3, 2, 4), images),
    "BatchNorm1d": (bl.BatchNorm(), nn.BatchNorm1d(5), (5,), images),
    "BatchNorm2d": (bl.BatchNorm(), nn.BatchNorm2d(2), (3, 4, 2), images),
    "BatchNorm2d, not affine": (bl.BatchNorm(), nn.BatchNorm2d(2, affine=False), (3, 4, 2), images),
    "MultiheadAttention": (
        bl.MultiHeadSelfAttention(2), nn.MultiheadAttention(6, 2), (6,), attention
    ),
    "MultiheadAttention without bias": (
        bl.MultiHeadSelfAttention(2), nn.MultiheadAttention(6, 2, bias=False), (6,), attention
    ),
}  # fmt: skip


#: Ends of the kinds whose modules lack tensors that the layer has.
LACKING = ("without bias", "in groups", "not affine")


@pytest.mark.parametrize("kind", ROWS)
def test_layer_and_module_with_each_others_weights_compute_the_same(kind):
    layer, module, features, wrap = ROWS[kind]
    module = module.double().eval()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape) + 0.1)
    inp = bl.Input({"default": ("T", "B", *features)})
    inp >> layer
    net = Network.from_layer(inp, handler=NumpyHandler(np.float64))
    net.initialize(Gaussian(1.0))
    unused = load_state_dict(net, Wrapped(module).state_dict(), {layer.layer.name: "inner"})
    assert [name for name in unused if "num_batches" not in name] == []
    x = RND.normal(size=(T, B, *features))
    compute = wrap(module) if wrap else module
    with torch.no_grad():
        expected = compute(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(net.predict(x), expected, 1e-7, 1e-9)
    if kind.endswith(LACKING):
        return
    net.initialize(Gaussian(1.0))
    for path in net.buffer.paths("Lstm.parameters.p*"):
        net.buffer[path][...] = 0  # PyTorch has no peepholes
    arrays = to_state_dict(net, {layer.layer.name: "inner"})
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    Wrapped(module).load_state_dict(state)  # strict: all of them, and no others
    with torch.no_grad():
        found = compute(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, net.predict(x), 1e-7, 1e-9)


@pytest.mark.parametrize("features", [6, 5])
def test_attention_to_a_memory(features):
    module = nn.MultiheadAttention(6, 2, kdim=features, vdim=features).double()
    inp = bl.Input({"default": ("T", "B", 6), "memory": ("T", "B", features)})
    attention = bl.MultiHeadAttention(2, name="A")
    inp >> attention
    inp - "memory" >> "memory" - attention
    net = Network.from_layer(inp, handler=NumpyHandler(np.float64))
    assert load_state_dict(net, module.state_dict(), {"A": "*"}) == []
    x, memory = RND.normal(size=(T, B, 6)), RND.normal(size=(T, B, features))
    expected = module(torch.from_numpy(x), *2 * [torch.from_numpy(memory)], need_weights=False)[0]
    found = net.predict({"default": x, "memory": memory})
    np.testing.assert_allclose(found, expected.detach(), 1e-7, 1e-9)


def test_embeddings():
    module = nn.Embedding(7, 3)
    inp = bl.Input({"default": ("T", "B", 2)})
    inp >> bl.Embedding(7, 3)
    net = Network.from_layer(inp)
    load_state_dict(net, module.state_dict(), {"Embedding": "*"})
    classes = RND.randint(0, 7, (T, B, 2))
    expected = module(torch.from_numpy(classes)).detach().numpy()
    np.testing.assert_array_equal(net.predict(classes.astype(np.float32)), expected)


def test_a_stack_in_both_directions():
    module = nn.GRU(5, 4, num_layers=2, bidirectional=True).double()
    inp = bl.Input({"default": ("T", "B", 5)})
    (
        inp
        >> bl.BidirectionalWrapper(bl.Gru, 4, name="A")
        >> bl.BidirectionalWrapper(bl.Gru, 4, name="B")
    )
    net = Network.from_layer(inp, handler=NumpyHandler(np.float64))
    names = {"A_forward": "*_l0", "A_backward": "*_l0_reverse"}
    names |= {"B_forward": "*_l1", "B_backward": "*_l1_reverse"}
    assert load_state_dict(net, module.state_dict(), names) == []
    x = RND.normal(size=(T, B, 5))
    expected = module(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(net.predict(x, "B.outputs.default"), expected, 1e-7, 1e-9)


# -- memory ---------------------------------------------------------------------------------------


@pytest.fixture
def net():
    inp = bl.Input({"default": ("T", "B", 5)})
    inp >> bl.FullyConnected(4, name="Hidden") >> bl.Lstm(3, name="Lstm")
    net = Network.from_layer(inp, handler=NumpyHandler(np.float32))
    net.initialize(Gaussian(1.0))
    net.provide_external_data({"default": RND.normal(size=(T, B, 5))})
    net.forward_pass()
    return net


@pytest.mark.parametrize(
    "path",
    ["Hidden.parameters.W", "Lstm.parameters.bi", "parameters", "Lstm.outputs.default",
     "Lstm.internals.Ca", "Hidden.gradients.W"],
)  # fmt: skip
def test_views_share_their_memory_with_pytorch(net, path):
    view = net.buffer[path]
    tensor = torch.from_dlpack(view)
    assert tuple(tensor.shape) == view.shape
    tensor.fill_(3.5)
    assert (net.get(path) == 3.5).all()
    view[...] = -1.0
    assert bool((tensor == -1.0).all())


def test_pytorch_can_do_a_step_on_the_parameters(net):
    before = net.get("parameters")
    parameter = nn.Parameter(torch.from_dlpack(net.buffer.parameters))
    parameter.grad = torch.from_dlpack(net.buffer.gradients)
    parameter.grad.fill_(1.0)
    torch.optim.SGD([parameter], lr=0.5).step()
    np.testing.assert_array_equal(net.get("parameters"), before - np.float32(0.5))


def test_jax_takes_views_too(net):
    jnp = pytest.importorskip("jax.numpy")
    array = jnp.from_dlpack(net.buffer.Hidden.parameters.W)
    np.testing.assert_array_equal(np.asarray(array), net.get("Hidden.parameters.W"))
