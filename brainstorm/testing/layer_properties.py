"""The properties that every layer must have, and `check_layer`, which proves them for one.

    check_layer(FullyConnected(4), {"default": ("T", "B", 3)})

Each property is a function of a `LayerBench` that has its T and B, and of a seed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from brainstorm.errors import LayerValidationError, ValidationError, unknown
from brainstorm.handlers.base_handler import Handler
from brainstorm.layers.base_layer import Layer
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing.gradients import (
    KinkError,
    PropertyError,
    approx_fprime,
    check_close,
    differentiate,
)
from brainstorm.testing.layer_bench import LayerBench, Source, Values, build_layer

__all__ = ["LAYER_PROPERTIES", "SIZES", "check_layer", "compare_with_differences"]

#: T and B that properties are checked for.
SIZES = ((1, 1), (4, 1), (2, 3), (1, 3))

#: How many elements of a buffer are compared with central differences, at most.
MAX_ELEMENTS = 24

#: How a layer draws random numbers.
OWN_STREAM = (
    "Draw random numbers from a stream of the layer's own: in set_handler write self.stream = "
    "handler.create_random_stream(self.rnd.child('noise').generate_seed()), and in the pass "
    "fill_gaussian(..., stream=self.stream)."
)

Property = Callable[[LayerBench, int], None]

#: Name of each property to the function that checks it.
LAYER_PROPERTIES: dict[str, Property] = {}


def _registered(function: Property) -> Property:
    """Register a property under the words of its name, which its violations mention."""
    name = function.__name__.replace("_", " ")

    def check(bench: LayerBench, seed: int) -> None:
        bench.checking = name
        function(bench, seed)

    LAYER_PROPERTIES[name] = check
    return function


def check_layer(
    layer: ConstructionWrapper | Layer,
    in_shapes: Mapping[str, tuple[Any, ...]] | None = None,
    inputs: Mapping[str, Source] | None = None,
    sizes: Iterable[tuple[int, int]] = SIZES,
    handler: Handler | None = None,
    properties: Iterable[str] | None = None,
    seed: int = 0,
) -> None:
    """Prove a layer: check all properties for several T and B.

    Args:
        layer: What a layer function returns, or an instance of a layer class.
        in_shapes: Input name to shape, e.g. ``{'default': ('T', 'B', 3)}``; for an instance,
            those it was made with.
        inputs: For inputs that cannot be normally distributed numbers (class indices): arrays, or
            functions of (shape, random state) that return one.
        sizes: The (T, B) to check.
        handler: What to compute with; `None`: a `DebugHandler` over a float64 `NumpyHandler`.
        properties: Names out of `LAYER_PROPERTIES`; `None`: all.
        seed: Of the random numbers.

    Raises:
        PropertyError: The message names property, layer, T, B, buffer, element and both numbers.
    """
    if not isinstance(layer, ConstructionWrapper | Layer):
        raise ValidationError(
            "check_layer: expected what a layer function returns, such as FullyConnected(4), or an "
            f"instance of a layer class, got {layer!r}. Call the function."
        )
    if isinstance(layer, ConstructionWrapper):
        if in_shapes is None:
            raise ValidationError(
                "check_layer: expected in_shapes, such as {'default': ('T', 'B', 3)}, got None."
            )
        layer = build_layer(layer, in_shapes)
    names = list(LAYER_PROPERTIES if properties is None else properties)
    for name in names:
        if name not in LAYER_PROPERTIES:
            raise ValidationError(unknown("property", name, LAYER_PROPERTIES))
    bench = LayerBench(layer, handler, inputs)
    for size, name in itertools.product(sizes, names):
        bench.resize(*size)
        LAYER_PROPERTIES[name](bench, seed)


# -- the properties ------------------------------------------------------------------------------


@_registered
def equal_passes_give_equal_outputs(bench: LayerBench, seed: int) -> None:
    """In training too: random numbers come from streams of the layer's own."""
    _, values, _ = _draw(bench, seed)
    outputs = bench.paths("outputs")
    first: Values = {}
    for _ in range(2):
        bench.spoil(bench.paths("outputs", "internals"), 0.5)
        bench.forward(values)
        for path in outputs:
            got = bench.get(path)
            if not np.array_equal(first.setdefault(path, got), got, equal_nan=True):
                raise PropertyError(
                    f"{bench.where()}, {path}: two forward passes over "
                    f"the same inputs, parameters and memory, from the same random state, differ. "
                    f"Keep nothing outside of buffers. {OWN_STREAM}"
                )


