"""Layers that are only a formula: both passes are derived from it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import LayerValidationError, ValidationError
from brainstorm.layers._formula_text import FormulaText
from brainstorm.layers._pass_trees import PassTrees, derive_pass_trees
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import Constraint
from brainstorm.optree import OpTreeNode, Program, Variable, linearise
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array

#: T and B for which the trees are built, to find what depends on them.
SIZES = ((5, 3), (7, 2), (1, 1))

#: Number of programs that a layer keeps for each pass: one per T, B and type.
MOST_PROGRAMS = 256

#: One size or several; see `Expression`.
ParameterShape = int | str | Sequence[int | str]


def Expression(
    formula: str,
    parameters: Mapping[str, ParameterShape] | None = None,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add a layer that computes a formula: ``Expression("tanh(x) * sig(gate)")``.

    The formula is text, so that a saved network needs no code: numbers, names,
    ``+ - * / // % ** @ & | ~``, comparisons, and calls of activation functions and of the functions
    in `brainstorm.optree.functions`, with options as keywords. Names that are not parameters are
    inputs; ``x`` is the input default. The backward pass is derived. For formulas in Python see
    `ExpressionLayer`.

    Features broadcast as in NumPy: inputs with fewer feature dimensions than others are extended
    by dimensions of size 1 in front; parameters lack T and B. Functions with an axis get
    (T, B, features...) and accept feature axes only, e.g. ``x / sqrt(mean(x * x, axis=-1) + 0.1)``.

    Parameters are trained. Freeze constants, such as the levels of a pinball loss, by
    ``ParameterGroup(name, frozen=True)``, or give them as data. Initializers take the first axis of
    a weight for the units: write ``x @ transpose(W)`` with W as (outputs, inputs), not ``x @ W``.

    Args:
        formula: The formula.
        parameters: Name to shape. A size is a number, or ``'F'`` for the size of x in the same
            dimension, counted from the last; ``'...'`` stands for all further dimensions of x. So
            ``('...',)`` is one number per feature, ``('F',)`` one per channel. In a formula
            without x its first input is used.
        name: Layer name; made unique within the network.

    Inputs: one per name in the formula, ('T', 'B', ...)
    Outputs: default ('T', 'B', ...), with the shape of the formula
    Parameters: as given
    Internals: values that are costly to recompute, e.g. tanh_1, sig_2
    """
    parameters = {} if parameters is None else parameters
    return ConstructionWrapper.create(
        ExpressionLayerImpl, name=name, formula=formula, parameters=parameters
    )


