"""The properties that every handler must have, and `check_handler`, which proves them for one.

    check_handler(MyHandler(np.float32))

What operations must compute follows from their contracts and from the float64 `NumpyHandler`.
Each property is a function of a `HandlerBench`.
"""

from __future__ import annotations

import inspect
import json
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from brainstorm.errors import ValidationError, unknown
from brainstorm.handlers import Handler, NumpyHandler
from brainstorm.handlers.base_images import ImageOperations
from brainstorm.testing.gradients import check_close
from brainstorm.testing.handler_arguments import BESIDE, Arguments, Call
from brainstorm.testing.handler_bench import HandlerBench

__all__ = ["HANDLER_PROPERTIES", "check_handler"]

Property = Callable[[HandlerBench], None]

#: Name of each property to the function that checks it.
HANDLER_PROPERTIES: dict[str, Property] = {}


def _registered(function: Property) -> Property:
    """Register a property under the words of its name, which its violations mention."""
    name = function.__name__.replace("_", " ")

    def check(bench: HandlerBench) -> None:
        bench.checking = name
        function(bench)

    HANDLER_PROPERTIES[name] = check
    return function


def check_handler(
    handler: Handler,
    operations: Iterable[str] | None = None,
    seed: int = 0,
    properties: Iterable[str] | None = None,
) -> None:
    """Prove a handler: check all properties for its operations.

    Args:
        handler: The handler; its own random stream is used.
        operations: Names of operations; `None`: all.
        seed: Of the random arguments.
        properties: Names out of `HANDLER_PROPERTIES`; `None`: all.

    Raises:
        PropertyError: The message names property, operation, argument, element and both numbers.
    """
    names = list(HANDLER_PROPERTIES if properties is None else properties)
    for name in names:
        if name not in HANDLER_PROPERTIES:
            raise ValidationError(unknown("property", name, HANDLER_PROPERTIES))
    bench = HandlerBench(handler, operations, seed)
    for name in names:
        HANDLER_PROPERTIES[name](bench)


# -- operations ---------------------------------------------------------------------------------


@_registered
def operations_and_arguments_are_those_of_handler(bench: HandlerBench) -> None:
    """The same names, arguments and defaults; and nothing else is public."""
    declared, found = _methods(Handler), _methods(type(bench.handler))
    for name in declared if bench.is_complete else bench.operations:
        if name not in found:
            raise bench.fail(name, "expected a method, got none")
        expected, got = _signature(declared[name]), _signature(found[name])
        if got != expected:
            raise bench.fail(name, f"expected the arguments {expected}, got {got}")
    if bench.is_complete and (extra := sorted(found.keys() - declared.keys())):
        raise bench.fail(extra[0], "is public, but no operation of Handler. Begin it with '_'.")


def _methods(cls: type) -> dict[str, Any]:
    members = inspect.getmembers(cls, lambda m: callable(m) and not inspect.isclass(m))
    return {name: member for name, member in members if not name.startswith("_")}


def _signature(function: Any) -> str:
    parameters = inspect.signature(function).parameters.values()
    bare = [p.replace(annotation=p.empty) for p in parameters]
    return str(inspect.Signature([p for p in bare if p.name != "self"]))


@_registered
def results_equal_the_reference(bench: HandlerBench) -> None:
    """On random arguments, with scalars as numbers and in memory."""
    for contract in bench.computing():
        for number, arguments in enumerate(bench.examples(contract)):
            call = Call(bench.handler, arguments, scalars_in_memory=number % 2 == 1)
            bench.check_results(call, arguments, arguments.expected())


@_registered
def slices_of_wider_arrays_do_as_well(bench: HandlerBench) -> None:
    """On the last axis, except for images; and nothing is written beside them."""
    for contract in bench.computing():
        if contract.name in vars(ImageOperations):  # always contiguous
            continue
        for arguments in bench.examples(contract):
            call = Call(bench.handler, arguments, strided=True)
            bench.check_results(call, arguments, arguments.expected())
            for argument in call.read + call.written:
                beside = call.beside(argument.name)
                what = f"beside {argument.name}"
                bench.compare_exactly(arguments, what, beside, np.full_like(beside, BESIDE))


