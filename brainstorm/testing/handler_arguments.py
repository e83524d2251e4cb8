"""Random arguments for the operations of handlers, generated from their contracts.

    arguments = Arguments("dot_mm", seed=3)        # numbers on the host
    call = Invocation(NumpyHandler(), arguments)         # the same in the arrays of a handler
    call.run()
    call.get("out")

Sizes are drawn until all conditions of the contract hold; sizes that are determined by a condition
of the form ``C == CG*groups`` are computed.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError, ValidationError
from brainstorm.handlers import Handler, NumpyHandler
from brainstorm.handlers.argument_kinds import Margin, kept
from brainstorm.handlers.contracts import Argument, evaluate
from brainstorm.utils import Array

#: The value of the memory around an array that is a slice of a wider one.
BESIDE = 7.0
#: Approximate number of elements of the largest array of a call with `large` sizes.
_LARGE = 2**16

#: Operations that are only defined for positive numbers.
_POSITIVE = {"log_t", "sqrt_t", "power_t"}
#: Operations for which equal numbers, or zeros, are a special case: the argument.
_WHOLE = {"argmax_m": "m", "maxpool2d_forward_batch": "inputs", "sign_t": "a"}
#: Names of arrays that are used as conditions.
_CONDITIONS = {"cond", "mask"}

_SYMBOL = re.compile(r"[A-Z]\w*")
_DEFINITION = re.compile(r"([A-Z]\w*) == (.+)")
_REDUCTION = re.compile(r"reduces\((\w+), (\w+), (\w+)\)")


@functools.cache
def reference() -> NumpyHandler:
    """Return the handler that all others are compared with."""
    return NumpyHandler(np.float64, seed=0)


class Arguments:
    """Random arguments for one call of an operation, as NumPy arrays and Python objects.

    Arrays are float64, but their numbers are exact in `dtype`.

    Args:
        operation: Name of the operation.
        seed: Seed of all random choices.
        dtype: The dtype of the handler under test.
        example: Number of the call; its bits are the flags, so that all combinations occur.
        large: Whether the largest arrays have about 65,000 elements, rather than a few.
        fixed: Values of symbols and of arguments other than arrays that are not drawn.

    Attributes:
        contract: Contract of the operation.
        values: The arguments by name; None for those that are absent.
        sizes: Sizes of symbols, and all arguments that are not arrays.
    """

    def __init__(
        self,
        operation: str,
        seed: int = 0,
        dtype: Any = np.float64,
        example: int = 0,
        large: bool = False,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        self.contract = Handler.operations()[operation]
        self.dtype = np.dtype(dtype)
        self.rng = np.random.default_rng([seed, zlib.crc32(operation.encode()), example])
        self._example, self._large, self._fixed = example, large, dict(fixed or {})
        self.sizes, shapes = self._draw_sizes()
        self.values: dict[str, Any] = {}
        for argument in self.contract.arguments:
            shape = shapes[argument.name]
            is_array = argument.is_array and shape is not None
            value = self._content(argument, shape) if is_array else self.sizes.get(argument.name)
            self.values[argument.name] = value
        name = self.contract.name
        if name in _PREPARATIONS:
            _PREPARATIONS[name](self.values)
        elif name.endswith("_deriv") and {"x", "y", "dy"} <= self.values.keys():
            _suit_output_to_input(self)

    def __str__(self) -> str:
        """Return the call with shapes, e.g. ``dot_mm(a(2, 3), b(3, 1), out(2, 1), ...)``."""
        told = []
        for name in self.contract.signature.parameters:
            value = self.values[name]
            is_array = isinstance(value, np.ndarray)
            told.append(f"{name}{value.shape}" if is_array else f"{name}={value}")
        return f"{self.contract.name}({', '.join(told)})"

    def rounded(self, values: Any) -> np.ndarray:
        """Return numbers rounded to the dtype of the handler, in float64."""
        return np.asarray(values, self.dtype).astype(np.float64)

    def expected(self) -> dict[str, np.ndarray]:
        """Return the results of the float64 reference, by the name of the argument."""
        call = Invocation(reference(), self)
        call.run()
        return {argument.name: call.get(argument.name) for argument in call.written}

    # -- sizes -------------------------------------------------------------------------------

    def _draw_sizes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw until the contract holds; return sizes, and the shapes of all arguments."""
        for _ in range(10_000):
            try:
                sizes = self._solve()
                shapes = {a.name: self._shape(a, sizes) for a in self.contract.arguments}
                self.contract.bind(_as_bound(shapes, sizes))
            except (HandlerValidationError, NameError, ZeroDivisionError):
                continue
            return sizes, shapes
        raise ValidationError(
            f"Arguments({self.contract.name!r}): found none that fulfil {self.contract.where}."
        )

    def _solve(self) -> dict[str, Any]:
        """Return a value of each symbol and of each argument that is not an array."""
        sizes = {
            argument.name: self._plain(argument)
            for argument in self.contract.arguments
            if not argument.is_array
        }
        for symbol in self._symbols():
            sizes[symbol] = self._size(symbol)
        sizes.update(self._fixed)
        for condition in self.contract.where:
            if found := _DEFINITION.fullmatch(condition):
                sizes[found[1]] = evaluate(found[2], sizes)
            elif found := _REDUCTION.fullmatch(condition):
                sizes[found[3]] = self._reduced(sizes[found[1]], sizes[found[2]])
        if any(isinstance(sizes[s], int) and sizes[s] < 1 for s in self._symbols()):
            raise HandlerValidationError(f"{self.contract.name}: an empty array")
        return sizes

    def _symbols(self) -> list[str]:
        """Return the symbols of the contract in order; those of several dimensions with a star."""
        dims = [dim for a in self.contract.arguments for shape in a.shapes for dim in shape]
        return list(dict.fromkeys(symbol for dim in dims for symbol in _SYMBOL.findall(dim)))

    def _size(self, symbol: str) -> Any:
        starred = any(f"*{symbol}" in s for a in self.contract.arguments for s in a.shapes)
        if re.fullmatch("K[A-Z]", symbol):  # size of a filter
            return int(self.rng.integers(1, 4))
        if self._large:
            ranks = [len(shape) for a in self.contract.arguments for shape in a.shapes]
            rank = max(2, *ranks)
            size = math.ceil(_LARGE ** (1 / rank))
            return (size,) * (rank + 1 - max(ranks)) if starred else size
        if starred:
            return tuple(int(n) for n in self.rng.integers(1, 5, self.rng.integers(1, 4)))
        return int(self.rng.integers(1, 6))

    def _plain(self, argument: Argument) -> Any:
        """Return the value of an argument that is not an array."""
        flags = sorted(a.name for a in self.contract.arguments if a.kind == "bool")
        draw: dict[str, Callable[[], Any]] = {
            "scalar": lambda: float(self.rounded(self.rng.normal())),
            "bool": lambda: bool(self._example >> flags.index(argument.name) & 1),
            "int": lambda: self._integer(-3 if argument.name == "axis" else 0, 3),
            "axis": lambda: None if self.rng.random() < 0.2 else self._integer(-3, 2),
            "pair": lambda: (self._integer(1, 3), self._integer(1, 3)),
            "triple": lambda: tuple(self._integer(1, 3) for _ in range(3)),
            "margin": lambda: self._margin(2),
            "margin3d": lambda: self._margin(3),
            "shape": lambda: (self._integer(1, 5), self._integer(1, 5)),
            "stream": lambda: None,
            "activation": lambda: str(self.rng.choice(Handler.activations)),
        }
        return draw[argument.kind]()

    def _integer(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def _margin(self, axes: int) -> Margin:
        """Return a padding for all sides, or for each axis, or for each side."""
        kind, draws = self.rng.integers(3), [self._integer(0, 2) for _ in range(2 * axes)]
        by_side = tuple(zip(draws[:axes], draws[axes:], strict=True))
        return (draws[0], tuple(draws[:axes]), by_side)[kind]

    def _reduced(self, shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
        """Return a shape reduced over an axis, which is kept with size 1 or not."""
        if self.rng.random() < 0.5:
            return kept(shape, axis)
        if axis is None:
            return ()
        return tuple(size for i, size in enumerate(shape) if i != axis % len(shape))

    def _shape(self, argument: Argument, sizes: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return one of the argument's shapes, transposed if its flag says so; None: absent."""
        can_be_absent = argument.optional and not self._large
        if not argument.is_array or (can_be_absent and self.rng.random() < 0.3):
            return None
        dims = argument.shapes[self.rng.integers(len(argument.shapes))]
        shape: list[int] = []
        for dim in dims:
            size = evaluate(dim.lstrip("*"), sizes)
            shape += size if dim.startswith("*") else [size]
        turned = argument.transposed is not None and sizes[argument.transposed]
        return tuple(shape[::-1] if turned else shape)

    # -- content -----------------------------------------------------------------------------

    def _content(self, argument: Argument, shape: tuple[int, ...]) -> np.ndarray:
        bounds = argument.bounds(self.sizes)
        if bounds is not None:
            return self.rng.integers(*bounds, shape).astype(float)
        if argument.name in _CONDITIONS and not argument.written:
            return self.rng.integers(0, 2, shape) * 2.0
        values = self.rng.normal(size=shape)
        # Away from 0, where functions have kinks and quotients lose digits.
        values = np.where(np.abs(values) < 0.05, 0.5, values)
        if self.contract.name in _POSITIVE and not argument.written:
            values = np.abs(values)
        if _WHOLE.get(self.contract.name) == argument.name and self._example % 2:
            values = np.rint(values)
        return self.rounded(values)


class Invocation:
    """A call of an operation of a handler, with the arguments in its arrays.

    Args:
        handler: The handler that computes.
        arguments: The arguments.
        strided: Make arrays slices of wider ones, on the last axis, and vectors columns.
        scalars_in_memory: Give scalars as arrays of one element.
    """

    def __init__(
        self,
        handler: Handler,
        arguments: Arguments,
        strided: bool = False,
        scalars_in_memory: bool = False,
    ) -> None:
        self.handler, self.contract = handler, arguments.contract
        self._strided = strided
        self._whole: dict[str, Array] = {}
        self.values: dict[str, Any] = {}
        for number, argument in enumerate(self.contract.arguments):
            value = arguments.values[argument.name]
            if argument.kind == "scalar" and scalars_in_memory:
                value = self._place(argument.name, np.full((1,) * (number % 2 + 1), value))
            elif argument.is_array and argument.kind != "host":
                absent = (None, handler.EMPTY)[arguments.rng.integers(2)]
                value = absent if value is None else self._place(argument.name, value)
            self.values[argument.name] = value

    def _place(self, name: str, values: np.ndarray) -> Array:
        if self._strided and values.ndim:
            *outer, length = values.shape if values.ndim > 1 else (*values.shape, 1)
            whole = self._whole[name] = self.handler.zeros((*outer, length + 5))
            self.handler.fill(whole, BESIDE)
            last = slice(2, length + 2) if values.ndim > 1 else 2
            array = whole[(*(slice(None),) * len(outer), last)]
            self.handler.set_from_numpy(array, values)
            return array
        return self.handler.create_from_numpy(values.astype(self.handler.dtype))

    @property
    def read(self) -> list[Argument]:
        """The arrays of the handler that are read but not written."""
        return [a for a in self._arrays() if not a.written]

    @property
    def written(self) -> list[Argument]:
        """The arrays of the handler that are written."""
        return [a for a in self._arrays() if a.written]

    def _arrays(self) -> list[Argument]:
        return [
            a
            for a in self.contract.arguments
            if a.is_array and a.kind != "host" and not a.is_absent(self.values[a.name])
        ]

    def run(self) -> Any:
        """Run the operation."""
        return getattr(self.handler, self.contract.name)(**self.values)

    def get(self, name: str) -> np.ndarray:
        """Return a copy of the content of an array."""
        return np.asarray(self.handler.get_numpy_copy(self.values[name]))

    def beside(self, name: str) -> np.ndarray:
        """Return a copy of the memory beside an array; empty if it is not a slice."""
        if name not in self._whole:
            return np.empty(0)
        whole = self.handler.get_numpy_copy(self._whole[name])
        return np.concatenate([whole[..., :2], whole[..., -3:]], axis=-1)


def _as_bound(shapes: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in the form for `Contract.bind`."""
    return {
        name: sizes.get(name) if shape is None else SimpleNamespace(shape=shape)
        for name, shape in shapes.items()
    }


# -- arguments that depend on each other ----------------------------------------------------------


def _suit_output_to_input(arguments: Arguments) -> None:
    """Set y to the activation of x."""
    values = arguments.values
    x = arguments.rng.normal(size=values["dy"].shape) if values["x"] is None else values["x"]
    y = np.empty(x.shape)
    getattr(reference(), arguments.contract.name.removesuffix("_deriv"))(x, y)
    if values["y"] is not None:
        values["y"] = arguments.rounded(y)


def _use_inputs_for_weights(values: dict[str, Any]) -> None:
    """Without inputs there are no derivatives of the weights."""
    if values["inputs"] is None:
        values["weight_deltas"] = None


def _find_maxima(values: dict[str, Any]) -> None:
    """Set outputs and argmax to the results of a forward pass, for inputs with ties."""
    values["inputs"] = np.rint(values["inputs"])
    names = ("inputs", "window", "outputs", "padding", "stride", "argmax")
    reference().maxpool2d_forward_batch(**{name: values[name] for name in names})


def _leave_room_for_labels(values: dict[str, Any]) -> None:
    """Make a path possible: n labels and the blanks between them need up to 2n - 1 steps."""
    labels, mask = values["labels"], values["mask"]
    steps = len(labels) if mask is None else np.count_nonzero(mask[:, :, 0], axis=0)
    counting = np.arange(len(labels))[:, None, None]
    limits = (np.reshape(steps, (1, -1, 1)) + 1) // 2
    values["labels"] = np.where(counting < limits, labels, 0.0)


_PREPARATIONS: dict[str, Callable[[dict[str, Any]], None]] = {
    "conv2d_backward_batch": _use_inputs_for_weights,
    "maxpool2d_backward_batch": _find_maxima,
    "ctc_loss": _leave_room_for_labels,
}
