"""Network: what users build, train, inspect, predict with and save.

Its base classes: `NetworkMemory` (layers, handler, buffers), `NetworkParameters` (initialization
and modifiers), `NetworkPasses` (forward and backward).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from brainstorm.describable import Describable, create_from_description, get_description
from brainstorm.errors import DescriptionError, FileFormatError, NetworkValidationError, shown
from brainstorm.files import NetworkFile, PathLike, intact, read_network_file, write_network_file
from brainstorm.handlers import get_default_handler
from brainstorm.handlers.base_handler import Handler, check_is_handler
from brainstorm.layers.base_layer import Layer
from brainstorm.network.external_data import split_batch
from brainstorm.network.files_2015 import arrays_of_2015
from brainstorm.network.generators import get_generator_states, set_generator_states
from brainstorm.network.parameters import misfits, put_values
from brainstorm.network.passes import Data, NetworkPasses
from brainstorm.network.prediction import Prediction, check_output_name, find_prediction
from brainstorm.network.topology import check_topology
from brainstorm.network.tracing import Traces
from brainstorm.randomness import RandomState
from brainstorm.structure.architecture import (
    Architecture,
    generate_architecture,
    instantiate_layers_from_architecture,
)
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.lifetimes import plan_memory
from brainstorm.utils import Array, as_array, copy_containers

#: Maximum ratio of constant-size values (parameters, gradients, statistics, derived ones) to those
#: in the network's file, and how many more a layer may need.
MOST_TIMES_HELD, MOST_BESIDE_HELD = 4, 2**22


class Network(NetworkPasses, Describable):
    """A trainable network whose memory can be inspected.

    Usually created with `from_layer` or `from_architecture`.

    Args:
        layers: Name to layer, in topological order.
        buffer_manager: Owns the memory.
        architecture: The dictionary that describes the layers.
        seed: Root of the network's seed tree; `None` draws one from `global_rnd`.
        handler: Computes everything; `None`: that of the buffer manager.

    Attributes:
        layers: Name to layer, in topological order.
        buffer: The tree of all buffers: ``net.buffer.Lstm.internals.Fb``.
        loss_layers: Names of the Loss layers.
        initializers: Description of the last call of `initialize`.
        weight_modifiers: Layer to parameter to the modifiers to apply after each update.
        gradient_modifiers: The same for gradients, applied after each backward pass.
    """

    def __init__(
        self,
        layers: Mapping[str, Layer],
        buffer_manager: BufferManager,
        architecture: Architecture,
        seed: int | None = None,
        handler: Handler | None = None,
    ) -> None:
        super().__init__(layers, buffer_manager, seed)
        self.set_handler(buffer_manager.handler if handler is None else handler)
        self._architecture = architecture
        self.output_name = None
        self._traces = Traces()
        self._predictions: dict[Any, Prediction] = {}

    @property
    def architecture(self) -> Architecture:
        """A copy of the dictionary that describes the layers; see `from_architecture`."""
        found = copy_containers(self._architecture)
        for name, layer in self.layers.items():
            found[name].update(copy_containers(layer.kwargs))
        return found

    @classmethod
    def from_layer(
        cls,
        some_layer: ConstructionWrapper,
        seed: int | None = None,
        handler: Handler | None = None,
        memory: str = "inspectable",
    ) -> Network:
        """Build the network of all layers that are connected with `some_layer`."""
        return cls.from_architecture(generate_architecture(some_layer), seed, handler, memory)

    @classmethod
    def from_architecture(
        cls,
        architecture: Architecture,
        seed: int | None = None,
        handler: Handler | None = None,
        memory: str = "inspectable",
    ) -> Network:
        """Build the network that an architecture dictionary describes.

        Args:
            architecture: See `brainstorm.structure.architecture`. It is copied.
            seed: Root of the network's seed tree; `None` draws one from `global_rnd`.
            handler: Computes everything; `None`: the default handler.
            memory: ``'inspectable'`` keeps everything, ``'compact'`` reuses memory as soon as
                neither pass needs its content; all results are the same (with attention up to
                rounding).

        Raises:
            NetworkValidationError: Names, types or connections are not valid.
            LayerValidationError: Options or shapes do not fit a layer.
            UnknownTypeError: A layer type does not exist.
        """
        return cls._build(architecture, seed, handler, memory)

    @classmethod
    def _build(
        cls,
        architecture: Architecture,
        seed: int | None,
        handler: Handler | None,
        memory: str,
        held: int | None = None,
    ) -> Network:
        """Build a network; if a file has `held` values for it, its size must be similar."""
        handler = get_default_handler() if handler is None else handler
        check_is_handler(handler)
        seed = RandomState(seed).get_seed()
        layers = instantiate_layers_from_architecture(architecture, RandomState(seed))
        check_topology(layers)
        for layer in layers.values() if memory == "compact" else ():
            layer.save_memory()
        hubs, layout = plan_memory(layers, strategy=memory)
        needed = sum(hub.get_size(0, 0) for hub in hubs)
        if held is not None and needed > MOST_TIMES_HELD * held + MOST_BESIDE_HELD:
            raise FileFormatError(
                f"the file holds {held} values for a network whose description needs memory for "
                f"{needed}."
            )
        manager = BufferManager(layout, hubs, handler)
        return cls(layers, manager, copy_containers(architecture), seed)

    @property
    def output_name(self) -> str | None:
        """Dotted path of the output for scorers and `predict`, which is checked when it is set."""
        return self._output_name

    @output_name.setter
    def output_name(self, name: str | None) -> None:
        if check_output_name(name):
            find_prediction(self.layers, name)
        self._output_name = name

    # -- using a trained network ----------------------------------------------------------------

    @overload
    def predict(
        self, data: Array | Data, output_name: str | None = None, batch_size: int = 128
    ) -> np.ndarray: ...

    @overload
    def predict(
        self, data: Array | Data, output_name: list[str] | tuple[str, ...], batch_size: int = 128
    ) -> dict[str, np.ndarray]: ...

    def predict(
        self,
        data: Array | Data,
        output_name: str | list[str] | tuple[str, ...] | None = None,
        batch_size: int = 128,
    ) -> np.ndarray | dict[str, np.ndarray]:
        """Return an output, or several, for data of any batch size and sequence length.

        Only the layers that these outputs depend on are run, in inference mode. The present batch
        is replaced.

        Args:
            data: Array (T, N, features...) for the input ``default`` (or the only one), or a dict
                from input names to arrays. Targets may be missing, except for a loss.
            output_name: Dotted path such as ``'Output.outputs.predictions'``, or a list of them;
                `None`: ``net.output_name``, or else the only output called ``predictions``, or the
                only one that is not connected. For a list there is one pass, or with
                ``memory='compact'`` or layers that work in place one for each path.
            batch_size: Number of sequences computed at once; limits the memory.

        Returns:
            Array (T, N, features...); for a list of paths, a dict from these to arrays.

        Raises:
            UnknownPathError: None of the names is an input, there is no such layer, or the name of
                a layer was given instead of the path of its output.
            LayerValidationError: The layer has no such output.
            NetworkValidationError: The output is ambiguous, the data does not fit, or an
                output of constant size (a loss) would take several batches.
            MissingDataError: An input or a mask that an output depends on is missing.
        """
        is_one = not isinstance(output_name, (list, tuple))
        names: Any = [output_name] if is_one else output_name
        wanted = tuple(check_output_name(n) or check_output_name(self.output_name) for n in names)
        passes = [wanted]
        if not is_one and (self.shares_memory or any(a.is_inplace for a in self.layers.values())):
            passes = [(n,) for n in wanted]  # an output may be lost within its pass
        found: dict[str, np.ndarray] = {}
        for together in passes:
            found |= self._predict(data, together, batch_size)
        return found.popitem()[1] if is_one else found

    def _predict(
        self, data: Array | Data, wanted: tuple[str | None, ...], batch_size: int
    ) -> dict[str, np.ndarray]:
        if not isinstance(data, Mapping):
            names = self.input_names
            data = {names[0] if len(names) == 1 else "default": as_array(data, "data")}
        key = wanted, tuple(data)
        if key not in self._predictions:
            self._predictions[key] = Prediction.of(self.layers, *key)
        outputs, needed, given, missing = self._predictions[key]
        compute = partial(self.forward_layers, needed, missing=missing)
        given_data = {name: self._apart(data[name]) for name in given}
        parts: dict[str, list[np.ndarray]] = {path: [] for path in outputs}
        for batch, *sizes in split_batch(given_data, self._check_data, batch_size):
            with self._buffer_manager.turn:
                self._provide(batch, *sizes, missing=missing)
                manager, depends = self._buffer_manager, self._what_passes_depend_on
                self._traces.run(manager, depends, compute, (*outputs, missing))
                for path, structure in outputs.items():
                    values = self.handler.get_numpy_copy(self.buffer[path])
                    is_timed = structure.scales_with_time
                    parts[path].append(values[: manager.steps(structure)] if is_timed else values)
        return {path: _joined(path, structure, parts[path]) for path, structure in outputs.items()}

    def replay_forward_pass(self) -> None:
        """Do the same as ``forward_pass()``, by replaying its calls if it was traced before."""
        self.do_traced(self._traces, self.forward_pass, "forward_pass")

    def _apart(self, array: Array) -> Array:
        """Return an array, or a copy if it lies in the memory of this network."""
        if isinstance(array, np.ndarray) and array.base is not None:
            memory = [m for m in self._buffer_manager.full_buffers if isinstance(m, np.ndarray)]
            if any(np.may_share_memory(array, own) for own in memory):
                return array.copy()
        return array

    # -- files and descriptions -----------------------------------------------------------------

    def save_as_hdf5(self, filename: PathLike, comment: str = "") -> None:
        """Write the description, all parameters and running statistics to an HDF5 file.

        The file is replaced atomically.
        """
        write_network_file(filename, self.get_file_content(comment))

    def get_file_content(self, comment: str = "") -> NetworkFile:
        """Return copies of everything that `save_as_hdf5` writes."""
        with self._buffer_manager.turn:
            persistent = {path: self.get(path) for path in self.persistent_paths}
            return NetworkFile(self.__describe__(), self.get("parameters"), persistent, comment)

    @classmethod
    def from_hdf5(cls, filename: PathLike, handler: Handler | None = None) -> Network:
        """Return the network from a file of `save_as_hdf5` (also of 2015), or from a run file.

        Args:
            filename: The file.
            handler: Use this handler instead of the one named in the file.

        Raises:
            FileFormatError: The file is truncated, of another kind, or of a newer version.
            UnknownTypeError: It needs a class that has not been imported.
        """
        return cls.from_file_content(read_network_file(filename), filename, handler)

    @classmethod
    def from_file_content(
        cls, content: NetworkFile, filename: PathLike, handler: Handler | None = None
    ) -> Network:
        """Return the network of `get_file_content`; `filename` is for messages, see `from_hdf5`."""
        filename = os.fspath(filename)
        arrays = content.arrays
        held = sum(array.size for array in arrays.values())
        with intact(repr(filename), "network"):
            net = cls._from_description(content.description, handler, held)
        if content.is_of_2015:
            with intact(repr(filename), "network of 2015"):
                arrays = arrays_of_2015(net.layers, arrays["parameters"], filename)
        names = ["parameters"] if "parameters" in arrays else net.parameter_slices
        expected = {*names, *net.persistent_paths}
        if expected != arrays.keys():
            raise FileFormatError(
                f"{filename!r}: its arrays do not fit its description: expected "
                f"{sorted(expected - arrays.keys())}, got {sorted(arrays.keys() - expected)}."
            )
        for problem in misfits(net, arrays):
            raise FileFormatError(f"{filename!r}, {problem}.")
        put_values(net, arrays)
        return net

    def copy(self) -> Network:
        """Return an independent copy of the network.

        Its parameters, running statistics, modifiers and the states of all random numbers are
        copies; it has a handler of the same kind. It has no stepper, so its `loss_scale` is `None`.
        """
        return copy.deepcopy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as through a file, including the states of all random numbers."""
        states = get_generator_states(self)
        return (
            _copy_network,
            (type(self), self.get_file_content(), states, self.keep_input_deltas),
        )

    def __describe__(self) -> dict[str, Any]:
        return {
            "@type": type(self).__name__,
            "architecture": get_description(self.architecture),
            "handler": get_description(self.handler),
            "memory": self._buffer_manager.strategy,
            "initializers": self.initializers,
            "weight_modifiers": get_description(self.weight_modifiers),
            "gradient_modifiers": get_description(self.gradient_modifiers),
            "output_name": self.output_name,
        }

    @classmethod
    def __new_from_description__(cls, description: Mapping[str, Any]) -> Network:
        net = cls._from_description(description)
        if net.initializers:
            net._initialize(create_from_description(net.initializers))
        return net

    @classmethod
    def _from_description(
        cls, description: Mapping[str, Any], handler: Handler | None = None, held: int | None = None
    ) -> Network:
        rest = {**description}  # a TypeError if it is no mapping
        rest.pop("@type", None)
        if handler is None:
            handler = create_from_description(rest["handler"])
            if not isinstance(handler, Handler):
                raise DescriptionError(f"[handler]: expected a handler, got {handler!r}")
        rest.pop("handler", None)
        architecture = {
            name: {key: create_from_description(value) for key, value in entry.items()}
            for name, entry in rest.pop("architecture").items()
        }
        memory = rest.pop("memory", "inspectable")
        net = cls._build(architecture, None, handler, memory, held)
        net.initializers = rest.pop("initializers", {})
        net.set_weight_modifiers(create_from_description(rest.pop("weight_modifiers", {})))
        net.set_gradient_modifiers(create_from_description(rest.pop("gradient_modifiers", {})))
        net._output_name = rest.pop("output_name", None)  # files with a wrong one can be loaded
        if rest:
            raise DescriptionError(f"a network has no {', '.join(map(repr, rest))}")
        return net


def check_network(function: str, net: Any) -> None:
    """Check that what a function was given as a network is one."""
    if not isinstance(net, Network):
        raise NetworkValidationError(f"{function}: expected a network, got {shown(net)}.")


def _copy_network(
    cls: type[Network], content: NetworkFile, generators: dict[str, Any], keep_input_deltas: bool
) -> Network:
    where = "a copied network"
    net = cls.from_file_content(content, where)
    net.keep_input_deltas = keep_input_deltas
    set_generator_states(net, generators, where)
    return net


def _joined(path: str, structure: BufferStructure, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return an output of all batches."""
    if len(parts) == 1:
        return parts[0]
    if not structure.scales_with_batch_size:
        raise NetworkValidationError(
            f"predict: {path!r} is of constant size, one for a whole batch, got {len(parts)} "
            f"batches. Pass a larger batch_size."
        )
    return np.concatenate(parts, axis=structure.first_feature_dim - 1)
