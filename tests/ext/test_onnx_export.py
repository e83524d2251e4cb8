"""Networks as ONNX models: every layer, against two runtimes, and back again."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import brainstorm as bs
from brainstorm import layers as bl
from brainstorm.errors import FileFormatError, NetworkValidationError
from brainstorm.ext.onnx_exchange import from_onnx, load_onnx, save_onnx, to_onnx
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers._formula import FormulaLayer
from brainstorm.network import Network
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper
from tests.layers.cases import CASES
from tests.networks import WIRINGS, chain

T, B = 4, 3
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

#: How the names of cases begin that ONNX has no counterpart of, and what is said about the layer.
REFUSED = {
    "Expression('lgamma": r"ONNX has no counterpart of lgamma in its formula\.$",
    "Merge() of inputs_1 3, inputs_2 2, constant": r"expected data \('T', 'B', ...\), got \(",
    **dict.fromkeys(
        (f"Pooling2D((1, 2), {kind!r}, (2, 1), 2)" for kind in ("max", "avg")),
        r"ONNX wants a padding smaller than the window \(1, 2\), got",
    ),
    **dict.fromkeys(
        ("Recurrent(3, 'gelu')", "Recurrent(3, 'silu')", "Gru(3, 'gelu')"),
        "ONNX has no recurrence with (gelu|silu), only with sigmoid, rel, tanh",
    ),
    "Clockwork": r"ONNX has no counterpart of this layer. There is one of",
    "RepeatOverTime": r"no input of the model has the axis T\.$",
    "LocalResponseNormalization(4": "ONNX wants an odd size, got 4",
}

TWO_LENGTHS = (
    r"^ONNX input '.*': expected axes T and B, got the second length S\. Models with two lengths "
    r"are written and not read: keep the network's own file\.$"
)

#: What the reference evaluator of onnx computes wrongly, or not at all.
NOT_IN_REFERENCE = {
    *("Recurrent(3, 'sigmoid') of 2", "Recurrent(3, 'rel') of 2", "Lstm(3, 'linear') of 2"),
    *(f"LocalResponseNormalization({size}, 0.5, 0.6, 2.0) of 3" for size in (1, 5)),
    "GLU('gelu') of 6",
}


def has_output(case):
    """Return whether a layer has an output beside a loss, and can stand alone."""
    kind = case.create().layer.layer_type
    without = {"Accuracy", "BinaryAccuracy", "Loss", "L1Decay", "L2Decay", "TiedFullyConnected"}
    return kind not in without


EXPORTED = [case for case in CASES if has_output(case)]


def build(case):
    """Return a network of one layer, data for it, and the path of its first output."""
    inp, layer = bl.Input(dict(case.in_shapes)), case.create()
    for port in case.in_shapes:
        inp - port >> port - layer
    net = Network.from_layer(layer, handler=NumpyHandler(np.float32))
    rnd = np.random.RandomState(0)
    parameters = rnd.normal(size=net.parameters_size) * 0.5
    net.handler.set_from_numpy(net.buffer.parameters, parameters)
    for internal in ("running_mean", "running_var"):
        if internal in net.layers[layer.layer.name].internal_shapes:
            buffer = net.buffer[layer.layer.name].internals[internal]
            net.handler.set_from_numpy(buffer, rnd.uniform(0.5, 2, buffer.shape))
    data = {}
    for port, shape in case.in_shapes.items():
        sizes = tuple({"T": T, "B": B, "S": T + 2}.get(size, size) for size in shape)
        draw = case.inputs.get(port, lambda shape, rnd: rnd.normal(size=shape))
        data[port] = draw(sizes, rnd).astype(np.float32)
    output = next(iter(net.layers[layer.layer.name].out_shapes))
    return net, data, f"{layer.layer.name}.outputs.{output}"


def random_net(layer):
    net = Network.from_layer(layer, handler=NumpyHandler(np.float32))
    net.initialize(Gaussian(0.4), seed=1)
    return net


def net_of(features, *layers):
    """Return a network of layers one after the other."""
    return random_net(chain(bl.Input({"default": ("T", "B", *features)}), *layers))


def numbers(*shape):
    return {"default": np.random.RandomState(0).normal(size=shape).astype(np.float32)}


def operators(model):
    return [node.op_type for node in model.graph.node]


def kinds(net):
    return sorted(layer.type_name for layer in net.layers.values())


def run(model, data):
    feed = {info.name: data[info.name] for info in model.graph.input}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, feed)[0]


def check_everywhere(net, data, output=None, in_reference=True):
    """Compare with both runtimes and with the imported network, and return model and network."""
    model, expected = to_onnx(net, output), net.predict(data, output)
    np.testing.assert_allclose(run(model, data), expected, **TOLERANCE)
    feed = {info.name: data[info.name] for info in model.graph.input}
    if in_reference:
        found = ReferenceEvaluator(model).run(None, feed)[0]
        np.testing.assert_allclose(found, expected, **TOLERANCE)
    back = from_onnx(model, handler=NumpyHandler(np.float32))
    np.testing.assert_allclose(back.predict(feed), expected, **TOLERANCE)
    return model, back


# -- every layer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", EXPORTED, ids=lambda case: case.name)
def test_a_layer_computes_the_same_elsewhere_and_comes_back(case):
    net, data, output = build(case)
    refused = [text for name, text in REFUSED.items() if case.name.startswith(name)]
    if refused:
        name = output.partition(".")[0]
        text = rf"^layer '({name}|Input)' \(\1\): {refused[0]}"
        with pytest.raises(NetworkValidationError, match=text):
            to_onnx(net, output)
        return
    if any(shape[0] == "S" for shape in case.in_shapes.values()):
        model = to_onnx(net, output)
        np.testing.assert_allclose(run(model, data), net.predict(data, output), **TOLERANCE)
        with pytest.raises(NetworkValidationError, match=TWO_LENGTHS):
            from_onnx(model)
    else:
        check_everywhere(net, data, output, case.name not in NOT_IN_REFERENCE)


@pytest.mark.parametrize("kind", ["Recurrent", "Gru", "Lstm"])
def test_recurrences_elsewhere_hold_their_state_whatever_is_in_the_padding(kind):
    inp = bl.Input({"default": ("T", "B", 2), "mask": ("T", "B", 1)})
    layer = getattr(bl, kind)(3)
    inp - "mask" >> "mask" - layer
    inp >> layer
    mask = np.array([[0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).T[..., None]
    data = {**numbers(6, 3, 2), "mask": mask.astype(np.float32)}
    model, _ = check_everywhere(net := random_net(layer), data)
    padded = {**data, "default": np.where(mask, data["default"], np.float32(np.nan))}
    np.testing.assert_allclose(run(model, padded), net.predict(data), **TOLERANCE)


def test_versions_and_names():
    net, _, output = build(next(case for case in CASES if case.name.startswith("SoftmaxCE()")))
    model = to_onnx(net, output)
    assert model.ir_version == 10
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 21)]
    assert [info.name for info in model.graph.input] == ["default"]  # no targets
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["T", "B", 4]
    assert [info.name for info in model.graph.output] == ["SoftmaxCE.predictions"]


@pytest.mark.parametrize("activation", sorted(set(bs.optree.activations.ACTIVATIONS)))
def test_activations(activation):
    layers = bl.FullyConnected(4, activation, name="First"), bl.Elementwise(activation)
    _, back = check_everywhere(net_of((3,), *layers), numbers(T, B, 3))
    kinds = [(la.type_name, la.kwargs.get("activation")) for la in back.layers.values()]
    name = bs.optree.activations.activation(activation).name
    second = [] if name == "linear" else [("Elementwise", name)]
    assert kinds == [("Input", None), ("FullyConnected", name), *second]


@pytest.mark.parametrize("activation", ["linear", "el", "leaky_rel", "softplus"])
@pytest.mark.parametrize("kind", [bl.Recurrent, bl.Gru, bl.Lstm])
def test_activations_of_recurrences(kind, activation):
    net = net_of((3,), kind(4, activation=activation))
    check_everywhere(net, numbers(T, B, 3), in_reference=False)


def test_options_that_an_architecture_leaves_out_have_their_defaults():
    layers = bl.LocalResponseNormalization(), bl.GroupNorm(2), bl.BatchNorm()
    architecture = net_of((4, 4, 6), *layers).architecture
    for name in ("size", "alpha", "beta", "k"):
        del architecture["LocalResponseNormalization"][name]
    for layer, name in (("GroupNorm", "epsilon"), ("BatchNorm", "epsilon"), ("BatchNorm", "decay")):
        del architecture[layer][name]
    net = Network.from_architecture(architecture, handler=NumpyHandler(np.float32))
    net.initialize(Gaussian(0.4), seed=1)
    check_everywhere(net, numbers(T, B, 4, 4, 6), in_reference=False)


# -- wiring ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("constant", "constant_2"), ("constant_2", "constant")])
def test_inputs_may_be_called_as_other_tensors(names):
    inp = bl.Input({names[0]: ("T", "B", 3), names[1]: ("B", 3)})
    timed, whole = (bl.FullyConnected((2, 2), name=name) for name in "GH")
    out = bl.Expression("Tanh * tanh(Tanh) + default", {"default": (2, 2)}, name="Out")
    inp - names[0] >> timed >> "Tanh" - out
    inp - names[1] >> whole
    net = random_net(inp)
    data = {names[0]: numbers(T, B, 3)["default"], names[1]: numbers(B, 3)["default"]}
    for path in ("Out.outputs.default", "H.outputs.default"):
        model = to_onnx(net, path)
        np.testing.assert_allclose(run(model, data), net.predict(data, path), **TOLERANCE)


def test_several_outputs():
    inp = bl.Input({"default": ("T", "B", 4, 4, 2), "targets": ("T", "B", 1)})
    hidden = (
        inp >> bl.Convolution2D(3, 3, name="Hidden") >> bl.FullyConnected(3, "linear", name="Z")
    )
    out = bl.SoftmaxCE(name="Out")
    hidden >> out
    inp - "targets" >> "targets" - out
    hidden >> bl.TimePooling("sum", name="Whole")
    net, data = random_net(inp), numbers(T, B, 4, 4, 2)
    paths = ["Whole.outputs.default", "Out.outputs.predictions", "Hidden.outputs.default"]
    model, expected = to_onnx(net, paths), net.predict(data, paths)
    assert [info.name for info in model.graph.input] == ["default"]
    names = ["Whole.default", "Out.predictions", "Hidden.default"]
    assert [info.name for info in model.graph.output] == names
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)
    again = from_onnx(model, handler=NumpyHandler(np.float32)).predict(data, paths)
    for path, value in zip(paths, found, strict=True):
        np.testing.assert_allclose(value, expected[path], **TOLERANCE)
        np.testing.assert_allclose(again[path], expected[path], **TOLERANCE)
    assert to_onnx(net, (paths[1],)) == to_onnx(net, paths[1])
    with pytest.raises(NetworkValidationError, match="expected at least one path, got none."):
        to_onnx(net, [])


def test_images_are_transposed_once():
    spec = "C4:3p1 B Pm2s2 D C6:3 Pa2 F20"
    net = bs.tools.create_net_from_spec("classification", (8, 8, 3), 5, spec)
    net.set_handler(NumpyHandler(np.float32))
    model, back = check_everywhere(net, numbers(2, 3, 8, 8, 3))
    assert operators(model).count("Transpose") == 2
    assert operators(model)[:3] == ["Reshape", "Transpose", "Conv"]
    assert kinds(back) == kinds(net)
    assert back.layers["Convolution2D_1"].kwargs["activation"] == "rel"
    assert back.input_names == ("default", "targets")
    assert back.output_name == "Output.outputs.predictions"


def test_a_residual_network_stays_in_one_layout():
    inp = bl.Input({"default": ("T", "B", 6, 6, 2)})
    first = bl.Convolution2D(4, (3, 3), padding=1, name="First")
    second = bl.Convolution2D(4, (3, 3), padding=1, activation="linear", name="Second")
    both = bl.Add()
    inp >> first >> second >> "inputs_1" - both
    first >> "inputs_2" - both >> bl.Elementwise("silu") >> bl.GlobalPooling2D("avg")
    model, back = check_everywhere(random_net(inp), numbers(T, B, 6, 6, 2))
    assert operators(model).count("Transpose") == 1
    layers = ["Add", "Convolution2D", "Convolution2D", "Elementwise", "GlobalPooling2D", "Input"]
    assert kinds(back) == layers


@pytest.mark.parametrize("last", [bl.LayerNorm, lambda: bl.Expression("sin(x)")])
@pytest.mark.parametrize("first", [lambda: bl.Convolution2D(3, 2), bl.BatchNorm])
def test_images_without_time_come_back_without_further_layers(first, last):
    net = random_net(chain(bl.Input({"default": ("B", 4, 4, 2)}), first(), last()))
    data = numbers(B, 4, 4, 2)
    _, back = check_everywhere(net, data)
    assert back.predict(data).shape == net.predict(data).shape
    assert kinds(back) == kinds(net)


def test_joined_inputs():
    inp = bl.Input({"default": ("T", "B", 5, 5, 2)})
    parts = [bl.Convolution2D(n, (3, 3), name=name) for n, name in ((2, "Z"), (3, "A"))]
    last = bl.Convolution2D(4, (1, 1), name="Last")
    for part in parts:
        inp >> part >> last
    model, _ = check_everywhere(random_net(inp), numbers(T, B, 5, 5, 2))
    assert operators(model).count("Transpose") == 2

    inp = bl.Input({"default": ("T", "B", 5, 5, 2)})
    last = bl.FullyConnected(3, name="Last")
    for name in "BA":
        inp >> bl.Convolution2D(2, (3, 3), name=name) >> last
    check_everywhere(random_net(inp), numbers(T, B, 5, 5, 2))

    for wiring, name in (("joined", "D"), ("recurrent fan-out", "joint")):
        check_everywhere(random_net(WIRINGS[wiring]()), numbers(T, B, 4), f"{name}.outputs.default")


def test_shapes_and_tied_weights():
    encoder = bl.FullyConnected((2, 2), "tanh", name="Encoder")
    net = net_of((3, 2), encoder, bl.Reshape(4), bl.TiedFullyConnected(encoder, "linear"))
    _, back = check_everywhere(net, numbers(T, B, 3, 2))
    assert "TiedFullyConnected" not in kinds(back)  # it has weights of its own there


def test_text_is_read_in_both_directions():
    inp = bl.Input({"default": ("T", "B", 1)})
    last = inp >> bl.Embedding(7, 6) >> bl.PositionalEncoding()
    last = last >> bl.BidirectionalWrapper(bl.Gru, 4) >> bl.MultiHeadSelfAttention(2, causal=True)
    last >> bl.LayerNorm() >> bl.SwiGLU() >> bl.FullyConnected(7, "linear")
    net = random_net(inp)
    classes = np.random.RandomState(0).randint(0, 7, (6, 2, 1)).astype(np.float32)
    model, back = check_everywhere(net, {"default": classes})
    assert kinds(back) == kinds(net)
    other = classes[:3, :1]
    np.testing.assert_allclose(run(model, {"default": other}), net.predict(other), **TOLERANCE)


class PolarLayerImpl(bl.ExpressionLayer):
    """A layer of a user, with two outputs."""

    def formula(self, x, y):
        square = x * x + y * y
        return {"radius": fn.sqrt(square), "height": y / (1 + square)}


def test_formulas_with_several_outputs():
    inp = bl.Input({"default": ("T", "B", 6)})
    parts, polar, both = bl.Split((3, 3)), ConstructionWrapper.create(PolarLayerImpl), bl.Merge()
    inp >> parts - "outputs_1" >> polar
    (
        parts - "outputs_2"
        >> "y" - polar - "height"
        >> bl.Split(3) - "outputs_1"
        >> ("inputs_1" - both)
    )
    polar - "radius" >> "inputs_2" - both
    check_everywhere(random_net(inp), numbers(T, B, 6))


class DistanceLayerImpl(bl.ExpressionLayer):
    """A loss of a user."""

    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from = ("predictions",)
    parameters = {"scale": (3,)}

    def formula(self, x, targets, scale):
        y = fn.tanh(scale * x)
        return {"loss": fn.abs(y - targets), "predictions": y}


class LeakingLayerImpl(DistanceLayerImpl):
    """A loss whose predictions are not what it says about them."""

    def formula(self, x, targets, scale):
        return {"loss": x * scale, "predictions": x + targets}


def loss_net(layer_class):
    inp = bl.Input({"default": ("T", "B", 3), "targets": ("T", "B", 3)})
    out = ConstructionWrapper.create(layer_class, name="Out")
    inp >> out - "loss" >> bl.Loss()
    inp - "targets" >> "targets" - out
    return random_net(inp)


def test_predictions_of_a_users_loss_need_no_targets():
    model, _ = check_everywhere(loss_net(DistanceLayerImpl), numbers(T, B, 3))
    assert [info.name for info in model.graph.input] == ["default"]
    assert operators(model) == ["Mul", "Tanh", "Identity"]


def test_predictions_that_depend_on_targets_are_refused():
    text = r"'Out' \(Leaking\): expected predictions that do not depend on targets\.$"
    with pytest.raises(NetworkValidationError, match=text):
        to_onnx(loss_net(LeakingLayerImpl))


class WeighedLayerImpl(FormulaLayer):
    """A formula with a constant and an internal."""

    @staticmethod
    @formula
    def formula(x, weights):
        return [fn.tanh(x) * weights, x * x]

    def set_handler(self, handler):
        super().set_handler(handler)
        self.constants = [handler.create_from_numpy(np.array([1, 2, 3], handler.dtype))]

    def setup(self, kwargs, in_shapes):
        whole = BufferStructure(*in_shapes["default"].shape)
        return {"default": whole}, {}, {"square": whole}


def test_constants_of_formulas_are_written_and_internals_are_not():
    net = net_of((3,), ConstructionWrapper.create(WeighedLayerImpl))
    model, data = to_onnx(net), numbers(T, B, 3)
    np.testing.assert_allclose(run(model, data), net.predict(data), **TOLERANCE)
    assert [node.op_type for node in model.functions[0].node] == ["Constant", "Tanh", "Mul"]


# -- what is refused ------------------------------------------------------------------------------


class HalvedLayerImpl(bl.ExpressionLayer):
    def formula(self, x):
        return fn.tanh(x)

    def forward_pass(self, buffers, training_pass=True):
        super().forward_pass(buffers, training_pass)
        y = buffers.outputs.default
        self.handler.mult_st(0.5, y, y)


def test_formulas_that_are_not_the_forward_pass_are_refused():
    text = r"\(Halved\): ONNX has no counterpart of its forward_pass, only of its formula\.$"
    with pytest.raises(NetworkValidationError, match=text):
        to_onnx(net_of((3,), ConstructionWrapper.create(HalvedLayerImpl)))


@pytest.mark.parametrize("last", ["Out.outputs.loss", "Mask.outputs.default"])
def test_outputs_without_a_counterpart_are_named(last):
    inp = bl.Input({"default": ("T", "B", 3), "targets": ("T", "B", 1)})
    out, mask = bl.SoftmaxCE(name="Out"), bl.Mask()
    inp >> out - "loss" >> mask
    inp - "targets" >> "targets" - out
    inp - "targets" >> "mask" - mask
    with pytest.raises(NetworkValidationError, match=r"'Out' \(SoftmaxCE\): ONNX has .* 'loss'"):
        to_onnx(random_net(inp), last)


def test_parameters_as_inputs_are_refused():
    inp, merge = bl.Input({"default": ("T", "B", 3)}), bl.Merge()
    first = inp >> bl.FullyConnected(3, name="First")
    first - "..parameters.W" >> "inputs_1" - merge
    first - "..parameters.W" >> "inputs_2" - merge
    with pytest.raises(
        NetworkValidationError,
        match=r"^layer 'Merge' \(Merge\): ONNX has no counterpart of connection First...param",
    ):
        to_onnx(random_net(inp), "Merge.outputs.default")


@pytest.mark.parametrize(
    "text",
    ["prod(x, axis=-1)", "cumsum(x, axis=-1) + cumsum(x, axis=-2)", "isnan(x) + log2(abs(x) + 1)",
     "x % 0.7 + x // 0.3 + fmod(x, 0.4)", "(x > 0) & (x < 1)", "~(x > 0) | (x > 0.5)",
     "take(x, indices, axis=-1)", "x @ y", "rint(3 * x) * floor(x)"],
)  # fmt: skip
def test_operators_of_formulas(text):
    shapes = {"indices": (4,), "y": (3, 2)}
    used = {name: shape for name, shape in shapes.items() if name in text}
    net = net_of((2, 3), bl.Expression(text, used, name="Formula"))
    if "indices" in text:
        net.buffer.Formula.parameters.indices[:] = [-1, 0, 2, -3]
    check_everywhere(net, numbers(T, B, 2, 3))


class SlicedLayerImpl(bl.ExpressionLayer):
    def formula(self, x):
        return x[:, :, 2::-2, ::-1] * x[:, :, 1:3, 1:2]


def test_slices_of_formulas():
    net = net_of((4, 3), ConstructionWrapper.create(SlicedLayerImpl))
    check_everywhere(net, numbers(T, B, 4, 3))


# -- files ----------------------------------------------------------------------------------------


def test_files(tmp_path):
    net = net_of((3,), bl.FullyConnected(4, "tanh", name="Hidden"))
    data, path = numbers(T, B, 3), tmp_path / "net.onnx"
    save_onnx(net, path)
    onnx.checker.check_model(path, full_check=True)
    handler = NumpyHandler(np.float64)
    same = load_onnx(path, handler=handler)
    assert same.handler is handler
    np.testing.assert_array_equal(same.get("Hidden.parameters.W"), net.get("Hidden.parameters.W"))
    np.testing.assert_allclose(same.predict(data), net.predict(data), **TOLERANCE)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]


def test_functions_with_senseless_options_are_refused(tmp_path):
    model, path = to_onnx(net_of((4,), bl.GLU())), tmp_path / "net.onnx"
    for text in ("", "[]", '{"@type": []}', '{"activation": "tanh"}'):
        model.functions[0].metadata_props[0].value = text
        path.write_bytes(model.SerializeToString())
        with pytest.raises(FileFormatError, match=r"net.onnx' holds no network: "):
            load_onnx(path)
    del model.functions[0].metadata_props[:]
    with pytest.raises(NetworkValidationError, match="its function was not written by to_onnx"):
        from_onnx(model)
