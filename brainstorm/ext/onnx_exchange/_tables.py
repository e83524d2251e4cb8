"""What has a counterpart in ONNX: tables for both directions."""

from __future__ import annotations

from typing import Any

from brainstorm.optree.activations import SELU_ALPHA, SELU_SCALE

#: Function of elements to operator.
FUNCTIONS = {
    "abs": "Abs", "cos": "Cos", "erf": "Erf", "floor": "Floor", "log": "Log", "rint": "Round",
    "sgn": "Sign", "sin": "Sin", "sqrt": "Sqrt",
}  # fmt: skip

#: Function that reduces axes to operator.
REDUCTIONS = {
    "sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "logsumexp": "ReduceLogSumExp",
    "prod": "ReduceProd",
}  # fmt: skip

#: Type of a pooling over time to operator.
POOLINGS = {"avg": "ReduceMean", "max": "ReduceMax", "sum": "ReduceSum"}

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
