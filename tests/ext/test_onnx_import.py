"""ONNX models made elsewhere, as networks: written by hand here, computed by onnxruntime."""

import cProfile
import os
import re

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from brainstorm.errors import FileFormatError, NetworkValidationError
from brainstorm.ext.onnx_exchange import from_onnx, load_onnx, to_onnx
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.handlers import NumpyHandler
from tests.trainings import takes_less_than

RND = np.random.RandomState(0)


def parsed(text, opset=21, **arrays):
    """Return the model with a graph as text, and those of the arrays that it uses, unchecked."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    used = {name for node in model.graph.node for name in node.input}
    for name in sorted(used & set(arrays)):
        array = np.asarray(arrays[name])
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def model_of(text, **weights):
    """Return a model with weights in float32 or int64: arrays, or shapes of random ones."""
    arrays = {}
    for name, given in weights.items():
        array = RND.normal(size=given) * 0.5 if isinstance(given, tuple) else np.asarray(given)
        arrays[name] = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
    model = parsed(text, **arrays)
    onnx.checker.check_model(model, full_check=True)
    return model


def imported(model, axes=None, **options):
    return from_onnx(model, axes, NumpyHandler(np.float32), **options)


def run(model, *arrays):
    names = [info.name for info in model.graph.input]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, dict(zip(names, arrays, strict=True)))[0]


def numbers(*shape):
    return RND.normal(size=shape).astype(np.float32)


def check(text, x, to_net, from_net, axes=None, **weights):
    """Compare a model with the network that it becomes, also exported again; return this."""
    model = model_of(text, **weights)
    net, expected = imported(model, axes), run(model, x)
    data = {"default": np.ascontiguousarray(to_net(x), np.float32)}
    np.testing.assert_allclose(from_net(net.predict(data)), expected, 1e-5, 1e-5)
    again = run(to_onnx(net), data["default"])
    np.testing.assert_allclose(from_net(again), expected, 1e-5, 1e-5)
    return net


def with_steps(x):
    return x[None]


def without_steps(y):
    return y[0]


def as_is(x):
    return x


def swapped(x):
    return x.swapaxes(0, 1)


def nhwc(x):
    return np.moveaxis(x, 1, -1)[None]


def nchw(y):
    return np.moveaxis(y[0], -1, 1)


def kinds(net):
    """Return (type, activation) of the layers but Input, in their order."""
    layers = [la for la in net.layers.values() if la.type_name != "Input"]
    return [(la.type_name, la.kwargs["activation"]) if "activation" in la.kwargs
            else la.type_name for la in layers]  # fmt: skip


# -- whole models ---------------------------------------------------------------------------------


def row(text, x, to_net, from_net, layers=None, axes=None, **weights):
    """Return the arguments of `check`, and what kinds of layers there are to be."""
    return (text, x, to_net, from_net, axes), weights, layers


MODELS = {
    "Gemm with and without transposition": row(
        """mlp (float[N, 4] x) => (float[N, 3] y) {
            a = Gemm <transB = 1> (x, W1, b1)
            b = Tanh(a)
            c = Gemm <alpha = 2.0, beta = 0.5> (b, W2, b2)
            y = LeakyRelu(c)
        }""",
        numbers(5, 4), with_steps, without_steps,
        [("FullyConnected", "tanh"), ("FullyConnected", "leaky_rel")],
        W1=(6, 4), b1=(6,), W2=(6, 3), b2=(1, 3),
    ),
    "MatMul and Add": row(
        """mlp (float[N, 4] x) => (float[N, 3] y) {
            a = MatMul(x, W1)
            b = Add(a, b1)
            c = Relu(b)
            d = Identity(c)
            e = Dropout(d)
            f = MatMul(e, W2)
            y = Add(b2, f)
        }""",
        numbers(5, 4), with_steps, without_steps,
        [("FullyConnected", "rel"), "Dropout", ("FullyConnected", "linear")],
        W1=(4, 6), b1=(6,), W2=(6, 3), b2=(3,),
    ),
    "what two nodes use is not changed by one of them": row(
        """twice (float[N, 4] x) => (float[N, 5] y) {
            a = MatMul(x, W)
            b = Relu(a)
            c = Add(a, v)
            d = Flatten(a)
            e = Tanh(d)
            f = Sum(b, c, e)
            y = Sub(f, a)
        }""",
        numbers(3, 4), with_steps, without_steps,
        [("FullyConnected", "linear"), ("Elementwise", "rel"), "Expression",
         ("Elementwise", "tanh"), "Add", "Add", "Expression"], W=(4, 5), v=(5,),
    ),
    "a softmax inside": row(
        """gates (float[N, 4] x) => (float[N, 4] y) {
            s = Softmax(x)
            t = LogSoftmax(x)
            y = Mul(s, t)
        }""",
        numbers(5, 4), with_steps, without_steps, ["Expression", "Expression", "Multiply"],
    ),
    "a convolutional network": row(
        """cnn (float[N, 2, 8, 8] x) => (float[N, 5] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W1, b1)
            b = BatchNormalization <epsilon = 0.001> (a, one, v, v, one)
            c = Relu(b)
            d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
            e = Conv <strides = [1, 2], auto_pad = "VALID"> (d, W2)
            f = Sigmoid(e)
            g = Mul(e, f)
            h = AveragePool <kernel_shape = [2, 1]> (g)
            i = Flatten(h)
            y = Gemm <transB = 1> (i, W3, b3)
        }""",
        numbers(3, 2, 8, 8), nhwc, without_steps,
        [("Convolution2D", "linear"), "BatchNorm", ("Elementwise", "rel"), "Pooling2D",
         ("Convolution2D", "silu"), "Pooling2D", ("FullyConnected", "linear")],
        W1=(4, 2, 3, 3), b1=(4,), one=np.arange(1.0, 5), v=(4,), W2=(6, 4, 3, 2), W3=(5, 12),
        b3=(5,),
    ),
    "residual connections and channels": row(
        """residual (float[N, 3, 6, 6] x) => (float[N, 2] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W1)
            b = Relu(a)
            c = Add(b, x)
            d = Concat <axis = 1> (c, x)
            e = Mul(d, scale)
            g = GlobalAveragePool(e)
            h = Conv(g, W2)
            i = Sigmoid(h)
            j = Mul(i, e)
            k = ReduceMean <keepdims = 0> (j, spatial)
            y = Gemm(k, W3)
        }""",
        numbers(2, 3, 6, 6), nhwc, without_steps,
        [("Convolution2D", "rel"), "Add", "Merge", "Expression", "GlobalPooling2D",
         "Reshape", ("Convolution2D", "sigmoid"), "Expression", "GlobalPooling2D",
         ("FullyConnected", "linear")],
        W1=(3, 3, 3, 3), scale=(6, 1, 1), W2=(6, 6, 1, 1), spatial=[2, 3], W3=(6, 2),
    ),
    "images come out with their channels last": row(
        """segmentation (float[N, 2, 4, 4] x) => (float[N, 3, 8, 8] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, W1)
            b = InstanceNormalization(a, v, v)
            c = GroupNormalization <num_groups = 2> (b, v, v)
            d = LRN <size = 3> (c)
            y = ConvTranspose <strides = [2, 2]> (d, W2, b2)
        }""",
        numbers(2, 2, 4, 4), nhwc, nchw, W1=(4, 2, 3, 3), v=(4,), W2=(4, 3, 2, 2), b2=(3,),
    ),
    "an image made of a vector, where channels go last": row(
        """decoder (float[N, 5] x) => (float[N, 1, 4, 4] y) {
            a = Gemm(x, W1)
            b = Reshape(a, shape)
            y = ConvTranspose <kernel_shape = [2, 2], strides = [2, 2]> (b, W2)
        }""",
        numbers(2, 5), with_steps, nchw,
        [("FullyConnected", "linear"), "Reshape", "Expression",
         ("ConvolutionTranspose2D", "linear")],
        W1=(5, 12), shape=[-1, 3, 2, 2], W2=(3, 1, 2, 2),
    ),
    "images with their channels last": row(
        """nhwc (float[N, 4, 6, 2] x) => (float[N, 4, 6, 3] y) {
            a = Transpose <perm = [0, 3, 1, 2]> (x)
            b = Conv <auto_pad = "SAME_UPPER"> (a, W)
            y = Transpose <perm = [0, 2, 3, 1]> (b)
        }""",
        numbers(2, 4, 6, 2), with_steps, without_steps, W=(3, 2, 3, 3),
    ),
    "a matrix for each pixel": row(
        """pixels (float[N, 4, 6, 2] x) => (float[N, 4, 6, 3] y) {
            a = MatMul(x, W)
            b = Add(a, v)
            y = Relu(b)
        }""",
        numbers(2, 4, 6, 2), with_steps, without_steps, [("Convolution2D", "rel")], {"x": "BHWC"},
        W=(2, 3), v=(3,),
    ),
    "axes of one element between the batch and the features": row(
        """tokens (float[N, 1, 4] x) => (float[N, 1, 4] y) {
            a = MatMul(x, W)
            b = Add(a, x)
            c = LayerNormalization(b, v, v)
            d = MatMul(c, W)
            y = Mul(c, d)
        }""",
        numbers(3, 1, 4), with_steps, without_steps,
        [("FullyConnected", "linear"), "Reshape", "Reshape", "Add", "Reshape",
         "LayerNorm", ("FullyConnected", "linear"), "Reshape", "Reshape", "Multiply",
         "Reshape"], {"x": "BSF", "y": "BSF"},
        W=(4, 4), v=(4,),
    ),
    "several columns of classes": row(
        """columns (int64[N, 3] x) => (float[N, 2] y) {
            e = Gather(table, x)
            f = Flatten(e)
            y = MatMul(f, W)
        }""",
        RND.randint(0, 9, (5, 3)), with_steps, without_steps,
        ["Embedding", ("FullyConnected", "linear")], table=(9, 4), W=(12, 2),
    ),
    "peepholes, activations and the other direction": row(
        """reverse (float[T, B, 4] x) => (float[T, B, 3] y) {
            h = LSTM <hidden_size = 3, direction = "reverse",
                activations = ["Sigmoid", "Relu", "Relu"]> (x, W, R, b, , , , P)
            y = Squeeze(h, one)
        }""",
        numbers(6, 2, 4), as_is, as_is, ["Reverse", ("Lstm", "rel"), "Reverse"],
        W=(1, 12, 4), R=(1, 12, 3), b=(1, 24), P=(1, 9), one=[1],
    ),
    "a recurrence over features in another order": row(
        """turned (float[T, B, 2, 3] x) => (float[T, B, 2] y) {
            t = Transpose <perm = [0, 1, 3, 2]> (x)
            f = Reshape(t, flat)
            h = RNN <hidden_size = 2> (f, W, R)
            y = Squeeze(h, one)
        }""",
        numbers(6, 2, 2, 3), as_is, as_is, [("Recurrent", "tanh")], {"x": "TBHW"},
        W=(1, 2, 6), R=(1, 2, 2), flat=[0, 0, 6], one=[1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same_as_a_network_and_comes_back(name):
    arguments, weights, layers = MODELS[name]
    net = check(*arguments, **weights)
    assert layers is None or kinds(net) == layers


@pytest.mark.parametrize(
    "nodes",
    ["s = MatMul(x, W) y = Softmax(x)", "s = MatMul(x, W) r = Floor(s) y = Softmax(r)"],
    ids=["beside", "before a step"],
)
def test_a_softmax_to_which_no_parameter_leads_has_no_loss(nodes):
    model = model_of(f"g (float[N, 2] x) => (float[N, K] y, float[N, 3] s) {{ {nodes} }}", W=(2, 3))
    x, net = numbers(4, 2), imported(model)
    found = net.predict(x[None], "y.outputs.predictions")[0]
    np.testing.assert_allclose(found, run(model, x), 1e-5)
    assert kinds(net).count("SoftmaxCE") == 1
    assert not net.loss_layers


#: Operators that are layers with a formula.
FORMULAS = ("Acosh", "Asinh", "Atan", "Ceil", "Celu", "Cos", "Cosh", "Floor", "Round", "Shrink",
            "Sign", "Sin", "Sinh", "Softsign", "Tan", "ThresholdedRelu")  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "layers"),
    [
        ("y = Elu <alpha = 0.5> (x)", ["Expression"]),
        ("y = LeakyRelu <alpha = 0.2> (x)", ["Expression"]),
        ("y = Selu <alpha = 1.5> (x)", ["Expression"]),
        ("y = HardSigmoid(x)", ["Expression"]),
        ("a = Abs(x) b = Sqrt(a) c = Neg(b) y = Exp(c)", None),
        ("a = Erf(x) b = Add(a, two) c = Reciprocal(b) y = Log(c)", None),
        ("a = Sigmoid(x) b = Mul(x, a) y = Sub(b, a)", None),
        ("m = MatMul(x, W) a = Sigmoid(m) b = Mul(m, a) y = Sub(b, m)", None),
        ("a = Sub(x, two) b = Div(two, a) c = Mul(b, v) y = Sub(v, c)", None),
        ("a = Max(x, v) b = Min(a, two) y = Pow(b, two)", None),
        ("low = Constant <value = float {-0.5}> () y = Clip(x, low)", ["Expression"]),
        ("a = ReduceMean <keepdims = 1> (x, one) y = Sub(x, a)", None),
        ("a = ReduceMax <keepdims = 0> (x, one) b = Unsqueeze(a, one) y = Sub(x, b)", None),
        ("a, b = Split <axis = 1> (x, halves) y = Concat <axis = -1> (b, a)", None),
        ("a = Slice(x, one, two_, one) y = Mul(x, a)", None),
        ("a = Gather <axis = 1> (x, zero) b = Unsqueeze(a, one) y = Mul(b, x)", None),
        ("a = Unsqueeze(x, one) b = Squeeze(a) y = Sum(b)", ["NoOp"]),
        ("a, b = Split <axis = 1, num_outputs = 2> (x) y = Concat <axis = 1> (b, a)", None),
        (
            "i = ArgMax <axis = 1, keepdims = 0> (x) f = Cast <to = 1> (i) u = Unsqueeze(f, one) "
            "y = Add(x, u)",
            None,
        ),
        ("a = LayerNormalization(x, v) y = Relu(a)", ["LayerNorm", ("Elementwise", "rel")]),
        ("a = BatchNormalization(x, v, v, v, w) y = Tanh(a)", None),
        ("a = Cast <to = 1> (x) b = Shape(a) c = Reshape(x, b) y = Softplus(c)", None),
        ("i = ArgMax <axis = 1> (x) f = Cast <to = 1> (i) y = Add(x, f)", None),
        ("r = Relu(x) t = Cast <to = 9> (r) i = Cast <to = 7> (t) y = Cast <to = 1> (i)", None),
        ("y = Clip(x, v0, high)", ["Expression"]),
        ("a = ReduceSum <noop_with_empty_axes = 1> (x) y = Exp(a)", [("Elementwise", "exp")]),
        ("i = ArgMax <axis = 1> (x) f = Cast <to = 1> (i) a = Pow(minus, f) y = Add(x, a)", None),
        *((f"y = {kind}(x)", ["Expression"]) for kind in FORMULAS),
        ('y = Gelu <approximate = "tanh"> (x)', ["Expression"]),
        ("y = Mod <fmod = 1> (x, v)", ["Expression"]),
        ("y = PRelu(x, v)", ["PReLU"]),
        ("y = PRelu(x, two)", ["PReLU"]),
        ("c = Less(x, v) d = Not(c) e = Greater(x, two) f = Or(d, e) y = Where(f, x, v)", None),
        ("c = Equal(x, x) d = GreaterOrEqual(x, v) e = And(c, d) y = Where(e, two, x)", None),
        ("c = LessOrEqual(v, x) d = Xor(c, c) e = Cast <to = 1> (d) y = Add(e, x)", None),
        ("c = Less(x, v) m = Where(c, x, deep) z = Softmax(m) y = Exp(z)", None),
        ("a = Slice(x, zero_, four, one, two_) b = Tile(a, twice) y = Add(b, x)", None),
        ("a = Slice(x, minus_, far, one, minus_) y = Mul(a, x)", None),
        ("a = Gather <axis = 1> (x, picked) y = Add(a, x)", None),
        ("a = Pad(x, pads, two) b = Slice(a, one, five, one) y = Mul(b, x)", None),
        ("a = Slice(x, one, two_, one) b = Expand(a, wide) y = Add(b, x)", None),
        ("a = CumSum(x, one0) b = ReduceProd(x, one) y = Add(a, b)", None),
        ("a = Relu(x) b = Sub(a, a) y = LpNormalization <axis = 1, p = 1> (b)", None),
        ("a = Relu(x) b = Sub(a, a) y = LpNormalization <axis = 1> (b)", None),
        ("a = LpNormalization <axis = 1> (x) b = ReduceL2(x, one) y = Mul(a, b)", None),
        (
            "a = Unsqueeze(x, one) b = Unsqueeze(x, two_) c = MatMul(b, a) d = MatMul(a, c) "
            "y = Squeeze(d, one)",
            None,
        ),
        ("a = Sum(v, w, x) b = Max(two, v, a) y = Min(w, b, v)", None),
        ("a = MatMul(x, W) b = Add(two, a) y = Relu(b)", [("FullyConnected", "rel")]),
        ("a = MatMul(x, W) b = Add(a, two) c = Mul(a, b) y = Add(c, two)", None),
    ],
)
def test_operators_on_features(nodes, layers):
    net = check(
        f"features (float[N, 4] x) => (float[N, 4] y) {{ {nodes} }}",
        numbers(5, 4), with_steps, without_steps,
        two=np.float32(2.0), v=(4,), w=np.arange(1.0, 5), one=[1], two_=[2], halves=[1, 3],
        zero=np.int64(0), v0=np.float32(0), high=np.float32(np.inf), minus=np.float32(-2),
        deep=np.float32(-np.inf), zero_=[0], four=[4], twice=[1, 2], minus_=[-1], far=[-9],
        picked=[3, 0, 1, 0], pads=[0, 1, 0, 2], five=[5], wide=[1, 4], one0=np.int64(1), W=(4, 4),
    )  # fmt: skip
    assert layers is None or kinds(net) == layers


def test_what_is_quantized_is_dequantized():
    """The numbers are not rounded, and are within what the type can hold."""
    held = {"scale": np.float32(0.01), "zero": np.uint8(9), "scales": np.float32([0.1, 0.2]),
            "whole": np.arange(-4, 4, dtype=np.int8).reshape(4, 2)}  # fmt: skip
    model = parsed(f"""q {F4} {{
        q = QuantizeLinear(x, scale, zero)
        d = DequantizeLinear(q, scale, zero)
        V = DequantizeLinear <axis = 1> (whole, scales)
        y = MatMul(d, V)
    }}""", **held)  # fmt: skip
    x = 3 * numbers(50, 4)
    net = imported(model)
    np.testing.assert_allclose(net.predict(x[None])[0], run(model, x), 0, 0.01)
    clipped = np.clip(x, -0.09, 2.46) @ (held["whole"] * held["scales"])
    np.testing.assert_allclose(net.predict(x[None])[0], clipped, 1e-5, 1e-5)


def test_whole_numbers_are_dequantized():
    text = "q (uint8[N, 4] x) => (float[N, 4] y) { y = DequantizeLinear(x, scale, zero) }"
    model = parsed(text, scale=np.float32(0.5), zero=np.uint8(9))
    x = np.array([[0, 9, 10, 255]], np.uint8)
    found = imported(model).predict(x[None].astype(np.float32))[0]
    np.testing.assert_array_equal(found, run(model, x))
    np.testing.assert_array_equal(found, [[-4.5, 0, 0.5, 123]])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_models_in_half_precision_become_float32(half):
    text = f"halves ({half}[N, 4] x) => ({half}[N, 3] y) {{ a = MatMul(x, W) y = Mul(a, f) }}"
    dtype = onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, half.upper()))
    W, f = (RND.normal(size=shape).astype(dtype) for shape in [(4, 3), (3,)])
    found = imported(parsed(text, W=W, f=f)).predict(np.eye(4)[None])[0]
    np.testing.assert_allclose(found, W.astype(float) * f.astype(float), 1e-6)


# -- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["N", "1"])
def test_flattened_by_shape_arithmetic(size):
    check(
        f"""cnn (float[{size}, 2, 4, 4] x) => (float[{size}, 5] y) {{
            a = Conv(x, W1, b1)
            s = Shape(a)
            n = Gather(s, zero)
            u = Unsqueeze(n, first)
            t = Concat <axis = 0> (u, rest)
            f = Reshape(a, t)
            y = MatMul(f, W2)
        }}""",
        numbers(1, 2, 4, 4), nhwc, without_steps,
        W1=(3, 2, 3, 3), b1=(3,), zero=np.int64(0), first=[0], rest=[-1], W2=(12, 5),
    )  # fmt: skip


NINE = "(float[N, 2, 9] x) => (float[N, 2, L] y)"
ODD = "(float[N, 4, 5, 6] x) => (float[N, C, H, W] y)"
EVEN = "(float[N, 2, 4, 6] x) => (float[N, C, H, W] y)"
CUBE = "(float[N, 2, 3, 4, 5] x) => (float[N, 2, D, H, W] y)"


@pytest.mark.parametrize(
    ("signature", "nodes", "layers"),
    [
        (ODD, "y = Conv <pads = [0, 1, 2, 0]> (x, K)", [("Convolution2D", "linear")]),
        (ODD, 'y = Conv <auto_pad = "SAME_UPPER", strides = [2, 1]> (x, K)', None),
        (ODD, 'y = Conv <auto_pad = "SAME_LOWER", strides = [2, 3]> (x, K)', None),
        (ODD, "y = ConvTranspose <pads = [0, 1, 1, 0]> (x, K)", None),
        (ODD, "y = MaxPool <kernel_shape = [3, 2], pads = [1, 0, 2, 1]> (x)", ["Pooling2D"]),
        (ODD, 'y = MaxPool <kernel_shape = [2, 2], auto_pad = "SAME_UPPER", strides = [2, 2]> (x)',
         None),
        *(
            (ODD, f"y = {kind} <kernel_shape = [2, 4], strides = [2, 3], ceil_mode = 1> (x)",
             ["Pooling2D"])
            for kind in ("MaxPool", "AveragePool")
        ),
        (ODD, "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 0, 1], count_include_pad = 1>"
         " (x)", ["Padding", "Pooling2D"]),
        (ODD, "y = AveragePool <kernel_shape = [3, 3], count_include_pad = 1> (x)", ["Pooling2D"]),
        *(
            (ODD, f"y = AveragePool <kernel_shape = {kernel}, pads = {pads}, strides = {strides},"
             " ceil_mode = 1, count_include_pad = 1> (x)", ["Padding", "Pooling2D"])
            for kernel, pads, strides in (
                ([2, 2], [1, 1, 1, 1], [3, 4]),
                ([2, 3], [1, 1, 1, 0], [3, 2]),
            )
        ),
        (NINE, "y = Conv <strides = [2], group = 1> (x, K1)", [("Convolution1D", "linear")]),
        (CUBE, "y = Conv <dilations = [1, 1, 1], strides = [1, 1, 1], group = 2> (x, K3)",
         [("Convolution3D", "linear")]),
        (NINE, "y = MaxPool <kernel_shape = [3], strides = [2]> (x)", ["Pooling1D"]),
        (NINE, "y = AveragePool <kernel_shape = [3], pads = [1, 0]> (x)", ["Pooling1D"]),
        (NINE, "y = GlobalMaxPool(x)", ["Expression"]),
        (NINE, "y = Pad(x, ends, half)", ["Padding"]),
        (CUBE, "y = AveragePool <kernel_shape = [2, 3, 2], pads = [1, 0, 0, 0, 1, 1]> (x)",
         ["Pooling3D"]),
        (CUBE, "y = GlobalAveragePool(x)", ["Expression"]),
        (ODD, "y = Pad(x, around)", ["Padding"]),
        (ODD, "y = Pad(x, rows, half, axis)", ["Padding"]),
        (ODD, "a = Pad(x, nothing) y = Relu(a)", [("Elementwise", "rel")]),
        (ODD, 'y = Resize <mode = "linear"> (x, , twice)', ["Upsampling2D"]),
        (ODD, 'y = Resize <mode = "linear", axes = [-2, 3]> (x, , , size)', ["Upsampling2D"]),
        (ODD, 'y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
         " (x, , twice)", ["Upsampling2D"]),
        *((ODD, f'y = DepthToSpace <blocksize = 2, mode = "{mode}"> (x)', ["DepthToSpace"])
          for mode in ("CRD", "DCR")),
        (EVEN, "y = SpaceToDepth <blocksize = 2> (x)", ["SpaceToDepth"]),
        (NINE.replace("2, L", "C, L"), "a = Pad(x, all, infinite) y = Exp(a)",
         ["Reshape", "Padding", ("Elementwise", "exp"), "Reshape"]),
        (ODD, "y = Pad(x, less)", ["Slice", "Slice", "Padding"]),
        (ODD, 'y = Pad <mode = "reflect"> (x, around)', None),
        (ODD, 'y = Pad <mode = "edge"> (x, around)', None),
        (ODD, "y = PRelu(x, slopes)", ["PReLU"]),
        (ODD, "y = Resize(x, , twice)", ["Upsampling2D"]),
        (ODD, "y = Resize(x, , part)", None),
        (ODD, 'y = Resize <mode = "linear"> (x, , part)', None),
        (ODD, 'y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners", '
         "axes = [2, 3]> (x, , , size)", None),
        (ODD, 'y = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel", '
         "axes = [2, 3]> (x, , , single)", None),
        (ODD, 'y = Resize <nearest_mode = "ceil", axes = [2, 3]> (x, , , size)', None),
        (ODD, 'y = Resize <axes = [1, 2]> (x, , , size)', None),
        (NINE, 'y = Resize <mode = "linear"> (x, , long)', ["Reshape", "Upsampling2D", "Reshape"]),
        (NINE, 'y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> '
         "(x, , long)", None),
        (CUBE, "y = Resize <axes = [2, 3, 4]> (x, , , deep)", None),
        (ODD, "a = Conv <pads = [0, 1, 1, 1]> (x, K) y = Add(a, last)",
         [("Convolution2D", "linear"), "Expression"]),
        (ODD, "y = LayerNormalization <axis = -1> (x, last)", None),
        (ODD, "y = LayerNormalization <axis = 2> (x, last)", None),
    ],
)  # fmt: skip
def test_images_of_another_size(signature, nodes, layers):
    shape = tuple(int(n) for n in re.findall(r"\d+", signature.partition("=>")[0]))
    net = check(
        f"images {signature} {{ {nodes} }}", numbers(3, *shape), nhwc, nchw,
        K=(4, 4, 2, 3), K1=(2, 2, 3), K3=(2, 1, 2, 2, 3), half=np.float32(0.5),
        ends=[0, 0, 1, 0, 0, 2],
        around=[0, 0, 1, 2, 0, 0, 0, 3], rows=[2, 1], axis=[-2], nothing=[0] * 8,
        twice=np.float32([1, 1, 2, 3]), size=[7, 4], all=[0, 1, 1, 0, 2, 0], slopes=(4, 1, 1),
        infinite=np.float32(-np.inf), less=[0, 0, -1, 2, 0, 0, 1, -1], single=[1, 4],
        part=np.float32([1, 1, 1.4, 1.3]), long=np.float32([1, 1, 2]), deep=[6, 4, 10],
        last=(6,),
    )  # fmt: skip
    assert layers is None or kinds(net) == layers


# -- sequences ------------------------------------------------------------------------------------

#: Operator to its number of gates, and the layer.
RECURRENT = {"RNN": (1, "Recurrent"), "GRU": (3, "Gru"), "LSTM": (4, "Lstm")}


@pytest.mark.parametrize("zeros", ["ConstantOfShape(z)", "Expand(null, z)"])
@pytest.mark.parametrize("sizes", ["B, T", "2, 6"])
def test_both_directions_with_the_batch_first_and_a_state_of_zeros(sizes, zeros):
    net = check(
        f"""tagger (float[{sizes}, 4] x) => (float[{sizes}, 3] y) {{
            t = Transpose <perm = [1, 0, 2]> (x)
            s = Shape(t)
            n = Slice(s, one, two)
            z = Concat <axis = 0> (two, n, three)
            zero = {zeros}
            h, i, c = LSTM <hidden_size = 3, direction = "bidirectional"> (t, W, R, b, , zero, zero)
            p = Transpose <perm = [0, 2, 1, 3]> (h)
            q = Reshape(p, joined)
            r = Transpose <perm = [1, 0, 2]> (q)
            y = MatMul(r, V)
        }}""",
        numbers(2, 6, 4), swapped, swapped,
        W=(2, 12, 4), R=(2, 12, 3), b=(2, 24), one=[1], two=[2], three=[3], joined=[0, 0, -1],
        V=(6, 3), null=np.float32(0),
    )  # fmt: skip
    assert [kind for kind in kinds(net) if kind[0] == "Lstm"] == [("Lstm", "tanh")] * 2
    assert "Merge" in kinds(net)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", RECURRENT)
def test_the_last_state_of_a_recurrence(kind, direction):
    """Of the other direction, it is that at the first step."""
    (gates, layer), count = RECURRENT[kind], 1 + (direction == "bidirectional")
    reset = ", linear_before_reset = 1" if kind == "GRU" else ""
    net = check(
        f"""classifier (float[T, B, 4] x) => (float[B, 2] y) {{
            h, s = {kind} <hidden_size = 3, direction = "{direction}"{reset}> (x, W, R, b)
            t = Transpose <perm = [1, 0, 2]> (s)
            f = Flatten(t)
            y = MatMul(f, V)
        }}""",
        numbers(6, 5, 4), as_is, as_is,
        W=(count, 3 * gates, 4), R=(count, 3 * gates, 3), b=(count, 6 * gates), V=(3 * count, 2),
    )  # fmt: skip
    assert kinds(net).count((layer, "tanh")) == kinds(net).count("TimePooling") == count
    assert kinds(net).count("Reverse") == (direction != "forward")
    assert net.predict(numbers(6, 5, 4)).shape == (5, 2)


@pytest.mark.parametrize("is_batch_first", [False, True])
@pytest.mark.parametrize(
    "nodes",
    [
        "m = ReduceMean(h, time) y = Sub(h, m)",
        "m = ReduceMax(h, time) e = Expand(m, sizes) y = Tanh(e)",
        "m = ReduceSum <keepdims = 0> (h, time) u = Unsqueeze(m, time) t = Tile(u, sizes) "
        "y = Concat <axis = 2> (h, t)",
        "m = ReduceSum <keepdims = 0> (h, time) v = MatMul(m, V) u = Unsqueeze(v, time) "
        "e = Expand(u, sizes) n = Exp(e) y = Mul(n, h)",
        "a = ReduceSum <keepdims = 0> (h, time) u = Unsqueeze(a, time) m = ReduceMean(h, time) "
        "c = Concat <axis = 2> (u, m) e = Expand(c, sizes) y = Tanh(e)",
        "m = ReduceMean(h, time) s = Shape(h) o = ConstantOfShape(s) a = Sub(m, o) y = Exp(a)",
        "m = ReduceSum <keepdims = 0> (h, time) v = MatMul(m, V) u = Unsqueeze(v, time) "
        "a = Add(u, bias) y = Add(a, h)",
    ],
)
def test_vectors_that_become_sequences(nodes, is_batch_first):
    axis, sizes = int(is_batch_first), "B, T" if is_batch_first else "T, B"
    order = "one, steps, one" if is_batch_first else "steps, one, one"
    net = check(
        f"""repeated (float[{sizes}, 4] x) => (float[{sizes}, N] y) {{
            h = Tanh(x)
            steps = Shape <start = {axis}, end = {axis + 1}> (x)
            sizes = Concat <axis = 0> ({order})
            {nodes}
        }}""",
        numbers(5, 6, 4), swapped if is_batch_first else as_is,
        swapped if is_batch_first else as_is, axes={"x": "BTF" if is_batch_first else "TBF"},
        V=(4, 4), time=[axis], one=[1], bias=(4,),
    )  # fmt: skip
    assert kinds(net).count("RepeatOverTime") == 1


@pytest.mark.parametrize("is_batch_first", [False, True])
@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        ("p = Gather <axis = AXIS> (h, last)", "last"),
        ("q = Slice(h, minus, end, time) p = Squeeze(q, time)", "last"),
        ("p = ReduceMean <keepdims = 0> (h, time)", "avg"),
        ("q = ReduceMax(h, time) p = Squeeze(q, time)", "max"),
        ("p = ReduceSum <keepdims = 0> (h, time)", "sum"),
    ],
)
def test_sequences_that_become_one_vector(nodes, kind, is_batch_first):
    axis, sizes = int(is_batch_first), "B, T" if is_batch_first else "T, B"
    weights = {"last": np.int64(-1), "minus": [-1], "end": [2**40], "time": [axis]}
    net = check(
        f"""pooled (float[{sizes}, 4] x) => (float[B, 2] y) {{
            h = Tanh(x)
            {nodes.replace("AXIS", str(axis))}
            m = MatMul(p, V)
            y = Softmax(m)
        }}""",
        numbers(5, 6, 4), swapped if is_batch_first else as_is, as_is,
        axes={"x": "BTF" if is_batch_first else "TBF"},
        V=(4, 2), **{name: array for name, array in weights.items() if name in nodes},
    )  # fmt: skip
    pooling = next(la for la in net.layers.values() if la.type_name == "TimePooling")
    assert pooling.type == kind
    assert net.layers["Input"].out_shapes["targets"].shape == ("B", 1)


def test_rows_beside_sequences_have_no_time():
    model = model_of(
        """both (float[T, B, 4] x, float[B, 3] z) => (float[B, 7] y) {
            p = ReduceMax <keepdims = 0> (x, zero)
            r = Relu(z)
            y = Concat <axis = 1> (p, r)
        }""",
        zero=[0],
    )
    net = imported(model)
    shapes = {name: shape.shape for name, shape in net.layers["Input"].out_shapes.items()}
    assert shapes == {"x": ("T", "B", 4), "z": ("B", 3)}
    x, z = numbers(5, 2, 4), numbers(2, 3)
    expected = np.concatenate([x.max(axis=0), np.maximum(z, 0)], axis=1)
    np.testing.assert_allclose(net.predict({"x": x, "z": z}), expected, 1e-6)
    np.testing.assert_allclose(run(to_onnx(net), x, z), expected, 1e-6)


@pytest.mark.parametrize("is_batch_first", [False, True])
def test_words(is_batch_first):
    first, steps = ("N, S", "t = Transpose <perm = [1, 0, 2]> (e)") if is_batch_first else (
        "S, N", "t = Identity(e)")  # fmt: skip
    last = "y = Transpose <perm = [1, 0, 2]> (s)" if is_batch_first else "y = Identity(s)"
    swap = swapped if is_batch_first else as_is
    net = check(
        f"""words (int64[{first}] x) => (float[{first}, 3] y) {{
            e = Gather(table, x)
            {steps}
            h = RNN <hidden_size = 3> (t, W, R)
            s = Squeeze(h, one)
            {last}
        }}""",
        RND.randint(0, 9, (2, 5)), lambda x: swap(x)[:, :, None], swap,
        table=(9, 4), W=(1, 3, 4), R=(1, 3, 3), one=[1],
    )  # fmt: skip
    assert kinds(net) == ["Embedding", ("Recurrent", "tanh")]


def test_inputs_whose_names_are_no_identifiers_stay_apart():
    text = "two (float[N, 3] x_1, float[N, 3] b) => (float[N, 3] y) { y = Sub(x_1, b) }"
    model = model_of(text)
    model.graph.input[1].name = model.graph.node[0].input[1] = "x.1"
    net = imported(model)
    assert net.input_names == ("x_1", "x_1_2")
    a, b = numbers(2, 3), numbers(2, 3)
    found = net.predict({"x_1": a[None], "x_1_2": b[None]})[0]
    np.testing.assert_array_equal(found, run(model, a, b))


@pytest.mark.parametrize("sizes", [("N", "2"), ("2", "N")])
def test_a_batch_that_one_of_two_inputs_fixes(sizes):
    model = model_of(
        f"""two (float[{sizes[0]}, 3] a, float[{sizes[1]}, 3] b) => (float[2, 3] y) {{
            c = Mul(a, b)
            s = Shape(b)
            y = Reshape(c, s)
        }}"""
    )
    net = imported(model)
    a, b = numbers(2, 3), numbers(2, 3)
    found = net.predict({"a": a[None], "b": b[None]})[0]
    np.testing.assert_allclose(found, run(model, a, b), 1e-6)


# -- what is refused ------------------------------------------------------------------------------

OPEN = "N, 3, height, width"
F4 = "(float[N, 4] x) => (float[N, M] y)"
IMAGE = "(float[N, 2, 6, 6] x) => (float[N, 2, H, W] y)"
SIX = "(float[N, 2, 2, 2, 2, 4] x) => (float[N, A, B, C, D, E] y)"
STEPS3 = "(float[N, 4, 6] x) => (float[N, A, C] y)"
STEPS = "(float[T, B, 4] x) => (float[A, B, C] y)"


@pytest.mark.parametrize(
    ("signature", "nodes", "message"),
    [
        (F4, "y = Hardmax(x)", r"^ONNX node 'y' \(Hardmax\): no layer computes this operator. .*"
         r"are: Abs, Acos, Acosh, .*, Xor\. To import the layers before it use outputs=\['x'\]\."),
        (F4, "a = Tanh(x) t = Transpose(a) y = MatMul(x, t)", "'y' .MatMul.: no layer multiplies "
         "two matrices whose rows or columns are time steps .* Give the axis a size and another"),
        (F4, "y = CumSum(x, i0)", "no layer computes it over time steps or sequences"),
        (F4, "y = CumSum(x, i4)", "expected an axis from -2 to 1, got 4"),
        (F4, "y = Softmax <axis = 9> (x)", "expected an axis from -2 to 1, got 9"),
        (F4, "q = QuantizeLinear(x, nothing) y = Abs(q)", r"expected a scale > 0, got 0\.0"),
        (F4, "y = Pad(x, pads)", "no layer pads time steps or sequences"),
        (F4, "y = Tile(x, i22x)", "no layer repeats time steps or sequences"),
        (F4, "y = Tile(x, i10)", r"expected numbers >= 1, got \(1, 0\)"),
        (F4, "y = Tile(x, often)", "expected at most 67108864 elements for a step"),
        (F4, "y = Expand(x, i33)", r"\(B, 4\) cannot be expanded to \(3, 3\)"),
        (F4, "u = MatMul(x, v) y = Add(u, x)", "no layer multiplies a computed matrix and a vec"),
        (IMAGE, "y = Resize(x, , up)", "no layer interpolates time steps or sequences"),
        (IMAGE, "y = Resize <mode = \"cubic\"> (x, , up)", "no layer interpolates by 'cubic', but"),
        (IMAGE, "y = Resize <coordinate_transformation_mode = \"half_pixel_symmetric\"> (x, , up_)",
         "no layer takes its places by 'half_pixel_symmetric', but by asymmetric, align_corners"),
        (IMAGE, "y = Resize <keep_aspect_ratio_policy = \"not_larger\"> (x, , , i22x)",
         "no layer keeps the aspect ratio"),
        (IMAGE, "y = QuantizeLinear(x, v2)", "no layer has a scale for each channel"),
        (IMAGE, "y = Gather(x, many)", r"no layer takes some of the time steps|expected an index"),
        ("(float[N, 40] x) => (float[N, M] y)", "y = Gather <axis = 1> (x, evens)",
         "no layer takes indices of an axis in 20 parts, but in up to 16"),
        (F4, "y = MatMul(V3, x)", "two matrices whose rows or columns are time steps or sequences"),
        (F4, "y = Gemm <transA = 1> (x, V)", "no layer multiplies with the transpose of its input"),
        (F4, "y = Softmax <axis = 0> (x)", "no layer has a softmax over time steps or sequences"),
        (F4, "y = ReduceMean(x, i00)", "no layer reduces sequences, or time steps so"),
        (F4, "y = Concat <axis = 0> (x, x)", "no layer joins time steps or sequences"),
        (F4, "y = Slice(x, i11, i22, i00)", "no layer takes some of the time steps or sequences"),
        (F4, "y = Slice(x, i22, i00, i11)", r"expected that something is left of 4, got 2:0:1"),
        (F4, "s = Shape(x) f = Cast <to = 1> (s) y = Mul(x, f)", "computes with T or B as numbers"),
        (F4, "y = Gather <axis = 1> (x, i2d)", r"expected one index or a list, got an array of .2"),
        (F4, "y = Gather <axis = 1> (x, i4)", "expected an index from -4 to 3, got 4"),
        (F4, "y = Cast <to = 7> (x)", "'y' .Cast.: no layer makes whole numbers of others"),
        (F4, "i = Cast <to = 7> (x) s = Squeeze(i) y = Mul(s, i)", "no layer makes whole numbers"),
        (F4, "y = ReduceMean(x)", "no layer reduces sequences, or time steps so, or with other"),
        (STEPS, "y = ReduceMin(x, i00)", "no layer reduces sequences, or time steps so"),
        (F4, "y = Gemm(x, V3, rows)", "no layer has a bias for each row of a batch"),
        (F4, "r = RandomNormal <shape = [4]> () y = Add(x, r)", "'r' .RandomNormal.: no layer dra"),
        (F4, "d, m = Dropout(x) z = Cast <to = 1> (m) y = Add(d, z)", "'d' .Dropout.: no layer "
         "gives its output 2"),
        (F4, "y = Reshape(x, half)", r"'y' .output.: no layer takes T or B as a feature"),
        (F4, "y = Reshape(x, fifth)", r"'y' .Reshape.: no layer makes \(5, .*\) of \(B, 4\)"),
        (IMAGE, "y = Conv <pads = [0, -1, 0, 1]> (x, K)", r"expected two pads >= 0 for each of 2 "
         r"axes, got \[0, -1, 0, 1\]\."),
        (IMAGE, "y = MaxPool <kernel_shape = [2, 2], pads = [1, 1]> (x)", r"2 axes, got \[1, 1\]"),
        (IMAGE, "y = MaxPool <kernel_shape = [2, 2], dilations = [2, 1]> (x)", "pools with dilati"),
        (IMAGE, "y = MaxPool <kernel_shape = [7, 7]> (x)", r"H, W, C\) with H >= 7, got"),
        (IMAGE, "y = Pad(x, i11)", r"expected two pads for each of 4 axes, got \[1\]\."),
        (IMAGE, "y = Pad <mode = \"symmetric\"> (x, around)", "pads with mode 'symmetric'"),
        (IMAGE, "y = Pad(x, gone)", r"leave an axis 1 to 67108864 cells, got \[.*-3, 0, 0, 0, -3"),
        (IMAGE, "y = Pad <mode = \"edge\"> (x, endless)", "1 to 67108864 cells, got .*46116860"),
        (IMAGE, "y = SpaceToDepth <blocksize = 0> (x)", "'block': expected an int >= 1, got 0"),
        (IMAGE, "y = Resize(x)", r"expected a scale or size for each of 4 axes, got \[\]\."),
        (IMAGE, "y = Resize(x, , infinite)", "scale or size for each of 4 axes, got .* inf, nan"),
        (IMAGE, "y = Resize(x, , huge)", r"sizes >= 1 that .*, 6597069766656, 6\]"),
        (IMAGE, "y = Resize <axes = [2, 3]> (x, , , i11)", r"each of 2 axes, got \[0.16"),
        (IMAGE, "y = Resize <mode = \"linear\", antialias = 1> (x, , up_)", "without antialias"),
        (IMAGE, "m, i = MaxPool <kernel_shape = [2, 2]> (x) z = Cast <to = 1> (i) y = Add(m, z)",
         "no layer gives the indices"),
        (IMAGE, "y = LRN <size = 2> (x)", "expected an odd size"),
        (IMAGE, "y = ConvTranspose <group = 2> (x, K)", "no groups, no dilation"),
        (STEPS, "h = GRU <hidden_size = 3> (x, W3, R3) y = Squeeze(h, i11)", "its reset gate acts"),
        (STEPS, "a, b, y = LSTM <hidden_size = 3> (x, W4, R4)", r"gives its last cell \(Y_c\)\."),
        (STEPS, "y = Slice(x, i00, i11, i00)", "some of the time steps or sequences, but the last "
         "step"),
        (STEPS, "h = RNN <hidden_size = 3> (x, W, R, , , ones) y = Squeeze(h, i11)", "first state"),
        (STEPS, "h = RNN <hidden_size = 3, clip = 1.0> (x, W, R) y = Squeeze(h, i11)", "has clip"),
        (STEPS, "h = RNN <hidden_size = 3, activations = [\"Elu\"], activation_alpha = [0.5]> "
         "(x, W, R) y = Squeeze(h, i11)", "no layer has activations with numbers of their own"),
        (STEPS, "h = RNN <hidden_size = 3, activations = [\"Softsign\"]> (x, W, R) "
         "y = Squeeze(h, i11)", r"no layer has the activations \['Softsign'\]"),
        (f"(float[T, B, {2**42}] x) => (float[A, B, C] y)", "h = RNN <hidden_size = 3> (x, W, R) "
         "y = Squeeze(h, i11)", "weights for 4398046511104 inputs, got them for 4"),
        (STEPS, "l = Constant <value = int32[2] {1, 2}> () h = RNN <hidden_size = 3> (x, W, R, , "
         "l) y = Squeeze(h, i11)", "no layer takes the lengths of sequences; ours take masks"),
        (F4, "f = Reshape(x, all) y = Softmax(f)", "has a softmax over time steps or sequences"),
        (F4, "f = Gather <axis = 1> (x, i0) y = Add(x, f)", "T or B are another axis in one"),
        (F4, "s = ReduceSum <keepdims = 0> (x, i11) a = Unsqueeze(s, i00) b = Unsqueeze(s, i11) "
         "y = Add(a, b)", "T or B are another axis in one"),
        ("(float[N, 4, 5] x) => (float[N, 4, M] y)", "a = Concat <axis = 2> (x, x) y = Add(x, a)",
         r"'y' .Add.: \(B, 4, 10\) does not fit \(B, 4, 5\)"),
        (F4, "y = BatchNormalization(x, v3, v3, v3, v3)", r"^ONNX model, y.parameters.gamma: "
         r"expected shape \(4,\), got \(3,\)\.$"),
        (F4, "m = Neg(v) y = BatchNormalization(x, v, v, v, m)", r"^ONNX model, layer 'y' "
         r"\(BatchNorm\): running_var: expected variances >= 0, got -\S+\.$"),
        (F4, "y = BatchNormalization <training_mode = 1> (x, v, v, v, v)", "got training_mode=1"),
        (STEPS, "t = Shape <start = 0, end = 1> (x) r = Concat <axis = 0> (i11, t) "
         "m = ReduceSum(x, i00) y = Tile(m, r)", "no layer repeats time steps or sequences"),
        (F4, "b = Shape <start = 0, end = 1> (x) s = Concat <axis = 0> (b, i11) "
         "o = ConstantOfShape(s) u = Unsqueeze(x, i11) y = Add(u, o)", "constants for each time"),
        (F4, "y = Add(x, v3)", r"\(3\) does not fit \(B, 4\)"),
        (F4, "y = ArgMax <axis = 0> (x)", "no layer has an argmax over time steps or sequences"),
        (F4, "y = Squeeze(x, i11)", r"expected axes of size 1, got \[4\]"),
        (F4, "y = MatMul(x, V3)", r"no layer multiplies \(B, 4\) and \(3, 3\)"),
        (STEPS3, "y = MatMul(x, V3)", r"no layer multiplies \(B, 4, 6\) and \(3, 3\)"),
        (STEPS3, "y = MatMul(V3, x)", r"no layer multiplies \(3, 3\) and \(4, 6\)"),
        (F4, "y = Gemm(x, V, x)", "expected input 2 to be a constant, got one that is computed"),
        (F4, "i = Cast <to = 7> (x) y = Gather <axis = 1> (V, i)", "one row per class, and axis 0"),
        (IMAGE, "i = Cast <to = 7> (x) y = Gather(V, i)", "classes with several feature dim"),
        (IMAGE, "y = GroupNormalization <num_groups = 1> (x, one, one)", "one scale per channel"),
        (IMAGE, "y = ConvTranspose <output_padding = [0, 1]> (x, K)", "same output_padding"),
        (IMAGE, "y = MaxPool <kernel_shape = [2]> (x)", r"expected \(N, C, 1 more\), got"),
        (SIX, "y = MaxPool <kernel_shape = [2, 2, 2, 2]> (x)", "no layer pools over 4 axes"),
        (IMAGE, "y = Conv(x, K4)", "no layer convolves over 4 axes"),
        (SIX, "y = MatMul(x, V)", "with the last of more than four features"),
        (STEPS, "y = BatchNormalization(x, v, v, v, v)", r"expected \(N, C, ...\), got \(T, B"),
        (STEPS, "y = Conv(x, K1)", r"expected \(N, C, 1 more\), got \(T, B, 4\)"),
        (STEPS, "t = Transpose <perm = [1, 0, 2]> (x) h = RNN <hidden_size = 3> (t, W, R) "
         "y = Squeeze(h, i11)", r"expected \(T, B, features\), got \(B, T, 4\)"),
        (F4, "y = Dropout(x, a_half, yes)", "'y' .Dropout.: expected a model for inference, got "
         "train"),
        (F4, "h = Cast <to = 10> (x) y = Cast <to = 1> (h)", "'h' .Cast.: no layer rounds to half"),
        (F4, "y = LayerNormalization <axis = 0> (x, v)", "normalizes over time steps or sequences"),
        (F4, "s = Add(v, v2) y = Mul(x, s)", "'s' .Add.: its inputs and attributes do not fit tog"),
        (F4, "y = LayerNormalization(x, v2)", r"'y' .LayerNormalization.: its inputs and attrib"),
        (F4, "y = Transpose <perm = [0, 2]> (x)", r"'y' .Transpose.: its inputs and attributes do"),
        (F4, "t = Transpose <perm = 1> (V) y = MatMul(x, t)", "'t' .Transpose.: its inputs and"),
        (F4, "t = Cast <to = 14> (v) y = Add(x, t)", "'t' .Cast.: no layer computes with texts or"),
        (F4, "t = DequantizeLinear(V, V3) y = Add(x, t)", "'t' .DequantizeLinear.: its"),
        (F4, "y = Unsqueeze(x, i11x)", r"'y' .Unsqueeze.: expected different axes, got \[1, 1\]"),
        (F4, "y = Reshape(x, ones99)", "'y' .Reshape.: expected at most 30 axes, got 100"),
        (F4, "y = Slice(x, infinite, i22, i11)", "'y' .Slice.: expected integers as input 1, got"),
        (F4, "y = Softmax <axis: int = @other> (x)", "'y' .Softmax.: its inputs and attributes do"),
        (F4, "y = Add(x, z)", "ONNX tensor 'z' is used before it is computed"),
        (F4, "y = Relu(x) y = Tanh(x)", "ONNX tensor 'y': expected one that is computed, or giv"),
        (F4, "v = Relu(x) y = Tanh(v)", "ONNX tensor 'v': .* once, got 2. Export the model again"),
        (F4, "x = Relu(x) y = Tanh(x)", "ONNX tensor 'x': .* once, got 2. Export the model again"),
        (STEPS, "y = Add(x, steps)", "no layer has constants for each time step or sequence"),
    ],
)  # fmt: skip
def test_nodes_that_no_layer_computes_are_named(signature, nodes, message):
    weights = {
        "V": (4, 4), "V3": (3, 3), "v": (4,), "K": (2, 2, 3, 3), "W": (1, 3, 4), "R": (1, 3, 3),
        "W4": (1, 12, 4), "R4": (1, 12, 3), "W3": (1, 9, 4), "R3": (1, 9, 3), "i0": np.int64(0),
        "i00": [0], "i11": [1], "i22": [2], "half": [-1, 2], "steps": (5, 1, 4),
        "fifth": [5, -1], "nothing": np.float32(0),
        "all": [-1], "v3": (3,), "one": (1,), "K4": (2, 2, 1, 1, 1, 1),
        "K1": (2, 4, 3), "i4": np.int64(4), "rows": (3, 1),
        "around": [0, 0, 1, 1, 0, 0, 1, 1], "gone": [0, 0, 0, -3, 0, 0, 0, -3],
        "endless": [0, 0, 2**62, 0, 0, 0, 0, 0], "huge": np.float32([1, 1, 2**40, 1]),
        "infinite": np.float32([1, 1, np.inf, np.nan]),
        "a_half": np.float32(0.5), "yes": np.array(True),
        "ones": np.ones((1, 2, 3)), "pads": [1, 0, 0, 0], "i22x": [2, 2], "i33": [3, 3],
        "i10": [1, 0], "often": [1, 2**62],
        "up": np.full(4, 2.0), "up_": [1.0, 1.0, 2.0, 2.0], "v2": (2,), "many": [9],
        "i11x": [1, 1], "ones99": [-1, *[1] * 98, 4],
        "evens": np.arange(0, 40, 2), "i2d": np.zeros((2, 1), int),
    }  # fmt: skip
    arrays = {name: np.ones(a) if isinstance(a, tuple) else a for name, a in weights.items()}
    model = parsed(f"refused {signature} {{ {nodes} }}", **arrays)
    axes = {STEPS: {"x": "TBF"}, SIX: {"x": "Babcde"}}.get(signature)
    with pytest.raises(NetworkValidationError, match=message):
        from_onnx(model, axes)


def test_foreign_domains_are_named():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "com.other" : 1]> '
        f"refused {F4} {{ y = com.other.Magic(x) }}"
    )
    with pytest.raises(NetworkValidationError, match="operators of the domain 'com.other'"):
        from_onnx(model)


LETTERS = "ONNX input 'x': expected a different letter for each of its 2 axes, got "
NO_SIZE = r"axis H: expected a size, got 'height'. .* sizes={'x': {'H': 32}}, or say which"


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ("A, B, C, D, E, F", {}, r"ONNX input 'x': expected letters for its 6 axes\. Give them"),
        ("N, K", {}, "ONNX input 'x', axis F: expected a size, got 'K'. Only T and B may change"),
        *(("N, 4", {"axes": {"x": x}}, f"{LETTERS}'{x}'") for x in ("BFC", "BB")),
        ("N, 4", {"axes": "BF"}, "axes: expected a dictionary such as {'x': 'TBF'}, got 'BF'"),
        ("N, 4", {"axes": {"x": 2}}, "axes: expected a letter for each axis, got {'x': 2}"),
        ("N, 4", {"sizes": 4}, "sizes: expected a dictionary such as {'x': {'W': 160}}, got 4"),
        ("N, 4", {"axes": {"z": "BF"}}, "axes: unknown input or output 'z'. Choices are: x, y"),
        (OPEN, {}, NO_SIZE),
        (OPEN, {"sizes": {"z": {"H": 9}}}, "sizes: unknown input 'z'. Choices are: x"),
        (OPEN, {"sizes": {"x": 9}}, "sizes, 'x': expected sizes of axes such as {'W': 160}, got 9"),
        (
            OPEN,
            {"sizes": {"x": {"D": 9}}},
            "sizes, 'x': unknown axis 'D'. Choices are: B, C, H, W, N, height, wid",
        ),
        ("T, B, 3", {"sizes": {"x": {"F": 9}}}, "unknown axis 'F'. Choices are: T, B, a."),
        (OPEN, {"sizes": {"x": {"H": 0}}}, "sizes, 'x', axis 'H': expected an integer >= 1, got 0"),
        (
            OPEN,
            {"sizes": {"x": {"H": 2.0}}},
            "sizes, 'x', axis 'H': expected an integer >= 1, got 2.0",
        ),
        (OPEN, {"sizes": {"x": {"C": 4}}}, "sizes, 'x', axis 'C': the model has 3, got 4"),
    ],
)
def test_axes_and_sizes_that_are_not_clear_are_asked_for(shape, options, message):
    model = parsed(f"refused (float[{shape}] x) => (float[{shape}] y) {{ y = Relu(x) }}")
    with pytest.raises(NetworkValidationError, match=message):
        from_onnx(model, **options)


ONLY = "no layer computes this operator, and of constants only these are computed: Abs, Acos,"


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("c = Tile(a, big)", "(Tile): its constants have more elements than can be computed"),
        ("c = Resize(a, , s)", f"(Resize): {ONLY}"),
        ('d = Constant<value_string = "a">() c = RegexFullMatch(d)', "expected numbers, got val"),
        ("c = OneHot(a, big, a)", f"(OneHot): {ONLY}"),
        ("c = Loop<body = b () => () {}>(big, )", f"(Loop): {ONLY}"),
        ("c = Range(zero, far, one)", "(Range): its constants have more elements than can be"),
        ("c = Add(column, row)", "(Add): its constants have more elements than can be computed"),
        ("c = Gather(long, many)", "(Gather): its constants have more elements than can be"),
        ("c = Cast<to = 8>(a)", "(Cast): no layer computes with texts or complex numbers."),
        ("c0 = Identity(wide) CHAIN c = Identity(c8)", "(Concat): its constants have more"),
        ("z = MatMul(x, huge) c = Add(z, a)", "at most 67108864 elements, got 4294967296"),
        ("b = Tanh(huge) c = MatMul(x, b)", "(Tanh): its constants have more elements than can be"),
        ("c = Clip(column, row)", "(Clip): its constants have more elements than can be"),
        ("c = MatMul(column, deep)", "(MatMul): its constants have more elements than can be"),
        ("b = ConstantOfShape(flat) d = Transpose(b) c = MatMul(d, b)", "(MatMul): its constants"),
        ("b = ConstantOfShape(flat) c = ReduceSum(b, first)", "(ReduceSum): its constants have"),
        ("b = ConstantOfShape(none) c = Trilu(b)", "(Trilu): its constants have more elements"),
        ("c = DequantizeLinear(bytes, line)", "(DequantizeLinear): its constants have more elem"),
        (
            "c = DequantizeLinear<block_size = 1000000000000>(bytes, bytes)",
            "(DequantizeLinear): its constants have more elements",
        ),
        ("b = ConstantOfShape(wanted) c = Tile(a, b)", "(Tile): its constants have more elements"),
        ("b = ConstantOfShape(wanted) c = Unsqueeze(a, b)", "(Unsqueeze): its constants have mor"),
        ("DOUBLED c = Cast<to = 1>(t28)", "(Add): no layer computes with texts."),
    ],
)
def test_what_constants_are_computed_of_is_bounded_before(nodes, message):
    chain = [f"c{i} = Concat<axis = 0>({', '.join([f'c{i - 1}'] * 40)})" for i in range(1, 9)]
    doubled = [f"t{i} = Add(t{i - 1}, t{i - 1})" for i in range(1, 29)]
    held = {
        "a": np.zeros(4, np.float32), "big": np.array([2**62]), "s": np.full(1, 2.0**40, "f4"),
        "zero": np.array(0), "far": np.array(2**62), "one": np.array(1),
        "column": np.zeros((20_000, 1), "f4"), "row": np.zeros((1, 20_000), "f4"),
        "long": np.zeros((1, 20_000), "f4"), "many": np.zeros(20_000, "i8"),
        "wide": np.zeros(4, "f4"), "wanted": [4, 2**30], "deep": np.zeros((20_000, 1, 1), "f4"),
        "bytes": np.zeros((20_000, 1), "i1"), "line": np.ones(20_000, "f4"), "first": [0],
        "flat": [0, 2**28], "none": [0, 2**15, 2**15], "t0": np.array(["text"]),
    }  # fmt: skip
    nodes = nodes.replace("CHAIN", " ".join(chain)).replace("DOUBLED", " ".join(doubled))
    nodes = f"huge = ConstantOfShape(wanted) {nodes}"
    model = parsed(f"bomb {F4} {{ {nodes} y = Mul(x, c) }}", **held)
    with takes_less_than(200e6), pytest.raises(NetworkValidationError, match=re.escape(message)):
        from_onnx(model)


def _external(tmp_path, **place):
    """Write a model whose matrix lies in another file."""
    model = model_of(f"out {F4} {{ y = MatMul(x, W) }}", W=(4, 3))
    (tensor,) = model.graph.initializer
    (tmp_path / "weights").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    for key, value in {"location": "weights", **place}.items():
        tensor.external_data.add(key=key, value=str(value))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"location": "../weights"}, "tensor 'W' lies in '../weights', not beside the model"),
        ({"location": "/etc/passwd"}, "tensor 'W' lies in '/etc/passwd', not beside the model"),
        ({"location": "fifo"}, "/fifo': expected a file, got a FIFO"),
        ({"length": 10**15}, "tensor 'W' is not in 'weights', or others are"),
        ({"offset": -8}, "tensor 'W' is not in 'weights', or others are"),
    ],
)
def test_weights_in_other_files_lie_beside_the_model(tmp_path, place, message):
    os.mkfifo(tmp_path / "fifo")
    assert load_onnx(_external(tmp_path)).parameters_size == 15
    with pytest.raises(FileFormatError, match=re.escape(message)):
        load_onnx(_external(tmp_path, **place))


def test_weights_in_other_files_are_as_many_as_the_model_says(tmp_path):
    text = "cannot be read as a model|expected as many numbers"  # which of them depends on onnx
    with pytest.raises((FileFormatError, NetworkValidationError), match=text):
        load_onnx(_external(tmp_path, offset=8))


def test_the_bytes_of_another_file_are_read_once(tmp_path):
    path = _external(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.append(model.graph.initializer[0])
    model.graph.initializer[1].name = "V"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(FileFormatError, match="tensor 'V' is not in 'weights', or others are"):
        load_onnx(path)


@pytest.mark.parametrize("kind", ["chain", "outputs", "constants"])
def test_large_models_are_read_in_linear_time(kind):
    """Function calls are counted, not seconds, which depend on the machine."""

    step, first, last = {
        "chain": ("t{} = Relu(t{})", "t0 = Relu(x)", "y = Identity(t{})"),
        "outputs": ("t{} = Relu(x)", "", "y = Identity(t{})"),
        "constants": ("t{} = Neg(t{})", "t0 = Neg(c)", "y = Mul(x, t{})"),
    }[kind]

    def calls(size):
        nodes = [first, *(step.format(i + 1, i) for i in range(size)), last.format(size)]
        given = [f"t{i + 1}" for i in range(size)] if kind == "outputs" else ["y"]
        outputs = ", ".join(f"float[N, 4] {name}" for name in given)
        model = parsed(
            f"large (float[N, 4] x) => ({outputs}) {{ {' '.join(nodes)} }}", c=np.ones(4)
        )
        for node in model.graph.node:
            node.name = "same"
        importer = Importer(model)
        profile = cProfile.Profile()
        profile.runcall(importer.read)
        return sum(entry.callcount for entry in profile.getstats())

    calls(1)  # what is imported and cached
    assert calls(200) < 2.5 * calls(100)


def test_sizes_of_axes_that_a_model_leaves_open_are_given():
    model = model_of(
        f"""open (float[{OPEN}] x) => (float[N, 2] y) {{
            c = Conv <strides = [2, 2]> (x, K)
            m = ReduceMean <keepdims = 0> (c, axes)
            y = MatMul(m, W)
        }}""",
        K=(4, 3, 3, 3), W=(4, 2), axes=[2, 3],
    )  # fmt: skip
    x = numbers(2, 3, 9, 7)
    for given in ({"H": 9, "W": 7}, {"height": 9, "width": np.int64(7)}):
        net = imported(model, sizes={"x": given})
        np.testing.assert_allclose(net.predict(nhwc(x))[0], run(model, x), 1e-4, 1e-5)
    assert from_onnx(model, sizes={"x": {"H": 9, "W": 7, "B": 2}}).input_names == ("default",)


def test_outputs_are_chosen_by_their_names():
    text = f"""two {F4} {{
        a = MatMul(x, W)
        h_b = Tanh(a)
        y = Softmax(h_b)
        z = RandomNormalLike(y)
    }}"""
    model, x = model_of(text, W=(4, 4)), numbers(3, 4)
    net = imported(model, outputs=["h_b", "y"])
    model.graph.output.insert(0, onnx.helper.make_empty_tensor_value_info("h_b"))
    np.testing.assert_allclose(net.predict(x[None], "h_b.outputs.default")[0], run(model, x), 1e-5)
    found = net.predict(x[None], "y.outputs.default")
    np.testing.assert_allclose(found.sum(-1), 1, 1e-5)
    np.testing.assert_array_equal(from_onnx(model, outputs=["x"]).predict(x[None])[0], x)
    with pytest.raises(NetworkValidationError, match="outputs: unknown tensor 'h'. Choices are: "):
        from_onnx(model, outputs=["h"])
    for wrong in ("y", 3, [3]):
        text = re.escape(f"outputs: expected a list of names, got {wrong!r}.")
        with pytest.raises(NetworkValidationError, match=text):
            from_onnx(model, outputs=wrong)
    with pytest.raises(NetworkValidationError, match="outputs: expected the name of a tensor, got"):
        from_onnx(model, outputs=[])


@pytest.mark.parametrize(
    ("size", "text"),
    [(32749, "T"), (65521, "B"), (32749 * 65521, "T*B"), (2 * 65521, "2*B"), (32748, "T-1"),
     (4 * 32749 + 3, "4*T+3"), (64, "64"), (1500, "1500"), (100_000, "100000")],
)  # fmt: skip
def test_sizes_in_messages_are_those_of_the_model(size, text):
    model = model_of(f"one {F4} {{ y = Relu(x) }}")
    assert Importer(model).shown([size]) == f"({text})"


def test_a_size_of_minus_one_is_an_open_one():
    model = model_of(f"""g {F4} {{
        batch = Shape <end = 1> (x)
        size = Concat <axis = 0> (batch, all)
        y = Reshape(x, size)
    }}""", all=[-1])  # fmt: skip
    x = numbers(3, 4)
    expected = run(model, x)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    np.testing.assert_array_equal(from_onnx(model).predict(x[None])[0], expected)


def test_a_name_of_a_file_is_no_model():
    text = "^from_onnx: expected an onnx.ModelProto, got 'model.onnx'. load_onnx reads files.$"
    with pytest.raises(NetworkValidationError, match=text):
        from_onnx("model.onnx")


# -- integers and older versions --------------------------------------------------------------


def older(opset, x, nodes, **arrays):
    """Return a model of some version for data like x, whose result has as many axes."""
    kind = x.dtype.name.replace("float32", "float")
    sizes, letters = ", ".join(map(str, x.shape[1:])), ", ".join("ABCD"[: x.ndim - 1])
    text = f"old ({kind}[N, {sizes}] x) => ({kind}[N, {letters}] y) {{ {nodes} }}"
    return parsed(text, opset, **arrays)


def predicted(model, x, axes):
    there, back = (nhwc, nchw) if "C" in axes else (with_steps, without_steps)
    return back(imported(model, {"x": axes}).predict(there(x).astype(np.float32)))


VECTORS, CLASSES = numbers(4, 2, 3), np.array([[-7, 5, 9, 1], [3, 7, -1, -9]])
C, D = numbers(2), numbers(2, 3)
#: What nodes of older models use.
CONSTANTS = {
    "plane": numbers(1, 2, 3), "steep": 200 * numbers(1, 2, 3), "row": D, "cube": numbers(4, 2, 3),
    "signs": np.array([-7, 7, -8]),
    "d": np.array([2, -2, 3]), "odd": np.array([-7, 2, 1]), "large": np.array([2**16, 9, 1], "i4"),
    "third": np.float32([1 / 3]), "q": np.arange(6, dtype=np.int8).reshape(2, 3),
    "scale": np.float32([0.5, 0.25]), "twice": np.float32([1, 1, 2, 3]), "two": [2],
    "more": np.float32([1, 1, 1.6, 1.3]), "part": np.float32([1, 1, 0.6, 1.3]),
    "v": np.arange(1, 5, dtype=np.float32), "pair": C, "k": D[None], "one": np.int64(1),
    "pairs": np.array([[0, 1], [1, 2]]), "last": [2], "far": [2**40],
    "first": [0], "blocks": np.float32([[1, 2], [3, 4]]), "none": np.zeros(0, np.int64),
}  # fmt: skip


@pytest.mark.parametrize(
    ("opset", "x", "axes", "nodes"),
    [
        # A softmax was one over all axes from one on, which was the second by default.
        (11, numbers(4, 2, 3), "BAF", "y = Softmax(x)"),
        (11, numbers(4, 5), "BF", "y = Softmax(x)"),
        (11, numbers(4, 6, 1), "BFA", "y = Softmax(x)"),
        *(
            (opset, numbers(3, 2, 5, 7), "BCHW", f'y = {kind} <mode = "{mode}"> (x, {scales})')
            for opset, kind, scales in (
                (9, "Upsample", "twice"), (9, "Upsample", "more"), (10, "Resize", "twice"),
                (10, "Resize", "part"),
            )
            for mode in ("nearest", "linear")
        ),
        (9, VECTORS, "BCL", "p = Softmax(plane) y = Mul(x, p)"),
        (9, VECTORS, "BCL", "p = LogSoftmax(steep) y = Mul(x, p)"),
        (11, VECTORS, "BCL", "u = Unsqueeze <axes = [0]> (row) y = Mul(x, u)"),
        (11, VECTORS, "BCL", "p = ReduceSum <axes = [0], keepdims = 0> (cube) y = Mul(x, p)"),
        (13, VECTORS, "BCL", "h = Div(signs, d) f = Cast <to = 1> (h) y = Mul(x, f)"),
        (13, VECTORS, "BCL", "h = ReduceMean(odd) f = Cast <to = 1> (h) y = Mul(x, f)"),
        (13, VECTORS, "BCL", "h = Mul(large, large) f = Cast <to = 1> (h) y = Mul(x, f)"),
        (13, VECTORS, "BCL", "b = Cast <to = 10> (third) f = Cast <to = 1> (b) y = Mul(x, f)"),
        (19, VECTORS, "BCL", "b = DequantizeLinear <axis = 0> (q, scale) y = Add(x, b)"),
        (21, VECTORS, "BCL", "b = DequantizeLinear <axis = 1, block_size = 2> (q, blocks) "
         "y = Add(x, b)"),
        (21, VECTORS, "BCL", "s = ScatterND(row, pairs, pair) y = Add(x, s)"),
        (21, VECTORS, "BCL", "a, b = Split <axis = 2, num_outputs = 2> (plane) y = Mul(x, b)"),
        (21, numbers(4, 2, 7), "BCL", "y = Slice(x, last, far, last, two)"),
        (21, numbers(1, 2, 40), "BCL", "y = Slice(x, first, far, last, two)"),
        (21, VECTORS, "BCL", "s = Shape(x) e = Expand(row, s) y = Concat <axis = 1> (e, x)"),
        (21, VECTORS, "BCL", "s = CumSum <reverse = 1, exclusive = 1> (row, one) y = Add(x, s)"),
        (21, VECTORS, "BCL", "s = ConstantOfShape <value = float[1] {2.0}> (none) y = Mul(x, s)"),
        # Integers are divided towards zero.
        (13, CLASSES, "BF", "y = Div(x, two)"),
        (13, CLASSES, "BF", "a = Mul(x, x) b = Add(a, two) y = Div(x, b)"),
        (13, CLASSES, "BF", "y = Div(two, x)"),
        (13, CLASSES, "BF", "a = Sub(x, two) b = Cast <to = 6> (a) c = Cast <to = 7> (b) "
         "y = Div(c, two)"),
        (13, CLASSES, "BF", "f = Cast <to = 1> (x) a = Div(f, v) b = Greater(a, v) "
         "y = Cast <to = 7> (b)"),
        (13, CLASSES, "BF", "a = ArgMax <axis = 1> (x) y = Div(a, two)"),
    ],
)  # fmt: skip
def test_operators_mean_what_the_version_of_the_model_says(opset, x, axes, nodes):
    model = older(opset, x, nodes, **CONSTANTS)
    np.testing.assert_allclose(predicted(model, x, axes), run(model, x), 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("y = Add <broadcast = 1, axis = 1> (x, pair)", lambda x: x + C[:, None]),
        ("y = Sub <broadcast = 1, axis = -2> (x, pair)", lambda x: x - C[:, None]),
        ("y = Mul <broadcast = 1> (x, row)", lambda x: x * D),
        ("y = PRelu(x, pair)", lambda x: np.where(x > 0, x, C[:, None] * x)),
        ("e = Mul <broadcast = 1, axis = 0> (row, pair) y = Sub <broadcast = 1> (x, e)",
         lambda x: x - D * C[:, None]),
        ("m = ReduceMax <axes = [2]> (x) s = Squeeze <axes = [2]> (m) "
         "y = Add <broadcast = 1, axis = 0> (x, s)", lambda x: x + x.max(axis=2, keepdims=True)),
        ("m = ReduceMax <axes = [2]> (x) s = Squeeze <axes = [2]> (m) "
         "y = Sub <broadcast = 1, axis = 0> (k, s)", lambda x: D - x.max(axis=2, keepdims=True)),
    ],
)  # fmt: skip
def test_broadcasting_before_opset_7_begins_at_an_axis(nodes, expected):
    """ONNX Runtime has none of these versions."""
    found = predicted(older(6, VECTORS, nodes, **CONSTANTS), VECTORS, "BCL")
    np.testing.assert_allclose(found, expected(VECTORS), 1e-5, 1e-6)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_has_a_mode_since_opset_28(mode):
    """ONNX Runtime has none of this version."""
    nodes = f'd = SpaceToDepth <blocksize = 2, mode = "{mode}"> (x) ' \
            f'y = DepthToSpace <blocksize = 2, mode = "{mode}"> (d)'  # fmt: skip
    x = numbers(3, 2, 4, 6)
    np.testing.assert_array_equal(predicted(older(28, x, nodes), x, "BCHW"), x)


@pytest.mark.parametrize(
    ("opset", "kind", "nodes", "message"),
    [
        (13, "int64", "y = Cast <to = 2> (x)", "no layer wraps int64 around to uint8. Leave"),
        (13, "int64", "y = Cast <to = 5> (x)", "no layer wraps int64 around to int16. Leave"),
        (14, "uint16", "y = Add(x, x)", "no layer wraps around as uint16 does. Cast to"),
        (14, "uint8", "y = Add(x, x)", "no layer wraps around as uint8 does. Cast to float32"),
        (13, "int64", "y = Pow(two, x)", "to the power of constants >= 0. Cast to float32"),
        (13, "int32", "y = ReduceMean <axes = [1]> (x)", "no layer rounds means of integers. Cast"),
        (18, "f4", "y = ReduceSumSquare <noop_with_empty_axes = 1> (x)", "expected axes: over"),
        (6, "f4", "y = Dropout(x)", "got training_mode=1 .in older models is_test=0"),
        (6, "f4", "y = BatchNormalization(x, v, v, v, v)", "Export it in eval mode"),
        (9, "f4", "y, m, n, s, t = BatchNormalization(x, v, v, v, v)", "outputs of statistics"),
        (13, "f4", ", y = LSTM(x, v, v)", "ONNX node 'y' .LSTM.: expected .T, B, features."),
        (13, "f4", "y = PRelu(x)", "its inputs and attributes do not fit together"),
        (13, "f4", "c = Constant() y = Add(x, c)", "'c' .Constant.: its inputs and attributes"),
    ],
)  # fmt: skip
def test_what_integers_and_older_versions_mean_otherwise_is_refused(opset, kind, nodes, message):
    with pytest.raises(NetworkValidationError, match=message):
        from_onnx(older(opset, np.zeros((1, 4), kind), nodes, **CONSTANTS))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"dims": [4]}, r"'w': expected as many numbers as its shape \(4,\) says, .*got others"),
        ({"dims": [4], "raw_data": b"123"}, "Export the model again"),
        ({"dims": [4], "data_type": 99}, "got others .99."),
        ({"dims": [1], "data_type": 0}, "UNDEFINED"),
        ({"dims": [4], "data_location": 1}, "read it by load_onnx"),
        ({"dims": [4], "data_type": 14, "raw_data": bytes(32)}, "expected real numbers, got compl"),
    ],
)
def test_damaged_tensors_are_named(damage, message):
    model = model_of("damaged (float[N, 4] x) => (float[N, M] y) { y = Add(x, w) }", w=(4,))
    tensor = onnx.TensorProto(**{"name": "w", "data_type": 1, **damage})
    model.graph.initializer[0].CopyFrom(tensor)
    with pytest.raises(NetworkValidationError, match=message):
        from_onnx(model)


def test_an_output_may_be_called_as_the_layer_of_the_data():
    model = model_of("named (float[N, 4] x) => (float[N, M] y) { Input = Relu(x) y = Neg(Input) }")
    net, x = from_onnx(model, outputs=["Input"]), numbers(3, 4)
    np.testing.assert_allclose(net.predict(x[None])[0], np.maximum(x, 0))
