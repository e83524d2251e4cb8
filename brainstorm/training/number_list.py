"""Long logs of numbers, at eight bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_CODES = {float: "d", int: "q"}


class NumberList(Sequence[Any]):
    """Numbers of one type, `float` or `int` (of 64 bits), which can be read like a list.

    Raises:
        TypeError: Values are of other types, or those of `append` are not like them.
        OverflowError: An int needs more bits.
    """

    def __init__(self, values: Sequence[Any] | np.ndarray) -> None:
        numbers = values.tolist() if isinstance(values, np.ndarray) else values
        self.type = type(next(iter(numbers), None))
        if self.type not in _CODES or any(type(value) is not self.type for value in numbers):
            raise TypeError("expected numbers of one type")
        self._values = array(_CODES[self.type], numbers)

    def append(self, value: Any) -> None:
        """Append a number of the same type."""
        if type(value) is not self.type:
            raise TypeError(f"expected a {self.type.__name__}, got {value!r}")
        self._values.append(value)

    def copy(self) -> NumberList:
        """Return a copy."""
        return NumberList(self._values)

    __copy__ = copy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Of a copy: nothing can be appended while NumPy looks into the memory.
        return np.asarray(self._values[:], dtype)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        found = self._values[index]
        return found.tolist() if isinstance(found, array) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, NumberList)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._values.tolist())
