"""Network: layers, their memory, and the passes over it."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from brainstorm import references
from brainstorm.describable import Describable, create_from_description, get_description
from brainstorm.errors import (
    DescriptionError,
    FileFormatError,
    NetworkValidationError,
)
from brainstorm.files import NetworkFile, PathLike, intact, read_network_file, write_network_file
from brainstorm.handlers import get_default_handler
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.plan import Plan, Recorder, Watched
from brainstorm.initializers import as_initializer, evaluate_initializer
from brainstorm.layers.base_layer import Layer
from brainstorm.layers.loss_layer import LossLayerImpl
from brainstorm.randomness import RandomState, Seedable
from brainstorm.structure.architecture import (
    INPUT,
    Architecture,
    generate_architecture,
    instantiate_layers_from_architecture,
)
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.display import Tree
from brainstorm.structure.external_data import check_external_data, split_batch
from brainstorm.structure.generators import get_generator_states, set_generator_states
from brainstorm.structure.lifetimes import plan_memory
from brainstorm.structure.memory import MemoryReport, find_largest_batch, measure_memory
from brainstorm.structure.passes import Passes
from brainstorm.structure.planning import Plans
from brainstorm.structure.prediction import Prediction
from brainstorm.structure.recording import RecordedNetwork
from brainstorm.structure.summary import network_tree, summarize
from brainstorm.structure.topology import check_topology
from brainstorm.utils import Array
from brainstorm.value_modifiers import (
    apply_to_gradient,
    check_gradient_modifier,
    check_weight_modifier,
)

__all__ = ["Network"]

Data = Mapping[str, Array]
Modifiers = dict[str, dict[str, list[Any]]]

#: Values that do not grow with T and B (parameters, gradients, statistics, what is derived from
#: them) to those in the network's file, and how many more a layer may need.
MOST_TIMES_HELD, MOST_BESIDE_HELD = 4, 2**22


class Network(Seedable, Describable):
    """A trainable network whose whole memory can be looked into.

    Usually made with `from_layer` or `from_architecture`.

    Args:
        layers: Name to layer, in topological order.
        buffer_manager: Owns the memory.
        architecture: The dictionary that the layers were made from.
        seed: Root of the network's seed tree; `None` draws one from `global_rnd`.
        handler: Computes everything; `None` takes the buffer manager's.

    Attributes:
        layers: Name to layer, in topological order.
        buffer: The tree of all buffers: ``net.buffer.Lstm.internals.Fb``.
        loss_layers: Names of the Loss layers.
        output_name: Dotted path of the output that scorers and `predict` look at.
        initializers: Description of the last call of `initialize`.
        weight_modifiers: Layer to parameter to the modifiers applied after each update.
        gradient_modifiers: The same for gradients, applied after each backward pass.
    """

    # -- making networks ------------------------------------------------------------------------

    def __init__(
        self,
        layers: Mapping[str, Layer],
        buffer_manager: BufferManager,
        architecture: Architecture,
        seed: int | None = None,
        handler: Handler | None = None,
    ) -> None:
        super().__init__(seed)
        self.layers: OrderedDict[str, Layer] = OrderedDict(layers)
        self.architecture = architecture
        self.loss_layers = [n for n, la in self.layers.items() if isinstance(la, LossLayerImpl)]
        if "total_loss" in self.loss_layers:
            raise NetworkValidationError(
                "layer 'total_loss' (Loss): the name is taken by the sum of all losses."
            )
        self.output_name: str | None = None
        self.initializers: dict[str, Any] = {}
        self.weight_modifiers: Modifiers = {}
        self.gradient_modifiers: Modifiers = {}
        self._buffer_manager = buffer_manager
        self._keep_input_deltas = False
        self._passes = Passes(self.layers, buffer_manager, keep_input_deltas=False)
        self._plans = Plans()
        self._predictions: dict[Any, Prediction] = {}
        self.set_handler(buffer_manager.handler if handler is None else handler)

    @classmethod
    def from_layer(
        cls,
        some_layer: ConstructionWrapper,
        seed: int | None = None,
        handler: Handler | None = None,
        memory: str = "inspectable",
    ) -> Network:
        """Build the network of everything that is connected with `some_layer`."""
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
            architecture: See `brainstorm.structure.architecture`; it is not changed.
            seed: Root of the network's seed tree; `None` draws one from `global_rnd`.
            handler: Computes everything; `None` takes the default handler.
            memory: ``'inspectable'`` keeps everything, ``'compact'`` uses memory again as soon as
                neither pass needs what is in it; all results are the same.

        Raises:
            NetworkValidationError: Names, types or connections are not in order.
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
        """Build a network; if a file holds `held` values for it, only one of about that size."""
        seed = RandomState(seed).get_seed()
        layers = instantiate_layers_from_architecture(architecture, RandomState(seed))
        check_topology(layers)
        hubs, layout = plan_memory(layers, strategy=memory)
        needed = sum(hub.get_size(0, 0) for hub in hubs)
        if held is not None and needed > MOST_TIMES_HELD * held + MOST_BESIDE_HELD:
            raise FileFormatError(
                f"the file holds {held} values for a network whose description needs memory for "
                f"{needed}."
            )
        manager = BufferManager(layout, hubs, handler or get_default_handler())
        return cls(layers, manager, architecture, seed)

    def set_handler(self, handler: Handler) -> None:
        """Compute with `handler` from now on; parameters and running statistics are kept."""
        if handler is not self._buffer_manager.handler:
            self._buffer_manager.set_handler(handler)
        for layer in self.layers.values():
            layer.set_handler(handler)

    @property
    def handler(self) -> Handler:
        """The handler that computes everything; see `set_handler`."""
        return self._buffer_manager.handler

    # -- looking inside -------------------------------------------------------------------------

    @property
    def buffer(self) -> BufferView:
        """The tree of all buffers, on the handler's device; writing to them is allowed.

        Raises:
            NetworkValidationError: The network was closed.
        """
        return self._buffer_manager.views

    @property
    def time_size(self) -> int:
        """Present sequence length T."""
        return self._buffer_manager.time_size

    @property
    def batch_size(self) -> int:
        """Present batch size B."""
        return self._buffer_manager.batch_size

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the data that `provide_external_data` takes."""
        return tuple(self.layers[INPUT].out_shapes)

    @property
    def parameters_size(self) -> int:
        """Number of trainable values."""
        return int(self.buffer.parameters.size)

    def get(self, path: str) -> np.ndarray:
        """Return a copy of a buffer as a NumPy array.

        Args:
            path: Dotted path such as ``'Lstm.internals.Fb'`` or ``'parameters'``. Outputs of
                recurrent layers have T + 1 rows; the last is the state before the first step.

        Raises:
            UnknownPathError: The path leads nowhere, or to a group of buffers.
            NullBufferError: It is a delta that nobody needs.
            ReusedBufferError: Its memory is shared, and the last pass has used it again.
        """
        return self.handler.get_numpy_copy(self._buffer_manager.read(path))

    def get_input(self, name: str) -> np.ndarray:
        """Return a copy of the data that was provided as `name`."""
        return self.get(f"{INPUT}.outputs.{name}")

    def memory(self, T: int, B: int) -> MemoryReport:
        """Return the exact bytes per layer and kind for T and B; nothing is allocated."""
        manager = self._buffer_manager
        return measure_memory(manager.hubs, list(self.layers), T, B, manager.item_size)

    def largest_batch(self, bytes: int, T: int = 1) -> int:
        """Return the largest batch size whose buffers fit into `bytes` for sequences of T steps."""
        manager = self._buffer_manager
        return find_largest_batch(manager.hubs, T, bytes, manager.item_size)

    def summary(self) -> None:
        """Print a table of the layers: shapes, parameters, characteristics."""
        sys.stdout.write(f"Network of {len(self.layers)} layers\n{summarize(self.layers)}\n")

    def tree(self) -> Tree:
        """Return the tree of all layers, to be printed or to be shown by a notebook.

        Each layer has its options, where its inputs come from, its outputs, parameters and
        internals. ``repr(net)`` is this, folded where it is long.
        """
        return network_tree(self.layers, None if self._buffer_manager.is_closed else self.buffer)

    def __repr__(self) -> str:
        return repr(self.tree().folded())

    def _repr_html_(self) -> str:
        return self.tree().folded()._repr_html_()

    def __rich__(self) -> Any:
        return self.tree().folded().__rich__()

    # -- life cycle -----------------------------------------------------------------------------

    def close(self) -> None:
        """Shut all layers down and release the memory; may be called more than once."""
        for layer in self.layers.values():
            layer.shutdown()
        self._buffer_manager.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- statistics -----------------------------------------------------------------------------

    def dump_statistics(
        self, storage: MutableMapping[str, float] | None = None, show: bool = False
    ) -> MutableMapping[str, float]:
        """Return what statistics layers accumulated since the last reset, by layer name.

        Args:
            storage: Takes the values; `None` makes a new dict.
            show: Whether to print them too.
        """
        storage = {} if storage is None else storage
        for name in self._statistics_layers():
            self.layers[name].dump_statistics(self.buffer[name], storage)
            if show:
                sys.stdout.write(f"{name}: {storage[name]}\n")
        return storage

    def reset_statistics(self) -> None:
        """Let statistics layers begin anew; the trainer does so in every epoch."""
        for name in self._statistics_layers():
            self.layers[name].reset_statistics(self.buffer[name])

    @contextlib.contextmanager
    def separate_statistics(self) -> Iterator[None]:
        """Begin anew for the time of a ``with`` block (an evaluation), then go on as before."""
        kept = {
            path: self.get(path)
            for path in self._buffer_manager.persistent_paths
            if path.partition(".")[0] in self._statistics_layers()
        }
        self.reset_statistics()
        try:
            yield
        finally:
            for path, values in kept.items():
                self.handler.set_from_numpy(self.buffer[path], values)

    @property
    def persistent_paths(self) -> list[str]:
        """Paths of the buffers that are saved with the network beside the parameters."""
        return self._buffer_manager.persistent_paths

    def _statistics_layers(self) -> list[str]:
        return [name for name, layer in self.layers.items() if layer.has_stats]

    # -- parameters -----------------------------------------------------------------------------

    @property
    def _parameter_names(self) -> dict[str, tuple[str, ...]]:
        """Layer to the names of the parameters that it owns."""
        return {
            name: tuple(p for p in layer.parameter_shapes if p not in layer.shared_parameters)
            for name, layer in self.layers.items()
        }

    @property
    def parameter_slices(self) -> dict[str, slice]:
        """Path of each parameter to its place in the flat parameters, and in the gradients."""
        layout = self._buffer_manager.layout
        return {
            f"{layer}.parameters.{name}": slice(*layout[layer]["parameters"][name]["@slice"])
            for layer, names in self._parameter_names.items()
            for name in names
        }

    def initialize(
        self, default_or_init_dict: Any = None, seed: int | None = None, **kwargs: Any
    ) -> None:
        """Fill all parameters.

            net.initialize(Gaussian(0.1))
            net.initialize({'Conv*': {'W': Gaussian(0.01), 'bias': 0}}, default=Uniform(0.1))

        Args:
            default_or_init_dict: One value for all parameters, or a dict from layer names or
                patterns (``*``) to a value or a dict from parameter names or patterns to values.
                ``default`` and ``fallback`` are allowed on both levels.
            seed: Makes this call repeatable; `None` takes the network's seed tree.
            **kwargs: The same as entries of the dict.

        Raises:
            NetworkValidationError: A pattern matches nothing, or a parameter got no value or two.
            InitializationError: A value does not fit a shape and there is no fallback.
        """
        given = references.get_references(default_or_init_dict, kwargs)
        resolved = references.resolve_initializers(self._parameter_names, given, as_initializer)
        rnd = self.rnd.child("initialize") if seed is None else RandomState(seed)
        values = {}
        for name in sorted(self.layers):
            for parameter, (initializer, fallback) in sorted(resolved.get(name, {}).items()):
                structure = self.layers[name].parameter_shapes[parameter]
                path = f"{name}.parameters.{parameter}"
                values[path] = evaluate_initializer(
                    initializer,
                    structure.feature_shape,
                    fallback,
                    seed=rnd.child(path).generate_seed(),
                )
        for path, value in values.items():
            self.handler.set_from_numpy(self.buffer[path], value)
        self.initializers = get_description(given)

    def set_weight_modifiers(self, default_or_mod_dict: Any = None, **kwargs: Any) -> None:
        """Set what is applied to parameters after each update; replaces what was set before.

        Takes the same forms as `initialize`, with a modifier or a list of them as values. An
        empty call clears.
        """
        self.weight_modifiers = self._resolve_modifiers(
            default_or_mod_dict, kwargs, check_weight_modifier
        )

    def set_gradient_modifiers(self, default_or_mod_dict: Any = None, **kwargs: Any) -> None:
        """Set what is applied to gradients after each backward pass; see `set_weight_modifiers`."""
        self.gradient_modifiers = self._resolve_modifiers(
            default_or_mod_dict, kwargs, check_gradient_modifier
        )

    def _resolve_modifiers(
        self, first: Any, kwargs: Mapping[str, Any], check: Callable[[Any], Any]
    ) -> Modifiers:
        given = references.get_references(first, kwargs)
        modifiers = references.resolve_modifiers(self._parameter_names, given, check)
        for layer, parameter, modifier in _each_modifier(modifiers):
            modifier.rnd = self.rnd.child(f"modifiers/{layer}.{parameter}")
        return modifiers

    def apply_weight_modifiers(self) -> None:
        """Apply the weight modifiers to the parameters."""
        for layer, parameter, modifier in _each_modifier(self.weight_modifiers):
            modifier(self.handler, self.buffer[layer].parameters[parameter])

    def apply_gradient_modifiers(self) -> None:
        """Apply the gradient modifiers to the gradients."""
        for layer, parameter, modifier in _each_modifier(self.gradient_modifiers):
            views = self.buffer[layer]
            apply_to_gradient(
                modifier, self.handler, views.parameters[parameter], views.gradients[parameter]
            )

    # -- passes ---------------------------------------------------------------------------------

    @property
    def keep_input_deltas(self) -> bool:
        """Whether the deltas of the Input layer are computed too. Setting it plans memory anew."""
        return self._keep_input_deltas

    @keep_input_deltas.setter
    def keep_input_deltas(self, keep: bool) -> None:
        if keep != self._keep_input_deltas:
            self._keep_input_deltas = keep
            hubs, layout = plan_memory(self.layers, keep, self._buffer_manager.strategy)
            self._buffer_manager.set_layout(layout, hubs)
            scale = self.loss_scale
            self._passes = Passes(self.layers, self._buffer_manager, keep)
            self._passes.loss_scale = scale

    @property
    def loss_scale(self) -> Array | None:
        """What deltas are multiplied with on their way: a one-element array, or `None` for 1.

        The gradients of a backward pass are divided by it at its end, before the modifiers.
        """
        return self._passes.loss_scale

    @loss_scale.setter
    def loss_scale(self, scale: Array | None) -> None:
        self._passes.loss_scale = scale
        for name in self.loss_layers:
            self.layers[name].loss_scale = scale

    def provide_external_data(self, data: Data, all_inputs: bool = True) -> None:
        """Copy a batch into the outputs of the Input layer, after making room for its T and B.

        Args:
            data: Name to array (T, B, features...), as the Input's ``out_shapes`` say. NumPy
                arrays are cast to the handler's dtype; unknown names are ignored.
            all_inputs: Whether every input must be given; the others keep what they hold.

        Raises:
            MissingDataError: An input is missing.
            NetworkValidationError: A shape or dtype does not fit, or T or B differ.
            LayerValidationError: A layer cannot work with the values (class out of range).
            OutOfMemoryError: There is no memory for this T and B.
        """
        shapes = self.layers[INPUT].out_shapes
        T, B = check_external_data(data, shapes, all_inputs)
        for connection in self.layers[INPUT].outgoing:
            array = data.get(connection.output_name)
            if isinstance(array, np.ndarray):
                self.layers[connection.end_layer].validate_data(connection.input_name, array)
        self._buffer_manager.leave_batch()
        self._buffer_manager.resize(T, B)
        for name in shapes:
            if name in data:
                self._set_input(name, data[name])

    def _set_input(self, name: str, array: Array) -> None:
        target = self.buffer.Input.outputs[name]
        is_on_handler = isinstance(array, self.handler.array_type)
        if is_on_handler and not isinstance(array, np.ndarray):
            self.handler.copy_to(array, target)
        else:  # every batch is another array: nothing that could be prepared for the next one
            self.handler.set_from_numpy(target, np.asarray(array))

    def forward_pass(
        self, training_pass: bool = False, context: Sequence[Array] | None = None
    ) -> None:
        """Compute the outputs of all layers from the data that was provided.

        Args:
            training_pass: Whether layers act as in training (dropout, batch statistics).
            context: What `get_context` returned after the preceding part of the sequences;
                `None` starts from zeros (or as `carry_context` says).
        """
        self._passes.forward(self.layers, training_pass, context)

    def backward_pass(self, accumulate: bool = False) -> None:
        """Compute all gradients (and the deltas on the way) of the sum of all losses.

        The last forward pass should have been one with ``training_pass=True``.

        Args:
            accumulate: Whether to add to the gradients instead of overwriting them.
        """
        self._passes.backward(accumulate)
        self.apply_gradient_modifiers()

    @property
    def plan_key(self) -> tuple[Any, ...]:
        """What selects a recorded pass (T, B, context), and what it depends on beside that."""
        manager = self._buffer_manager
        modifiers = [id(modifier) for _, _, modifier in _each_modifier(self.gradient_modifiers)]
        depends = (*map(id, (manager.handler, self._passes, *manager.full_buffers)), *modifiers)
        key = (manager.time_size, manager.batch_size, manager.carries_context)
        return key, (Watched.changes, *depends)

    def recorded(self, recorder: Recorder) -> RecordedNetwork:
        """Return what stands for this network while a recorder takes down its passes."""
        modifiers = list(_each_modifier(self.gradient_modifiers))
        return RecordedNetwork(recorder, self._buffer_manager, self._passes, self.layers, modifiers)

    def plan(self, training_pass: bool = True) -> Plan:
        """Return the operations of both passes for the present T and B, recorded.

        ``print(net.plan().report())`` shows each with its time, which does the passes a few times.

        Args:
            training_pass: Whether layers act as in training; else only the forward pass.
        """
        recorder = Recorder(self.handler)
        recorded = self.recorded(recorder)
        recorded.forward_pass(training_pass)
        if training_pass:
            recorded.backward_pass()
        return Plan(self.handler, recorder.steps)

    def get_loss_values(self) -> OrderedDict[str, float]:
        """Return the losses of the last forward pass.

        Returns:
            ``total_loss``, preceded by one entry per Loss layer where there are several.
        """
        losses = OrderedDict(
            (name, float(self.get(f"{name}.outputs.loss").item())) for name in self.loss_layers
        )
        total = sum(losses.values(), 0.0)
        if len(losses) == 1:
            losses.clear()
        losses["total_loss"] = total
        return losses

    def get_context(self) -> list[Array | None]:
        """Return the state of all recurrent layers after the last step, for `forward_pass`."""
        return self._buffer_manager.get_context()

    def carry_context(self, state: list[Array | None], continues: bool) -> None:
        """Make the batch that was provided a part of longer sequences, until the next one comes.

            state = []
            for number, part in enumerate(parts_of_some_sequences):
                net.provide_external_data(part)
                net.carry_context(state, continues=number > 0)
                net.forward_pass(training_pass=True)  # starts where the part before has ended

        This is what `tools.run_network` and the Trainer do with the batches of `SequenceChunks`.

        Args:
            state: Belongs to these sequences. Once the batch is replaced, it holds the state of all
                recurrent layers after its last step.
            continues: Whether forward passes start from `state` as it is now, or from zeros.

        Raises:
            NetworkValidationError: `state` is empty, or belongs to another network or batch size.
        """
        self._buffer_manager.carry_context(state, continues)

    def leave_batch(self) -> None:
        """Bring the list given to `carry_context` up to date; no pass may follow on this batch."""
        self._buffer_manager.leave_batch()

    # -- using a trained network ----------------------------------------------------------------

    def predict(
        self, data: Array | Data, output_name: str | None = None, batch_size: int = 128
    ) -> np.ndarray:
        """Return an output for data of any batch size and sequence length.

        Only the layers that this output depends on are run, in inference mode. The present batch
        is replaced.

        Args:
            data: Array (T, N, features...) for the input ``default`` (or the only one), or a dict
                from input names to arrays. Other inputs (targets) are set to zero.
            output_name: Dotted path such as ``'Output.outputs.predictions'``; `None` takes
                ``net.output_name``, or the only output called ``predictions``.
            batch_size: Number of sequences computed at once; bounds the memory.

        Returns:
            Array (T, N, features...).
        """
        if not isinstance(data, Mapping):
            names = self.input_names
            data = {names[0] if len(names) == 1 else "default": np.asarray(data)}
        prediction = self._find_prediction(output_name, tuple(data))
        path, structure, needed, given, missing = prediction
        given_data = {name: data[name] for name in given}
        parts = []
        for batch in split_batch(given_data, self.layers[INPUT].out_shapes, batch_size):
            self.provide_external_data(batch, all_inputs=False)
            for name in missing:
                self.handler.fill(self.buffer.Input.outputs[name], 0.0)
            self._plans.run(
                self,
                lambda: self._passes.forward(needed, False, None),
                lambda recorded: recorded.forward_pass(names=needed),
                path,
            )
            values = self.handler.get_numpy_copy(self.buffer[path])
            parts.append(values[: self.time_size] if structure.scales_with_time else values)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts, axis=max(structure.first_feature_dim - 1, 0))

    def _find_prediction(self, output_name: str | None, names: tuple[str, ...]) -> Prediction:
        key = output_name or self.output_name, names
        if key not in self._predictions:
            self._predictions[key] = Prediction.of(self.layers, *key)
        return self._predictions[key]

    # -- files and descriptions -----------------------------------------------------------------

    def save_as_hdf5(self, filename: PathLike, comment: str = "") -> None:
        """Write the description, all parameters and running statistics to an HDF5 file.

        The file appears whole under its name or not at all.
        """
        write_network_file(filename, self.get_file_content(comment))

    def get_file_content(self, comment: str = "") -> NetworkFile:
        """Return copies of all that `save_as_hdf5` writes."""
        persistent = {path: self.get(path) for path in self._buffer_manager.persistent_paths}
        return NetworkFile(self.__describe__(), self.get("parameters"), persistent, comment)

    @classmethod
    def from_hdf5(cls, filename: PathLike, handler: Handler | None = None) -> Network:
        """Return the network in a file that `save_as_hdf5` wrote, or in a run file.

        Args:
            filename: The file.
            handler: Use this handler instead of the one that the file names.

        Raises:
            FileFormatError: The file is truncated, foreign, or of a newer version.
            UnknownTypeError: It needs a class that has not been imported.
        """
        return cls.from_file_content(read_network_file(filename), filename, handler)

    @classmethod
    def from_file_content(
        cls, content: NetworkFile, filename: PathLike, handler: Handler | None = None
    ) -> Network:
        """Return the network of `get_file_content`; `filename` is for messages, see `from_hdf5`."""
        filename = os.fspath(filename)
        arrays = {"parameters": content.parameters, **content.persistent}
        held = sum(array.size for array in arrays.values())
        with intact(repr(filename), "network"):
            net = cls._from_description(content.description, handler, held)
        expected = {"parameters", *net._buffer_manager.persistent_paths}
        if set(arrays) != expected:
            raise FileFormatError(
                f"{filename!r}: expected the arrays {sorted(expected)}, got {sorted(arrays)}."
            )
        for path, values in arrays.items():
            if tuple(values.shape) != tuple(net.buffer[path].shape):
                raise FileFormatError(
                    f"{filename!r}, {path}: expected shape {tuple(net.buffer[path].shape)}, got "
                    f"{values.shape}."
                )
        for path, values in arrays.items():
            net.handler.set_from_numpy(net.buffer[path], values)
        return net

    def copy(self) -> Network:
        """Return an independent network that is the same in everything.

        Its parameters, running statistics, modifiers and the states of all random numbers are
        copies; it computes with a handler of the same kind.
        """
        return copy.deepcopy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as through a file, and with the states of all random numbers."""
        states = get_generator_states(self)
        return (
            _copy_network,
            (type(self), self.get_file_content(), states, self.keep_input_deltas),
        )

    def __describe__(self) -> dict[str, Any]:
        return {
            "@type": "Network",
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
            net.initialize(create_from_description(net.initializers))
        return net

    @classmethod
    def _from_description(
        cls, description: Mapping[str, Any], handler: Handler | None = None, held: int | None = None
    ) -> Network:
        handler = handler or create_from_description(description["handler"])
        if not isinstance(handler, Handler):
            raise DescriptionError(f"[handler]: expected a handler, got {handler!r}")
        memory = description.get("memory", "inspectable")
        net = cls._build(description["architecture"], None, handler, memory, held)
        net.initializers = description.get("initializers", {})
        weights, gradients = (
            create_from_description(description.get(kind, {}))
            for kind in ("weight_modifiers", "gradient_modifiers")
        )
        net.set_weight_modifiers(weights)
        net.set_gradient_modifiers(gradients)
        net.output_name = description.get("output_name")
        return net


def _copy_network(
    cls: type[Network], content: NetworkFile, generators: dict[str, Any], keep_input_deltas: bool
) -> Network:
    where = "a copied network"
    net = cls.from_file_content(content, where)
    net.keep_input_deltas = keep_input_deltas
    set_generator_states(net, generators, where)
    return net


def _each_modifier(modifiers: Modifiers) -> Iterable[tuple[str, str, Any]]:
    for layer, parameters in modifiers.items():
        for parameter, mods in parameters.items():
            for modifier in mods:
                yield layer, parameter, modifier
