"""What has a counterpart in ONNX: tables for both directions."""

from __future__ import annotations

from typing import Any

from brainstorm.optree import Variable, get_operator
from brainstorm.optree.activations import SELU_ALPHA, SELU_SCALE
from brainstorm.optree.nodes import build
from brainstorm.optree.text import as_formula

#: Element-wise operator of op-trees to operator; those of one operand.
FUNCTIONS = {
    "abs": "Abs", "arccos": "Acos", "arccosh": "Acosh", "arcsin": "Asin", "arcsinh": "Asinh",
    "arctan": "Atan", "arctanh": "Atanh", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp",
    "floor": "Floor", "log": "Log", "neg": "Neg", "relu": "Relu", "rint": "Round", "sgn": "Sign",
    "sig": "Sigmoid", "sin": "Sin", "sinh": "Sinh", "softplus": "Softplus", "sqrt": "Sqrt",
    "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip

#: Those of two operands.
ARITHMETIC = {
    "add": "Add", "div": "Div", "maximum": "Max", "minimum": "Min", "mul": "Mul", "pow": "Pow",
    "sub": "Sub",
}  # fmt: skip

#: Those whose values are 0 and 1; in ONNX they are booleans.
QUESTIONS = {
    "and": "And", "eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "isnan": "IsNaN",
    "le": "LessOrEqual", "lt": "Less", "not": "Not", "or": "Or",
}  # fmt: skip

#: Function that reduces axes to operator.
REDUCTIONS = {
    "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "logsumexp": "ReduceLogSumExp",
    "prod": "ReduceProd",
}  # fmt: skip

#: Type of a pooling over time to operator.
POOLINGS = {"avg": "ReduceMean", "max": "ReduceMax", "sum": "ReduceSum"}

#: Loss to the operator that makes predictions of its input `default`, and attributes. They do not
#: depend on its other inputs.
PREDICTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("CTC", "SoftmaxCE"), ("Softmax", {"axis": -1})),
    "SigmoidCE": ("Sigmoid", {}),
    **dict.fromkeys(("HingeLoss", "HuberLoss", "SquaredError"), ("Identity", {})),
}

#: Activation to operator and attributes; others are formulas.
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "sigmoid": ("Sigmoid", {}),
    "rel": ("Relu", {}),
    "tanh": ("Tanh", {}),
    "el": ("Elu", {"alpha": 1.0}),
    "softplus": ("Softplus", {}),
    "leaky_rel": ("LeakyRelu", {"alpha": 0.01}),
    "gelu": ("Gelu", {"approximate": b"none"}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "exp": ("Exp", {}),
    "selu": ("Selu", {"alpha": SELU_ALPHA, "gamma": SELU_SCALE}),
    "mish": ("Mish", {}),
    "hard_swish": ("HardSwish", {}),
}

#: Activation to its name in recurrent operators. Those with non-default arguments are left out,
#: because runtimes disagree about which argument belongs to which function.
GATED_ACTIVATIONS = {
    "sigmoid": "Sigmoid", "rel": "Relu", "tanh": "Tanh", "linear": "Affine", "el": "Elu",
    "leaky_rel": "LeakyRelu", "softplus": "Softplus",
}  # fmt: skip

#: Recurrent layer to operator, its gates in the order of ONNX, and one letter per function: g is
#: the layer's activation, f the sigmoid.
RECURRENT = {
    "Recurrent": ("RNN", "_", "g"),
    "Gru": ("GRU", "zrh", "fg"),
    "Lstm": ("LSTM", "iofz", "fgg"),
}

#: Normalization of images to operator, the arrays that are its inputs, and the attribute of each
#: option. What a model leaves out has the same default here.
NORMALIZATIONS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "BatchNorm": (
        "BatchNormalization",
        ("gamma", "beta", "internals.running_mean", "internals.running_var"),
        {"epsilon": "epsilon", "decay": "momentum"},
    ),
    "GroupNorm": (
        "GroupNormalization", ("gamma", "beta"), {"epsilon": "epsilon", "num_groups": "num_groups"},
    ),
    "LocalResponseNormalization": (
        "LRN", (), {"size": "size", "alpha": "alpha", "beta": "beta", "k": "bias"},
    ),
}  # fmt: skip


def formula_of(name: str, *operands: str) -> str:
    """Return an operator of op-trees as the text of a formula: ``'x + y'``."""
    variables = tuple(Variable((), name=operand) for operand in operands)
    return as_formula(build(name, variables[: get_operator(name).arity]))
