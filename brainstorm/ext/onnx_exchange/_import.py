"""ONNX graphs as networks: each node becomes layers, or another view of existing outputs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, shown, unknown
from brainstorm.ext.onnx_exchange._body import DOMAIN, ENTRY, FLOATS, HALVES, INT64, INTEGERS, onnx
from brainstorm.ext.onnx_exchange._building import Builder
from brainstorm.ext.onnx_exchange._fold import Folder, array_of
from brainstorm.ext.onnx_exchange._inputs import guess_letters, sizes_of_axes
from brainstorm.ext.onnx_exchange._node import Node, find_needed, reads
from brainstorm.ext.onnx_exchange._values import Value
from brainstorm.ext.onnx_exchange._versions import update
from brainstorm.handlers import Handler
from brainstorm.network import Network
from brainstorm.structure.architecture import INPUT, get_kwargs

#: The kind of nodes that represent outputs of the graph.
OUTPUT = "output"

#: Maximum number of axes of a tensor that layers compute; NumPy has 64, before its version 2 32.
MOST_AXES = 30

#: Operators whose results for integers are not integers.
NOT_ALIKE = ("And", "DequantizeLinear", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
             "Not", "Or", "QuantizeLinear", "Xor")  # fmt: skip


def _are_texts(values: Any) -> bool:
    is_several = isinstance(values, Collection) and not isinstance(values, str)
    return is_several and all(isinstance(value, str) for value in values)


def _given(name: str, value: Any, example: str) -> dict[str, Any]:
    """Return an argument with the names of tensors as keys, or nothing."""
    if not isinstance(value, (Mapping, type(None))):
        raise NetworkValidationError(
            f"{name}: expected a dictionary such as {example}, got {shown(value)}."
        )
    return dict(value or {})


class Importer(Builder):
    """A graph that is read, and the network that is made of it; arguments as in `from_onnx`.

    Attributes:
        nodes: The nodes that an output depends on, in order.
        whole: Paths of outputs that hold whole numbers for any data.
        has_halves: Whether data of the model are in half precision.
    """

    def __init__(
        self,
        model: Any,
        layouts: Mapping[str, str] | None = None,
        sizes: Mapping[str, Mapping[str, int]] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.graph = model.graph
        self._is_chosen = outputs is not None
        if self._is_chosen and not _are_texts(outputs):
            raise NetworkValidationError(
                f"outputs: expected a list of names, got {shown(outputs)}."
            )
        self.layouts = _given("axes", layouts, "{'x': 'TBF'}")
        if not _are_texts(self.layouts.values()):
            raise NetworkValidationError(f"axes: expected a letter for each axis, got {layouts!r}.")
        self._given = _given("sizes", sizes, "{'x': {'W': 160}}")
        self.outputs = [o.name for o in self.graph.output] if outputs is None else list(outputs)
        self._check_outputs()
        self.nodes = find_needed(model.graph, self.outputs)
        self.functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
        self.opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
        for name in self.outputs if self._is_chosen else ():
            self._reserved[Node(OUTPUT, name).layer_name] = None
        self.tensors: dict[str, Any] = {"": None}
        self.uses = Counter(name for node in self.nodes for name in node.input)
        self.uses.update(self.outputs)
        self._pending: Counter[str] = Counter()  # uses of paths, except by nodes that give a view
        self.whole: set[str] = set()
        self._integers: dict[str, str] = {}
        self.has_halves = False
        self._is_ours = model.producer_name == DOMAIN
        self._read_inputs()
        held = sum(array.size for array in self.tensors.values() if isinstance(array, np.ndarray))
        self._folder = Folder(held)

    # -- for the functions that read nodes --------------------------------------------------------

    def is_alone(self, value: Value, count: int = 1) -> bool:
        """Return whether an output of a layer is used so many times only, in any view."""
        return self._pending[value.path] == count

    def check_inference(self, is_training: bool) -> None:
        """Raise an error for the node in training mode: in older models all without is_test."""
        if is_training or not self.node.options.get("is_test", 1):
            raise self.fail(
                "expected a model for inference, got training_mode=1 (in older models is_test=0, "
                "or outputs of statistics). Export it in eval mode."
            )

    def integer_type(self, name: str) -> str | None:
        """Return the type of a tensor of integers, such as ``'int64'``; `None` for others."""
        tensor = self.tensors.get(name)
        if isinstance(tensor, np.ndarray):
            return tensor.dtype.name if tensor.dtype.kind in "iu" else None
        return self._integers.get(name)

    # -- inputs -----------------------------------------------------------------------------------

    def _read_inputs(self) -> None:
        for tensor in self.graph.initializer:
            self.tensors[tensor.name] = array_of(tensor)
        given = [i for i in self.graph.input if i.name not in self.tensors]
        names = [info.name for info in given]
        for name in self.layouts:
            if name not in (known := [*names, *self.outputs]):
                raise NetworkValidationError(f"axes: {unknown('input or output', name, known)}")
        for name in self._given:
            if name not in names:
                raise NetworkValidationError(f"sizes: {unknown('input', name, names)}")
        sizes = {}
        for info in given:
            letters = self.layouts.get(info.name) or guess_letters(info, self.nodes, self._is_ours)
            self.layouts[info.name] = letters
            sizes[info.name] = sizes_of_axes(info, letters, self._given.get(info.name, {}))
            fixed = {x: n for x, n in sizes[info.name].items() if x in self.lead and n}
            self.lead.update(fixed)
        has_time = self._is_ours or any("T" in self.layouts[info.name] for info in given)
        for info in given:  # the sizes of T and B are now known
            letters = self.layouts[info.name]
            memory = ["T", "B", *[x for x in letters if x not in "TBC"], *["C"] * ("C" in letters)]
            memory += [" "] * (len(memory) == 2)  # class indices: one feature without an axis
            features = [sizes[info.name].get(x, 1) for x in memory[2:]]
            is_named = self._is_ours or len(given) > 1
            name = re.sub(r"\W", "_", info.name) if is_named else "default"
            is_timeless = has_time and "T" not in letters
            value = self.add_data(name, (*["T"] * (not is_timeless), "B", *features))
            axes = tuple((memory.index(letter),) for letter in letters)
            self.tensors[info.name] = value = replace(value, axes=axes)
            self.has_halves |= info.type.tensor_type.elem_type in HALVES
            if info.type.tensor_type.elem_type in INTEGERS:
                self._integers[info.name] = INTEGERS[info.type.tensor_type.elem_type]
            if info.type.tensor_type.elem_type not in FLOATS:
                self.whole.add(value.path)

    def _check_outputs(self) -> None:
        """Check that tensors with these names exist, each once."""
        made = [name for node in self.graph.node for name in node.output if name]
        there = {info.name for info in (*self.graph.input, *self.graph.initializer)}
        for name, count in Counter([*made, *there]).items():
            if count > 1:
                raise NetworkValidationError(
                    f"ONNX tensor {name!r}: expected one that is computed, or given, once, got "
                    f"{count}. Export the model again."
                )
        given = [info.name for info in (*self.graph.output, *self.graph.input)]
        known = dict.fromkeys(given + made)
        for name in self.outputs if self._is_chosen else ():
            if name not in known:
                raise NetworkValidationError(f"outputs: {unknown('tensor', name, known)}")
        if not self.outputs:
            raise NetworkValidationError("outputs: expected the name of a tensor, got none.")

    # -- nodes ------------------------------------------------------------------------------------

    def read(self) -> None:
        """Convert all nodes to layers."""
        outputs = set(self.outputs)
        for proto in reversed(self.nodes):
            if proto.op_type == "Identity" and outputs & set(proto.output):
                outputs.update(proto.input)
        for proto in self.nodes:
            self.node = node = Node(
                proto.op_type,
                proto.name or next(filter(None, proto.output), proto.op_type),
                [self._tensor(name) for name in proto.input],
                names=list(proto.input),
                outputs=list(proto.output),
                used=[self.uses[name] > 0 for name in proto.output],
                is_last=bool(outputs & set(proto.output)),
            )
            with node.guarded():
                get = onnx().helper.get_attribute_value
                node.options = {given.name: get(given) for given in proto.attribute}
            if proto.domain == DOMAIN and proto.op_type in self.functions:
                results = self._read_function(node, self.functions[proto.op_type])
            elif proto.domain in ("", "ai.onnx"):
                results = self._read_node(node)
            else:
                raise node.fail(f"no layer computes operators of the domain {proto.domain!r}.")
            results = results if isinstance(results, list) else [results]
            if any(node.used[len(results) :]):
                raise node.fail(f"no layer gives its output {len(results) + 1}.")
            self._store(proto, results)
            if (kind := self._integer_result(node)) is not None:
                self._integers.update(dict.fromkeys(proto.output, kind))

    def _integer_result(self, node: Node) -> str | None:
        """Return the type of the result of a node, if it is an integer type."""
        if node.kind == "Cast":
            return INTEGERS.get(node.options["to"])
        if node.kind in ("ArgMax", "Shape", "Size"):
            return INTEGERS[INT64]
        place = {"Where": 1, "CastLike": 1}.get(node.kind, 0)
        if node.kind in NOT_ALIKE or place >= len(node.names):
            return None
        return self.integer_type(node.names[place])

    def _tensor(self, name: str) -> Any:
        if name not in self.tensors:
            raise NetworkValidationError(f"ONNX tensor {name!r} is used before it is computed.")
        return self.tensors[name]

    def _read_node(self, node: Node) -> Any:
        with node.guarded():
            update(node, self.opset)
        is_known = not any(isinstance(tensor, Value) for tensor in node.inputs)
        if is_known:
            return self._folder.fold(node)
        if node.kind not in reads:
            raise node.fail(
                f"no layer computes this operator. Those that can be read are: "
                f"{', '.join(sorted(reads))}. To import the layers before it use "
                f"outputs={[name for name in node.names if name][:1]}."
            )
        with node.guarded():
            return reads[node.kind](self, node)

    def _read_function(self, node: Node, function: Any) -> list[Value]:
        """Create the layer that was exported as this function."""
        described = {entry.key: entry.value for entry in function.metadata_props}
        if ENTRY not in described:
            raise node.fail("its function was not written by to_onnx.")
        layer = json.loads(described[ENTRY])
        given = dict(zip(function.input, node.inputs, strict=True))
        inputs = {n: self.arrange(x) for n, x in given.items() if isinstance(x, Value)}
        arrays = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
        return list(self.add_layer(layer["@type"], inputs, arrays, get_kwargs(layer)).values())

    def _store(self, proto: Any, results: Sequence[Any]) -> None:
        given = {x.path for name in proto.input if isinstance(x := self.tensors[name], Value)}
        for name, result in zip(proto.output, results, strict=False):
            self.tensors[name] = result
            if isinstance(result, Value):
                if result.ndim > MOST_AXES:
                    raise self.node.fail(f"expected at most {MOST_AXES} axes, got {result.ndim}.")
                self._pending[result.path] += self.uses[name] - (result.path in given)

    # -- outputs ----------------------------------------------------------------------------------

    def build(self, handler: Handler | None) -> Network:
        """Return the network of all nodes."""
        paths = [self._finish(name) for name in self.outputs]
        net = self.network(handler)
        if len(paths) == 1:
            net.output_name = paths[0].replace(".", ".outputs.", 1)
        return net

    def _finish(self, name: str) -> str:
        """Return the path of an output of the graph."""
        self.node = node = Node(OUTPUT, name, [self._tensor(name)], names=[name])
        value = node.value()
        found = self.arrange(value, self._output_order(name, value))
        if found.path.startswith(f"{INPUT}.") or self._is_chosen:
            if node.layer_name != INPUT:
                self._reserved.pop(node.layer_name, None)
            found = self.add("NoOp", found)
        return found.path

    def _output_order(self, name: str, value: Value) -> list[int]:
        """Return the features of an output in the wanted order: channels last."""
        rank, features = value.ndim, list(value.features)
        letters = self.layouts.get(name, "")
        if not letters and len(value.lead) == 1 and not self._is_ours:
            known = self.layouts.values()
            is_last = any(len(x) > 3 and x.endswith("C") for x in known)
            is_first = "BCL" in known if rank == 3 else not is_last
            letters = "BC" if rank > 2 and is_first else ""
        channels = letters.find("C")
        return sorted(features, key=lambda i: i == channels)