class ExpressionLayer(Layer):
    """Base of layers that are a formula, written in Python.

        class SlopedSwishLayerImpl(ExpressionLayer):
            parameters = {"slope": ("...",)}

            def formula(self, x, slope):
                return x * fn.sig(slope * x)

    The arguments of `formula` are parameters and inputs, with x for the input ``default``. They
    are op-trees; see `brainstorm.optree.functions`. Options are in ``self.kwargs``. Shapes are
    described in `Expression`. The formula is built once for each T and B, so what it uses of the
    layer is fixed; a number that changes is an input.
    """

    is_traceable = True
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")

    #: Parameter name to its shape; see `Expression`.
    parameters: Mapping[str, ParameterShape] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # The formula is analysed before the passes, which are those of this class.
        passes = {"forward_pass", "backward_pass"}
        cls.is_traceable |= all(getattr(cls, p) is getattr(ExpressionLayer, p) for p in passes)

    # -- to override ----------------------------------------------------------------------------

    def formula(self, *operands: Any, **_: Any) -> Any:
        """Return the tree of output ``default``, or those of all outputs, by name.

        Args:
            *operands: One op-tree per argument; replace them by named arguments.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define formula")

    @classmethod
    def parameters_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, ParameterShape]:
        """Return `parameters` for these options; override it if the options determine them."""
        return cls.parameters

    # -- derived from it ------------------------------------------------------------------------

    @classmethod
    def operands_for(cls, kwargs: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of the arguments of `formula`."""
        arguments = inspect.signature(cls.formula).parameters.values()
        return [a.name for a in arguments if a.kind is a.POSITIONAL_OR_KEYWORD][1:]

    @classmethod
    def inputs_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, StructureTemplate]:
        ports = _part_of("inputs", dict.fromkeys(cls._paths_for(kwargs)))
        return {port: StructureTemplate("T", "B", "...") for port in ports}

    @classmethod
    def _paths_for(cls, kwargs: Mapping[str, Any]) -> list[str]:
        """Return the path of the buffer for each argument of the formula."""
        parameters = cls.parameters_for(kwargs)
        return [
            f"parameters.{name}" if name in parameters else f"inputs.{_PORTS.get(name, name)}"
            for name in cls.operands_for(kwargs)
        ]

    def _check_kwargs(self) -> None:
        super()._check_kwargs()
        names = self.operands_for(self.kwargs)
        if not self.inputs_for(self.kwargs):
            raise self.fail(f"expected a formula with inputs, got one of {list(names)}.")
        if self.changeable_kwargs:
            raise self.fail(
                f"changeable_kwargs: expected none, because its formula is built once, got "
                f"{', '.join(self.changeable_kwargs)}. Give numbers that change as an input."
            )
        if {"x", "default"} <= set(names):
            raise self.fail("its formula has x and default, which are one input. Write x.")
        if "x" in names and "x" in self.in_shapes:
            raise self.fail("x in its formula is the input 'default'. Connect that.")

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self._names = dict(zip(self._paths_for(kwargs), self.operands_for(kwargs), strict=True))
        declared = self.parameters_for(kwargs)
        shapes = {name: self._parameter_shape(name, shape) for name, shape in declared.items()}
        rank = max(len(structure.feature_shape) for structure in in_shapes.values())
        self._features = {f"parameters.{name}": shape for name, shape in shapes.items()}
        for port, structure in in_shapes.items():
            features = structure.feature_shape
            features = (1,) * (rank - len(features)) + features
            self._features |= dict.fromkeys((f"inputs.{port}", f"input_deltas.{port}"), features)

        trees = self._checked_pass_trees()
        # Class indices and masks from comparisons, for example.
        constant = [path for path, tree in trees.gradients.items() if _is_zero(tree)]
        ports = _part_of("input_deltas", dict.fromkeys(constant))
        self.computes_no_input_deltas_for = (*self.computes_no_input_deltas_for, *ports)
        self._reads = tuple(trees.stored)
        self._writes = tuple(trees.values)
        self.needs_in_backward = tuple(
            c for c in Layer.needs_in_backward if _part_of(c, trees.stored)
        )
        self._forward = functools.lru_cache(MOST_PROGRAMS)(self._forward_program)
        self._backward = functools.lru_cache(MOST_PROGRAMS)(self._backward_program)
        values = {
            path: BufferStructure("T", "B", *tree.shape[2:]) for path, tree in trees.values.items()
        }
        parameters = {name: BufferStructure(*shape) for name, shape in shapes.items()}
        return _part_of("outputs", values), parameters, _part_of("internals", values)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        y = buffers.outputs[0]
        program = self._forward(y.shape[0], y.shape[1], y.dtype)
        results = self._arrays(buffers, self._writes)
        operands = self._arrays(buffers, self._names)
        self.handler.run_program(program, operands, results, [False] * len(results))

    def backward_pass(self, buffers: BufferView) -> None:
        # In this order, because two inputs from one source share a delta.
        ports = [p for p in self.in_shapes if p not in self.computes_no_input_deltas_for]
        names = [n for n in self.parameter_shapes if n not in self.computes_no_gradients_for]
        wanted = (
            *[f"input_deltas.{port}" for port in ports if self.needs_delta(port)],
            *[f"gradients.{name}" for name in names],
        )
        if wanted:
            y = buffers.outputs[0]
            program = self._backward(wanted, y.shape[0], y.shape[1], y.dtype)
            adds = [not self.overwrites(path) for path in wanted]
            known, results = (self._arrays(buffers, paths) for paths in (self._reads, wanted))
            self.handler.run_program(program, known, results, adds)

    def _arrays(self, buffers: BufferView, paths: Iterable[str]) -> list[Array]:
        """Return buffers; inputs and their deltas with the feature axes that broadcasting adds."""
        arrays = {path: buffers[path] for path in paths}
        for path, array in arrays.items():
            features = self._features.get(path, ())
            shape = (*array.shape[:2], *features)
            if path.startswith("input") and len(array.shape) < len(shape):
                arrays[path] = array.reshape(shape)
        return list(arrays.values())

    # -- programs -------------------------------------------------------------------------------

    def _pass_trees(self, time: int, batch: int, dtype: Any) -> PassTrees:
        operands = {
            path: Variable(
                (time, batch, *self._features[path])
                if path.startswith("inputs.")
                else self._features[path],
                dtype,
                name,
            )
            for path, name in self._names.items()
        }
        undifferentiated = (
            *[f"inputs.{port}" for port in self.computes_no_input_deltas_for],
            *[f"parameters.{name}" for name in self.computes_no_gradients_for],
            *[f"outputs.{name}" for name in self.takes_no_output_deltas_from],
        )
        return derive_pass_trees(self.formula, operands, undifferentiated)

    def _checked_pass_trees(self) -> PassTrees:
        """Return the trees, after checking that they are the same for all T and B."""
        found, forms = [], []
        for time, batch in SIZES:
            try:
                trees = self._pass_trees(time, batch, np.float32)
            except ValidationError as error:
                raise self.fail(f"its formula, with T={time} and B={batch}: {error}") from None
            found.append(trees)
            features = {path: tree.shape[2:] for path, tree in trees.values.items()}
            forms.append((features, list(trees.stored)))
        if any(form != forms[0] for form in forms):
            raise self.fail(
                f"expected a formula whose features depend on neither T nor B, got for "
                f"(T, B) = {', '.join(map(str, SIZES))}: {', '.join(str(f) for f, _ in forms)}."
            )
        return found[0]

    def _forward_program(self, time: int, batch: int, dtype: Any) -> Program:
        trees = self._pass_trees(time, batch, dtype)
        inputs = list(trees.operands.values())
        return linearise(list(trees.values.values()), inputs=inputs)

    def _backward_program(
        self, wanted: Sequence[str], time: int, batch: int, dtype: Any
    ) -> Program:
        trees = self._pass_trees(time, batch, dtype)
        gradients = [trees.gradients[path] for path in wanted]
        return linearise(gradients, inputs=[trees.stored[p] for p in self._reads])

    def _parameter_shape(self, name: str, shape: ParameterShape) -> tuple[int, ...]:
        """Return the shape of a parameter as numbers."""
        if f"parameters.{name}" not in self._names:
            raise self.fail(f"parameter {name!r} does not occur in its formula.")
        port = next(path for path in self._names if path.startswith("inputs.")).partition(".")[2]
        port = "default" if "default" in self.in_shapes else port
        features = self.in_shapes[port].feature_shape
        items = list(shape) if isinstance(shape, (list, tuple)) else [shape]
        if items.count("...") == 1:
            at = items.index("...")
            items[at : at + 1] = ["F"] * (len(features) - len(items) + 1)
        sizes: list[Any] = [
            features[i] if item == "F" and -i <= len(features) else item
            for i, item in enumerate(items, -len(items))
        ]
        if not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise self.fail(
                f"parameter {name!r}: expected a shape of sizes >= 1, 'F' for as many as input "
                f"{port!r} has there, and at most one '...', got {shape!r} where {port!r} has "
                f"{features}."
            )
        return tuple(sizes)