@_registered
def nothing_depends_on_what_was_in_memory(bench: LayerBench, seed: int) -> None:
    """Neither outputs, deltas nor gradients depend on old outputs and internals."""
    _, values, out_deltas = _draw(bench, seed)
    clean = _run(bench, values, out_deltas, garbage=0.0)
    outputs = {path: bench.get(path) for path in bench.paths("outputs")}
    for garbage in (100.0, np.nan):
        result = _run(bench, values, out_deltas, garbage=garbage)
        for path, expected in clean.items():
            _check(bench, path, result[path], expected)
        for path, expected in outputs.items():
            _check(bench, path, bench.get(path), expected)


@_registered
def input_deltas_equal_central_differences(bench: LayerBench, seed: int) -> None:
    """Also with a context that is not zero."""
    _compare_with_differences(bench, seed, bench.delta_paths)


@_registered
def gradients_equal_central_differences(bench: LayerBench, seed: int) -> None:
    """Also with a context that is not zero."""
    _compare_with_differences(bench, seed, bench.gradient_paths)


@_registered
def deltas_and_gradients_are_added_to(bench: LayerBench, seed: int) -> None:
    """What was there before the backward pass is part of the sum."""
    rnd, values, out_deltas = _draw(bench, seed)
    alone = _run(bench, values, out_deltas)
    before = _random_like(alone, rnd)
    together = _run(bench, values, out_deltas, before)
    for path, old in before.items():
        _check(bench, path, together[path], alone[path] + old)


@_registered
def first_writers_overwrite(bench: LayerBench, seed: int) -> None:
    """Where declared, alone and all together: the result does not depend on what was there."""
    rnd, values, out_deltas = _draw(bench, seed)
    alone = _run(bench, values, out_deltas)
    before = _random_like(alone, rnd)
    can = [path for path in alone if path.partition(".")[0] in bench.layer.can_overwrite]
    for group in [can, *([path] for path in can if len(can) > 1)]:
        result = _run(bench, values, out_deltas, before, overwritten=group)
        for path, old in before.items():
            _check(bench, path, result[path], alone[path] + (0.0 if path in group else old))


@_registered
def null_deltas_are_left_out(bench: LayerBench, seed: int) -> None:
    """Where declared, the other deltas and the gradients stay the same."""
    if not bench.layer.accepts_null_deltas:
        return
    _, values, out_deltas = _draw(bench, seed)
    alone = _run(bench, values, out_deltas)
    paths = bench.delta_paths
    for unneeded in [paths, *([path] for path in paths if len(paths) > 1)]:
        ports = [path.partition(".")[2] for path in unneeded]
        try:
            result = _run(bench, values, out_deltas, unneeded=ports)
        except Exception as error:
            raise PropertyError(
                f"{bench.where()}: with a null buffer as the delta "
                f"of {', '.join(ports)}, the backward pass raises {type(error).__name__}: {error}"
            ) from error
        for path in alone:
            if path not in unneeded:
                _check(bench, path, result[path], alone[path])


@_registered
def every_output_element_is_written(bench: LayerBench, seed: int) -> None:
    """In training and otherwise."""
    _, values, _ = _draw(bench, seed)
    for training_pass in (True, False):
        bench.spoil(bench.paths("outputs", "internals"), np.nan)
        bench.forward(values, training_pass)
        for path in bench.paths("outputs"):
            output = bench.get(path)
            _check(bench, path, output, np.nan_to_num(output))


@_registered
def what_is_read_is_not_changed(bench: LayerBench, seed: int) -> None:
    """Inputs, parameters and context by both passes, outputs by the backward pass."""
    _, values, out_deltas = _draw(bench, seed)
    bench.forward(values)
    outputs = {path: bench.get(path) for path in bench.paths("outputs")}
    _run(bench, values, out_deltas)
    for path, expected in {**values, **outputs}.items():
        if path not in bench.persistent_paths:
            _check(bench, path, bench.get(path), expected)


@_registered
def what_is_not_needed_backward_may_be_garbage(bench: LayerBench, seed: int) -> None:
    """The backward pass reads of the forward pass what it declares and nothing else.

    Nor does it read what the forward pass wrote to internals that are declared backward only:
    their memory may have been in use in between.
    """
    _, values, out_deltas = _draw(bench, seed)
    alone = _run(bench, values, out_deltas)
    needed = bench.layer.characteristics.needs_in_backward
    unread = [c for c in ("inputs", "outputs", "internals") if c not in needed]
    spoiled = dict.fromkeys([*bench.paths(*unread), *bench.backward_only_paths])
    bench.load(dict.fromkeys(alone, np.zeros(())))
    bench.forward(values)
    bench.spoil(spoiled, 100.0)
    bench.backward(out_deltas)
    for path, expected in alone.items():
        _check(bench, path, bench.get(path), expected)


