"""Random ONNX graphs: each node is computed by ONNX Runtime when it is drawn, and stays if it can.

Sizes say what an axis is: B and T are primes that no other axis has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

__all__ = ["B", "Graph", "T", "draw_graph", "is_moderate", "run"]

B, T = 23, 29

#: Inputs as the importer names their axes, with the sizes of the others.
LAYOUTS = {
    "BF": (6,),
    "BCL": (4, 6),
    "BCHW": (4, 6, 6),
    "BHWC": (6, 6, 4),
    "TBF": (6,),
    "BTF": (6,),
}

UNARY = ["Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Log", "Erf", "Reciprocal", "Elu",
         "LeakyRelu", "Softplus", "HardSigmoid", "Identity", "Selu", "Floor", "Ceil", "Sign", "Sin",
         "Cos", "Round", "HardSwish", "Mish", "Gelu", "Softsign", "ThresholdedRelu",
         "Celu"]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "PRelu"]
QUESTIONS = ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]
REDUCTIONS = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"]


def run(model, feeds):
    """Return what ONNX Runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"]).run(None, feeds)


@dataclass
class Graph:
    """A graph in the making.

    Attributes:
        rnd: Draws everything.
        opset: The version of the operators.
        letters: Which axis of the input is which.
        sizes: The shape of the input.
        values: Name of a tensor to its value, for the input that was drawn.
        nodes: The nodes.
        constants: The constants.
        dependent: The tensors that depend on the input.
    """

    rnd: np.random.RandomState
    opset: int
    letters: str
    sizes: tuple[int, ...]
    values: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    dependent: set[str] = field(default_factory=lambda: {"x"})

    def pick(self, *choices):
        return choices[self.rnd.randint(len(choices))]

    def chance(self, probability):
        return bool(self.rnd.uniform() < probability)

    def numbers(self, *shape):
        return self.rnd.normal(size=shape).astype(np.float32)

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def tensor(self, kind=np.float32):
        """Return a tensor, mostly one of the last that depend on the input."""
        known = [name for name, x in self.values.items() if x.dtype == kind]
        if self.chance(0.9):
            known = [name for name in known if name in self.dependent] or known
        return known[-1 - min(self.rnd.geometric(0.6) - 1, len(known) - 1)]

    def axis(self, name):
        rank = self.values[name].ndim
        return int(self.rnd.randint(-rank, rank))

    def with_axes(self, kind, tensor, axes, since, **options):
        """Return a node with axes, as an attribute before an opset, and as an input since."""
        if self.opset >= since:
            return node(kind, [tensor, self.constant(np.array(axes, np.int64))], **options)
        return node(kind, [tensor], axes=axes, **options)

    def add(self, made):
        """Add a node if ONNX Runtime computes it and there is something to compute with."""
        made.output[:] = [f"t{len(self.nodes)}"]
        used = {name: {**self.values, **self.constants}[name] for name in made.input if name}
        inputs = [helper.make_tensor_value_info(name, code(x), x.shape) for name, x in used.items()]
        outputs = [helper.make_empty_tensor_value_info(made.output[0])]
        try:
            (value,) = run(self._model([made], inputs, outputs, {}), used)
        except Exception:  # whatever it does not like
            return False
        is_fine = 0 < value.size < 20_000 and (value.dtype.kind != "f" or is_moderate(value))
        if is_fine:
            self.values[made.output[0]] = value
            self.nodes.append(made)
            if made.op_type != "Shape" and self.dependent & set(made.input):
                self.dependent.add(made.output[0])
        return is_fine

    def model(self, output, dims):
        """Return the model with an output, whose input has given sizes, or names of such."""
        info = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
        target = helper.make_tensor_value_info(output, code(self.values[output]), None)
        needed, nodes = {output}, []
        for made in reversed(self.nodes):
            if needed & set(made.output):
                needed.update(made.input)
                nodes.append(made)
        return self._model(nodes[::-1], [info], [target], self.constants)

    def _model(self, nodes, inputs, outputs, constants):
        held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
        graph = helper.make_graph(nodes, "random", inputs, outputs, held)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def is_moderate(value):
    """Return whether all numbers are some, and none of them large."""
    return bool(np.isfinite(value).all() and np.abs(value).max() < 100)


