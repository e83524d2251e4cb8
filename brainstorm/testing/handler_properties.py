"""The properties that every handler must have, and `check_handler`, which tests them.

    check_handler(MyHandler(np.float32))

What operations must compute follows from their contracts and from the float64 `NumpyHandler`.
Each property is a function of a `HandlerHarness`.
"""

from __future__ import annotations

import inspect
import json
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from brainstorm.handlers import Handler, NumpyHandler
from brainstorm.handlers.base_images import ImageOperations
from brainstorm.testing.gradients import check_close
from brainstorm.testing.handler_arguments import BESIDE, Arguments, Invocation
from brainstorm.testing.handler_harness import HandlerHarness
from brainstorm.testing.properties import Properties, chosen

#: Name of each property to the function that checks it.
HANDLER_PROPERTIES = Properties()


def check_handler(
    handler: Handler,
    operations: Iterable[str] | None = None,
    seed: int = 0,
    properties: Iterable[str] | None = None,
) -> None:
    """Test a handler: check all properties for its operations.

    Args:
        handler: The handler; its own random stream is used.
        operations: Names of operations; `None`: all.
        seed: Seed of the random arguments.
        properties: Names out of `HANDLER_PROPERTIES`; `None`: all.

    Raises:
        PropertyError: The message names property, operation, argument, element and both numbers.
    """
    names = chosen("property", properties, HANDLER_PROPERTIES)
    harness = HandlerHarness(handler, operations, seed)
    for name in names:
        HANDLER_PROPERTIES[name](harness)


# -- operations ---------------------------------------------------------------------------------


@HANDLER_PROPERTIES
def operations_and_arguments_are_those_of_handler(harness: HandlerHarness) -> None:
    """The same names, arguments and defaults; and nothing else is public."""
    declared, found = _methods(Handler), _methods(type(harness.handler))
    for name in declared if harness.is_complete else harness.operations:
        if name not in found:
            raise harness.fail(name, "expected a method, got none")
        expected, got = _signature(declared[name]), _signature(found[name])
        if got != expected:
            raise harness.fail(name, f"expected the arguments {expected}, got {got}")
    if harness.is_complete and (extra := sorted(found.keys() - declared.keys())):
        raise harness.fail(extra[0], "is public, but no operation of Handler. Begin it with '_'.")


def _methods(cls: type) -> dict[str, Any]:
    members = inspect.getmembers(cls, lambda m: callable(m) and not inspect.isclass(m))
    return {name: member for name, member in members if not name.startswith("_")}


def _signature(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in parameters]
    return str(inspect.Signature([p for p in bare if p.name != "self"]))


@HANDLER_PROPERTIES
def results_equal_the_reference(harness: HandlerHarness) -> None:
    """On random arguments, with scalars as numbers and in memory."""
    for number, arguments in enumerate(harness.examples()):
        call = Invocation(harness.handler, arguments, scalars_in_memory=number % 2 == 1)
        harness.check_results(call, arguments, arguments.expected())


@HANDLER_PROPERTIES
def slices_of_wider_arrays_do_as_well(harness: HandlerHarness) -> None:
    """On the last axis, and columns of matrices, except for images; nothing is written beside."""
    for arguments in harness.examples():
        if arguments.contract.name in vars(ImageOperations):  # always contiguous
            continue
        call = Invocation(harness.handler, arguments, strided=True)
        harness.check_results(call, arguments, arguments.expected())
        for argument in call.read + call.written:
            beside = call.beside(argument.name)
            what = f"beside {argument.name}"
            harness.compare_exactly(arguments, what, beside, np.full_like(beside, BESIDE))


@HANDLER_PROPERTIES
def results_may_overwrite_arguments(harness: HandlerHarness) -> None:
    """Where the contract has ``~>``, what is written may be any argument of the same shape."""
    for arguments in harness.examples():
        call = Invocation(harness.handler, arguments)
        for target in (a for a in call.written if a.in_place):
            for source in call.read:
                _check_in_place(harness, arguments, source.name, target.name)


