"""Nodes of a graph to import, layers under construction, and the functions that read nodes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brainstorm.errors import BrainstormError, NetworkValidationError
from brainstorm.ext.onnx_exchange._body import Table
from brainstorm.ext.onnx_exchange._values import Value
from brainstorm.utils import is_valid_layer_name

#: Maximum number of elements of constants that a model computes, rather than contains.
LARGEST = 2**26


@dataclass
class Node:
    """A node of the graph, with its inputs.

    Attributes:
        kind: The operator.
        name: Name of the node, for messages and layers.
        inputs: Its inputs; `None` where one is left out.
        options: Its attributes, with their defaults.
        names: The names of these tensors.
        outputs: The names of its outputs.
        used: Whether each of them is used.
        is_last: Whether its output is an output of the graph.
    """

    kind: str
    name: str
    inputs: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    names: Sequence[str] = ()
    outputs: Sequence[str] = ()
    used: Sequence[bool] = ()
    is_last: bool = False

    @property
    def layer_name(self) -> str:
        """Return the name of a node without its operator, as an identifier."""
        parts = [part for part in self.name.split("/") if part]
        if len(parts) > 1 and re.fullmatch(rf"{re.escape(self.kind)}(_\d+)?", parts[-1]):
            del parts[-1]
        name = re.sub(r"\W+", "_", "_".join(parts), flags=re.ASCII).strip("_")
        return name if is_valid_layer_name(name) else f"{self.kind}_{name}".strip("_")

    def fail(self, why: str) -> NetworkValidationError:
        """Return the error that this node cannot be imported, and why."""
        return NetworkValidationError(f"ONNX node {self.name!r} ({self.kind}): {why}")

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Convert errors of Python and NumPy into an error that names this node."""
        try:
            yield
        except BrainstormError:
            raise
        except (
            ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
            ValueError,
        ) as error:  # fmt: skip
            raise self.fail(f"its inputs and attributes do not fit together ({error}).") from error

    def value(self, place: int = 0) -> Value:
        """Return an input that is computed by the graph."""
        found = self.get(place)
        if not isinstance(found, Value):
            raise self.fail(f"expected input {place} to be computed by the graph, got a constant.")
        return found

    def constant(self, place: int, otherwise: Any = None) -> Any:
        """Return an input that is a constant, or `otherwise` if it is left out."""
        found = self.get(place)
        if isinstance(found, Value):
            raise self.fail(f"expected input {place} to be a constant, got one that is computed.")
        return otherwise if found is None else self.bounded(found)

    def bounded(self, array: np.ndarray) -> np.ndarray:
        """Return an array, unless the graph declares a small one to be huge."""
        if 0 in array.strides and array.size > LARGEST:
            raise self.fail(f"expected a constant of at most {LARGEST} elements, got {array.size}.")
        return array

    def get(self, place: int) -> Any:
        """Return an input; `None` if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def number(self, name: str) -> Any:
        """Return an attribute.

        Numbers in a model have single precision; of those that are the same in it, this is the one
        with the fewest digits.
        """
        found = self.options[name]
        return float(str(np.float32(found))) if isinstance(found, float) else found

    def axis(self, axis: int, rank: int) -> int:
        """Return the number of an axis, counted from the first."""
        if not -rank <= axis < rank:
            raise self.fail(f"expected an axis from {-rank} to {rank - 1}, got {axis}.")
        return axis % rank

    def axes(self, place: int = 1) -> list[int] | None:
        """Return the axes, sizes or ends given by an input."""
        found = self.constant(place)
        if found is not None and found.size and found.dtype.kind not in "iu":
            raise self.fail(f"expected integers as input {place}, got {found.dtype}.")
        return None if found is None else np.ravel(found).astype(int).tolist()


def find_needed(graph: Any, outputs: Iterable[str]) -> list[Any]:
    """Return the nodes of a graph that its outputs depend on, in order."""
    names, needed = set(outputs), []
    for node in reversed(graph.node):
        if names & set(node.output):
            names.update(filter(None, node.input))
            needed.append(node)
    return needed[::-1]


@dataclass
class Entry:
    """A layer under construction.

    Attributes:
        kind: Its type.
        options: Its options.
        inputs: Input name to the path of the connected output.
        arrays: Values of parameters and running statistics, e.g. ``'parameters.W'``.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


#: For each operator a function from an `Importer` and a node to the node's outputs.
reads = Table()
