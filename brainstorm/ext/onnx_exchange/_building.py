"""A network under construction: its layers, and the tensors of a graph as their outputs."""

from __future__ import annotations

import itertools
import math
from collections import ChainMap, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.errors import LayerValidationError, NetworkValidationError
from brainstorm.ext.onnx_exchange._body import BATCH, TIME
from brainstorm.ext.onnx_exchange._node import LARGEST, Entry, Node
from brainstorm.ext.onnx_exchange._values import Value, parts, whole
from brainstorm.handlers import Handler
from brainstorm.network import Network
from brainstorm.network.parameters import misfits, put_values
from brainstorm.network.topology import find_idle
from brainstorm.randomness import RandomState
from brainstorm.structure.architecture import (
    INPUT,
    Connection,
    instantiate_layers_from_architecture,
    layer_registry,
)
from brainstorm.structure.buffer_structure import BufferStructure


class Builder:
    """The layers of a network, and its data.

    T and B are unknown until there are data; until then they are `TIME` and `BATCH`, so that shapes
    computed by the graph are ordinary numbers.

    Attributes:
        inputs: Name of each data item of the network to its shape.
        entries: The layers by name.
        structures: Path of each output to its structure; those without T have T = 1 as values.
        lead: The sizes of T and B.
        node: The node that is being read, for names and messages.
    """

    node: Node

    def __init__(self) -> None:
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.entries: dict[str, Entry] = {}
        self.structures: dict[str, BufferStructure] = {}
        self.lead = {"T": TIME, "B": BATCH}
        self._reserved = {INPUT: None}
        self._numbers: dict[str, Any] = defaultdict(lambda: itertools.count(2))

    # -- layers -----------------------------------------------------------------------------------

    def add(
        self,
        kind: str,
        inputs: Value | Mapping[str, Value],
        arrays: Mapping[str, Any] | None = None,
        output: str = "default",
        **options: Any,
    ) -> Value:
        """Add a layer, and return one of its outputs; arguments as in `add_layer`."""
        given = {"default": inputs} if isinstance(inputs, Value) else inputs
        return self.add_layer(kind, given, arrays or {}, options)[output]

    def add_layer(
        self,
        kind: str,
        inputs: Mapping[str, Value],
        arrays: Mapping[str, Any],
        options: dict[str, Any],
    ) -> dict[str, Value]:
        """Add a layer with the name of the node, and return its outputs by name.

        Inputs are whole outputs of layers, whatever their axes; beside those with T, those without
        are repeated. Arrays are values of parameters, and of internals as ``'internals.x'``.
        """
        if any(map(self.has_time, inputs.values())):
            inputs = {
                port: value if self.has_time(value) else self.add("RepeatOverTime", value)
                for port, value in inputs.items()
            }
        taken: ChainMap[str, Any] = ChainMap(self.entries, self._reserved)
        name = self._unique(self.node.layer_name, taken)
        paths = {port: value.path for port, value in inputs.items()}
        outputs = self._outputs_of(name, kind, paths, options)
        values = {
            key if "." in key else f"parameters.{key}": _numbers(array)
            for key, array in arrays.items()
        }
        self.entries[name] = Entry(kind, options, paths, values)
        return {port: self._output(f"{name}.{port}", shape) for port, shape in outputs.items()}

    def _outputs_of(
        self, name: str, kind: str, paths: Mapping[str, str], options: Mapping[str, Any]
    ) -> Mapping[str, BufferStructure]:
        """Return the structures of the outputs of a layer, which only the layer knows."""
        shapes = {port: self.structures[path] for port, path in paths.items()}
        ends = [Connection(*path.partition(".")[::2], name, port) for port, path in paths.items()]
        try:
            outputs = layer_registry.get(kind)(name, shapes, ends, (), **options).out_shapes
        except LayerValidationError as error:
            raise self.fail(str(error)) from error
        count = max(math.prod(shape.feature_shape) for shape in outputs.values())
        if count > LARGEST:
            raise self.fail(f"expected at most {LARGEST} elements for a step, got {count}.")
        return outputs

    def _output(self, path: str, structure: BufferStructure) -> Value:
        """Return an output of a layer, with one axis of the tensor for each axis."""
        self.structures[path] = structure
        T, B = self.lead.values()
        T = T if structure.scales_with_time else 1
        return whole(path, (T, B, *structure.feature_shape))

    def has_time(self, value: Value) -> bool:
        """Return whether the output of which this is a view has T."""
        return self.structures[value.path].scales_with_time

    def add_same(self, value: Value, kind: str, **options: Any) -> Value:
        """Add a layer that keeps the features of a tensor, and return it with the same axes."""
        return replace(self.add(kind, value, **options), axes=value.axes)

    def repeat_over_time(self, value: Value, axis: int) -> Value:
        """Repeat a tensor without T along an axis of size 1, which becomes T."""
        axes = [() if group == (0,) else group for group in value.axes]
        axes[axis] = (0,)
        return self.add_same(replace(value, axes=tuple(axes)), "RepeatOverTime")

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Add a `Reshape`."""
        return self.add("Reshape", value, shape=list(shape))

    def formula(self, text: str, **operands: Any) -> Value:
        """Add an `Expression`; operands are outputs of layers, or arrays, which are parameters."""
        inputs = {
            "default" if name == "x" else name: operand
            for name, operand in operands.items()
            if isinstance(operand, Value)
        }
        arrays = {name: array for name, array in operands.items() if not isinstance(array, Value)}
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        return self.add("Expression", inputs, arrays, formula=text, parameters=shapes)

    def _unique(self, name: str, taken: Container[str]) -> str:
        """Return a free name, derived from the wanted one."""
        found = name
        while found in taken:
            found = f"{name}_{next(self._numbers[name])}"
        return found

    def add_classifier(self, value: Value) -> Value:
        """Add a softmax with targets and a `Loss`, so that the network can be trained."""
        names = ("targets", f"{self.node.layer_name}_targets")
        shape = *self.structures[value.path].shape[:-1], 1
        targets = self.add_data(next(name for name in names if name not in self.inputs), shape)
        made = self.add("SoftmaxCE", {"default": value, "targets": targets}, output="predictions")
        loss = made.path.replace(".predictions", ".loss")
        self.entries[self._unique("Loss", self.entries)] = Entry("Loss", {}, {"default": loss})
        return made

    def add_data(self, name: str, shape: tuple[Any, ...]) -> Value:
        """Add a data item, under this name if it is free, and return it like a layer's output."""
        name = self._unique(name, self.inputs)
        self.inputs[name] = shape
        return self._output(f"{INPUT}.{name}", BufferStructure(*shape))

    def entry(self, value: Value) -> Any:
        """Return the layer of which a value is the output; `None` for data."""
        return self.entries.get(value.path.partition(".")[0])

    def arrange(
        self, value: Value, order: Sequence[int] | None = None, mixed: bool = False
    ) -> Value:
        """Return an output with given axes of a tensor as its features.

        `order` has all axes without T and B; `None`: in the order of the tensor. If `mixed`, axes
        may consist of features and of T or B, which are kept together: the node must treat all
        elements at one index of such an axis alike.
        """
        groups = [parts(value.axes[axis]) for axis in (value.features if order is None else order)]
        if any(g is None or (not mixed and (g[0] or g[2])) for g in groups):
            raise self.fail("no layer takes T or B as a feature, or in one axis with features.")
        features = [g[1] for g in groups if g is not None]
        shape = tuple(math.prod(value.sizes[i] for i in group) for group in features) or (1,)
        wanted = [i for group in features for i in group if value.sizes[i] != 1]
        found = whole(value.path, value.sizes)
        if wanted != sorted(wanted):
            rest = [i for i in range(2, len(value.sizes)) if i not in wanted]
            found = self.formula(f"transpose(x, axes={(0, 1, *wanted, *rest)})", x=found)
        return found if found.sizes[2:] == shape else self.reshape(found, shape)

    def like(self, value: Value, order: Sequence[int], result: Value) -> Value:
        """Return a layer's output as a tensor with the axes of its input.

        The features of the output correspond to the axes `order`; others have size 1.
        """
        axes = [group if i in value.lead else () for i, group in enumerate(value.axes)]
        for place, axis in enumerate(order):
            before, _, behind = parts(value.axes[axis]) or ((), (), ())
            axes[axis] = (*before, 2 + place, *behind)
        return replace(result, axes=tuple(axes))

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

    def fail(self, why: str) -> NetworkValidationError:
        """Return the error that the node cannot be imported, and why."""
        return self.node.fail(why)

    # -- the network ------------------------------------------------------------------------------

    def _architecture(self) -> dict[str, dict[str, Any]]:
        architecture: dict[str, dict[str, Any]] = {
            name: {"@type": entry.kind, "@outgoing_connections": {}, **entry.options}
            for name, entry in self.entries.items()
        }
        data = {"out_shapes": self.inputs}
        architecture[INPUT] = {"@type": INPUT, "@outgoing_connections": {}, **data}
        for name, entry in self.entries.items():
            for port, path in entry.inputs.items():
                source, _, output = path.partition(".")
                outgoing = architecture[source]["@outgoing_connections"]
                outgoing.setdefault(output, []).append(f"{name}.{port}")
        return architecture

    def network(self, handler: Handler | None) -> Network:
        """Return the network of all layers; without a loss if no parameter leads to it."""
        architecture = self._architecture()
        losses = [name for name, entry in self.entries.items() if entry.kind == "Loss"]
        if losses:
            layers = instantiate_layers_from_architecture(architecture, RandomState(0))
            if find_idle(layers)[1]:
                for name in losses:
                    del self.entries[name]
                architecture = self._architecture()
        net = Network.from_architecture(architecture, handler=handler)
        arrays = {
            f"{name}.{path}": array
            for name, entry in self.entries.items()
            for path, array in entry.arrays.items()
        }
        for problem in misfits(net, arrays):
            raise NetworkValidationError(f"ONNX model, {problem}.")
        put_values(net, arrays)
        return net


def _numbers(array: Any) -> np.ndarray:
    """Return an array of a type that NumPy has; bfloat16 is none."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.kind == "V" else array