def _check_in_place(
    harness: HandlerHarness, arguments: Arguments, source: str, target: str
) -> None:
    values = arguments.values
    if values[source].shape != values[target].shape:
        return
    old, values[target] = values[target], values[source]
    call = Invocation(harness.handler, arguments)
    call.values[target] = call.values[source]
    where = f"{arguments} with {target} = {source}"
    harness.attempt(where, call.run)
    harness.compare(where, target, call.get(target), arguments.expected()[target])
    values[target] = old


@HANDLER_PROPERTIES
def what_is_read_is_not_changed(harness: HandlerHarness) -> None:
    """Not by a single bit."""
    for arguments in harness.examples():
        call = Invocation(harness.handler, arguments)
        harness.attempt(arguments, call.run)
        for argument in call.read:
            name = argument.name
            harness.compare_exactly(arguments, name, call.get(name), arguments.values[name])


@HANDLER_PROPERTIES
def what_is_added_to_is_added_to(harness: HandlerHarness) -> None:
    """Where the contract has ``+``, the old content is added to, or kept in parts."""
    for arguments in harness.examples():
        values = arguments.values
        kept = [a.name for a in arguments.contract.arguments if a.keeps(values)]
        for name in kept:
            if values[name] is not None:
                values[name] = arguments.rounded(values[name] * 8 + 3)
        if kept:
            call = Invocation(harness.handler, arguments)
            harness.check_results(call, arguments, arguments.expected())


@HANDLER_PROPERTIES
def what_is_overwritten_may_be_garbage(harness: HandlerHarness) -> None:
    """Where the contract has no ``+``, not even NaN in the old content matters."""
    for arguments in harness.examples():
        expected, values = arguments.expected(), arguments.values
        for argument in arguments.contract.arguments:
            if argument.name in expected and not argument.keeps(values):
                values[argument.name] = np.full_like(values[argument.name], np.nan)
        harness.check_results(Invocation(harness.handler, arguments), arguments, expected)


@HANDLER_PROPERTIES
def what_is_not_finite_is_found(harness: HandlerHarness) -> None:
    """Also a single NaN or infinity, in a slice, and nothing that lies beside it."""
    for name in harness.chosen("is_fully_finite"):
        for bad in (None, np.nan, np.inf, -np.inf):
            values = np.full((5, 9), np.inf)
            values[:, 2:6] = float(np.finfo(harness.handler.dtype).max)
            if bad is not None:
                values[3, 4] = bad
            wide = harness.array(values)
            got = harness.attempt(name, harness.handler.is_fully_finite, wide[:, 2:6])
            if got is not (bad is None):
                raise harness.fail(name, f"expected {bad is None} with {bad} in a, got {got!r}")


# -- activation functions -------------------------------------------------------------------------