@_registered
def replay_equals_direct_execution(bench: LayerBench, seed: int) -> None:
    """If it `is_traceable`: the trace of its passes does the same to other numbers, bit for bit.

    A layer that does not say so, and could, is told to.
    """
    what = _not_traced(bench, seed)
    layer, name = bench.layer, type(bench.layer).__name__
    if layer.is_traceable and what:
        raise PropertyError(
            f"{bench.where()}: {what}. Take `is_traceable = True` out "
            f"of class {name}, whose passes are then called at every step."
        )
    if not layer.is_traceable and not what:
        warnings.warn(
            f"layer {layer.name!r} ({layer.type_name}): its passes seem to do nothing but handler "
            f"operations, the same ones each time. If so, write `is_traceable = True` into class "
            f"{name}: then a training step repeats the operations without calling it.",
            stacklevel=5,
        )


def _not_traced(bench: LayerBench, seed: int) -> str:
    """Return what a trace of the passes does not repeat; '' if nothing was found."""
    rnd, values, out_deltas = _draw(bench, seed)
    others = bench.sample(rnd), bench.sample_out_deltas(rnd)
    direct = _results(bench, *others)
    bench.traces, bench.is_changed = [], False
    _results(bench, values, out_deltas)
    traces, bench.traces = bench.traces, None
    if reads := [name for trace in traces for name in trace.reads]:
        return f"its passes call {reads[0]}, whose result a replay does not see"
    if bench.is_changed:
        return "its passes change a public attribute, which a replay does not"
    bench.replayed = iter(traces)
    try:
        replayed = _results(bench, *others)
    finally:
        bench.replayed = None
    for path, expected in direct.items():
        if not np.array_equal(replayed[path], expected, equal_nan=True):
            return f"for other inputs, a replay of its passes gives something else in {path}"
    return ""


def _results(bench: LayerBench, values: Values, out_deltas: Values) -> Values:
    """Return what both passes write."""
    found = _run(bench, values, out_deltas)
    return found | {path: bench.get(path) for path in bench.paths("outputs")}


@_registered
def characteristics_tell_the_truth(bench: LayerBench, seed: int) -> None:
    """Modes and time steps matter only where that is declared."""
    rnd, values, _ = _draw(bench, seed)
    characteristics, outputs = bench.layer.characteristics, bench.paths("outputs")
    bench.forward(values, training_pass=False)
    inference = {path: bench.get(path) for path in outputs}
    if not characteristics.depends_on_mode:
        bench.forward(values, training_pass=True)
        for path, expected in inference.items():
            _check(bench, path, bench.get(path), expected)
    if not characteristics.time_coupled:
        other, changed = bench.sample(rnd), {}
        for path, array in values.items():
            is_input = path.startswith("inputs.") and bench.is_time_sized(path)
            changed[path] = np.concatenate([other[path][:1], array[1:]]) if is_input else array
        bench.forward(changed, training_pass=False)
        for path, expected in inference.items():
            if bench.is_time_sized(path):
                _check(bench, path, bench.get(path)[1:], expected[1:])


@_registered
def what_does_not_look_at_time_does_without(bench: LayerBench, seed: int) -> None:
    """Where steps are not coupled, each of them alone, as inputs ('B', ...), gives the same.

    So do deltas and gradients, where a training pass is like another one.
    """
    if (alone := bench.without_time) is None:
        return
    _, values, out_deltas = _draw(bench, seed)
    run = _inferred if bench.layer.depends_on_mode else _results
    whole = run(bench, values, out_deltas)
    totals = {path: np.zeros(()) for path in whole if path in bench.gradient_paths}
    for step in range(bench.manager.time_size):
        found = run(alone, bench.at_step(values, step), bench.at_step(out_deltas, step))
        for path, array in found.items():
            if path in totals:
                totals[path] = totals[path] + array
            elif bench.is_time_sized(path):
                _check(alone, path, array, whole[path][step])
    for path, total in totals.items():
        _check(bench, path, total, whole[path])


