"""ONNX graphs as networks: each node becomes layers, or another view of existing outputs."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import ChainMap, Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, unknown
from brainstorm.ext.onnx_exchange._body import (
    BATCH,
    DOMAIN,
    ENTRY,
    FLOATS,
    HALVES,
    INT64,
    INTEGERS,
    PRODUCER,
    TIME,
    onnx,
)
from brainstorm.ext.onnx_exchange._fold import Folder, array_of
from brainstorm.ext.onnx_exchange._inputs import guess_letters, sizes_of_axes
from brainstorm.ext.onnx_exchange._node import LARGEST, Entry, Node, find_needed, reads
from brainstorm.ext.onnx_exchange._values import Value, parts
from brainstorm.handlers import Handler
from brainstorm.network import Network
from brainstorm.structure.architecture import INPUT

__all__ = ["Importer"]

#: The kind of nodes that represent outputs of the graph.
OUTPUT = "output"

#: Operators whose results for integers are not integers.
NOT_ALIKE = ("And", "DequantizeLinear", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
             "Not", "Or", "QuantizeLinear", "Xor")  # fmt: skip


class Importer:
    """A network under construction.

    T and B are unknown until there are data; until then they are `TIME` and `BATCH`, so that shapes
    computed by the graph are ordinary numbers.

    Args:
        model: The model.
        layouts: Input name to the letters of its axes.
        sizes: Input name to the sizes of its axes, by their letters or their names in the model.
        outputs: The tensors that become outputs; `None`: the outputs of the model.

    Attributes:
        nodes: The nodes that an output depends on, in order.
        whole: Paths of outputs that hold whole numbers for any data.
        has_halves: Whether data of the model are in half precision.
        timeless: Paths of outputs ('B', ...), which have T = 1 as values.
    """

    def __init__(
        self,
        model: Any,
        layouts: Mapping[str, str],
        sizes: Mapping[str, Mapping[str, int]] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> None:
        self.graph = model.graph
        self._is_chosen = outputs is not None
        if isinstance(outputs, str):
            raise NetworkValidationError(f"outputs: expected a list of names, got {outputs!r}.")
        self.outputs = [o.name for o in self.graph.output] if outputs is None else list(outputs)
        self._check_outputs()
        self.nodes = find_needed(model.graph, self.outputs)
        self.functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
        self.opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
        self.entries: dict[str, Entry] = {}
        self._reserved = {INPUT: None}
        for name in self.outputs if self._is_chosen else ():
            node = Node(OUTPUT, name, [], {}, [], [], [], False, True)
            self._reserved[node.layer_name] = None
        self.tensors: dict[str, Any] = {"": None}
        self.uses = Counter(name for node in self.nodes for name in node.input)
        self.uses.update(self.outputs)
        self._shared: set[str] = set()
        self._numbers: dict[str, Any] = defaultdict(lambda: itertools.count(2))
        self.whole: set[str] = set()
        self._integers: dict[str, str] = {}
        self.has_halves = False
        self.timeless: set[str] = set()
        self._is_ours = model.producer_name == PRODUCER
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.lead = {"T": TIME, "B": BATCH}
        self.layouts = dict(layouts)
        self._given = dict(sizes or {})
        self._read_inputs()
        held = sum(array.size for array in self.tensors.values() if isinstance(array, np.ndarray))
        self._folder = Folder(self.opset, held)

    # -- layers -----------------------------------------------------------------------------------

    def add(
        self,
        node: Node,
        kind: str,
        inputs: Mapping[str, str],
        features: Sequence[int],
        arrays: Mapping[str, Any] | None = None,
        output: str = "default",
        **options: Any,
    ) -> Value:
        """Add a layer and return its output, with one axis of the tensor for each axis.

        Args:
            node: The layer gets its name.
            kind: Type of the layer.
            inputs: Input name to the path of an output.
            features: Feature shape of the output.
            arrays: Values of parameters, and of internals as ``'internals.x'``.
            output: Name of the output.
            **options: Options of the layer.
        """
        if len({path in self.timeless for path in inputs.values()}) > 1:
            raise node.fail("no layer combines data with time steps and data without.")
        if (count := math.prod(features)) > LARGEST:
            raise node.fail(f"expected at most {LARGEST} elements for a step, got {count}.")
        taken: ChainMap[str, Any] = ChainMap(self.entries, self._reserved)
        name = self._unique(node.layer_name, taken)
        values = {
            key if "." in key else f"parameters.{key}": np.asarray(array)
            for key, array in (arrays or {}).items()
        }
        self.entries[name] = Entry(kind, options, dict(inputs), values)
        is_timeless = kind == "TimePooling" or self.timeless.issuperset(inputs.values())
        return self._output(f"{name}.{output}", features, is_timeless)

    def _output(self, path: str, features: Sequence[int], is_timeless: bool) -> Value:
        """Return an output of a layer, with one axis of the tensor for each axis."""
        T, B = self.lead.values()
        if is_timeless:
            self.timeless.add(path)
            T = 1
        sizes = (T, B, *features)
        return Value(path, sizes, tuple((i,) for i in range(len(sizes))))

    def pool(self, node: Node, value: Value, kind: str) -> Value:
        """Add a `TimePooling` of the given type, and return it with T = 1 in place of T."""
        made = self.add(node, "TimePooling", {"default": value.path}, value.sizes[2:], type=kind)
        return replace(made, axes=value.axes)

    def formula(self, node: Node, text: str, features: Sequence[int], **operands: Any) -> Value:
        """Add an `Expression`; operands are paths of outputs, or arrays, which are parameters."""
        inputs = {
            "default" if name == "x" else name: operand
            for name, operand in operands.items()
            if isinstance(operand, str)
        }
        arrays = {name: array for name, array in operands.items() if not isinstance(array, str)}
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        return self.add(
            node, "Expression", inputs, features, arrays, formula=text, parameters=shapes
        )

    def _unique(self, name: str, taken: Container[str]) -> str:
        """Return a free name, derived from the wanted one."""
        found = name
        while found in taken:
            found = f"{name}_{next(self._numbers[name])}"
        return found

    def add_loss(self, name: str, shape: Sequence[int]) -> None:
        """Give a layer with a loss its targets and a `Loss`, so that it can be trained."""
        targets = next(n for n in ("targets", f"{name}_targets") if n not in self.inputs)
        is_timeless = self.timeless.issuperset(self.entries[name].inputs.values())
        self.inputs[targets] = (*self._markers(is_timeless), *shape)
        self.entries[name].inputs["targets"] = f"{INPUT}.{targets}"
        self.entries[self._unique("Loss", self.entries)] = Entry(
            "Loss", {}, {"default": f"{name}.loss"}
        )

    @staticmethod
    def _markers(is_timeless: bool) -> tuple[str, ...]:
        return ("B",) if is_timeless else ("T", "B")

    def count_uses(self, node: Node, value: Value) -> float:
        """Return how many nodes use an input of a node, in any view."""
        name = next(n for n, x in zip(node.names, node.inputs, strict=True) if x is value)
        return math.inf if name in self._shared else self.uses[name]

    def check_inference(self, node: Node, is_training: bool) -> None:
        """Raise an error for a node in training mode: before opset 7 all without is_test."""
        if is_training or (self.opset < 7 and not node.options.get("is_test")):
            raise node.fail(
                "expected a model for inference, got training_mode=1 (in older models is_test=0, "
                "or outputs of statistics). Export it in eval mode."
            )

    def integer_type(self, name: str) -> str | None:
        """Return the type of a tensor of integers, such as ``'int64'``; `None` for others."""
        tensor = self.tensors.get(name)
        if isinstance(tensor, np.ndarray):
            return tensor.dtype.name if tensor.dtype.kind in "iu" else None
        return self._integers.get(name)

    def shown(self, shape: Sequence[int]) -> str:
        """Return a shape for a message, with T and B."""
        return f"({', '.join(self._named(int(size)) for size in shape)})"

    def _named(self, size: int) -> str:
        """Return a size as text, in terms of T and B if possible: ``'2*T'``, ``'B+1'``."""
        free = {"T": TIME, "B": BATCH, "T*B": TIME * BATCH}
        found = []
        for name, lead in free.items():
            count = (size + lead // 2) // lead
            rest = size - count * lead
            if 0 < count < 100 and abs(rest) < 1000:
                text = f"{count}*" * (count > 1) + name + f"{rest:+d}" * (rest != 0)
                found.append((abs(rest), text))
        fixed = {size: name for name, size in self.lead.items() if size not in free.values()}
        return min(found)[1] if found else fixed.get(size, str(size))

    def entry(self, value: Value) -> Any:
        """Return the layer of which a value is the output; `None` for data."""
        return self.entries.get(value.path.partition(".")[0])

    def arrange(
        self, node: Node, value: Value, order: Sequence[int], mixed: bool = False
    ) -> tuple[str, tuple[int, ...]]:
        """Return an output with given axes of a tensor as its features, and their sizes.

        Args:
            node: The node that needs it.
            value: The tensor.
            order: All of its axes without T and B, in the wanted order.
            mixed: Whether axes may consist of features and of T or B, which are then kept together:
                the operation must treat all elements at one index of such an axis alike.
        """
        groups = [parts(value.axes[axis]) for axis in order]
        if any(g is None or (not mixed and (g[0] or g[2])) for g in groups):
            raise node.fail("no layer takes T or B as a feature, or in one axis with features.")
        features = [g[1] for g in groups if g is not None]
        shape = tuple(math.prod(value.sizes[i] for i in group) for group in features) or (1,)
        wanted = [i for group in features for i in group if value.sizes[i] != 1]
        path, sizes = value.path, value.sizes
        if wanted != sorted(wanted):
            rest = [i for i in range(2, len(sizes)) if i not in wanted]
            axes = (0, 1, *wanted, *rest)
            sizes = tuple(sizes[i] for i in axes)
            path = self.formula(node, f"transpose(x, axes={axes})", sizes[2:], x=path).path
        if sizes[2:] != shape:
            path = self.add(node, "Reshape", {"default": path}, shape, shape=list(shape)).path
        return path, shape

    def plain(self, node: Node, value: Value) -> tuple[str, tuple[int, ...]]:
        """Return an output with the features of a tensor in their order, and their sizes."""
        return self.arrange(node, value, value.features)

    def like(self, value: Value, order: Sequence[int], result: Value) -> Value:
        """Return a layer's output as a tensor with the axes of its input.

        Args:
            value: The input.
            order: The axes that the features of the output correspond to; others have size 1.
            result: The output.
        """
        axes = [group if i in value.lead else () for i, group in enumerate(value.axes)]
        for place, axis in enumerate(order):
            before, _, behind = parts(value.axes[axis]) or ((), (), ())
            axes[axis] = (*before, 2 + place, *behind)
        return replace(result, axes=tuple(axes))

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
            name = "default" if len(given) == 1 else re.sub(r"\W", "_", info.name)
            name = self._unique(name, self.inputs)
            is_timeless = has_time and "T" not in letters
            self.inputs[name] = (*self._markers(is_timeless), *features)
            value = self._output(f"{INPUT}.{name}", features, is_timeless)
            axes = tuple((memory.index(letter),) for letter in letters)
            self.tensors[info.name] = value = replace(value, axes=axes)
            self.has_halves |= info.type.tensor_type.elem_type in HALVES
            if info.type.tensor_type.elem_type in INTEGERS:
                self._integers[info.name] = INTEGERS[info.type.tensor_type.elem_type]
            if info.type.tensor_type.elem_type not in FLOATS:
                self.whole.add(value.path)

    def _check_outputs(self) -> None:
        """Check that tensors with these names exist."""
        made = [name for node in self.graph.node for name in node.output if name]
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
            inputs = [self._tensor(name) for name in proto.input]
            attributes = {a.name: onnx().helper.get_attribute_value(a) for a in proto.attribute}
            first = proto.input[0] if proto.input else ""
            node = Node(
                proto.op_type,
                proto.name or next(filter(None, proto.output), proto.op_type),
                inputs,
                attributes,
                list(proto.input),
                list(proto.output),
                [self.uses[name] > 0 for name in proto.output],
                alone=self.uses[first] == 1 and first not in self._shared,
                is_last=bool(outputs & set(proto.output)),
            )
            if proto.domain == DOMAIN and proto.op_type in self.functions:
                results = self._read_function(node, self.functions[proto.op_type])
            elif proto.domain in ("", "ai.onnx"):
                results = self._read_node(node, proto)
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

    def _read_node(self, node: Node, proto: Any) -> Any:
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
        options = json.loads(described[ENTRY])
        kind, outputs = options.pop("@type"), options.pop("@outputs")
        given = dict(zip(function.input, node.inputs, strict=True))
        inputs = {n: self.plain(node, x)[0] for n, x in given.items() if isinstance(x, Value)}
        arrays = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
        first, *_ = outputs
        made = self.add(node, kind, inputs, outputs[first], arrays, first, **options)
        layer = made.path.partition(".")[0]
        is_timeless = made.path in self.timeless
        return [
            self._output(f"{layer}.{output}", shape, is_timeless)
            for output, shape in outputs.items()
        ]

    def _store(self, proto: Any, results: Sequence[Any]) -> None:
        paths = {
            self.tensors[name].path: name
            for name in proto.input
            if isinstance(self.tensors[name], Value)
        }
        for name, result in zip(proto.output, results, strict=False):
            self.tensors[name] = result
            seen = paths.get(result.path) if isinstance(result, Value) else None
            if seen is not None and (self.uses[seen] > 1 or seen in self._shared):
                self._shared.add(name)

    # -- the network ------------------------------------------------------------------------------

    def build(self, handler: Handler | None) -> Network:
        """Return the network of all nodes."""
        paths = [self._finish(name) for name in self.outputs]
        architecture: dict[str, dict[str, Any]] = {
            name: {"@type": entry.kind, "@outgoing_connections": {}, **entry.options}
            for name, entry in self.entries.items()
        }
        shapes = {"out_shapes": self.inputs}
        architecture[INPUT] = {"@type": INPUT, "@outgoing_connections": {}, **shapes}
        for name, entry in self.entries.items():
            for port, path in entry.inputs.items():
                source, _, output = path.partition(".")
                outgoing = architecture[source]["@outgoing_connections"]
                outgoing.setdefault(output, []).append(f"{name}.{port}")
        net = Network.from_architecture(architecture, handler=handler)
        for name, entry in self.entries.items():
            for path, array in entry.arrays.items():
                buffer = net.buffer[f"{name}.{path}"]
                if tuple(buffer.shape) != array.shape:
                    raise NetworkValidationError(
                        f"layer {name!r} ({entry.kind}), {path}: expected shape "
                        f"{tuple(buffer.shape)}, got {array.shape} from the ONNX model."
                    )
                net.handler.set_from_numpy(buffer, array)
        if len(paths) == 1:
            net.output_name = paths[0].replace(".", ".outputs.", 1)
        return net

    def _finish(self, name: str) -> str:
        """Return the path of an output of the graph."""
        value = self._tensor(name)
        node = Node(OUTPUT, name, [value], {}, [name], [], [], False, True)
        value = node.value()
        order = self._output_order(name, value)
        path, sizes = self.arrange(node, value, order)
        if path.startswith(f"{INPUT}.") or self._is_chosen:
            if node.layer_name != INPUT:
                self._reserved.pop(node.layer_name, None)
            path = self.add(node, "NoOp", {"default": path}, sizes).path
        return path

    def _output_order(self, name: str, value: Value) -> list[int]:
        """Return the features of an output in the wanted order: channels last."""
        rank, features = len(value.axes), list(value.features)
        letters = self.layouts.get(name, "")
        if not letters and len(value.lead) == 1 and not self._is_ours:
            is_first = "BCL" in self.layouts.values() if rank == 3 else not self._channels_last()
            letters = "BC" if rank > 2 and is_first else ""
        channels = letters.find("C")
        return sorted(features, key=lambda i: i == channels)

    def _channels_last(self) -> bool:
        return any(len(x) > 3 and x.endswith("C") for x in self.layouts.values())