def _activations(harness: HandlerHarness) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names of activation functions, and arrays on the host: x, y, dy and the slopes of y.

    At a kink, where the slopes to the left and to the right differ, the slope is NaN.
    """
    rnd, step = np.random.RandomState(harness.seed), 1e-6
    x = rnd.normal(size=(6, 7)).astype(harness.handler.dtype).astype(np.float64) * 2
    table = NumpyHandler(np.float64, seed=0).act_func
    for name in harness.handler.activations:
        function = table[name]
        operation = getattr(function, "__name__", name)  # there is none of a registered one
        if harness.is_complete or harness.chosen(operation, f"{operation}_deriv"):
            below, y, above = (np.empty_like(x) for _ in range(3))
            for shifted, out in ((x - step, below), (x, y), (x + step, above)):
                function(shifted, out)
            smooth = np.isclose(above - y, y - below, rtol=1e-3, atol=1e-3 * step)
            slopes = np.where(smooth, (above - below) / (2 * step), np.nan)
            yield name, {"x": x, "y": y, "dy": rnd.normal(size=x.shape), "slopes": slopes}


@HANDLER_PROPERTIES
def derivatives_equal_central_differences(harness: HandlerHarness) -> None:
    """Of every activation function, as the float64 reference computes it."""
    for name, host in _activations(harness):
        x, y, dy = (harness.array(host[n]) for n in ("x", "y", "dy"))
        expected = harness.handler.get_numpy_copy(dy) * host["slopes"]
        for given in (x, None)[: 1 if name in harness.handler.activations_needing_inputs else 2]:
            what, dx = f"act_func_deriv[{name!r}]", harness.handler.zeros(dy.shape)
            harness.attempt(what, harness.handler.act_func_deriv[name], given, y, dy, dx)
            got, smooth = harness.handler.get_numpy_copy(dx), np.isfinite(expected)
            wanted, got = np.where(smooth, expected, 0), np.where(smooth, got, 0)
            check_close(
                f"{harness.where(what)}, dx", got, wanted, 1000 * harness.epsilon + 1e-7, 1e-6
            )


@HANDLER_PROPERTIES
def activations_in_place_agree_with_the_others(harness: HandlerHarness) -> None:
    """The tables `inplace_act_func` and `inplace_act_func_deriv`, to the last bits."""
    handler = harness.handler
    for name, host in _activations(harness):
        x, y, dy = (harness.array(host[n]) for n in ("x", "y", "dy"))
        out, dx = handler.zeros(x.shape), handler.zeros(x.shape)
        harness.attempt(f"act_func[{name!r}]", handler.act_func[name], x, out)
        harness.attempt(f"act_func_deriv[{name!r}]", handler.act_func_deriv[name], x, y, dy, dx)
        what = f"inplace_act_func_deriv[{name!r}]"
        harness.attempt(what, handler.inplace_act_func_deriv[name], y, dy, x)
        harness.compare(what, "dy", handler.get_numpy_copy(dy), handler.get_numpy_copy(dx))
        what = f"inplace_act_func[{name!r}]"
        harness.attempt(what, handler.inplace_act_func[name], x)
        harness.compare(what, "x", handler.get_numpy_copy(x), handler.get_numpy_copy(out))


# -- random numbers -------------------------------------------------------------------------------


def _draw(harness: HandlerHarness, name: str, stream: Any, shape: tuple[int, ...] = (5, 7)) -> Any:
    """Return random numbers of one of the two random operations."""
    out = harness.handler.zeros(shape)
    arguments = (2.0, 0.5, out) if name == "fill_gaussian" else (out, 0.3)
    harness.attempt(name, getattr(harness.handler, name), *arguments, stream)
    return harness.handler.get_numpy_copy(out)


@HANDLER_PROPERTIES
def random_streams_repeat(harness: HandlerHarness) -> None:
    """From the same seed, or a state that went through JSON; streams know nothing of others."""
    create = harness.handler.create_random_stream
    for name in harness.chosen("fill_gaussian", "generate_probability_mask"):
        stream = create(3)
        first, second = _draw(harness, name, stream), _draw(harness, name, stream)
        for other in (second, _draw(harness, name, create(4)), _draw(harness, name, None)):
            if np.array_equal(first, other):
                raise harness.fail(name, "two streams, or a stream twice, give the same numbers")
        again = create(3)
        harness.compare_exactly(name, "again from the seed", _draw(harness, name, again), first)
        state = json.loads(json.dumps(again.get_state()))
        for draw in (None, create(9)):
            _draw(harness, name, draw)
        harness.compare_exactly(name, "after other streams", _draw(harness, name, again), second)
        restored = create(0)
        restored.set_state(state)
        harness.compare_exactly(name, "from a state", _draw(harness, name, restored), second)


@HANDLER_PROPERTIES
def random_numbers_have_their_distribution(harness: HandlerHarness) -> None:
    """Mean, deviation and probability within five standard errors; masks are 0 and 1."""
    count = 40_000
    stream = harness.handler.create_random_stream(harness.seed)
    for name in harness.chosen("fill_gaussian", "generate_probability_mask"):
        values = _draw(harness, name, stream, (200, count // 200)).astype(np.float64)
        if name == "generate_probability_mask":
            harness.compare_exactly(name, "mask", values, values != 0)
            moments = {"mean": (values.mean(), 0.3, np.sqrt(0.3 * 0.7 / count))}
        else:
            tail = float(np.mean(np.abs(values - 2.0) > 1.0))  # 4.55 % beyond two deviations
            moments = {
                "mean": (values.mean(), 2.0, 0.5 / np.sqrt(count)),
                "deviation": (values.std(), 0.5, 0.5 / np.sqrt(2 * count)),
                "share beyond two deviations": (tail, 0.0455, np.sqrt(0.0455 / count)),
            }
        for what, (got, expected, error) in moments.items():
            if not abs(got - expected) <= 5 * error:
                raise harness.fail(name, f"expected the {what} {expected:.6g}, got {got:.6g}")


# -- memory ---------------------------------------------------------------------------------------


@HANDLER_PROPERTIES
def new_arrays_are_what_was_asked_for(harness: HandlerHarness) -> None:
    """Class, shape, dtype and content; in the host's memory, 64-byte alignment."""
    for name in harness.chosen("allocate", "zeros", "ones"):
        for shape in (3, (5,), (2, 3), (1, 2, 3, 4), (0,), (7, 0, 2), ()):
            array = harness.attempt(name, getattr(harness.handler, name), shape)
            got = type(array).__name__, tuple(array.shape), np.dtype(array.dtype).name
            sizes = (shape,) if isinstance(shape, int) else shape
            wanted = (
                harness.handler.array_type.__name__,
                sizes,
                np.dtype(harness.handler.dtype).name,
            )
            if got != wanted:
                raise harness.fail(f"{name}({shape})", f"expected {wanted}, got {got}")
            _check_alignment(harness, f"{name}({shape})", array)
            if name != "allocate":
                content = np.full(sizes, float(name == "ones"))
                values = harness.handler.get_numpy_copy(array)
                harness.compare_exactly(f"{name}({shape})", "content", values, content)
            harness.handler.fill(array, BESIDE)  # the next one must not find zeros by chance


