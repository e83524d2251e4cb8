"""External data: whether they fit the Input layer, and their T, B and S."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import MissingDataError, NetworkValidationError
from brainstorm.structure.buffer_structure import CONSTANT, TIME, BufferStructure, format_shape
from brainstorm.utils import UNMASK, is_masked

#: Number of combinations of shapes and types that are remembered.
MOST_KNOWN = 4096

Sizes: TypeAlias = tuple[int, int, int]


class DataCheck:
    """Checks data against the outputs of the Input layer.

    Args:
        expected: The outputs.
    """

    def __init__(self, expected: Mapping[str, BufferStructure]) -> None:
        self.expected = expected
        #: T, B and S of data that were checked, by all that the check depends on.
        self._known: dict[Hashable, Sizes] = {}

    def __call__(
        self, data: Mapping[str, Any], all_inputs: bool, present: Sizes = (1, 1, 1)
    ) -> Sizes:
        """Return T, B and S of data.

        Other names than the expected ones are ignored; `present` are T, B and S for axes that no
        data have.

        Raises:
            MissingDataError: A name is missing, or there is no data at all.
            NetworkValidationError: A shape or dtype does not fit, or T, B or S differ.
        """
        try:
            arrays = tuple([(name, type(a), a.shape, a.dtype) for name, a in data.items()])
            key = type(data), arrays, all_inputs, present
            sizes = self._known.get(key)
        except (AttributeError, TypeError):
            return _check(data, self.expected, all_inputs, present)
        if sizes is None:
            sizes = _check(data, self.expected, all_inputs, present)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = sizes
        return sizes


def _check(
    data: Mapping[str, Any],
    expected: Mapping[str, BufferStructure],
    all_inputs: bool,
    present: Sizes,
) -> Sizes:
    _check_names(data, expected, all_inputs)
    origin: dict[str, tuple[Any, ...]] = {}
    for name, structure in expected.items():
        if name not in data:
            continue
        array = data[name]
        _check_array(name, array, structure)
        for marker, size in zip(structure.scaling_shape, array.shape, strict=False):
            known, other = origin.setdefault(marker, (size, name))
            if size != known:
                raise NetworkValidationError(
                    f"data {name!r}: expected {marker}={known} as in data {other!r}, got "
                    f"{marker}={size} (shape {format_shape(array.shape)}). All data of a batch "
                    f"share {'S' if marker == 'S' else 'T and B'}."
                )
    T, B, S = [origin.get(m, (size,))[0] for m, size in zip("TBS", present, strict=True)]
    return T, B, S


def split_batch(
    data: Mapping[str, Any], check: DataCheck, batch_size: int
) -> Iterator[tuple[Mapping[str, Any], int, int, int]]:
    """Yield data in parts of at most `batch_size` sequences, each with its T, B and S.

    Constant data are in every part.

    Raises:
        NetworkValidationError: A shape or dtype does not fit, T, B or S differ, or `batch_size`
            is not a positive int.
    """
    if not isinstance(batch_size, Integral) or batch_size < 1:
        raise NetworkValidationError(f"batch_size: expected an int >= 1, got {batch_size!r}.")
    T, total, S = check(data, all_inputs=False)
    if total <= batch_size:
        yield data, T, total, S
        return
    for start in range(0, total, batch_size):
        end = min(start + batch_size, total)
        part = {
            name: array[(slice(None),) * axis + (slice(start, end),)] if axis >= 0 else array
            for name, array in data.items()
            for axis in [check.expected[name].first_feature_dim - 1]
        }
        yield part, T, end - start, S


def _check_names(data: Mapping[str, Any], expected: Collection[str], all_inputs: bool) -> None:
    if not isinstance(data, Mapping):
        raise NetworkValidationError(
            f"data: expected a dict from input names to arrays, got {type(data).__name__}."
        )
    missing = [name for name in expected if name not in data]
    if (missing and all_inputs) or len(missing) == len(expected):
        raise MissingDataError(
            f"data for {', '.join(map(repr, missing))} is missing. The network's inputs are "
            f"{', '.join(map(repr, expected))}; got {', '.join(map(repr, data)) or 'nothing'}. "
            f"Provide it, or keep what the buffers hold with provide_external_data(..., "
            f"all_inputs=False)."
        )


def _check_array(name: str, array: Any, structure: BufferStructure) -> None:
    def fail(what: str) -> NetworkValidationError:
        return NetworkValidationError(f"data {name!r}: {what}")

    shape = getattr(array, "shape", None)
    if shape is None:
        raise fail(f"expected an array, got {type(array).__name__}. Use np.asarray.")
    if isinstance(array, np.ndarray) and array.dtype == object and not shape:
        given = type(array.item()).__name__  # NumPy takes anything as one object
        raise fail(f"expected an array, got {given}. For an iterator use tools.extract.")
    if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
        raise fail(f"expected numbers, got dtype {array.dtype}. Convert it first.")
    if is_masked(array):
        raise fail(f"expected a plain array, got a masked one. {UNMASK}")
    fits = len(shape) == len(structure.shape) and (
        tuple(shape[structure.first_feature_dim :]) == structure.feature_shape
    )
    if not fits:
        expected, got = format_shape(structure.shape), format_shape(shape)
        raise fail(f"expected {expected}, got {got}.{_advice(shape, structure)}")
    if structure.buffer_type != CONSTANT and 0 in shape[: structure.first_feature_dim]:
        raise fail(f"is empty, its shape is {format_shape(shape)}.")


def _advice(shape: tuple[int, ...], structure: BufferStructure) -> str:
    features = structure.feature_shape
    if len(shape) == len(structure.shape) and features == (1,):
        return " If these are one-hot vectors, use class numbers: array.argmax(-1)[..., None]."
    if structure.buffer_type == TIME and tuple(shape) == features:
        return " For a single row add two axes: array[None, None]."
    if structure.buffer_type == TIME and tuple(shape[1:]) == features:
        return " Add an axis: array[None] without time steps, array[:, None] for one sequence."
    if structure.buffer_type == TIME and sorted(shape[2:]) == sorted(features):
        return " Move the axes; channels of images are the last: np.moveaxis(array, 2, -1)."
    if structure.buffer_type == TIME and np.prod(shape[2:]) == structure.feature_size:
        sizes = ", ".join(map(str, (*structure.scaling_shape, *features)))
        return f" The same values fit as array.reshape({sizes})."
    return ""
