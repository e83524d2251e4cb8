"""A harness for one layer: memory as in a network, and complete control over every buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from brainstorm.display import safe_repr
from brainstorm.forks import cached_property
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.debug_handler import DebugArray
from brainstorm.handlers.traces import Trace
from brainstorm.layers.base_layer import Layer
from brainstorm.network.error_places import naming_places
from brainstorm.network.generators import (
    generators_of,
    get_generator_state,
    set_generator_state,
)
from brainstorm.network.steps import allocate_past
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.layout import VIEWS, create_layout
from brainstorm.structure.null_buffers import NullBuffer
from brainstorm.testing.layer_neighbours import surround
from brainstorm.testing.reference_handler import ReferenceHandler
from brainstorm.utils import Array

#: Dotted path below the layer, e.g. ``'inputs.default'``, to its values.
Values = dict[str, np.ndarray]
#: An array, or a function of shape and random state that returns one.
Source = np.ndarray | Callable[[tuple[int, ...], np.random.RandomState], np.ndarray]


class LayerHarness:
    """A layer with memory that is laid out as in a network.

    Neighbours of the layer share hubs with it, so that its inputs and outputs are strided views
    wherever they can be in a real network. They are never run.

    Args:
        layer: The layer; its connections are replaced.
        handler: Computes; a `DebugHandler` over a float64 `NumpyHandler` if `None`.
        inputs: For some inputs an array, or a function of (shape, random state) that returns one;
            likewise for parameters (``'parameters.W'``) and the context of buffers
            (``'context.internals.time'``). The others get normally distributed numbers.

    Attributes:
        traces: The list to which traces of passes are appended, or `None`.
        replayed: The traces to replay instead of running passes, or `None`.
        is_changed: Whether a pass that was traced has changed a public attribute of the layer.
    """

    def __init__(
        self,
        layer: Layer,
        handler: Handler | None = None,
        inputs: Mapping[str, Source] | None = None,
    ) -> None:
        self.layer = layer
        self.handler = DebugHandler(NumpyHandler(np.float64)) if handler is None else handler
        self.sources = dict(inputs or {})
        hubs, layout = create_layout(surround(layer), keep_input_deltas=True)
        self.manager = BufferManager(layout, hubs, self.handler)
        layer.set_handler(self.handler)
        layer.handler = self.handler  # as a network does
        layer.rnd.reset()
        self._first_number = layer.rnd.get_state(legacy=False)
        self.checking = ""  # the name of the property that is being checked, for messages
        self.traces: list[Trace] | None = None
        self.is_changed = False
        self.replayed: Iterator[Trace] | None = None
        self._generators: list[tuple[Any, Any]] = []
        self._reference: LayerHarness | None = None

    @property
    def buffers(self) -> BufferView:
        """The layer's seven views."""
        buffers: BufferView = self.manager.views[self.layer.name]
        return buffers

    def resize(self, time: int, batch: int) -> None:
        """Resize to T and B; S is T + 1, but T in a layer that has nothing with T."""
        times = {s.time for s in self.layer.in_shapes.values() if s.scales_with_time}
        self._resize(time, batch, time if times == {"S"} else time + 1)

    def _resize(self, *sizes: int) -> None:
        self.manager.resize(*sizes)
        self._reference = None  # so that it has seen no other T and B

    @safe_repr
    def __repr__(self) -> str:
        return f"LayerHarness: {self.describe()}"

    def where(self) -> str:
        """Return the start of a message: the property, the layer and the sizes."""
        return f"property {self.checking!r}: {self.describe()}"

    def describe(self) -> str:
        """Return layer, T and B, for messages."""
        manager, layer = self.manager, self.layer
        return (
            f"layer {layer.name!r} ({layer.type_name}), T={manager.time_size}, "
            f"B={manager.batch_size}"
        )

    @property
    def is_float64(self) -> bool:
        """Whether the handler computes in double precision."""
        return np.dtype(self.handler.dtype) == np.float64

    @property
    def reference(self) -> LayerHarness:
        """A harness for numerical derivatives: they need double precision, but no checks."""
        if self._reference is None:
            bare = self._bare_handler
            fine = bare if self.is_float64 else ReferenceHandler(bare)
            self._reference = self._twin(self.layer.in_shapes, fine)
            self._reference._resize(*self.manager.sizes)
        return self._reference

    def _twin(self, in_shapes: Mapping[str, BufferStructure], handler: Handler) -> LayerHarness:
        layer = self.layer
        twin = type(layer)(layer.name, in_shapes, set(), set(), rnd=layer.rnd, **layer.kwargs)
        return LayerHarness(twin, handler, self.sources)

    @property
    def without_time(self) -> LayerHarness | None:
        """A harness for the same layer on inputs ('B', ...); `None` if it looks at time."""
        layer = self.layer
        templates = (layer.expected_inputs[port] for port in layer.in_shapes)
        is_per_step = all(s.scales_with_time for s in (*layer.in_shapes.values(), *templates))
        if layer.time_coupled or not layer.in_shapes or not is_per_step:
            return None
        shapes = {port: s.without_time() for port, s in layer.in_shapes.items()}
        twin = self._twin(shapes, self.handler)
        twin.checking = self.checking
        twin.resize(1, self.manager.batch_size)
        return twin

    def at_step(self, values: Values, step: int) -> Values:
        """Return the values for one time step of buffers that grow with T; others unchanged."""
        return {
            path: array[step] if self.is_time_sized(path) else array
            for path, array in values.items()
        }

    # -- which buffers --------------------------------------------------------------------------

    @cached_property
    def _structures(self) -> Mapping[str, BufferStructure]:
        """The buffers with memory, by path."""
        shapes = {category: getattr(self.layer, name) for category, name in VIEWS.items()}
        all_of_them = {f"{c}.{name}": s for c, named in shapes.items() for name, s in named.items()}
        buffers = self.buffers
        return {p: s for p, s in all_of_them.items() if not isinstance(buffers[p], NullBuffer)}

    def paths(self, *categories: str) -> list[str]:
        """Return the paths of all buffers with memory in some of the seven categories."""
        return [p for c in categories for p in self._structures if p.startswith(f"{c}.")]

    @property
    def delta_paths(self) -> list[str]:
        """Paths of the input deltas that the layer computes."""
        skipped = self.layer.computes_no_input_deltas_for
        return [p for p in self.paths("input_deltas") if p.partition(".")[2] not in skipped]

    @property
    def gradient_paths(self) -> list[str]:
        """Paths of the gradients that the layer computes."""
        skipped = self.layer.computes_no_gradients_for
        return [p for p in self.paths("gradients") if p.partition(".")[2] not in skipped]

    def is_time_sized(self, path: str) -> bool:
        """Return whether a buffer grows with T."""
        return self._structures[path].scales_with_time

    def steps(self, path: str) -> Array:
        """Return a buffer without its context rows."""
        array = self.buffers[path]
        structure = self._structures[path]
        return array[0 : self.manager.steps(structure)] if structure.context_size else array

    def context(self, path: str) -> Array:
        """Return the context rows of a buffer."""
        steps = self.manager.steps(self._structures[path])
        return self.buffers[path][steps : self.buffers[path].shape[0]]

    @property
    def context_paths(self) -> list[str]:
        """Paths of the buffers whose context rows hold a state before the first step."""
        return [
            path
            for path in self.paths("outputs", "internals")
            if self._structures[path].context_size and not self._structures[path].is_backward_only
        ]

    @property
    def persistent_paths(self) -> list[str]:
        """Paths of the persistent internals."""
        return [path for path in self.paths("internals") if self._structures[path].persistent]

    @property
    def initial_values(self) -> Values:
        """What persistent internals begin with."""
        return {p: np.array(self._structures[p].initial_value) for p in self.persistent_paths}

    @property
    def backward_only_paths(self) -> list[str]:
        """Paths of the internals that are declared for the backward pass only."""
        return [p for p in self.paths("internals") if self._structures[p].is_backward_only]

    # -- content --------------------------------------------------------------------------------

    def get(self, path: str) -> np.ndarray:
        """Return a NumPy copy in float64 of a buffer without its context rows.

        ``'context.<path>'`` names the context rows of a buffer.
        """
        copied = self._bare_handler.get_numpy_copy(self._bare_array(path))
        return np.asarray(copied, dtype=np.float64)

    @property
    def _bare_handler(self) -> Handler:
        # The harness reads and writes NaN on purpose, which a DebugHandler does not let pass.
        return self.handler.handler if isinstance(self.handler, DebugHandler) else self.handler

    def _bare_array(self, path: str) -> Array:
        is_context = path.startswith("context.")
        array = self.context(path.removeprefix("context.")) if is_context else self.steps(path)
        return array.array if isinstance(array, DebugArray) else array

    def set(self, path: str, values: np.ndarray | float) -> None:
        """Fill a buffer, named as in `get`, with values that broadcast to its shape."""
        array = self._bare_array(path)
        full = np.full(array.shape, values, self.handler.dtype)
        self._bare_handler.set_from_numpy(array, full)

    def sample(self, rnd: np.random.RandomState) -> Values:
        """Return values for inputs, parameters, context and persistent internals.

        They are exact in the handler's dtype.
        """
        given = {path: self.buffers[path] for path in self.paths("inputs", "parameters")}
        given |= {f"context.{path}": self.context(path) for path in self.context_paths}
        values = {}
        for path, array in given.items():
            # Inputs have their names as keys, others their paths.
            source = self.sources.get(path.removeprefix("inputs."), _normal)
            values[path] = source(tuple(array.shape), rnd) if callable(source) else source
        for path in self.persistent_paths:
            values[path] = np.abs(_normal(tuple(self.buffers[path].shape), rnd)) + 0.5
        dtype = self.handler.dtype
        return {path: np.asarray(v, dtype=dtype).astype(np.float64) for path, v in values.items()}

    def load(self, values: Values) -> None:
        """Write values into their buffers."""
        for path, array in values.items():
            self.set(path, array)

    def spoil(self, paths: Iterable[str], garbage: float) -> None:
        """Fill buffers with garbage, except persistent ones and the state in context rows."""
        persistent, states = self.persistent_paths, self.context_paths
        for path in paths:
            if path not in persistent:
                self.set(path, garbage)
                if self._structures[path].context_size and path not in states:
                    self.set(f"context.{path}", garbage)

    # -- passes ---------------------------------------------------------------------------------

    def forward(self, values: Values, training_pass: bool = True, anew: bool = True) -> None:
        """Load values and run the forward pass: `anew`, from the same random state every time."""
        self.load(values)
        if anew:
            self.layer.rnd.set_state(self._first_number)
            self.layer.set_handler(self.handler)
            found = generators_of(self.layer).values()
            self._generators = [(each, get_generator_state(each)) for each in found]
        buffers = self.layer.lifted(self.buffers)
        self._do("forward_pass", buffers, training_pass)

    def restore_generators(self) -> None:
        """Set the states, of the generators that are saved with a run, from before the last pass.

        This is what a resumed run does, without the preparations of a pass `anew`.
        """
        for generator, state in self._generators:
            set_generator_state(generator, state)

    def step_by_step(self, values: Values, first: int) -> Iterator[int]:
        """Run the forward pass on `first` steps, then on one more each time, not for training.

        Yields:
            The number of steps so far; the outputs are those of the last step.
        """
        steps, batch, source = self.manager.sizes
        context: list[Array | None] = []
        timed = [path for path in self.paths("inputs") if self.is_time_sized(path)]
        timed = [path for path in timed if self._structures[path].time == "T"]
        for start, stop in [(0, first), *((t, t + 1) for t in range(first, steps))]:
            self.manager.resize(stop - start, batch, source)
            part = {
                path: array[start:stop] if path in timed else array
                for path, array in values.items()
                if start == 0 or not path.startswith("context.")
            }
            buffers = self.layer.lifted(self.buffers)
            if start == 0:
                self.forward(part, training_pass=False)
                position = self.handler.zeros((batch, 1))
                past = allocate_past(self.layer, steps, position, source)
                self.layer.remember(buffers, past)
            else:
                self.load(part)
                self.handler.fill(past.position, float(start))
                self.manager.apply_context(context)
                self.layer.forward_step(buffers, past)
            context = self.manager.get_context()
            yield stop

    def _do(self, method: str, *arguments: Any) -> None:
        """Run a pass, trace it, or replay its trace."""

        def run() -> None:
            with naming_places(self.layer, method, self.buffers):
                getattr(self.layer, method)(*arguments)

        if self.replayed is not None:
            next(self.replayed).replay()
        elif self.traces is not None:
            revision = self.layer.revision
            with self.handler.tracing() as trace:
                run()
            self.traces.append(trace)
            self.is_changed |= self.layer.revision != revision
        else:
            run()

    def backward(
        self,
        out_deltas: Values,
        unneeded: Iterable[str] = (),
        overwritten: Iterable[str] = (),
    ) -> None:
        """Run the backward pass.

        Args:
            out_deltas: Path of each output delta to its values.
            unneeded: Inputs whose delta is replaced by a null buffer.
            overwritten: Paths of deltas and gradients that the layer must overwrite.
        """
        self.load(out_deltas)
        self.layer.set_write_modes(unneeded, overwritten)
        buffers = self.layer.lifted(_without(self.buffers, unneeded))
        self._do("backward_pass", buffers)

    def sample_out_deltas(self, rnd: np.random.RandomState) -> Values:
        """Return random output deltas; ones for a loss, and none where they are ignored."""
        if self.layer.has_loss:
            return {path: np.ones(self.steps(path).shape) for path in self.paths("output_deltas")}
        ignored = self.layer.takes_no_output_deltas_from
        return {
            path: np.asarray(
                _normal(tuple(self.steps(path).shape), rnd), dtype=self.handler.dtype
            ).astype(np.float64)
            for path in self.paths("output_deltas")
            if path.partition(".")[2] not in ignored
        }

    def objective(self, out_deltas: Values) -> float:
        """Return the number that the backward pass differentiates."""
        return sum(
            float(np.sum(self.get(path.replace("output_deltas", "outputs")) * weights))
            for path, weights in out_deltas.items()
        )


def _without(buffers: BufferView, unneeded: Iterable[str]) -> BufferView:
    """Return a layer's views with null buffers in place of some input deltas."""
    deltas = buffers.input_deltas
    nulls = [
        NullBuffer(f"input_deltas.{name}", "it is not needed") if name in unneeded else array
        for name, array in deltas.items()
    ]
    views = dict(buffers.items()) | {"input_deltas": BufferView(deltas.keys(), nulls)}
    return BufferView(list(views), list(views.values()))


def _normal(shape: tuple[int, ...], rnd: np.random.RandomState) -> np.ndarray:
    return rnd.normal(size=shape)