@_registered
def results_may_overwrite_arguments(bench: HandlerBench) -> None:
    """Where the contract has ``~>``, what is written may be any argument of the same shape."""
    for contract in bench.computing():
        for arguments in bench.examples(contract):
            call = Call(bench.handler, arguments)
            for target in (a for a in call.written if a.in_place):
                for source in call.read:
                    _check_in_place(bench, arguments, source.name, target.name)


def _check_in_place(bench: HandlerBench, arguments: Arguments, source: str, target: str) -> None:
    values = arguments.values
    if values[source].shape != values[target].shape:
        return
    old, values[target] = values[target], values[source]
    call = Call(bench.handler, arguments)
    call.values[target] = call.values[source]
    where = f"{arguments} with {target} = {source}"
    bench.attempt(where, call.run)
    bench.compare(where, target, call.get(target), arguments.expected()[target])
    values[target] = old


@_registered
def what_is_read_is_not_changed(bench: HandlerBench) -> None:
    """Not by a single bit."""
    for contract in bench.computing():
        for arguments in bench.examples(contract):
            call = Call(bench.handler, arguments)
            bench.attempt(arguments, call.run)
            for argument in call.read:
                name = argument.name
                bench.compare_exactly(arguments, name, call.get(name), arguments.values[name])


@_registered
def what_is_added_to_is_added_to(bench: HandlerBench) -> None:
    """Where the contract has ``+``, the old content is added to, or kept in parts."""
    for contract in bench.computing():
        for arguments in bench.examples(contract):
            values = arguments.values
            kept = [a.name for a in contract.arguments if a.keeps(values)]
            for name in kept:
                if values[name] is not None:
                    values[name] = arguments.rounded(values[name] * 8 + 3)
            if kept:
                bench.check_results(Call(bench.handler, arguments), arguments, arguments.expected())


@_registered
def what_is_overwritten_may_be_garbage(bench: HandlerBench) -> None:
    """Where the contract has no ``+``, not even NaN in the old content matters."""
    for contract in bench.computing():
        for arguments in bench.examples(contract):
            expected = arguments.expected()
            for name in expected:
                argument = next(a for a in contract.arguments if a.name == name)
                if not argument.keeps(arguments.values):
                    arguments.values[name] = np.full_like(arguments.values[name], np.nan)
            bench.check_results(Call(bench.handler, arguments), arguments, expected)


@_registered
def what_is_not_finite_is_found(bench: HandlerBench) -> None:
    """Also a single NaN or infinity, in a slice, and nothing that lies beside it."""
    for name in bench.chosen("is_fully_finite"):
        for bad in (None, np.nan, np.inf, -np.inf):
            values = np.full((5, 9), np.inf)
            values[:, 2:6] = float(np.finfo(bench.handler.dtype).max)
            if bad is not None:
                values[3, 4] = bad
            wide = bench.array(values)
            got = bench.attempt(name, bench.handler.is_fully_finite, wide[:, 2:6])
            if got is not (bad is None):
                raise bench.fail(name, f"expected {bad is None} with {bad} in a, got {got!r}")


# -- activation functions -------------------------------------------------------------------------


