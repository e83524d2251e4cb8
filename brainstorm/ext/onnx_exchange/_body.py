"""Lists of ONNX nodes under construction: the main graph, and the bodies of functions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from brainstorm.optional import require

#: Runtimes in use do not support newer versions; functions with metadata need IR 10.
OPSET, IR_VERSION = 21, 10

#: The producer of models and domain of the functions that stand for whole layers, and the key of
#: the metadata of these.
DOMAIN, ENTRY = "brainstorm", "brainstorm.layer"

#: Types of elements, as numbered by TensorProto.
FLOAT, INT64, BOOL = 1, 7, 9

#: Floating-point types: FLOAT, FLOAT16, DOUBLE and BFLOAT16.
FLOATS = (1, 10, 11, 16)
HALVES = (10, 16)

#: Integer types, as types of NumPy.
INTEGERS = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 12: "uint32",
            13: "uint64"}  # fmt: skip

#: Stand-ins for T and B in computations with shapes: sizes that no other dimension has.
TIME, BATCH = 32749, 65521


F = TypeVar("F", bound=Callable[..., Any])


class Table(dict[str, Any]):
    """Functions by the operators or layer types that they are for; as a decorator it adds one."""

    def __call__(self, *kinds: str) -> Callable[[F], F]:
        if known := self.keys() & set(kinds):
            raise ValueError(f"there is a function for {', '.join(sorted(known))} already")

        def register(function: F) -> F:
            self.update(dict.fromkeys(kinds, function))
            return function

        return register


def onnx() -> Any:
    """Return the library."""
    return require("onnx", "onnx")


class Body:
    """Nodes in the order of their execution, whose names begin with a scope.

    Constants are shared through `initializers`, or are nodes, as in the body of a function.

    Attributes:
        where: What the next nodes compute, for messages.
    """

    def __init__(self, where: str = "", shared: bool = False) -> None:
        self.scope, self.where = "", where
        self.shared = shared
        self.nodes: list[Any] = []
        self.initializers: dict[str, np.ndarray] = {}
        self._taken: set[str] = set()
        self._numbers: dict[str, Any] = defaultdict(lambda: itertools.count(2))

    def op(
        self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **options: Any
    ) -> Any:
        """Add a node and return the name of its output, or the names of several.

        Inputs that are left out are ``''``.
        """
        name = self._unique(f"{self.scope}/{kind}" if self.scope else kind)
        names = [name] if outputs == 1 else [f"{name}:{i}" for i in range(outputs)]
        node = onnx().helper.make_node(kind, inputs, names, name, domain=domain, **options)
        self.nodes.append(node)
        return name if outputs == 1 else names

    def constant(self, values: Any, name: str = "") -> str:
        """Return the name of a tensor with these values; whole numbers are shapes and axes."""
        array = np.asarray(values)
        array = np.ascontiguousarray(array, np.int64 if array.dtype.kind in "iu" else np.float32)
        array = array.reshape(np.shape(values))  # ascontiguousarray adds an axis to scalars
        if not self.shared:
            return self.op("Constant", value=onnx().numpy_helper.from_array(array))
        for known, other in self.initializers.items():
            same = other.shape == array.shape and other.dtype == array.dtype
            if same and array.size <= 8 and not name and np.array_equal(other, array):
                return known
        name = self._unique(name or "constant")
        self.initializers[name] = array
        return name

    def reshape(self, tensor: str, shape: Sequence[int]) -> str:
        """Add a Reshape; 0 keeps a size, -1 is computed."""
        return self.op("Reshape", tensor, self.constant(list(shape)))

    def reserve(self, names: Iterable[str]) -> None:
        """Reserve names, so that no other node or tensor gets them."""
        self._taken.update(names)

    def _unique(self, name: str) -> str:
        found = name
        while found in self._taken:
            found = f"{name}_{next(self._numbers[name])}"
        self._taken.add(found)
        return found
