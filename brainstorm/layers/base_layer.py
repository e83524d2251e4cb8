"""The base of all layers: their declarations, and the methods for use in passes.

A layer is a class whose name ends in ``LayerImpl``. It declares its inputs and options, returns
the shapes of its outputs, parameters and internals from `setup`, and computes in `forward_pass` and
`backward_pass`, on memory that the network allocates, with the operations of ``self.handler``.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np

from brainstorm.display import safe_repr
from brainstorm.errors import LayerValidationError, unknown
from brainstorm.forks import cached_property
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.traces import Traceable
from brainstorm.layers import _declarations, _times
from brainstorm.layers.characteristics import Characteristics
from brainstorm.layers.constraints import Constraint
from brainstorm.randomness import RandomState
from brainstorm.structure import BufferView, Connection
from brainstorm.structure.architecture import layer_registry
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate, format_shape
from brainstorm.structure.construction import IMPLEMENTATION_SUFFIX
from brainstorm.utils import get_normalized_path

Structures = Mapping[str, BufferStructure]
#: The structures of outputs, parameters and internals, each in their order in memory.
Declared = tuple[Structures, Structures, Structures]


class Layer(Traceable):
    """Base class of all layer implementations.

    Args:
        name: Name of the layer in its network.
        in_shapes: Input name to the structure of the connected buffer.
        incoming_connections: The `Connection` tuples that end here.
        outgoing_connections: The `Connection` tuples that start here.
        rnd: Source of the layer's random numbers, or a function that returns it.
        shared_structures: Parameter to the structure of the one it is shared with, for those that
            belong to a layer created before this one.
        **kwargs: The options.

    Raises:
        LayerValidationError: Options, inputs or connections do not fit the declarations.
    """

    #: Input name to the template that its shape must match.
    expected_inputs: Mapping[str, StructureTemplate] = {
        "default": StructureTemplate("T", "B", "...")
    }
    #: Inputs that may be left unconnected; `in_shapes` and ``buffers.inputs`` then lack them.
    optional_inputs: Collection[str] = ()
    #: Names of the options; as a mapping, each with its constraint.
    expected_kwargs: Collection[str] | Mapping[str, Constraint] = frozenset()
    #: Options that may be set at any time, as attributes, and are saved then. All others of a
    #: built-in layer are fixed.
    changeable_kwargs: Collection[str] = ()

    #: Inputs without deltas, parameters without gradients, and outputs whose deltas are ignored.
    computes_no_input_deltas_for: Iterable[str] = ()
    computes_no_gradients_for: Iterable[str] = ()
    takes_no_output_deltas_from: Iterable[str] = ()

    #: Whether `backward_pass` calls `needs_delta` and skips deltas that are not needed. If there is
    #: one delta and no gradient, the pass is done only if it is needed.
    accepts_null_deltas: bool = False
    #: Which of 'input_deltas', 'gradients' `backward_pass` overwrites if `overwrites` says so; with
    #: 'internals' it overwrites the deltas of all internals, even if they were written before.
    can_overwrite: Collection[str] = ()
    #: Buffers of the forward pass that `backward_pass` reads; may be narrowed in `setup`.
    needs_in_backward: Collection[str] = ("inputs", "outputs", "internals")
    #: Whether output ``default`` shares the memory of input ``default``, and so do their deltas,
    #: which `backward_pass` must then overwrite (`can_overwrite`); may be set in `setup`.
    is_inplace: bool = False
    #: Whether the forward pass differs between training and other passes.
    depends_on_mode: bool = False
    #: Whether the output of a time step depends on its position or on the inputs of others. It is
    #: also set if other declarations imply it: a context, an internal that grows with T squared, an
    #: output ('B', ...) of inputs ('T', 'B', ...). All other layers accept inputs ('B', ...) as
    #: well: their passes get sequences of one step; see `lifted`.
    time_coupled: bool = False
    #: Whether its output ``loss`` is part of the sum that is minimized.
    has_loss: bool = False
    #: Whether it accumulates statistics: `dump_statistics` and `reset_statistics`.
    has_stats: bool = False
    #: Buffers that must be adjacent: category to tuples of names; see `BufferView.joint`.
    joint_buffers: Mapping[str, Iterable[tuple[str, ...]]] = {}

    _is_built = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__name__.endswith(IMPLEMENTATION_SUFFIX):
            layer_registry.add(cls.__name__.removesuffix(IMPLEMENTATION_SUFFIX), cls)

    def __init__(
        self,
        name: str,
        in_shapes: Structures,
        incoming_connections: Iterable[Connection],
        outgoing_connections: Iterable[Connection],
        rnd: RandomState | Callable[[], RandomState] | None = None,
        shared_structures: Structures | None = None,
        **kwargs: Any,
    ) -> None:
        self.name = name
        self.kwargs = kwargs
        given = self.in_shapes = OrderedDict(sorted(in_shapes.items()))
        self.incoming = set(incoming_connections)
        self.outgoing = set(outgoing_connections)
        if callable(rnd):
            self._make_rnd = rnd
        else:
            self.rnd = RandomState() if rnd is None else rnd
        self.handler: Handler = None  # type: ignore[assignment]  # given by set_handler
        #: Parameter to ``'Layer.parameter'`` that it is shared with; set by the network.
        self.shared_parameters: Mapping[str, str] = {}
        self.shared_structures = dict(shared_structures or {})
        self._unneeded_deltas: frozenset[str] = frozenset()
        self._overwritten: frozenset[str] = frozenset()

        self._check_kwargs()
        self.expected_inputs = self.inputs_for(self.kwargs)
        _declarations.check_templates(self)
        #: Whether its inputs are ('B', ...) in place of ('T', 'B', ...).
        self.is_per_sequence = _times.gets_no_time(self.expected_inputs, given)
        if self.is_per_sequence:
            self.in_shapes = OrderedDict((p, s.with_time()) for p, s in given.items())
        #: Whether T and S are exchanged during `setup`: T there is S in the network.
        self.is_over_source = _times.gets_source(self.expected_inputs, given)
        if self.is_over_source:
            self.in_shapes = _times.exchanged(given)
        self._set_up()
        if self.is_per_sequence:
            self._take_sequences(given)
        _declarations.check_names(self)
        _declarations.check_connections(self)
        self._is_built = True

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _declarations.check_attribute(self, name, value))

    def _set_up(self) -> None:
        """Set the structures from `setup`, and derive whether the layer couples time steps."""
        _declarations.check_inputs(self)
        structures = _declarations.checked_structures(self)
        self.out_shapes, self.parameter_shapes, self.internal_shapes = map(OrderedDict, structures)
        shapes = self.in_shapes, self.out_shapes, self.internal_shapes
        if self.is_over_source:
            self.in_shapes, self.out_shapes, self.internal_shapes = map(_times.exchanged, shapes)
        #: Whether the class or `setup` sets it, not only other declarations.
        self._says_coupled = self.time_coupled
        self.time_coupled = self.time_coupled or _times.couples_time(*shapes)

    @safe_repr
    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        inputs, outputs = (
            ", ".join(f"{port} {structure.shape}" for port, structure in shapes.items())
            for shapes in (self.in_shapes, self.out_shapes)
        )
        return f"{self.name}: {self.type_name}({options}), {inputs or 'no inputs'} -> {outputs}"

    # -- to override ----------------------------------------------------------------------------

    @classmethod
    def inputs_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, StructureTemplate]:
        """Return `expected_inputs` for these options; override it if they determine the inputs."""
        return cls.expected_inputs

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        """Return the structures of outputs, parameters and internals."""
        raise NotImplementedError(f"{type(self).__name__} does not define setup")

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        """Compute all outputs from the inputs and parameters.

        Args:
            buffers: The layer's seven views; arrays have the shapes of `setup` with T and B.
            training_pass: Whether the network is being trained (dropout, batch statistics).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward_pass")

    def backward_pass(self, buffers: BufferView) -> None:
        """Add to the input deltas and the gradients, given the output deltas.

        Output deltas may be destroyed. If `overwrites` says so, overwrite instead of adding.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define backward_pass")

    def save_memory(self) -> None:
        """Declare fewer internals, if the backward pass can recompute their content.

        Called before memory is planned, if the network is built with ``'compact'``.
        """

    def remembered(self, steps: int) -> Structures:
        """Return the state that `forward_step` keeps of all earlier steps, name to structure.

        Args:
            steps: The maximum number of steps.

        Raises:
            LayerValidationError: The layer does not compute step by step, or not so many.
        """
        if not self.is_continued:
            raise self.looks_ahead("Its outputs depend on more than the steps before.")
        return {}

    def remember(self, buffers: BufferView, past: BufferView) -> None:
        """Write the state after the first steps of a sequence, a forward pass, to `past`.

        Args:
            buffers: As for `forward_pass`.
            past: ``position`` (B, 1), the number of steps before these; and the arrays that
                `remembered` declares, initially zero, with T for the maximum number of steps.
        """

    def forward_step(self, buffers: BufferView, past: BufferView) -> None:
        """Compute the outputs for one more step (T = 1), not in training; see `remember`.

        The context is that of the previous step. Other state of earlier steps is in `past`.
        """
        self.forward_pass(buffers, training_pass=False)

    def set_handler(self, handler: Handler) -> None:
        """Set the handler for all further computations."""
        self.handler = handler

    def dump_statistics(self, buffers: BufferView, storage: MutableMapping[str, float]) -> None:
        """Write the statistics since the last reset into `storage`, name to number."""

    def reset_statistics(self, buffers: BufferView) -> None:
        """Reset the accumulated statistics."""

    def shutdown(self) -> None:
        """Release resources other than buffers; may be called more than once."""

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check data (on the host) for an input, or for a persistent ``'internals.<name>'``.

        Raises:
            LayerValidationError: They do not fit; the message names the first number that does not.
        """

    @cached_property
    def rnd(self) -> RandomState:
        """The layer's random numbers."""
        return self._make_rnd()

    # -- for use in a pass ----------------------------------------------------------------------

    def needs_delta(self, input_name: str = "default") -> bool:
        """Return whether the delta of this input is needed."""
        return input_name not in self._unneeded_deltas

    def overwrites(self, path: str) -> bool:
        """Return whether ``input_deltas.<name>`` or ``gradients.<name>`` must be overwritten."""
        return path in self._overwritten

    def dot_op(self, path: str) -> Callable[..., None]:
        """Return the matrix product that overwrites or adds, as `overwrites` says for `path`."""
        return self.handler.dot_mm if path in self._overwritten else self.handler.dot_add_mm

    def sum_op(self, path: str) -> Callable[..., None]:
        """Return the sum that overwrites or adds, as `overwrites` says for `path`."""
        return self.handler.sum_t if path in self._overwritten else self.handler.sum_add_t

    # -- for the network ------------------------------------------------------------------------

    def lifted(self, buffers: BufferView) -> BufferView:
        """Return the views for the passes.

        They are those of the network, except if the inputs are ('B', ...) in place of
        ('T', 'B', ...): then they have one time step.
        """
        if not self.is_per_sequence:
            return buffers
        views = {
            category: view.with_leading_axis(self._with_time.get(category, ()))
            for category, view in buffers.items()
        }
        return BufferView(list(views), views.values())

    def set_write_modes(
        self, unneeded_deltas: Iterable[str] = (), overwritten: Iterable[str] = ()
    ) -> None:
        """Set which input deltas are not needed, and which buffers this layer writes first."""
        self._unneeded_deltas = frozenset(unneeded_deltas)
        self._overwritten = frozenset(overwritten)

    @property
    def characteristics(self) -> Characteristics:
        """The facts about this layer, as declared and derived."""
        return Characteristics.of(self)

    @property
    def type_name(self) -> str:
        """The name under ``'@type'`` in an architecture."""
        return type(self).__name__.removesuffix(IMPLEMENTATION_SUFFIX)

    @property
    def is_continued(self) -> bool:
        """Whether parts of sequences give what the whole gives, if the context is carried on."""
        is_carried = _times.couples_by_context(self.out_shapes, self.internal_shapes)
        return not self._says_coupled and (is_carried or not self.time_coupled)

    def get_shape(self, path: str) -> BufferStructure:
        """Return the structure of a path such as ``'outputs.default'``.

        Raises:
            LayerValidationError: The category or the name does not exist.
        """
        category, _, name = path.partition(".")
        categories: dict[str, Structures] = {
            "parameters": self.parameter_shapes,
            "inputs": self.in_shapes,
            "outputs": self.out_shapes,
            "internals": self.internal_shapes,
        }
        if category not in categories:
            raise self.fail(unknown("category", category, categories))
        if name not in categories[category]:
            raise self.fail(unknown(category.removesuffix("s"), name, categories[category]))
        return categories[category][name]

    def fail(
        self, what: str, port: str | None = None, option: str | None = None
    ) -> LayerValidationError:
        """Return an error about this layer (or one of its inputs or options)."""
        place = "" if port is None else f", input {port!r}"
        place += "" if option is None else f", option {option!r}"
        return LayerValidationError(f"layer {self.name!r} ({self.type_name}){place}: {what}")

    def looks_ahead(self, why: str) -> LayerValidationError:
        """Return the error that the layer does not compute step by step, and `why`."""
        return self.fail(
            f"expected a layer that computes step by step. {why} Recurrent layers in one direction "
            f"and causal attention look at earlier steps alone."
        )

    def misfit(self, port: str, expected: str, remedy: str = "") -> LayerValidationError:
        """Return the error with the expected and the actual shape of an input, and its source."""
        sources = sorted(
            repr(get_normalized_path(f"{c.start_layer}.outputs", c.output_name))
            for c in self.incoming
            if c.input_name == port
        )
        origin = f" from {', '.join(sources)}" if sources else ""
        what = f"expected {expected}, got {format_shape(self.in_shapes[port].shape)}"
        if self.is_per_sequence:  # the connected buffer has no T
            what = what.replace("(T, B", "(B")
        if self.is_over_source:
            what = re.sub(r"\((T|S), B", lambda m: f"({'ST'['TS'.index(m[1])]}, B", what)
        return self.fail(f"{what}{origin}.{remedy}", port)

    def _check_kwargs(self) -> None:
        _declarations.check_options(self)

    # -- inputs without time --------------------------------------------------------------------

    def _take_sequences(self, given: OrderedDict[str, BufferStructure]) -> None:
        """Remove T from the structures, after `setup` has received them with it."""
        if self.time_coupled:
            self.is_per_sequence, self.in_shapes = False, given
            port = next(iter(given))
            expected = format_shape(self.expected_inputs[port].shape)
            raise self.misfit(port, expected, _times.LOOKS_AT_TIME)
        groups = {"inputs": self.in_shapes, "outputs": self.out_shapes,
                  "internals": self.internal_shapes}  # fmt: skip
        names = {
            category: [name for name, s in structures.items() if s.scales_with_time]
            for category, structures in groups.items()
        }
        deltas = {"input_deltas": names["inputs"], "output_deltas": names["outputs"]}
        #: Category to the names of the buffers that get a time axis in the passes.
        self._with_time: Mapping[str, Collection[str]] = {**names, **deltas}
        self.in_shapes, self.out_shapes, self.internal_shapes = (
            OrderedDict((name, structure.without_time()) for name, structure in structures.items())
            for structures in groups.values()
        )


def get_layer_class_from_typename(typename: str) -> type[Layer]:
    """Return the implementing class called `typename`, e.g. ``'FullyConnectedLayerImpl'``.

    Raises:
        UnknownTypeError: No such class has been defined.
    """
    return layer_registry.get(typename.removesuffix(IMPLEMENTATION_SUFFIX))