def _activations(bench: HandlerBench) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names of activation functions, and arrays on the host: x, y, dy and the slopes of y.

    Where the slopes to the left and to the right differ there is a kink, and the slope is NaN.
    """
    rnd, step = np.random.RandomState(bench.seed), 1e-6
    x = rnd.normal(size=(6, 7)).astype(bench.handler.dtype).astype(np.float64) * 2
    table = NumpyHandler(np.float64, seed=0).act_func
    for name in bench.handler.activations:
        function = table[name]
        operation = getattr(function, "__name__", name)  # there is none of a registered one
        if bench.is_complete or bench.chosen(operation, f"{operation}_deriv"):
            below, y, above = (np.empty_like(x) for _ in range(3))
            for shifted, out in ((x - step, below), (x, y), (x + step, above)):
                function(shifted, out)
            smooth = np.isclose(above - y, y - below, rtol=1e-3, atol=1e-3 * step)
            slopes = np.where(smooth, (above - below) / (2 * step), np.nan)
            yield name, {"x": x, "y": y, "dy": rnd.normal(size=x.shape), "slopes": slopes}


@_registered
def derivatives_equal_central_differences(bench: HandlerBench) -> None:
    """Of every activation function, as the float64 reference computes it."""
    for name, host in _activations(bench):
        x, y, dy = (bench.array(host[n]) for n in ("x", "y", "dy"))
        expected = bench.handler.get_numpy_copy(dy) * host["slopes"]
        for given in (x, None)[: 1 if name in bench.handler.activations_needing_inputs else 2]:
            what, dx = f"act_func_deriv[{name!r}]", bench.handler.zeros(dy.shape)
            bench.attempt(what, bench.handler.act_func_deriv[name], given, y, dy, dx)
            got, smooth = bench.handler.get_numpy_copy(dx), np.isfinite(expected)
            wanted, got = np.where(smooth, expected, 0), np.where(smooth, got, 0)
            check_close(f"{bench.where(what)}, dx", got, wanted, 1000 * bench.epsilon + 1e-7, 1e-6)


@_registered
def activations_in_place_agree_with_the_others(bench: HandlerBench) -> None:
    """The tables `inplace_act_func` and `inplace_act_func_deriv`, to the last bits."""
    handler = bench.handler
    for name, host in _activations(bench):
        x, y, dy = (bench.array(host[n]) for n in ("x", "y", "dy"))
        out, dx = handler.zeros(x.shape), handler.zeros(x.shape)
        bench.attempt(f"act_func[{name!r}]", handler.act_func[name], x, out)
        bench.attempt(f"act_func_deriv[{name!r}]", handler.act_func_deriv[name], x, y, dy, dx)
        what = f"inplace_act_func_deriv[{name!r}]"
        bench.attempt(what, handler.inplace_act_func_deriv[name], y, dy, x)
        bench.compare(what, "dy", handler.get_numpy_copy(dy), handler.get_numpy_copy(dx))
        what = f"inplace_act_func[{name!r}]"
        bench.attempt(what, handler.inplace_act_func[name], x)
        bench.compare(what, "x", handler.get_numpy_copy(x), handler.get_numpy_copy(out))


# -- random numbers -------------------------------------------------------------------------------


def _draw(bench: HandlerBench, name: str, stream: Any, shape: tuple[int, ...] = (5, 7)) -> Any:
    """Return random numbers of one of the two random operations."""
    out = bench.handler.zeros(shape)
    arguments = (2.0, 0.5, out) if name == "fill_gaussian" else (out, 0.3)
    bench.attempt(name, getattr(bench.handler, name), *arguments, stream)
    return bench.handler.get_numpy_copy(out)


@_registered
def random_streams_repeat(bench: HandlerBench) -> None:
    """From the same seed, or a state that went through JSON; streams know nothing of others."""
    create = bench.handler.create_random_stream
    for name in bench.chosen("fill_gaussian", "generate_probability_mask"):
        stream = create(3)
        first, second = _draw(bench, name, stream), _draw(bench, name, stream)
        for other in (second, _draw(bench, name, create(4)), _draw(bench, name, None)):
            if np.array_equal(first, other):
                raise bench.fail(name, "two streams, or a stream twice, give the same numbers")
        again = create(3)
        bench.compare_exactly(name, "again from the seed", _draw(bench, name, again), first)
        state = json.loads(json.dumps(again.get_state()))
        for draw in (None, create(9)):
            _draw(bench, name, draw)
        bench.compare_exactly(name, "after other streams", _draw(bench, name, again), second)
        restored = create(0)
        restored.set_state(state)
        bench.compare_exactly(name, "from a state", _draw(bench, name, restored), second)


@_registered
def random_numbers_have_their_distribution(bench: HandlerBench) -> None:
    """Mean, deviation and probability within five standard errors; masks are 0 and 1."""
    count = 40_000
    stream = bench.handler.create_random_stream(bench.seed)
    for name in bench.chosen("fill_gaussian", "generate_probability_mask"):
        values = _draw(bench, name, stream, (200, count // 200)).astype(np.float64)
        if name == "generate_probability_mask":
            bench.compare_exactly(name, "mask", values, values != 0)
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
                raise bench.fail(name, f"expected the {what} {expected:.6g}, got {got:.6g}")


# -- memory ---------------------------------------------------------------------------------------


@_registered
def new_arrays_are_what_was_asked_for(bench: HandlerBench) -> None:
    """Class, shape, dtype and content; in the host's memory, 64-byte alignment."""
    for name in bench.chosen("allocate", "zeros", "ones"):
        for shape in (3, (5,), (2, 3), (1, 2, 3, 4), (0,), (7, 0, 2), ()):
            array = bench.attempt(name, getattr(bench.handler, name), shape)
            got = type(array).__name__, tuple(array.shape), np.dtype(array.dtype).name
            sizes = (shape,) if isinstance(shape, int) else shape
            wanted = bench.handler.array_type.__name__, sizes, np.dtype(bench.handler.dtype).name
            if got != wanted:
                raise bench.fail(f"{name}({shape})", f"expected {wanted}, got {got}")
            _check_alignment(bench, f"{name}({shape})", array)
            if name != "allocate":
                content = np.full(sizes, float(name == "ones"))
                values = bench.handler.get_numpy_copy(array)
                bench.compare_exactly(f"{name}({shape})", "content", values, content)
            bench.handler.fill(array, BESIDE)  # the next one must not find zeros by chance


