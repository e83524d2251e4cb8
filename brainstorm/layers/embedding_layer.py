"""Embedding: a learned vector for each class, such as a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from brainstorm.layers._checks import require_class_indices
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import integer
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array, flatten_time_and_features


def Embedding(vocabulary_size: int, size: int, name: str | None = None) -> ConstructionWrapper:
    """Add a lookup table: ``y = W[x]``.

    Equivalent to a fully connected layer without bias after `OneHot`, but without the product. The
    gradient of a row is the sum over all its lookups.

    Args:
        vocabulary_size: Number of classes.
        size: Number of values per class.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', n): whole numbers in [0, vocabulary_size)
    Outputs: default ('T', 'B', n, size), or ('T', 'B', size) if n is 1
    Parameters: W (vocabulary_size, size)    Internals: none
    """
    return ConstructionWrapper.create(
        EmbeddingLayerImpl, name=name, vocabulary_size=vocabulary_size, size=size
    )


#: The name in neon.
LookupTable = Embedding


class EmbeddingLayerImpl(Layer):
    """Implements `Embedding`; no delta for the classes."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "F")}
    expected_kwargs = {
        "vocabulary_size": integer(minimum=1).required(),
        "size": integer(minimum=1).required(),
    }
    computes_no_input_deltas_for = ("default",)
    needs_in_backward = ("inputs",)
    accepts_null_deltas = True

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.vocabulary_size, size = kwargs["vocabulary_size"], kwargs["size"]
        count = in_shapes["default"].feature_size
        features = (size,) if count == 1 else (count, size)
        table = BufferStructure(self.vocabulary_size, size)
        return {"default": BufferStructure("T", "B", *features)}, {"W": table}, {}

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that the classes are whole numbers in [0, vocabulary_size)."""
        remedy = "Number the classes from 0, or make vocabulary_size larger."
        require_class_indices(self, input_name, array, self.vocabulary_size, remedy)

    def _columns(self, classes: Array, vectors: Array) -> Iterator[tuple[Array, Array]]:
        """Yield (rows, 1) classes and their (rows, size) vectors for each of the n features."""
        flat = flatten_time_and_features(classes)
        rows, count = flat.shape
        vectors = vectors.reshape((rows, count, vectors.shape[-1]))
        for i in range(count):
            yield flat[:, i : i + 1], vectors[:, i]

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        for classes, vectors in self._columns(buffers.inputs.default, buffers.outputs.default):
            self.handler.take_rows_mv(buffers.parameters.W, classes, vectors)

    def backward_pass(self, buffers: BufferView) -> None:
        deltas = buffers.output_deltas.default
        for classes, vectors in self._columns(buffers.inputs.default, deltas):
            self.handler.add_rows_mv(vectors, classes, buffers.gradients.W)