@_registered
def steps_one_by_one_are_those_of_the_sequence(bench: LayerBench, seed: int) -> None:
    """Where the layer computes step by step: outputs of the last step equal those of a pass."""
    layer, steps = bench.layer, bench.manager.time_size
    try:
        layer.remembered(steps)
    except LayerValidationError:
        return
    if layer.is_over_source:
        return
    _, values, _ = _draw(bench, seed)
    whole = _inferred(bench, values, {})
    try:
        for stop in bench.step_by_step(values, (steps + 1) // 2):
            for path, expected in whole.items():
                if bench.is_time_sized(path):
                    _check(bench, path, bench.get(path)[-1], expected[stop - 1])
                elif stop == steps and layer.time_coupled:
                    _check(bench, path, bench.get(path), expected)
    finally:
        bench.resize(steps, bench.manager.batch_size)


def _inferred(bench: LayerBench, values: Values, out_deltas: Values) -> Values:
    """Return the outputs outside training."""
    bench.forward(values, training_pass=False)
    return {path: bench.get(path) for path in bench.paths("outputs")}


# -- how they are checked -----------------------------------------------------------------------


def _draw(bench: LayerBench, seed: int) -> tuple[np.random.RandomState, Values, Values]:
    """Return a random state, and from it values and output deltas."""
    rnd = np.random.RandomState(seed)
    return rnd, bench.sample(rnd), bench.sample_out_deltas(rnd)


def _random_like(arrays: Values, rnd: np.random.RandomState) -> Values:
    return {path: rnd.normal(size=array.shape) for path, array in arrays.items()}


def _run(
    bench: LayerBench,
    values: Values,
    out_deltas: Values,
    before: Values | None = None,
    unneeded: Iterable[str] = (),
    overwritten: Iterable[str] = (),
    garbage: float = 0.5,
) -> Values:
    """Run both passes over spoiled memory and return the input deltas and the gradients.

    Args:
        bench: The bench.
        values: See `LayerBench.sample`.
        out_deltas: The output deltas.
        before: What is in deltas and gradients before the backward pass (zeros if `None`).
        unneeded: See `LayerBench.backward`.
        overwritten: See `LayerBench.backward`.
        garbage: What all other memory is filled with before.
    """
    targets = bench.delta_paths + bench.gradient_paths
    bench.spoil(bench.paths("outputs", "internals", "output_deltas"), garbage)
    bench.load(before or dict.fromkeys(targets, np.zeros(())))
    bench.forward(values)
    bench.backward(out_deltas, unneeded, overwritten)
    return {path: bench.get(path) for path in targets}


def _check(
    bench: LayerBench,
    path: str,
    got: np.ndarray,
    expected: np.ndarray,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare, naming the property that asks: the one that is being checked."""
    if rtol is None or atol is None:
        rtol, atol = (1e-5, 1e-7) if bench.is_float64 else (2e-3, 2e-4)
    check_close(f"{bench.where()}, {path}", got, expected, rtol, atol)


def _compare_with_differences(bench: LayerBench, seed: int, paths: list[str]) -> None:
    """Compare the derivatives on `paths`; near a kink, draw other numbers and try again."""
    for attempt in range(10):
        rnd, values, out_deltas = _draw(bench, seed + 1000 * attempt)
        computed = _run(bench, values, out_deltas)
        try:
            for path in paths:
                elements = np.sort(rnd.permutation(computed[path].size)[:MAX_ELEMENTS])
                compare_with_differences(bench, values, out_deltas, path, computed[path], elements)
            return
        except KinkError as error:
            kink = error
    raise PropertyError(
        f"{bench.where()}: ten samples in a row lie near a point where "
        f"the layer cannot be differentiated; the last: {kink}"
    )


def compare_with_differences(
    bench: LayerBench,
    values: Values,
    out_deltas: Values,
    path: str,
    computed: np.ndarray,
    elements: np.ndarray | None = None,
    epsilon: float = 1e-5,
) -> None:
    """Compare an input delta or a gradient with central differences.

    Args:
        bench: The bench.
        values: The point: see `LayerBench.sample`.
        out_deltas: The output deltas that led to `computed`.
        path: ``'input_deltas.<name>'`` or ``'gradients.<name>'``.
        computed: What the backward pass computed.
        elements: Flat indices of the elements to compare; `None`: all.
        epsilon: Step of the differences.

    Raises:
        PropertyError: They differ.
        KinkError: They differ, and the layer cannot be differentiated there.
    """
    source = path.replace("input_deltas", "inputs").replace("gradients", "parameters")
    elements = np.arange(computed.size) if elements is None else elements
    reference = bench.reference

    def objective(changed: np.ndarray) -> float:
        array = values[source].copy()
        array.flat[elements] = changed
        reference.forward({**values, source: array})
        return reference.objective(out_deltas)

    def check(derivatives: np.ndarray) -> None:
        expected = computed.copy()
        expected.flat[elements] = derivatives
        _check(bench, path, computed, expected)

    point = values[source].flat[elements]
    try:
        check(approx_fprime(point, objective, epsilon))
    except PropertyError:
        check(differentiate(point, objective, epsilon))