def _check_alignment(bench: HandlerBench, what: str, array: Any) -> None:
    if bench.is_host and array.size and array.ctypes.data % 64:
        offset = array.ctypes.data % 64
        raise bench.fail(what, f"expected an address divisible by 64, got remainder {offset}")


@_registered
def copies_hold_the_same_in_memory_of_their_own(bench: HandlerBench) -> None:
    """`create_from_numpy`, `set_from_numpy` and `get_numpy_copy`, with dtypes and transposed."""
    handler = bench.handler
    for dtype in (np.int64, np.float32, np.float64):
        source = np.arange(15, dtype=dtype).reshape(5, 3).T
        expected = source.copy()
        for name in bench.chosen("create_from_numpy", "set_from_numpy", "get_numpy_copy"):
            what, given = f"{name} of {expected.dtype.name}", expected.copy(order="F")
            if name == "set_from_numpy":
                array = handler.zeros(given.shape)
                bench.attempt(what, handler.set_from_numpy, array, given)
            else:
                array = bench.attempt(what, handler.create_from_numpy, given)
                _check_alignment(bench, what, array)
            bench.compare_exactly(what, "arr", given, expected)
            given.fill(0)
            copied = handler.get_numpy_copy(array)
            wanted = handler.dtype if name == "set_from_numpy" else given.dtype
            if not isinstance(copied, np.ndarray) or copied.dtype != wanted:
                got = getattr(copied, "dtype", type(copied).__name__)
                raise bench.fail(what, f"expected a NumPy array of {wanted}, got {got}")
            bench.compare_exactly(what, "content", copied.copy(), expected)
            copied.fill(0)
            bench.compare_exactly(what, "content", handler.get_numpy_copy(array), expected)


@_registered
def nothing_is_allocated_in_steady_state(bench: HandlerBench) -> None:
    """When an operation runs again; checked for arrays in the host's memory alone.

    Allowed are the buffers of NumPy's iterators: 8192 elements for each of up to four operands.
    """
    if not bench.is_host:
        return
    limit = 4 * 8192 * np.dtype(bench.handler.dtype).itemsize + 8192
    fixed = {"std": 0.5, "probability": 0.5}
    for name in bench.operations:
        if bench.contracts[name].result not in (None, "bool"):
            continue
        for example in range(2 if any(a.kept for a in bench.contracts[name].arguments) else 1):
            arguments = Arguments(name, bench.seed, bench.handler.dtype, 3 * example, True, fixed)
            call = Call(bench.handler, arguments)
            bench.attempt(arguments, call.run)
            if (used := _traced(call.run)) > limit:
                message = f"expected at most {limit} bytes in a second run, got {used}"
                raise bench.fail(arguments, message)


def _traced(function: Callable[[], Any]) -> int:
    """Return how many bytes were allocated at most while a function ran."""
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