class ExpressionLayerImpl(ExpressionLayer):
    """Implements `Expression`."""

    expected_kwargs = {
        "formula": Constraint("a formula as text", lambda v: isinstance(v, str)).required(),
        "parameters": Constraint(
            "a dict from names to shapes",
            lambda v: isinstance(v, Mapping) and all(isinstance(name, str) for name in v),
        ),
    }

    def _check_kwargs(self) -> None:
        try:
            super()._check_kwargs()
        except LayerValidationError:
            raise
        except ValidationError as error:
            raise self.fail(str(error), option="formula") from None

    @classmethod
    def parameters_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, ParameterShape]:
        return kwargs.get("parameters", {})

    @classmethod
    def operands_for(cls, kwargs: Mapping[str, Any]) -> Sequence[str]:
        return _parsed(kwargs.get("formula", "x")).names

    def formula(self, *operands: Any, **_: Any) -> Any:
        return _parsed(self.kwargs["formula"])(*operands)


#: The name in a formula of an input with another name outside.
_PORTS = {"x": "default"}

_parsed = functools.lru_cache(MOST_PROGRAMS)(FormulaText)


def _is_zero(tree: Any) -> bool:
    return isinstance(tree, OpTreeNode) and tree.op == "full" and tree.params["value"] == 0


def _part_of(category: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that belong to one category of buffers, by name."""
    paths = [path for path in found if path.startswith(f"{category}.")]
    return {path.partition(".")[2]: found[path] for path in paths}
