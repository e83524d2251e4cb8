"""The properties that every layer must have, and `check_layer`, which tests them.

    check_layer(FullyConnected(4), {"default": ("T", "B", 3)})

Each property is a function of a `LayerHarness` that has its T and B, and of a seed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from brainstorm.errors import LayerValidationError, ValidationError, shown
from brainstorm.handlers.base_handler import Handler
from brainstorm.layers.base_layer import Layer
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing.gradients import PropertyError
from brainstorm.testing.layer_harness import LayerHarness, Source
from brainstorm.testing.layer_neighbours import build_layer
from brainstorm.testing.layer_passes import (
    all_results,
    check_buffer,
    compare_all_with_differences,
    draw,
    inferred,
    results,
    run_passes,
)
from brainstorm.testing.properties import Properties, chosen
from brainstorm.testing.traced import tell_could_be_traced

#: T and B that properties are checked for.
SIZES = ((1, 1), (4, 1), (2, 3), (1, 3))

#: How a layer should draw random numbers.
OWN_STREAM = (
    "Draw random numbers from a stream of the layer's own: in set_handler write self.stream = "
    "handler.create_random_stream(self.rnd.child('noise').generate_seed()), and in the pass "
    "fill_gaussian(..., stream=self.stream)."
)

#: Name of each property to the function that checks it.
LAYER_PROPERTIES = Properties()


def check_layer(
    layer: ConstructionWrapper | Layer,
    in_shapes: Mapping[str, tuple[Any, ...]] | None = None,
    inputs: Mapping[str, Source] | None = None,
    sizes: Iterable[tuple[int, int]] = SIZES,
    handler: Handler | None = None,
    properties: Iterable[str] | None = None,
    seed: int = 0,
) -> None:
    """Test a layer: check all properties for several T and B.

    Args:
        layer: The result of a layer function, or an instance of a layer class.
        in_shapes: Input name to shape, e.g. ``{'default': ('T', 'B', 3)}``; for an instance,
            those it was created with.
        inputs: For inputs that cannot be normally distributed numbers (class indices): arrays, or
            functions of (shape, random state) that return one.
        sizes: The (T, B) to check.
        handler: The handler to use; `None`: a `DebugHandler` over a float64 `NumpyHandler`.
        properties: Names out of `LAYER_PROPERTIES`; `None`: all.
        seed: Seed of the random numbers.

    Raises:
        PropertyError: The message names property, layer, T, B, buffer, element and both numbers.
    """
    if not isinstance(layer, ConstructionWrapper | Layer):
        raise ValidationError(
            "check_layer: expected the result of a layer function, such as FullyConnected(4), or "
            f"an instance of a layer class, got {shown(layer)}. Call the function."
        )
    if isinstance(layer, ConstructionWrapper):
        if not isinstance(in_shapes, Mapping):
            raise ValidationError(
                "check_layer: expected in_shapes, such as {'default': ('T', 'B', 3)}, got "
                f"{in_shapes!r}."
            )
        layer = build_layer(layer, in_shapes)
    names = chosen("property", properties, LAYER_PROPERTIES)
    harness = LayerHarness(layer, handler, inputs)
    for size, name in itertools.product(sizes, names):
        harness.resize(*size)
        LAYER_PROPERTIES[name](harness, seed)


# -- the properties ------------------------------------------------------------------------------


@LAYER_PROPERTIES
def equal_passes_give_equal_outputs(harness: LayerHarness, seed: int) -> None:
    """In training and otherwise, whatever was in between: a layer remembers only in buffers.

    Random numbers come from streams of the layer's own.
    """
    _, values, _ = draw(harness, seed)
    first: dict[tuple[str, bool], np.ndarray] = {}
    for training_pass in (True, False, True, False):
        harness.spoil(harness.paths("outputs", "internals"), 0.5)
        if first:
            harness.restore_generators()
        harness.forward(values, training_pass, anew=not first)
        for path in harness.paths("outputs"):
            got = harness.get(path)
            if not np.array_equal(
                first.setdefault((path, training_pass), got), got, equal_nan=True
            ):
                when = "" if training_pass else " outside of training"
                raise PropertyError(
                    f"{harness.where()}, {path}: two forward passes{when} over "
                    f"the same inputs, parameters and memory, from the same random state, differ. "
                    f"Keep nothing outside of buffers; what later passes need is an internal with "
                    f"persistent=True. {OWN_STREAM}"
                )


@LAYER_PROPERTIES
def nothing_depends_on_what_was_in_memory(harness: LayerHarness, seed: int) -> None:
    """Neither outputs, deltas nor gradients depend on old outputs and internals."""
    _, values, out_deltas = draw(harness, seed)
    clean = run_passes(harness, values, out_deltas, garbage=0.0)
    outputs = {path: harness.get(path) for path in harness.paths("outputs")}
    for garbage in (100.0, np.nan):
        result = run_passes(harness, values, out_deltas, garbage=garbage)
        for path, expected in clean.items():
            check_buffer(harness, path, result[path], expected)
        for path, expected in outputs.items():
            check_buffer(harness, path, harness.get(path), expected)


@LAYER_PROPERTIES
def what_is_read_is_not_changed(harness: LayerHarness, seed: int) -> None:
    """Inputs, parameters and context by all passes, outputs by the backward pass.

    Gradients that are declared as not computed; running statistics outside of training.
    """
    _, values, out_deltas = draw(harness, seed)
    persistent = harness.persistent_paths
    fixed = {path: array for path, array in values.items() if path not in persistent}
    harness.load(dict.fromkeys(harness.paths("gradients"), np.zeros(())))
    harness.forward(values)
    paths = harness.paths("outputs", "gradients")
    outputs = {p: harness.get(p) for p in paths if p not in harness.gradient_paths}
    run_passes(harness, values, out_deltas)
    for path, expected in {**fixed, **outputs}.items():
        check_buffer(harness, path, harness.get(path), expected)
    harness.forward(values, training_pass=False)
    for path, expected in (fixed if harness.layer.has_stats else values).items():
        check_buffer(harness, path, harness.get(path), expected)


@LAYER_PROPERTIES
def forward_passes_leave_what_is_for_the_backward_pass(harness: LayerHarness, seed: int) -> None:
    """Deltas, gradients and backward-only internals, whose memory others may use until then."""
    _, values, _ = draw(harness, seed)
    paths = harness.paths("input_deltas", "output_deltas", "gradients")
    paths += harness.backward_only_paths
    for training_pass in (True, False):
        harness.spoil(paths, 0.5)
        harness.forward(values, training_pass)
        for path in paths:
            if not np.all(harness.get(path) == 0.5):
                raise PropertyError(
                    f"{harness.where()}, {path}: the forward pass writes to it, whose memory other "
                    f"layers may use until the backward pass. Declare an internal for its values."
                )


@LAYER_PROPERTIES
def outputs_equal_those_of_the_reference(harness: LayerHarness, seed: int) -> None:
    """A layer made anew, computed by NumPy in double precision, gives the same."""
    _, values, _ = draw(harness, seed)
    for training_pass in (True, False):
        harness.forward(values, training_pass)
        harness.reference.forward(values, training_pass)
        for path in harness.paths("outputs"):
            check_buffer(harness, path, harness.get(path), harness.reference.get(path))


@LAYER_PROPERTIES
def input_deltas_equal_central_differences(harness: LayerHarness, seed: int) -> None:
    """Also with a context that is not zero."""
    compare_all_with_differences(harness, seed, harness.delta_paths)


@LAYER_PROPERTIES
def gradients_equal_central_differences(harness: LayerHarness, seed: int) -> None:
    """Also with a context that is not zero."""
    compare_all_with_differences(harness, seed, harness.gradient_paths)


@LAYER_PROPERTIES
def deltas_and_gradients_are_added_to(harness: LayerHarness, seed: int) -> None:
    """What was there before the backward pass is part of the sum."""
    _check_sums(harness, seed, [[]])


@LAYER_PROPERTIES
def first_writers_overwrite(harness: LayerHarness, seed: int) -> None:
    """Where declared, alone and all together: the result does not depend on what was there."""
    paths = harness.delta_paths + harness.gradient_paths
    can = [path for path in paths if path.partition(".")[0] in harness.layer.can_overwrite]
    _check_sums(harness, seed, [can, *([path] for path in can if len(can) > 1)])


def _check_sums(harness: LayerHarness, seed: int, groups: Iterable[list[str]]) -> None:
    """Check what is left of old deltas and gradients, if those of each group are overwritten."""
    rnd, values, out_deltas = draw(harness, seed)
    alone = run_passes(harness, values, out_deltas)
    before = {path: rnd.normal(size=array.shape) for path, array in alone.items()}
    for group in groups:
        result = run_passes(harness, values, out_deltas, before, overwritten=group)
        for path, old in before.items():
            check_buffer(harness, path, result[path], alone[path] + (0.0 if path in group else old))


@LAYER_PROPERTIES
def null_deltas_are_left_out(harness: LayerHarness, seed: int) -> None:
    """Where declared, the other deltas and the gradients stay the same."""
    if not harness.layer.accepts_null_deltas:
        return
    _, values, out_deltas = draw(harness, seed)
    alone = run_passes(harness, values, out_deltas)
    paths = harness.delta_paths
    for unneeded in [paths, *([path] for path in paths if len(paths) > 1)]:
        ports = [path.partition(".")[2] for path in unneeded]
        try:
            result = run_passes(harness, values, out_deltas, unneeded=ports)
        except Exception as error:
            raise PropertyError(
                f"{harness.where()}: with a null buffer as the delta "
                f"of {', '.join(ports)}, the backward pass raises {type(error).__name__}: {error}"
            ) from error
        for path in alone:
            if path not in unneeded:
                check_buffer(harness, path, result[path], alone[path])


@LAYER_PROPERTIES
def every_output_element_is_written(harness: LayerHarness, seed: int) -> None:
    """In training and otherwise, also with the initial values of persistent internals."""
    _, values, _ = draw(harness, seed)
    for training_pass in (True, False):
        harness.spoil(harness.paths("outputs", "internals"), np.nan)
        harness.forward({**values, **harness.initial_values}, training_pass)
        for path in harness.paths("outputs"):
            output = harness.get(path)
            check_buffer(harness, path, output, np.nan_to_num(output))


@LAYER_PROPERTIES
def what_is_not_needed_backward_may_be_garbage(harness: LayerHarness, seed: int) -> None:
    """The backward pass reads of the forward pass what it declares and nothing else.

    Nor does it read values that the forward pass wrote to backward-only internals, whose memory
    may have been used in between.
    """
    _, values, out_deltas = draw(harness, seed)
    alone = run_passes(harness, values, out_deltas)
    needed = harness.layer.characteristics.needs_in_backward
    unread = [c for c in ("inputs", "outputs", "internals") if c not in needed]
    spoiled = dict.fromkeys([*harness.paths(*unread), *harness.backward_only_paths])
    harness.load(dict.fromkeys(alone, np.zeros(())))
    harness.forward(values)
    harness.spoil(spoiled, 100.0)
    harness.backward(out_deltas)
    for path, expected in alone.items():
        check_buffer(harness, path, harness.get(path), expected)


@LAYER_PROPERTIES
def replay_equals_direct_execution(harness: LayerHarness, seed: int) -> None:
    """If it `is_traceable`: the trace of its passes does the same to other numbers, bit for bit.

    If a layer is not declared traceable, but could be, a warning is logged.
    """
    what = _not_traced(harness, seed)
    layer, name = harness.layer, type(harness.layer).__name__
    if layer.is_traceable and what:
        raise PropertyError(
            f"{harness.where()}: {what}. Take `is_traceable = True` out "
            f"of class {name}, whose passes are then called at every step."
        )
    if not layer.is_traceable and not what:
        who = f"layer {layer.name!r} ({layer.type_name}): its passes seem"
        tell_could_be_traced(who, name)


def _not_traced(harness: LayerHarness, seed: int) -> str:
    """Return the difference between a trace and the passes; '' if nothing was found."""
    rnd, values, out_deltas = draw(harness, seed)
    others = harness.sample(rnd), harness.sample_out_deltas(rnd)
    all_results(harness, values, out_deltas)
    direct = all_results(harness, *others, anew=False)  # with other random numbers
    harness.traces, harness.is_changed = [], False
    all_results(harness, values, out_deltas)
    traces, harness.traces = harness.traces, None
    if reads := [name for trace in traces for name in trace.reads]:
        return f"its passes call {reads[0]}, whose result a replay does not see"
    if harness.is_changed:
        return "its passes change a public attribute, which a replay does not"
    harness.replayed = iter(traces)
    try:
        replayed = all_results(harness, *others, anew=False)
    finally:
        harness.replayed = None
    for path, expected in direct.items():
        if not np.array_equal(replayed[path], expected, equal_nan=True):
            return f"for other inputs, a replay of its passes gives something else in {path}"
    return ""


@LAYER_PROPERTIES
def characteristics_tell_the_truth(harness: LayerHarness, seed: int) -> None:
    """Modes and time steps matter only where that is declared."""
    rnd, values, _ = draw(harness, seed)
    characteristics, outputs = harness.layer.characteristics, harness.paths("outputs")
    harness.forward(values, training_pass=False)
    inference = {path: harness.get(path) for path in outputs}
    if not characteristics.depends_on_mode:
        harness.forward(values, training_pass=True)
        with _unless_declared(harness, "depends_on_mode"):
            for path, expected in inference.items():
                check_buffer(harness, path, harness.get(path), expected)
    if not characteristics.time_coupled:
        other, changed = harness.sample(rnd), {}
        for path, array in values.items():
            is_input = path.startswith("inputs.") and harness.is_time_sized(path)
            changed[path] = np.concatenate([other[path][:1], array[1:]]) if is_input else array
        harness.forward(changed, training_pass=False)
        with _unless_declared(harness, "time_coupled"):
            for path, expected in inference.items():
                if harness.is_time_sized(path):
                    check_buffer(harness, path, harness.get(path)[1:], expected[1:])


@contextlib.contextmanager
def _unless_declared(harness: LayerHarness, characteristic: str) -> Iterator[None]:
    """Add to a violation how to declare it."""
    try:
        yield
    except PropertyError as error:
        raise PropertyError(
            f"{error}. If that is intended, write `{characteristic} = True` into class "
            f"{type(harness.layer).__name__}."
        ) from None


@LAYER_PROPERTIES
def what_does_not_look_at_time_does_without(harness: LayerHarness, seed: int) -> None:
    """Where steps are not coupled, each of them alone, as inputs ('B', ...), gives the same.

    So do deltas and gradients, if the layer does not depend on the mode.
    """
    if (alone := harness.without_time) is None:
        return
    _, values, out_deltas = draw(harness, seed)
    run = inferred if harness.layer.depends_on_mode else results
    whole = run(harness, values, out_deltas)
    totals = {path: np.zeros(()) for path in whole if path in harness.gradient_paths}
    with _unless_declared(harness, "time_coupled"):
        for step in range(harness.manager.time_size):
            found = run(alone, harness.at_step(values, step), harness.at_step(out_deltas, step))
            for path, array in found.items():
                if path in totals:
                    totals[path] = totals[path] + array
                elif harness.is_time_sized(path):
                    check_buffer(alone, path, array, whole[path][step])
        for path, total in totals.items():
            check_buffer(harness, path, total, whole[path])


@LAYER_PROPERTIES
def steps_one_by_one_are_those_of_the_sequence(harness: LayerHarness, seed: int) -> None:
    """Where the layer computes step by step: outputs of the last step equal those of a pass."""
    layer, steps = harness.layer, harness.manager.time_size
    try:
        layer.remembered(steps)
    except LayerValidationError:
        return
    if layer.is_over_source:
        return
    _, values, _ = draw(harness, seed)
    whole = inferred(harness, values, {})
    try:
        for stop in harness.step_by_step(values, (steps + 1) // 2):
            for path, expected in whole.items():
                if harness.is_time_sized(path):
                    check_buffer(harness, path, harness.get(path)[-1], expected[stop - 1])
                elif stop == steps and layer.time_coupled:
                    check_buffer(harness, path, harness.get(path), expected)
    finally:
        harness.resize(steps, harness.manager.batch_size)