def code(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def node(kind, inputs, **options):
    return helper.make_node(kind, inputs, ["y"], **options)


# -- one function for each family of nodes --------------------------------------------------------


def unary(g):
    kind, options = g.pick(*UNARY), {}
    if kind in ("Elu", "LeakyRelu", "HardSigmoid", "Celu") and g.chance(0.5):
        options["alpha"] = g.pick(0.1, 0.5, 2.0)
    return node(kind, [g.tensor()], **options)


def binary(g, kinds=BINARY):
    first = g.tensor()
    if g.chance(0.4):
        second = g.tensor()
    else:
        shape = [
            size if g.chance(0.6) and size not in (B, T) else 1 for size in g.values[first].shape
        ]
        second = g.constant(g.numbers(*shape[g.rnd.randint(len(shape) + 1) :]))
    kind, options = g.pick(*kinds), {}
    pair = [first, second]
    if g.opset < 7:
        options = {"broadcast": 1}
        if g.chance(0.5):
            options["axis"] = int(g.rnd.randint(len(g.values[first].shape)))
    elif kind not in ("PRelu", "Pow") and g.chance(0.3):
        pair.reverse()
    return node(kind, pair, **options)


def choice(g):
    if bool not in [x.dtype for x in g.values.values()]:
        return binary(g, QUESTIONS)
    condition = g.tensor(np.bool_)
    if g.chance(0.2):
        return node("Not", [condition])
    if g.chance(0.2):
        return node("Cast", [condition], to=TensorProto.FLOAT)
    others = [g.tensor(), g.constant(g.numbers(*g.pick((), (1,))))]
    g.rnd.shuffle(others)
    return node("Where", [condition, *others])


def reduction(g):
    tensor, kind = g.tensor(), g.pick(*REDUCTIONS)
    axes = sorted({g.axis(tensor) for _ in range(g.pick(1, 1, 2))})
    since = 13 if kind == "ReduceSum" else 18
    return g.with_axes(kind, tensor, axes, since, keepdims=g.pick(0, 1))


def softmax(g):
    tensor = g.tensor()
    options = {"axis": g.axis(tensor)} if g.chance(0.8) else {}
    return node(g.pick("Softmax", "LogSoftmax"), [tensor], **options)


def product(g):
    first, second = g.tensor(), g.tensor()
    shape = g.values[first].shape
    if g.chance(0.5):
        return node("MatMul", [first, second])
    if len(shape) == 2 and g.chance(0.5):
        return node("Gemm", [first, g.constant(g.numbers(5, shape[-1])), g.constant(g.numbers(5))],
                    transB=1, alpha=0.5)  # fmt: skip
    lead = g.pick((), (), (1,), shape[1:-2])
    return node("MatMul", [first, g.constant(g.numbers(*lead, shape[-1], g.pick(3, 4)))])


def window(g):
    tensor = g.tensor()
    shape = g.values[tensor].shape
    axes = len(shape) - 2
    kernel, strides = [g.pick(1, 2, 3) for _ in range(axes)], [g.pick(1, 1, 2)] * axes
    pads = (
        [g.pick(0, 0, 1) for _ in range(2 * axes)] if g.chance(0.3) else [g.pick(0, 1)] * 2 * axes
    )
    options = {"strides": strides, "pads": pads}
    kind = g.pick("Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool",
                  "ConvTranspose")  # fmt: skip
    if kind.startswith("Global"):
        return node(kind, [tensor])
    if kind.endswith("Pool"):
        if kind == "AveragePool":
            options["count_include_pad"] = g.pick(0, 1)
        if g.opset >= 10:
            options["ceil_mode"] = g.pick(0, 0, 1)
        return node(kind, [tensor], kernel_shape=kernel, **options)
    group = g.pick(1, 1, 2)
    filters = [4, shape[1] // group] if kind == "Conv" else [shape[1], 2]
    weights = [g.constant(g.numbers(*filters, *kernel))]
    weights += [g.constant(g.numbers(4 if kind == "Conv" else 2 * group))] * g.pick(0, 1)
    return node(kind, [tensor, *weights], group=group, **options)


def normalization(g):
    tensor, channels = g.tensor(), None
    shape = g.values[tensor].shape
    channels = shape[1]
    kind = g.pick("BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN",
                  "GroupNormalization", "LpNormalization", "MeanVarianceNormalization")  # fmt: skip
    if kind in ("LRN", "LpNormalization", "MeanVarianceNormalization"):
        options = {"LRN": {"size": g.pick(1, 3)}, "LpNormalization": {"axis": g.axis(tensor)}}
        return node(kind, [tensor], **options.get(kind, {}))
    if kind == "LayerNormalization":
        axis = g.axis(tensor)
        arrays, options = [g.numbers(*shape[axis:])], {"axis": axis}
    else:
        count = 4 if kind == "BatchNormalization" else 2
        arrays = [np.abs(g.numbers(channels)) + 0.1 for _ in range(count)]
        options = {"num_groups": g.pick(1, 2)} if kind == "GroupNormalization" else {}
    return node(kind, [tensor, *map(g.constant, arrays)], **options)


def rearrangement(g):
    tensor = g.tensor()
    shape = g.values[tensor].shape
    kind = g.pick("Transpose", "Transpose", "Reshape", "Reshape", "Flatten", "Squeeze", "Unsqueeze",
                  "Expand", "Tile")  # fmt: skip
    if kind == "Transpose":
        return node(kind, [tensor], perm=g.rnd.permutation(len(shape)).tolist())
    if kind == "Flatten":
        return node(kind, [tensor], axis=g.pick(0, 1, 1, 1, 2, -1 if g.opset >= 11 else 1))
    if kind in ("Squeeze", "Unsqueeze"):
        return g.with_axes(kind, tensor, [g.axis(tensor) if g.opset >= 11 else 1], 13)
    if kind in ("Tile", "Expand"):
        counts = [g.pick(1, 1, 2) if s not in (B, T) else 1 for s in shape]
        return node(kind, [tensor, g.constant(np.array(counts, np.int64))])
    wanted = g.pick([0, -1], [0, 2, -1], [0, -1, shape[-1]], [-1, shape[-1]], [0, *shape[1:], 1],
                    [0, 1, *shape[1:]], [-1, *shape[2:]], [0, *shape[1:][::-1]])  # fmt: skip
    return node(kind, [tensor, g.constant(np.array(wanted, np.int64))])


def part(g):
    tensor, kind = g.tensor(), g.pick("Slice", "Slice", "Gather", "Concat", "Pad", "Split")
    axis = g.axis(tensor)
    size = g.values[tensor].shape[axis]
    if kind == "Concat":
        return node(kind, [tensor, g.tensor()], axis=axis if g.opset >= 11 else abs(axis))
    if kind == "Gather":
        indices = g.rnd.randint(0, size, g.pick((), (2,), (1,)))
        return node(kind, [tensor, g.constant(np.asarray(indices, np.int64))], axis=axis)
    if kind == "Pad":
        rank = g.values[tensor].ndim
        pads = np.array([g.pick(0, 0, 1) for _ in range(2 * rank)], np.int64)
        pads[[0, rank]] = 0
        mode = g.pick("constant", "constant", "reflect", "edge")
        if g.opset >= 11:
            return node(kind, [tensor, g.constant(pads)], mode=mode)
        return node(kind, [tensor], pads=pads.tolist(), mode=mode)
    numbers = [g.rnd.randint(-size, size), g.pick(size, -1, 2**31, g.rnd.randint(size + 1)), axis,
               g.pick(1, 1, 1, 2, -1)]  # fmt: skip
    if g.opset < 10:
        return node("Slice", [tensor], starts=numbers[:1], ends=numbers[1:2], axes=[abs(axis)])
    return node("Slice", [tensor, *(g.constant(np.array([n], np.int64)) for n in numbers)])


def resizing(g):
    tensor = g.tensor()
    scales = [1.0 if s in (B, T) else g.pick(1.0, 1.0, 2.0, 1.5) for s in g.values[tensor].shape]
    options = {"mode": g.pick("nearest", "linear"),
               "coordinate_transformation_mode": g.pick("asymmetric", "half_pixel"),
               "nearest_mode": g.pick("floor", "round_prefer_floor")}  # fmt: skip
    return node("Resize", [tensor, "", g.constant(np.float32(scales))], **options)


def arithmetic_of_shapes(g):
    """Reshape by sizes that the graph computes."""
    tensor = g.tensor()
    shape = g.values[tensor].shape
    if len(shape) < 2 or not g.add(node("Shape", [tensor])):
        return node("Identity", [tensor])
    sizes = list(g.values)[-1]
    kind, other = g.pick(("Mul", 2), ("Div", 2), ("Sub", 0), ("Div", 1))
    parts = []
    for place in range(len(shape)):
        if not g.add(node("Gather", [sizes, g.constant(np.array([place]))])):
            return node("Identity", [tensor])
        parts.append(list(g.values)[-1])
    if g.add(node(kind, [parts[-1], g.constant(np.array([other]))])):
        parts[-1] = list(g.values)[-1]
    g.add(node("Concat", [*parts[:1], *parts[2:], g.constant(np.array([-1]))], axis=0))
    return node("Reshape", [tensor, list(g.values)[-1]])


def whole(g):
    """Compute with whole numbers that are constants."""
    kind = g.pick(np.int64, np.int32, np.int8, np.uint8)
    names = [name for name, x in g.values.items() if x.dtype == kind]
    if not names or g.chance(0.2):
        array = g.rnd.randint(0 if kind == np.uint8 else -99, 99, (g.pick(1, 2), g.pick(1, 6)))
        names = [name := g.constant(array.astype(kind))]
        g.values[name] = g.constants[name]
    first, second = g.pick(*names), g.pick(*names)
    if g.chance(0.3):
        return node(
            "Cast", [first], to=g.pick(TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64)
        )
    if g.chance(0.4):
        kind = g.pick("ReduceMean", "ReduceSum", "ReduceMax", "ReduceProd")
        return g.with_axes(kind, first, [0], 13 if kind == "ReduceSum" else 18)
    return node(g.pick("Add", "Sub", "Mul", "Div", "Max", "Mod", "Pow"), [first, second])


FAMILIES = [
    unary, unary, binary, binary, binary, choice, reduction, softmax, product, window, window,
    normalization, rearrangement, rearrangement, part, part, resizing, arithmetic_of_shapes,
    whole, whole,
]  # fmt: skip


def draw_graph(seed, batch=B):
    """Return a graph of some nodes for so many sequences."""
    rnd = np.random.RandomState(seed)
    letters = list(LAYOUTS)[rnd.randint(len(LAYOUTS))]
    lead = {"B": batch, "T": T}
    features = iter(LAYOUTS[letters])
    sizes = tuple(lead[x] if x in lead else next(features) for x in letters)
    graph = Graph(rnd, int(rnd.choice([7, 9, 11, 13, 17, 18, 21])), letters, sizes)
    graph.values["k"] = graph.constants["k"] = graph.numbers(2, 6)
    graph.values["x"] = graph.numbers(*sizes)
    wanted = rnd.randint(1, 7)
    for _ in range(30):
        if len(graph.nodes) >= wanted:
            break
        family = FAMILIES[rnd.randint(len(FAMILIES))]
        try:
            made = family(graph)
        except (IndexError, ValueError):
            continue  # it needs more axes than there are
        graph.add(made)
    return graph
