"""Dropout: random units are set to zero during training."""

from __future__ import annotations

from typing import Any

from brainstorm.handlers.base_handler import Handler
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import number, one_of
from brainstorm.optree import formula
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper


def Dropout(
    drop_prob: float = 0.5,
    name: str | None = None,
    inplace: bool = False,
    shared_over_time: bool = False,
) -> ConstructionWrapper:
    """Add dropout (Srivastava et al. 2014), scaled so that the expectation is unchanged.

    Training: mask ~ Bernoulli(1 - drop_prob), y = x * mask / (1 - drop_prob). Otherwise: y = x.

    Args:
        drop_prob: Probability of an element being set to zero, in [0, 1).
        name: Layer name; made unique within the network.
        inplace: Whether the output overwrites the memory of the input; an error if the input is
            needed elsewhere.
        shared_over_time: Whether the same units are dropped in all steps of a sequence, as between
            recurrent layers (Gal and Ghahramani 2016).

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none
    Internals: mask (zeros and ones), of the same shape, or ('B', ...) if it is shared over time
    """
    options = {} if shared_over_time is False else {"shared_over_time": shared_over_time}
    return ConstructionWrapper.create(
        DropoutLayerImpl, name=name, drop_prob=drop_prob, inplace=inplace, **options
    )


@formula
def dropped(x: Any, mask: Any, *, keep_prob: float) -> Any:
    """Return the output; or the deltas, given those of the output."""
    return x * mask * (1.0 / keep_prob)


class DropoutLayerImpl(Layer):
    """Implements `Dropout`."""

    is_traceable = True
    expected_kwargs = {
        "drop_prob": number(0, 1, high_open=True),
        "inplace": one_of(True, False),
        "shared_over_time": one_of(True, False),
    }
    changeable_kwargs = ("drop_prob",)
    needs_in_backward = ("internals",)
    depends_on_mode = True
    can_overwrite = ("input_deltas",)
    stream: Any = None  # of the handler

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.is_inplace = kwargs.get("inplace", False)
        self.drop_prob = kwargs.get("drop_prob", 0.5)
        shape = in_shapes["default"].shape
        mask = BufferStructure(*shape[kwargs.get("shared_over_time", False) :])
        return {"default": BufferStructure(*shape)}, {}, {"mask": mask}

    @property
    def keep_prob(self) -> float:
        """The probability that an element is kept."""
        return 1.0 - self.drop_prob

    def set_handler(self, handler: Handler) -> None:
        super().set_handler(handler)
        self.stream = handler.create_random_stream(self.rnd.child("mask").generate_seed())

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y, mask = buffers.inputs.default, buffers.outputs.default, buffers.internals.mask
        if training_pass:
            self.handler.generate_probability_mask(mask, self.keep_prob, stream=self.stream)
            self.handler.compute(dropped.given(keep_prob=self.keep_prob), [x, mask], [y])
            return
        self.handler.fill(mask, self.keep_prob)  # deltas are those of what nothing is dropped from
        if not self.is_inplace:
            self.handler.copy_to(x, y)

    def backward_pass(self, buffers: BufferView) -> None:
        inputs = [buffers.output_deltas.default, buffers.internals.mask]
        outputs = {"input_deltas.default": buffers.input_deltas.default}
        compute_into(self, dropped.given(keep_prob=self.keep_prob), inputs, outputs)