def _check_alignment(harness: HandlerHarness, what: str, array: Any) -> None:
    if harness.is_host and array.size and array.ctypes.data % 64:
        offset = array.ctypes.data % 64
        raise harness.fail(what, f"expected an address divisible by 64, got remainder {offset}")


@HANDLER_PROPERTIES
def copies_hold_the_same_in_memory_of_their_own(harness: HandlerHarness) -> None:
    """`create_from_numpy`, `set_from_numpy` and `get_numpy_copy`, with dtypes and transposed."""
    handler = harness.handler
    for dtype in (np.int64, np.float32, np.float64):
        source = np.arange(15, dtype=dtype).reshape(5, 3).T
        expected = source.copy()
        for name in harness.chosen("create_from_numpy", "set_from_numpy", "get_numpy_copy"):
            what, given = f"{name} of {expected.dtype.name}", expected.copy(order="F")
            if name == "set_from_numpy":
                array = handler.zeros(given.shape)
                harness.attempt(what, handler.set_from_numpy, array, given)
            else:
                array = harness.attempt(what, handler.create_from_numpy, given)
                _check_alignment(harness, what, array)
            harness.compare_exactly(what, "arr", given, expected)
            given.fill(0)
            copied = handler.get_numpy_copy(array)
            wanted = handler.dtype if name == "set_from_numpy" else given.dtype
            if not isinstance(copied, np.ndarray) or copied.dtype != wanted:
                got = getattr(copied, "dtype", type(copied).__name__)
                raise harness.fail(what, f"expected a NumPy array of {wanted}, got {got}")
            harness.compare_exactly(what, "content", copied.copy(), expected)
            copied.fill(0)
            harness.compare_exactly(what, "content", handler.get_numpy_copy(array), expected)


@HANDLER_PROPERTIES
def nothing_is_allocated_in_steady_state(harness: HandlerHarness) -> None:
    """When an operation runs again; checked for arrays in the host's memory alone.

    The buffers of NumPy's iterators are allowed: 8192 elements for each of up to four operands.
    """
    if not harness.is_host:
        return
    limit = 4 * 8192 * np.dtype(harness.handler.dtype).itemsize + 8192
    fixed = {"std": 0.5, "probability": 0.5}
    for name in harness.operations:
        if harness.contracts[name].result not in (None, "bool"):
            continue
        for example in range(2 if any(a.kept for a in harness.contracts[name].arguments) else 1):
            arguments = Arguments(
                name, harness.seed, harness.handler.dtype, 3 * example, True, fixed
            )
            call = Invocation(harness.handler, arguments)
            harness.attempt(arguments, call.run)
            if (used := _traced(call.run)) > limit:
                message = f"expected at most {limit} bytes in a second run, got {used}"
                raise harness.fail(arguments, message)


def _traced(function: Callable[[], Any]) -> int:
    """Return the peak number of bytes allocated while a function runs."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()
