"""Networks as ONNX graphs: the tensors of a graph under construction."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.describable import get_description
from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange._body import DOMAIN, ENTRY, IR_VERSION, OPSET, Body, Table, onnx
from brainstorm.ext.onnx_exchange._tables import PREDICTIONS
from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.expression_layer import ExpressionLayer
from brainstorm.network import Network
from brainstorm.network.prediction import depends_on, find_prediction
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.utils import get_by_path

#: Layer type to the function that adds the nodes of a layer, given the exporter and the layer.
writes = Table()


def composes(*type_names: str) -> Callable[[Callable[..., list[str]]], Callable[..., list[str]]]:
    """Register a function that adds the nodes of layers of these types to functions of their own.

    It gets the layer, and then what `Exporter.function` passes.
    """

    def register(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
        writes(*type_names)(lambda e, layer: e.function(functools.partial(function, layer)))
        return function

    return register


def _writer_of(layer: Any) -> Callable[[Exporter, Any], None]:
    if layer.type_name in writes:
        return writes[layer.type_name]
    for base in (ExpressionLayer, FormulaLayer):
        if isinstance(layer, base):
            if getattr(layer.forward_pass, "__func__", None) is base.forward_pass:
                return writes["Expression"]
            raise NetworkValidationError(
                f"layer {layer.name!r} ({layer.type_name}): ONNX has no counterpart of its "
                f"forward_pass, only of its formula."
            )
    raise NetworkValidationError(
        f"layer {layer.name!r} ({layer.type_name}): ONNX has no counterpart of this layer. There "
        f"is one of formulas and of {', '.join(sorted(writes))}."
    )


class Exporter:
    """A graph under construction.

    Every output of a layer has one or two tensors: in the layout of this library, (T, B,
    features...), where T is 1 for data without time, and channels first, (T * B, C, ...), as
    images are in ONNX. Each is created from the other when needed, so there are no transpositions
    between two layers for images.
    """

    def __init__(self, net: Network, output_name: str | Sequence[str] | None) -> None:
        self.net = net
        wanted: Any = output_name if isinstance(output_name, (list, tuple)) else [output_name]
        if not wanted:
            raise NetworkValidationError("output_name: expected at least one path, got none.")
        found = [find_prediction(net.layers, path or net.output_name) for path in wanted]
        #: Of each wanted output, such as ``'Output.predictions'``, the layer.
        self.outputs = {p.replace(".outputs.", ".", 1): p.partition(".")[0] for p in found}
        self.body = Body(shared=True)
        self.functions: list[Any] = []
        self.layer: Any = None
        #: The layers to export, and which of their outputs are used.
        self.needed: dict[str, set[str]] = {}
        self._plain: dict[str, str] = {}
        self._first: dict[str, str] = {}
        self._joined: dict[str, BufferStructure] = {}
        self._inputs: list[str] = []
        self._time_and_batch: dict[str, str] = {}

    # -- tensors of outputs -----------------------------------------------------------------------

    def plain(self, path: str) -> str:
        """Return the tensor (T, B, features...) of an output such as ``'Hidden.default'``."""
        if path not in self._plain:
            structure, tensor = self._structure(path), self._first[path]
            features = structure.feature_shape
            if spatial := range(2, len(features) + 1):
                tensor = self.body.op("Transpose", tensor, perm=[0, *spatial, 1])
            if structure.scales_with_time:
                sizes = self.sizes(structure.time)
                shape = self.body.op("Concat", sizes, self.body.constant(list(features)), axis=0)
                self._plain[path] = self.body.op("Reshape", tensor, shape)
            else:
                self._plain[path] = self.body.op("Unsqueeze", tensor, self.body.constant([0]))
        return self._plain[path]

    def first(self, path: str) -> str:
        """Return the tensor (T * B, C, ...) of an output."""
        if path not in self._first:
            features = self._structure(path).feature_shape
            tensor = self.body.reshape(self._plain[path], [-1, *features])
            if len(features) > 1:
                last = len(features)
                tensor = self.body.op("Transpose", tensor, perm=[0, last, *range(1, last)])
            self._first[path] = tensor
        return self._first[path]

    def _structure(self, path: str) -> BufferStructure:
        if path in self._joined:
            return self._joined[path]
        layer, _, output = path.partition(".")
        return self.net.layers[layer].get_shape(f"outputs.{output}")

    def sizes(self, time: str) -> str:
        """Return the tensor that holds T and B, or S and B."""
        if time not in self._time_and_batch:
            scope, self.body.scope = self.body.scope, ""
            shapes = self.net.layers[INPUT].out_shapes
            timed = [n for n in self._inputs if shapes[n].scaling_shape == (time, "B")]
            if not timed:
                raise self.fail(f"no input of the model has the axis {time}.")
            source = timed[0]
            self._time_and_batch[time] = self.body.op("Shape", source, start=0, end=2)
            self.body.scope = scope
        return self._time_and_batch[time]

    # -- for the functions that export layers -----------------------------------------------------

    def source(self, port: str = "default") -> str:
        """Return the path connected to an input; several outputs are joined."""
        manager = self.net._buffer_manager
        node = get_by_path(manager.layout, f"{self.layer.name}.inputs.{port}")
        ends = [c for c in self.layer.incoming if c.input_name == port]
        paths = node.get("@copy_of", node.get("@sources", ()))
        if len(ends) == 1:
            return f"{ends[0].start_layer}.{ends[0].output_name}"
        joined = f"{self.layer.name} inputs.{port}"
        self._joined[joined] = self.layer.in_shapes[port]
        self.join([path.replace(".outputs.", ".") for path in paths], joined)
        return joined

    def join(self, paths: Sequence[str], joined: str) -> None:
        """Concatenate channels, in the common layout of all of them."""
        is_first = all(path in self._first for path in paths)
        known, get, axis = (
            (self._first, self.first, 1) if is_first else (self._plain, self.plain, -1)
        )
        known[joined] = self.body.op("Concat", *map(get, paths), axis=axis)

    def needed_ports(self) -> list[str]:
        """Return the inputs that the needed outputs of the layer depend on."""
        layer = self.layer
        if layer.type_name in PREDICTIONS:
            return ["default"]
        paths = [f"outputs.{output}" for output in self.needed[layer.name]]
        return [p for p in layer.in_shapes if any(depends_on(layer, path, p) for path in paths)]

    def x(self, port: str = "default") -> str:
        """Return the tensor (T, B, features...) of an input."""
        return self.plain(self.source(port))

    def flat(self) -> str:
        """Return the tensor (T, B, n) of the input ``default``."""
        shape = self.layer.in_shapes["default"].feature_shape
        return self.x() if len(shape) == 1 else self.body.reshape(self.x(), [0, 0, -1])

    def images(self) -> str:
        """Return the tensor (T * B, C, ...) of the input ``default``."""
        return self.first(self.source())

    def either(self, write: Callable[..., str]) -> None:
        """Add an element-wise operator, given a body and inputs, in the common layout of these."""
        paths = [self.source(port) for port in self.layer.in_shapes]
        is_first = all(path in self._first for path in paths)
        get, put = (self.first, self.put_images) if is_first else (self.plain, self.put)
        put(write(self.body, *map(get, paths)))

    def put(self, tensor: str, output: str = "default") -> None:
        """Set the tensor (T, B, features...) of an output."""
        self._plain[f"{self.layer.name}.{output}"] = tensor

    def put_slice(self, *ends: list[int]) -> None:
        """Set the output to a part of the input, given starts, ends, axes and optional steps."""
        self.put(self.body.op("Slice", self.x(), *map(self.body.constant, ends)))

    def put_images(self, tensor: str) -> None:
        """Set the tensor (T * B, C, ...) of the output ``default``."""
        self._first[f"{self.layer.name}.default"] = tensor

    def values(self, name: str) -> np.ndarray:
        """Return the values of a parameter, or of an internal such as ``'internals.x'``."""
        path = name if "." in name else f"parameters.{name}"
        return self.net.get(f"{self.layer.name}.{path}")

    def parameter(self, name: str, change: Callable[[np.ndarray], np.ndarray] | None = None) -> str:
        """Return the tensor of a parameter or internal, changed to the layout of ONNX."""
        values = self.values(name)
        label = f"{self.layer.name}.{name.rpartition('.')[2]}"
        return self.body.constant(values if change is None else change(values), label)

    def function(self, write: Callable[[Body, Mapping[str, str]], Sequence[str]]) -> None:
        """Add the layer as a call of its own function, which is recognized when importing.

        `write` adds the nodes of the function to a body, given the tensors of inputs and parameters
        by name, and returns those of the outputs.
        """
        layer, helper, body = self.layer, onnx().helper, Body(self.where)
        names = [*layer.in_shapes, *layer.parameter_shapes]
        body.reserve(names)
        results = write(body, {name: name for name in names})
        results = [body.op("Identity", x) if x in names else x for x in results]
        kind = f"{layer.type_name}_{layer.name}"
        imports = [helper.make_opsetid("", OPSET)]
        function = helper.make_function(DOMAIN, kind, names, list(results), body.nodes, imports)
        described = {"@type": layer.type_name, **get_description(layer.kwargs)}
        entry = function.metadata_props.add()
        entry.key, entry.value = ENTRY, json.dumps(described)
        self.functions.append(function)
        given = [self.x(port) for port in layer.in_shapes]
        given += [self.parameter(name) for name in layer.parameter_shapes]
        tensors = self.body.op(kind, *given, outputs=len(results), domain=DOMAIN)
        tensors = tensors if isinstance(tensors, list) else [tensors]
        for output, tensor in zip(layer.out_shapes, tensors, strict=True):
            self.put(tensor, output)

    def fail(self, why: str) -> NetworkValidationError:
        """Return the error that the present layer cannot be exported, and why."""
        return NetworkValidationError(f"{self.where}: {why}")

    @property
    def where(self) -> str:
        """The present layer, for messages."""
        return f"layer {self.layer.name!r} ({self.layer.type_name})"

    # -- the whole --------------------------------------------------------------------------------

    def write(self) -> Any:
        """Return the model."""
        self._find_needed()
        for member, layer in self.net.layers.items():
            self.layer, self.body.scope = layer, member
            self.body.where = self.where
            if member == INPUT:
                self._inputs = sorted(self.needed.get(INPUT, ()))
                self.body.reserve([*self._inputs, *self.outputs])
                for port in self._inputs:
                    self._check(layer.out_shapes[port])
                    tensor = port
                    if not layer.out_shapes[port].scales_with_time:
                        tensor = self.body.op("Unsqueeze", tensor, self.body.constant([0]))
                    self.put(tensor, port)
            elif member in self.needed:
                for structure in layer.in_shapes.values():
                    self._check(structure)
                for port in self.needed[member]:
                    self._check(layer.get_shape(f"outputs.{port}"))
                _writer_of(layer)(self, layer)
                for port in self.needed[member]:
                    made = f"{member}.{port}"
                    if made not in self._plain and made not in self._first:
                        raise self.fail(f"ONNX has no counterpart of its output {port!r}.")
        return self._model([self._output(path, name) for path, name in self.outputs.items()])

    def _find_needed(self) -> None:
        for path, name in self.outputs.items():
            self.needed.setdefault(name, set()).add(path.partition(".")[2])
        for name, layer in reversed(self.net.layers.items()):
            if name in self.needed and name != INPUT:
                _writer_of(layer)  # raises an error if there is none
                self.layer = layer
                ports = self.needed_ports()
                for connection in layer.incoming:
                    if connection.output_name.startswith(".."):
                        raise self.fail(f"ONNX has no counterpart of connection {connection}.")
                    if connection.input_name in ports:
                        outputs = self.needed.setdefault(connection.start_layer, set())
                        outputs.add(connection.output_name)

    def _check(self, structure: BufferStructure) -> None:
        if not structure.scales_with_batch_size:
            raise self.fail(f"expected data ('T', 'B', ...), got {structure.shape}.")

    def _output(self, path: str, name: str) -> Any:
        """Add the node of an output of the model, and return its description."""
        helper, structure = onnx().helper, self._structure(path)
        self.layer = self.net.layers[name]
        self.body.scope = name
        tensor = self.plain(path)
        if not structure.scales_with_time:
            tensor = self.body.op("Squeeze", tensor, self.body.constant([0]))
        self.body.nodes.append(helper.make_node("Identity", [tensor], [path], path))
        return helper.make_tensor_value_info(path, onnx().TensorProto.FLOAT, structure.shape)

    def _model(self, outputs: list[Any]) -> Any:
        helper, numpy_helper = onnx().helper, onnx().numpy_helper
        float32 = onnx().TensorProto.FLOAT
        shapes = self.net.layers[INPUT].out_shapes
        inputs = [
            helper.make_tensor_value_info(name, float32, shapes[name].shape)
            for name in self._inputs
        ]
        constants = [
            numpy_helper.from_array(array, name) for name, array in self.body.initializers.items()
        ]
        graph = helper.make_graph(self.body.nodes, "network", inputs, outputs, constants)
        imports = [helper.make_opsetid("", OPSET)]
        if self.functions:
            imports.append(helper.make_opsetid(DOMAIN, 1))
        model = helper.make_model(
            graph,
            opset_imports=imports,
            functions=self.functions,
            ir_version=IR_VERSION,
            producer_name=DOMAIN,
        )
        onnx().checker.check_model(model, full_check=True)
        return model
