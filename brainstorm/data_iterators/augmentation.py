"""Wrappers that pad the data of an iterator, or change them at random.

They never write to the arrays that they receive, so nothing accumulates from epoch to epoch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import integer, number, plain
from brainstorm.data_iterators.base_iterator import Batch, DataIterator, Wrapper
from brainstorm.utils import Array


class AddGaussianNoise(Wrapper):
    """Add normally distributed noise to every element.

    Integer data become float32; other types are kept.

    Args:
        iter: The iterator to wrap.
        std_dict: Data name to standard deviation.
        mean_dict: Data name to mean, for names in `std_dict`; default 0.
    """

    def __init__(
        self,
        iter: DataIterator,
        std_dict: Mapping[str, float],
        mean_dict: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(iter, std_dict)
        self.std_dict = self.settings
        self.mean_dict = self._optional(mean_dict)
        self._check_values("standard deviation", std_dict, number(0))
        self._check_values("mean", self.mean_dict, number())

    def transform(self, name: str, array: Array) -> Array:
        noise = self.rnd.normal(self.mean_dict.get(name, 0.0), self.std_dict[name], array.shape)
        return (array + noise).astype(float_dtype(array))


class AddSaltNPepper(Wrapper):
    """Set some elements to 1 (salt) or 0 (pepper); in images of bytes, salt is 255.

    Args:
        iter: The iterator to wrap.
        prob_dict: Data name to the probability that an element is changed.
        ratio_dict: Data name to the fraction of salt among the changed elements, for names in
            `prob_dict`; default 0.5.
    """

    def __init__(
        self,
        iter: DataIterator,
        prob_dict: Mapping[str, float],
        ratio_dict: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(iter, prob_dict)
        self.prob_dict = self.settings
        self.ratio_dict = self._optional(ratio_dict)
        self._check_values("probability", prob_dict, number(0, 1))
        self._check_values("ratio", self.ratio_dict, number(0, 1))

    def transform(self, name: str, array: Array) -> Array:
        draws = self.rnd.random_sample(array.shape)
        prob = self.prob_dict[name]
        changed = array.copy()
        changed[draws < prob] = 0
        salt = 255 if array.dtype == np.uint8 else 1
        changed[draws < prob * self.ratio_dict.get(name, 0.5)] = salt
        return changed


class _OfImages(Wrapper):
    """Base class of wrappers of images: (T, B, rows, columns, channels).

    Data of all names get the same random numbers.
    """

    draws_per_sequence = True

    def __init__(self, iter: DataIterator, settings: Mapping[str, Any]) -> None:
        super().__init__(iter, settings)
        for name in settings:
            if len(self.data_shapes[name]) != 3:
                given = ", ".join(map(str, ("T", "B", *self.data_shapes[name])))
                raise self._fail(
                    f"expected images of shape (T, B, rows, columns, channels), got ({given})",
                    name,
                )

    def transform_batch(self, batch: Batch) -> Batch:
        drawn_from, changed = self.rnd.__getstate__(), {}
        for name in self.settings:
            self.rnd.__setstate__(drawn_from)
            changed[name] = self.transform(name, batch[name])
        return changed


class _WithValues(_OfImages):
    """Base class of wrappers that set a part of each image to a value."""

    _least_size: int
    _grows = False  # whether by the size on each side

    def __init__(
        self,
        iter: DataIterator,
        size_dict: Mapping[str, int],
        value_dict: Mapping[str, float] | None = None,
    ) -> None:
        value_dict = dict(value_dict or {})  # what is no dictionary is named before the images
        super().__init__(iter, size_dict)
        self.size_dict = self.settings
        self.value_dict = self._optional(value_dict)
        self._check_values("size", self.size_dict, integer(self._least_size))
        is_bool = (bool, np.bool_)  # as in masks
        numbers = {k: v for k, v in self.value_dict.items() if not isinstance(v, is_bool)}
        self._check_values("value", numbers, number())
        for name, size in self.size_dict.items():
            *image, channels = self.data_shapes[name]
            border = 2 * size * self._grows
            self.data_shapes[name] = (*(side + border for side in image), channels)

    def _get_value(self, name: str, dtype: np.dtype[Any]) -> np.ndarray:
        """Return the value as an element of a dtype; raise an error if it would change."""
        value = self.value_dict.get(name, 0)
        with np.errstate(invalid="ignore", over="ignore"), contextlib.suppress(OverflowError):
            cast = np.asarray(value).astype(dtype)
            if np.isfinite(cast) if dtype.kind == "f" else cast.item() == plain(value):
                return cast
        remedy = " Make them float32." * (dtype.kind != "f")
        raise self._fail(
            f"expected a value that data of {dtype} can have, got {value!r}.{remedy}", name
        )


class Flip(_OfImages):
    """Mirror images left to right; all time steps of a sequence together.

    Images of all names are mirrored together.

    Args:
        iter: The iterator to wrap.
        prob_dict: Data name to the probability that a sequence is mirrored; default
            ``{'default': 0.5}``, unless other data, such as label maps, have as many rows and
            columns. The data are (T, B, rows, columns, channels).
    """

    def __init__(self, iter: DataIterator, prob_dict: Mapping[str, float] | None = None) -> None:
        super().__init__(iter, {"default": 0.5} if prob_dict is None else prob_dict)
        size = self.data_shapes["default"][:2] if prob_dict is None else None
        alike = [n for n, s in self.data_shapes.items() if len(s) == 3 and s[:2] == size]
        if len(alike) > 1:
            others = " and ".join(repr(name) for name in alike if name != "default")
            raise self._fail(
                f"expected the names of the images, because {others} are as large as 'default', "
                f"e.g. Flip(iter, {dict.fromkeys(alike, 0.5)})"
            )
        self.prob_dict = self.settings
        self._check_values("probability", self.prob_dict, number(0, 1))

    def transform(self, name: str, array: Array) -> Array:
        chosen = self.rnd.random_sample(array.shape[1]) < self.prob_dict[name]
        flipped = array.copy()
        flipped[:, chosen] = array[:, chosen, :, ::-1]
        return flipped


class Pad(_WithValues):
    """Add a border around images.

    Args:
        iter: The iterator to wrap.
        size_dict: Data name to the width of the border in pixels, on all four sides. The data
            are (T, B, rows, columns, channels).
        value_dict: Data name to the value of the border, for names in `size_dict`; default 0.

    Raises:
        IteratorValidationError: Data or arguments are not valid; while iterating, if integer data
            cannot hold the value.
    """

    _least_size = 0
    _grows = True

    def transform(self, name: str, array: Array) -> Array:
        border = (self.size_dict[name],) * 2
        sides = ((0, 0), (0, 0), border, border, (0, 0))
        return np.pad(array, sides, constant_values=self._get_value(name, array.dtype))


class RandomCrop(_OfImages):
    """Cut a random part out of each image, the same for all time steps of a sequence.

    Images and their label maps are cut alike: those of one size to one size, and those of a
    multiple of a size (in each direction) to the same multiple of the part.

    Args:
        iter: The iterator to wrap.
        shape_dict: Data name to the (rows, columns) of the part. The data are
            (T, B, rows, columns, channels).
    """

    def __init__(self, iter: DataIterator, shape_dict: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(iter, shape_dict)
        self.shape_dict = self.settings
        for name, shape in self.shape_dict.items():
            *image, channels = self.data_shapes[name]
            is_pair = isinstance(shape, (tuple, list)) and len(shape) == 2
            if not is_pair or any(
                size not in integer(1, limit) for size, limit in zip(shape, image, strict=True)
            ):
                raise self._fail(
                    f"expected (rows, columns) from (1, 1) to {tuple(image)}, got {shape!r}", name
                )
            self.data_shapes[name] = (*shape, channels)

    def transform(self, name: str, array: Array) -> Array:
        rows, columns = self.shape_dict[name]
        tops, lefts = (self._draw_starts(name, axis, array.shape[1]) for axis in (0, 1))
        parts = [
            array[:, b, top : top + rows, left : left + columns]
            for b, (top, left) in enumerate(zip(tops, lefts, strict=True))
        ]
        return np.stack(parts, axis=1)

    def _draw_starts(self, name: str, axis: int, count: int) -> np.ndarray:
        """Draw where the parts start, in steps of all images that these are aligned to."""
        sizes = {
            n: (self.iter.data_shapes[n][axis], self.shape_dict[n][axis]) for n in self.settings
        }
        whole, part = sizes[name]
        alike = {other for other, its_part in sizes.values() if part * other == its_part * whole}
        aligned = {whole}
        for _ in alike:  # a multiple of two others aligns them
            aligned |= {a for a in alike if any(a % b == 0 or b % a == 0 for b in aligned)}
        step = whole // math.gcd(*aligned)
        return step * self.rnd.randint(0, (whole - part) // step + 1, count)


class Rotate90(_OfImages):
    """Turn square images by 90, 180 or 270 degrees; all time steps of a sequence together.

    Images of all names are turned together.

    Args:
        iter: The iterator to wrap.
        prob_dict: Data name to the probability that a sequence is turned; the three angles are
            equally probable. The data are (T, B, rows, columns, channels) with as many rows as
            columns.
    """

    def __init__(self, iter: DataIterator, prob_dict: Mapping[str, float]) -> None:
        super().__init__(iter, prob_dict)
        self.prob_dict = self.settings
        self._check_values("probability", prob_dict, number(0, 1))
        for name in prob_dict:
            rows, columns, _ = self.data_shapes[name]
            if rows != columns:
                raise self._fail(
                    f"expected as many rows as columns, got {rows} and {columns}. "
                    f"RandomCrop makes images square.",
                    name,
                )

    def transform(self, name: str, array: Array) -> Array:
        turns = self.rnd.randint(1, 4, array.shape[1])
        turns[self.rnd.random_sample(array.shape[1]) >= self.prob_dict[name]] = 0
        turned = array.copy()
        for count in (1, 2, 3):
            turned[:, turns == count] = np.rot90(array[:, turns == count], count, axes=(2, 3))
        return turned


class Cutout(_WithValues):
    """Cover a random square in each image, the same for all time steps of a sequence.

    In images of the same size it has the same centre.

    The centre of the square is any pixel, so that a part of it may lie outside of the image
    (DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout",
    2017).

    Args:
        iter: The iterator to wrap.
        size_dict: Data name to the side of the square in pixels. The data are
            (T, B, rows, columns, channels).
        value_dict: Data name to the value in the square, for names in `size_dict`; default 0.

    Raises:
        IteratorValidationError: As in `Pad`.
    """

    _least_size = 1

    def transform(self, name: str, array: Array) -> Array:
        size, value = self.size_dict[name], self._get_value(name, array.dtype)
        _, batch_size, rows, columns, _ = array.shape
        covered = array.copy()
        tops = self.rnd.randint(0, rows, batch_size) - size // 2
        lefts = self.rnd.randint(0, columns, batch_size) - size // 2
        for b, (top, left) in enumerate(zip(tops, lefts, strict=True)):
            square = np.s_[:, max(top, 0) : top + size, max(left, 0) : left + size]
            covered[:, b][square] = value
        return covered


class MixUp(Wrapper):
    """Replace each sequence, including its targets, by a mixture with another one of its batch.

    x becomes p x + (1 - p) x', and y becomes p y + (1 - p) y', where (x', y') is drawn from the
    batch and p, for each sequence, from a beta distribution with both parameters `alpha` (Zhang et
    al., "mixup: Beyond Empirical Risk Minimization", 2018). Other data than floats become float32.

    Class numbers cannot be mixed: convert them to vectors with `OneHot` first, and use a loss that
    takes probabilities as targets.

    Args:
        iter: The iterator to wrap.
        names: The names of all data to mix, including the targets.
        alpha: Larger values give more even mixtures; 0.001 to 1000.

    Raises:
        IteratorValidationError: While iterating, if some of the data are class numbers: integer
            arrays (T, B, 1).
    """

    __constraints__ = {"alpha": number(0.001, 1000)}

    draws_per_sequence = True

    def __init__(
        self,
        iter: DataIterator,
        names: Sequence[str] = ("default", "targets"),
        alpha: float = 0.2,
    ) -> None:
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise self._fail(f"expected a list of data names, got {names!r}")
        super().__init__(iter, dict.fromkeys(names))
        if not self.settings:
            raise self._fail("expected names of data to mix, got none")
        self.alpha = alpha

    def transform_batch(self, batch: Batch) -> Batch:
        """Return the mixtures, with the same partners and proportions for all names."""
        batch_size = next(iter(batch.values())).shape[1]
        partners = self.rnd.permutation(batch_size)
        parts = self.rnd.beta(self.alpha, self.alpha, batch_size)
        return {name: self._mix(name, batch[name], partners, parts) for name in self.settings}

    def _mix(self, name: str, array: Array, partners: np.ndarray, parts: np.ndarray) -> Array:
        if array.shape[2:] == (1,) and array.dtype.kind in "iu":
            raise self._fail(
                "expected data that can be mixed, got class numbers. Wrap the iterator into a "
                "OneHot first.",
                name,
            )
        dtype = float_dtype(array)
        parts = parts.astype(dtype).reshape(-1, *[1] * (array.ndim - 2))
        mixed = parts * array + (1 - parts) * array[:, partners]
        return mixed.astype(dtype, copy=False)


def float_dtype(array: Array) -> np.dtype[Any]:
    """Return the dtype of data as floats: their own if it is a float type, else float32."""
    return array.dtype if array.dtype.kind == "f" else np.dtype(np.float32)
