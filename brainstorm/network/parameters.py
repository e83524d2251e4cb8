"""The parameters of a network: initialization and modifiers; and the statistics of layers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

import numpy as np

from brainstorm import references
from brainstorm.describable import get_description
from brainstorm.errors import (
    InitializationError,
    LayerValidationError,
    NetworkValidationError,
    OutOfMemoryError,
)
from brainstorm.initializers import as_initializer, evaluate_initializer
from brainstorm.network.memory import NetworkMemory
from brainstorm.randomness import RandomState
from brainstorm.utils import Named
from brainstorm.value_modifiers import (
    apply_to_gradient,
    check_gradient_modifier,
    check_weight_modifier,
)

Modifiers = dict[str, dict[str, list[Any]]]


class NetworkParameters(NetworkMemory):
    """A network whose parameters can be set and modified."""

    initializers: dict[str, Any]
    weight_modifiers: Modifiers
    gradient_modifiers: Modifiers
    _started: Modifiers | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.initializers = {}
        self.weight_modifiers, self.gradient_modifiers = {}, {}

    @property
    def _parameter_names(self) -> dict[str, tuple[str, ...]]:
        """Layer to the names of its own parameters."""
        return {
            name: tuple(p for p in layer.parameter_shapes if p not in layer.shared_parameters)
            for name, layer in self.layers.items()
        }

    @property
    def parameter_slices(self) -> dict[str, slice]:
        """Path of each parameter to its slice of the flat parameters, and of the gradients."""
        layout = self._buffer_manager.layout
        return Named(
            (f"{layer}.parameters.{name}", slice(*layout[layer]["parameters"][name]["@slice"]))
            for layer, names in self._parameter_names.items()
            for name in names
        )

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
            seed: Makes this call repeatable; `None`: the network's seed tree.
            **kwargs: The same as entries of the dict.

        Raises:
            NetworkValidationError: A pattern matches nothing, or a parameter has no value, or two
                equally specific ones; see `brainstorm.references`.
            InitializationError: A value does not fit a shape and there is no fallback.
            OutOfMemoryError: There is no memory for the values.
        """
        self._initialize(self._get_references(default_or_init_dict, kwargs), seed)

    def _get_references(self, first: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return references in one dictionary; an error if one can have no effect."""
        given = references.get_references(first, kwargs)
        owns = {layer for layer, names in self._parameter_names.items() if names}
        for name in given if owns else ():
            layers = [name] if name in self.layers else self.layers
            found = [layer for layer in layers if references.matches(str(name), layer)]
            if found and not owns.intersection(found):
                shared = self.layers[found[0]].shared_parameters.values()
                owners = sorted({path.partition(".")[0] for path in shared})
                those = " and ".join(map(repr, owners))
                remedy = f" It shares those of {those}. Name that instead." if owners else ""
                raise NetworkValidationError(
                    f"reference {name!r}: expected a layer with parameters of its own, got "
                    f"{', '.join(found)}.{remedy}"
                )
        return given

    def _initialize(self, given: Mapping[str, Any], seed: int | None = None) -> None:
        resolved = references.resolve_initializers(self._parameter_names, given, as_initializer)
        rnd = self.rnd.child("initialize") if seed is None else RandomState(seed)
        values = {}
        for name in sorted(self.layers):
            for parameter, (initializer, fallback) in sorted(resolved.get(name, {}).items()):
                structure = self.layers[name].parameter_shapes[parameter]
                path = f"{name}.parameters.{parameter}"
                shape, own_seed = structure.feature_shape, partial(rnd.child_seed, path)
                try:
                    value = evaluate_initializer(initializer, shape, fallback, own_seed)
                except InitializationError as error:
                    raise InitializationError(f"parameter {path!r}: {error}") from None
                except MemoryError as error:
                    raise OutOfMemoryError(
                        f"initialize: there is no memory for the values of {path!r} of shape "
                        f"{shape} ({error})"
                    ) from error
                if problem := _overflow(value, self.handler.dtype):
                    raise InitializationError(f"parameter {path!r}: {problem}")
                values[path] = value
        description = get_description(given)
        flat, slices = self.buffer.parameters, self.parameter_slices
        for path, value in values.items():
            self.handler.set_from_numpy(flat[slices[path]], value.ravel())
        self.initializers = description

    def set_weight_modifiers(self, default_or_mod_dict: Any = None, **kwargs: Any) -> None:
        """Set the modifiers to apply to parameters after each update; replaces earlier ones.

        Takes the same forms as `initialize`, with a modifier or a list of them as values. An
        empty call removes all modifiers.
        """
        self.weight_modifiers = self._resolve_modifiers(
            default_or_mod_dict, kwargs, check_weight_modifier
        )

    def set_gradient_modifiers(self, default_or_mod_dict: Any = None, **kwargs: Any) -> None:
        """Set the modifiers to apply to gradients after each backward pass, in the same way."""
        self.gradient_modifiers = self._resolve_modifiers(
            default_or_mod_dict, kwargs, check_gradient_modifier
        )

    def _resolve_modifiers(
        self, first: Any, kwargs: Mapping[str, Any], check: Callable[[Any], Any]
    ) -> Modifiers:
        given = self._get_references(first, kwargs)
        modifiers = references.resolve_modifiers(self._parameter_names, given, check)
        for layer, parameter, modifier in each_modifier(modifiers):
            modifier.rnd = self.rnd.child(f"modifiers/{layer}.{parameter}")
        return modifiers

    def start_weight_modifiers(self) -> None:
        """Pass the parameters to the weight modifiers before the first update of a training."""
        self._started = self.weight_modifiers
        for layer, parameter, modifier in each_modifier(self.weight_modifiers):
            modifier.start(self.handler, self.buffer[layer].parameters[parameter])

    def start_new_weight_modifiers(self) -> None:
        """Do so for modifiers that were set during the training, before the next update."""
        if self._started is not self.weight_modifiers:
            self.start_weight_modifiers()

    def apply_weight_modifiers(self) -> None:
        """Apply the weight modifiers to the parameters."""
        for layer, parameter, modifier in each_modifier(self.weight_modifiers):
            modifier(self.handler, self.buffer[layer].parameters[parameter])

    def apply_gradient_modifiers(self) -> None:
        """Apply the gradient modifiers to the gradients."""
        for layer, parameter, modifier in each_modifier(self.gradient_modifiers):
            views = self.buffer[layer]
            arrays = views.parameters[parameter], views.gradients[parameter]
            run = partial(apply_to_gradient, modifier, self.handler, *arrays)
            with self.handler.running.at(f"{layer}, {type(modifier).__name__} of {parameter}"):
                if modifier.is_traceable:
                    run()
                else:
                    self.handler.call(run)

    # -- statistics -----------------------------------------------------------------------------

    def dump_statistics(
        self, storage: MutableMapping[str, float] | None = None, show: bool = False
    ) -> MutableMapping[str, float]:
        """Return the statistics that layers accumulated since the last reset, by layer name.

        Args:
            storage: Receives the values; `None` creates a dict.
            show: Whether to print them too.
        """
        found: dict[str, float] = {}
        for name in self._statistics_layers():
            with self._buffer_manager.turn:
                self.layers[name].dump_statistics(self.buffer[name], found)
        if show:
            sys.stdout.writelines(f"{name}: {value}\n" for name, value in found.items())
        storage = {} if storage is None else storage
        storage.update(found)
        return storage

    def reset_statistics(self) -> None:
        """Reset the statistics of layers; the trainer does so in every epoch."""
        with self._buffer_manager.turn:
            for name in self._statistics_layers():
                self.layers[name].reset_statistics(self.buffer[name])

    @contextlib.contextmanager
    def separate_statistics(self) -> Iterator[None]:
        """Use separate statistics in a ``with`` block (an evaluation), then restore them.

        Other threads wait, if there are any statistics.
        """
        paths = self.statistics_paths
        with self._buffer_manager.turn if paths else contextlib.nullcontext():
            kept = {path: self.get(path) for path in paths}
            self.reset_statistics()
            try:
                yield
            finally:
                put_values(self, kept)

    @property
    def persistent_paths(self) -> list[str]:
        """Paths of the buffers that are saved with the network in addition to the parameters."""
        return self._buffer_manager.persistent_paths

    @property
    def statistics_paths(self) -> list[str]:
        """Those of them that are sums of statistics layers over batches."""
        layers = self._statistics_layers()
        return [path for path in self.persistent_paths if path.partition(".")[0] in layers]

    def _statistics_layers(self) -> list[str]:
        return [name for name, layer in self.layers.items() if layer.has_stats]


def each_modifier(modifiers: Modifiers) -> Iterable[tuple[str, str, Any]]:
    """Yield layer, parameter and modifier."""
    for layer, parameters in modifiers.items():
        for parameter, mods in parameters.items():
            for modifier in mods:
                yield layer, parameter, modifier


def take_values(net: NetworkParameters) -> dict[str, np.ndarray]:
    """Return copies of everything learned, by path: parameters and running statistics."""
    return {path: net.get(path) for path in ("parameters", *net.persistent_paths)}


def put_values(net: NetworkParameters, values: Mapping[str, np.ndarray]) -> None:
    """Write values by path, such as those that `take_values` returned."""
    for path, array in values.items():
        net.handler.set_from_numpy(net.buffer[path], array)


def _overflow(values: np.ndarray, dtype: Any) -> str:
    """Return what is wrong with finite values that a dtype cannot hold, or an empty text."""
    largest, finite = np.finfo(dtype).max, np.isfinite(values)
    low, high = (f(values, where=finite, initial=0) for f in (np.min, np.max))
    if -largest <= low and high <= largest:
        return ""
    return f"expected values that {dtype} can hold, at most {largest:g}"


def misfits(net: NetworkParameters, arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield what is wrong with values of parameters and running statistics, given by path."""
    for path, array in arrays.items():
        layer, _, place = path.partition(".")
        expected = tuple(net.buffer[path].shape)
        if array.shape != expected:
            yield f"{path}: expected shape {expected}, got {array.shape}"
        elif problem := _overflow(array, net.handler.dtype):
            yield f"{path}: {problem}"
        elif place.startswith("internals."):
            try:
                net.layers[layer].validate_data(place, array)
            except LayerValidationError as error:
                yield str(error).removesuffix(".")
