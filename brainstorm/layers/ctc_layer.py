"""Connectionist temporal classification: labels for sequences whose alignment is unknown."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.layers._checks import require_class_indices
from brainstorm.layers._masked import MaskedLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import flatten_time


def CTC(name: str | None = None) -> ConstructionWrapper:
    """Add a softmax with the connectionist temporal classification loss (Graves et al. 2006).

    loss = -ln p(labels), where p sums over all paths through the classes that give the labels
    when repetitions and then blanks (class 0) are removed. Wire `loss` to a `Loss`.

    The labels of a sequence, numbered from 1, are in its first steps; zeros fill the rest. There
    must be at least as many steps as labels, plus one for each label equal to the previous one;
    if a mask leaves too few, the loss is infinite and has no gradient.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', K), labels ('T', 'B', 1): whole numbers in [0, K); optional mask
        ('T', 'B', 1), 0 at steps that do not count
    Outputs: predictions ('T', 'B', K): the softmax, loss ('B', 1)
    Parameters: none
    Internals: derivative ('T', 'B', K) of the loss, dsteps ('T', 'B', 1)
    """
    return ConstructionWrapper.create(CTCLayerImpl, name=name)


class CTCLayerImpl(MaskedLayer):
    """Implements `CTC`; no delta for labels and mask, and none from the predictions."""

    is_traceable = True
    expected_inputs = {
        "default": StructureTemplate("T", "B", "F"),
        "labels": StructureTemplate("T", "B", 1),
        "mask": StructureTemplate("T", "B", 1),
    }
    computes_no_input_deltas_for = ("labels", "mask")
    takes_no_output_deltas_from = ("predictions",)
    needs_in_backward = ("internals",)
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["default"].shape
        outputs = {"predictions": BufferStructure(*shape), "loss": BufferStructure("B", 1)}
        internals = {
            "derivative": BufferStructure(*shape),
            "dsteps": BufferStructure("T", "B", 1, is_backward_only=True),
        }
        return outputs, {}, internals

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that labels are in range, come first, and are not too many; and the mask."""
        super().validate_data(input_name, array)
        if input_name != "labels":
            return
        classes = self.in_shapes["default"].shape[-1]
        remedy = "0 is the blank: number the labels from 1, or give this layer more inputs."
        require_class_indices(self, "labels", array, classes, remedy)
        gaps = (array[:-1] == 0) & (array[1:] != 0)
        if gaps.any():
            t, b, _ = (int(i) for i in np.argwhere(gaps)[0])
            raise self.fail(
                f"expected the labels before all zeros, got a label after the 0 at t={t} of "
                f"sequence {b}. Fill up with zeros at the end only.",
                "labels",
            )
        needed = (array != 0).sum(axis=0) + ((array[1:] != 0) & (array[1:] == array[:-1])).sum(0)
        if (needed > len(array)).any():
            b = int(needed.argmax())
            raise self.fail(
                f"expected labels that fit into T={len(array)} steps, but those of sequence {b} "
                f"need {int(needed[b, 0])}: one each, and one between equal neighbours.",
                "labels",
            )

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, labels = buffers.inputs.default, buffers.inputs.labels
        mask = buffers.inputs.mask if "mask" in self.in_shapes else None
        predictions, loss = buffers.outputs
        self.handler.softmax_m(flatten_time(x), flatten_time(predictions))
        self.handler.ctc_loss(x, labels, mask, loss, buffers.internals.derivative)

    def backward_pass(self, buffers: BufferView) -> None:
        dloss, (derivative, dsteps) = buffers.output_deltas.loss, buffers.internals
        dx = flatten_time(buffers.input_deltas.default)
        self.handler.broadcast_t(dloss.reshape((1, *dloss.shape)), 0, dsteps)
        overwrite = self.overwrites("input_deltas.default")
        multiply = self.handler.mult_mv if overwrite else self.handler.mult_add_mv
        multiply(flatten_time(derivative), flatten_time(dsteps), dx)
