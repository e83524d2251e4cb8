"""Shapes of buffers before T and B are known.

A shape is a tuple that may start with the markers ``'T'`` (time) and ``'B'`` (batch), followed by
feature dimensions. ``'S'`` is a second time: the length of other sequences in the same batch. In a
template a feature may be left open: each of the letters in `ANY_SIZE` stands for any one feature
dimension and ``'...'`` for any number of them (at least one); ``'S'`` stands for either time. The
last feature of an internal may be a time again, as in ``('T', 'B', heads, 'T')``, for relations
between pairs of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from brainstorm.display import safe_repr
from brainstorm.errors import StructureValidationError, ValidationError
from brainstorm.utils import Array, product

#: The type of a buffer: constant, or it grows with the batch size, or also with sequence length.
CONSTANT, BATCH, TIME = 0, 1, 2
TIMES = ("T", "S")
#: Letters for a feature dimension of any size: features; depth, height, width or length, channels.
ANY_SIZE = tuple("FDHWLC")
BUFFER_TYPE_NAMES = ("constant", "batch sized", "time sized")


_OTHER = {"T": "S", "S": "T"}


def _is_int(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def format_shape(shape: Sequence[Any]) -> str:
    """Return a shape as text for messages: ``(T, B, 784)``."""
    inner = ", ".join(str(item) for item in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


class _Shape:
    """Common parts of templates and structures: the markers, the context and their rules."""

    def __init__(self, shape: tuple[Any, ...], context_size: int, is_backward_only: bool) -> None:
        # Sizes often come from NumPy; in descriptions they must be plain ints.
        self.shape = shape = tuple(int(size) if _is_int(size) else size for size in shape)
        self.context_size = context_size
        self.is_backward_only = is_backward_only
        if not shape:
            raise self._invalid("expected at least one dimension")
        has_time = any(time in shape for time in TIMES)
        self.buffer_type = TIME if has_time else BATCH if "B" in shape else CONSTANT
        #: The time that it grows with, if any.
        self.time = "S" if shape[0] == "S" else "T"
        markers = (), ("B",), (self.time, "B")
        self.scaling_shape: tuple[str, ...] = markers[self.buffer_type]
        self.first_feature_dim = self.buffer_type
        self.feature_shape: tuple[Any, ...] = shape[self.buffer_type :]
        self.is_square = self.buffer_type == TIME and shape[-1] in TIMES
        features = self.feature_shape[:-1] if self.is_square else self.feature_shape
        if shape[: self.buffer_type] != self.scaling_shape or {*TIMES, "B"} & {*features}:
            raise self._invalid(
                "expected the markers in front, as ('T', 'B', ...), ('S', 'B', ...) or ('B', ...)"
            )
        if not _is_int(context_size) or context_size < 0:
            raise self._invalid(f"context_size must be an int >= 0, got {context_size!r}")
        if context_size and (self.buffer_type != TIME or self.is_square):
            raise self._invalid("only a time sized shape ('T', 'B', ...) can have a context")

    def _invalid(self, what: str) -> StructureValidationError:
        return StructureValidationError(
            f"{type(self).__name__}{format_shape([repr(s) for s in self.shape])}: {what}."
        )

    @property
    def scales_with_time(self) -> bool:
        """Whether the buffer grows with the sequence length."""
        return self.buffer_type == TIME

    @property
    def scales_with_batch_size(self) -> bool:
        """Whether the buffer grows with the batch size."""
        return self.buffer_type != CONSTANT

    @safe_repr
    def __repr__(self) -> str:
        return f"{type(self).__name__}{format_shape([repr(s) for s in self.shape])}"


class StructureTemplate(_Shape):
    """The shapes that a layer accepts for an input.

    Args:
        *shape: Markers, then features that are all ints, all letters of `ANY_SIZE`, or exactly
            ``'...'``.
        context_size: Extra time steps at the end of the time axis.
        is_backward_only: Whether the buffer is used only in the backward pass.

    Raises:
        StructureValidationError: The shape breaks these rules.
    """

    def __init__(self, *shape: Any, context_size: int = 0, is_backward_only: bool = False) -> None:
        super().__init__(shape, context_size, is_backward_only)
        features = self.feature_shape
        uniform = all(map(_is_int, features)) or all(f in ANY_SIZE for f in features)
        if not (uniform or features == ("...",)):
            raise self._invalid("features must be all ints, all 'F' (any size), or exactly '...'")

    def matches(self, structure: BufferStructure) -> bool:
        """Return whether the template accepts `structure`."""
        if self.shape == ("...",):
            return True
        if self.feature_shape == ("...",):
            expected = (*self.scaling_shape, *["F"] * (len(structure.shape) - self.buffer_type))
            if len(structure.shape) <= self.buffer_type:
                return False
        else:
            expected = self.shape
        return len(expected) == len(structure.shape) and all(
            have == want or (want in ANY_SIZE and _is_int(have)) or (want == "S" and have == "T")
            for have, want in zip(structure.shape, expected, strict=True)
        )


class BufferStructure(_Shape):
    """The shape of one buffer, complete except for T and B.

    Args:
        *shape: Markers, then at least one feature dimension as an int; the last one may be
            ``'T'`` if the first dimension is ``'T'`` (see `is_square`).
        context_size: Extra time steps at the end of the time axis; index -1 at t = 0 is the
            state before the first step.
        is_backward_only: Whether the buffer is used only in the backward pass.
        persistent: A constant-size internal that survives resizing and is saved with the
            network (running statistics).
        initial_value: The initial value of a persistent buffer.

    Attributes:
        buffer_type: 0 constant, 1 batch sized, 2 time sized.
        time: The time that it grows with, if any: 'T' or 'S'.
        is_square: Whether the last feature is T or S: the buffer grows with the product of two.

    Raises:
        StructureValidationError: The shape breaks these rules.
    """

    def __init__(
        self,
        *shape: Any,
        context_size: int = 0,
        is_backward_only: bool = False,
        persistent: bool = False,
        initial_value: float = 0.0,
    ) -> None:
        super().__init__(shape, context_size, is_backward_only)
        self.persistent = persistent
        self.initial_value = initial_value
        if not self.feature_shape:
            raise self._invalid("expected at least one feature dimension")
        fixed = self.feature_shape[:-1] if self.is_square else self.feature_shape
        if not all(type(size) is int and size >= 0 for size in fixed):
            raise self._invalid("feature dimensions must be ints >= 0")
        if persistent and self.buffer_type != CONSTANT:
            raise self._invalid("only a constant size buffer can be persistent")

    @property
    def feature_size(self) -> int:
        """Number of values per time step and sequence (and, if square, per time step again)."""
        return product(self.feature_shape[:-1] if self.is_square else self.feature_shape)

    @property
    def nr_dims(self) -> int:
        """Number of dimensions, including T and B."""
        return len(self.shape)

    @property
    def template(self) -> str:
        """The shape as text, with the context: ``(T+1, B, 8)``."""
        time = f"{self.time}+{self.context_size}" if self.context_size else self.time
        head = (time, *self.shape[1:]) if self.scales_with_time else self.shape
        return format_shape(head)

    def with_time(self) -> BufferStructure:
        """Return a batch sized structure with a time axis."""
        return BufferStructure("T", *self.shape)

    def without_time(self) -> BufferStructure:
        """Return a time sized structure without the time axis; others unchanged."""
        if not self.scales_with_time:
            return self
        return BufferStructure(*self.shape[1:], is_backward_only=self.is_backward_only)

    def with_times_exchanged(self) -> BufferStructure:
        """Return the structure with S and T exchanged."""
        if not self.scales_with_time:
            return self
        return BufferStructure(
            *(_OTHER.get(size, size) for size in self.shape),
            context_size=self.context_size,
            is_backward_only=self.is_backward_only,
        )

    def get_shape(self, time: int, batch: int, source: int = 1) -> tuple[int, ...]:
        """Return the shape for given T (the context is added), B and S."""
        times = {"T": time, "S": source}
        scaling = (), (batch,), (times[self.time] + self.context_size, batch)
        last = (times[self.feature_shape[-1]],) if self.is_square else self.feature_shape[-1:]
        return (*scaling[self.buffer_type], *self.feature_shape[:-1], *last)

    def to_json(self, index: int) -> dict[str, Any]:
        """Return the array node of a layout for this buffer at position `index`."""
        node: dict[str, Any] = {"@type": "array", "@index": index, "@shape": self.shape}
        if self.context_size:
            node["@context_size"] = self.context_size
        if self.is_backward_only:
            node["@is_backward_only"] = True
        if self.persistent:
            node["@persistent"] = True
            node["@initial_value"] = self.initial_value
        return node

    @classmethod
    def from_layout(cls, node: dict[str, Any]) -> BufferStructure:
        """Return the structure described by an array node."""
        return cls(
            *node["@shape"],
            context_size=node.get("@context_size", 0),
            is_backward_only=node.get("@is_backward_only", False),
            persistent=node.get("@persistent", False),
            initial_value=node.get("@initial_value", 0.0),
        )

    def create_from_buffer_hub(
        self, buffer: Array, hub: Any, feature_slice: tuple[int, int]
    ) -> Array:
        """Return this buffer as a view of its hub's array.

        Args:
            buffer: Array of the hub, of the shape that `get_shape` of the hub returns.
            hub: The hub, whose ``context_size`` may exceed this buffer's.
            feature_slice: Start and stop in feature units.
        """
        start, stop = feature_slice
        features = self.feature_shape
        if self.is_square:
            steps = buffer.shape[2] // hub.size
            start, stop, features = start * steps, stop * steps, (*features[:-1], steps)
        if self.buffer_type == CONSTANT:
            return buffer[start:stop].reshape(features)
        if self.buffer_type == BATCH:
            part = buffer[:, start:stop]
        else:
            extra = hub.context_size - self.context_size
            rows = buffer.shape[0] - extra
            part = buffer[0:rows, :, start:stop]
        return part.reshape((*part.shape[: self.buffer_type], *features))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BufferStructure) and self.shape == other.shape

    def __hash__(self) -> int:
        return hash(self.shape)


def combine_buffer_structures(structures: Sequence[BufferStructure]) -> BufferStructure:
    """Return the structure of several buffers joined on their last dimension.

    The context is dropped: an input has exactly T time steps.

    Raises:
        ValidationError: They differ in buffer type, number of dimensions or leading features, or
            are square.
    """
    if not structures:
        return BufferStructure(0)
    first = structures[0]
    if first.is_square:
        raise ValidationError(
            f"cannot connect {format_shape(first.shape)}: no layer takes features that grow with T"
        )
    for other in structures[1:]:
        if other.buffer_type != first.buffer_type:
            raise ValidationError(
                f"cannot join a {BUFFER_TYPE_NAMES[first.buffer_type]} buffer "
                f"{format_shape(first.shape)} and a {BUFFER_TYPE_NAMES[other.buffer_type]} one "
                f"{format_shape(other.shape)}"
            )
        if len(other.shape) != len(first.shape) or other.shape[:-1] != first.shape[:-1]:
            raise ValidationError(
                f"cannot join {format_shape(first.shape)} and {format_shape(other.shape)}: all "
                f"dimensions but the last must agree"
            )
    return BufferStructure(*first.shape[:-1], sum(s.shape[-1] for s in structures))
