"""Common parts of the convolutions over one, two and three axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.layers._activating import ActivatedLayer
from brainstorm.layers._windows import WindowLayer
from brainstorm.layers._writing import overwrites_all
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import Constraint, activation, integer, margin, per_axis
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import flatten_time


def convolution_options(axes: int) -> dict[str, Constraint]:
    """Return the options of a convolution over so many axes."""
    steps = per_axis(axes, 1)
    return {
        "num_filters": integer(minimum=1).required(),
        "kernel_size": steps.required(),
        "stride": steps,
        "padding": margin(axes),
        "activation": activation(),
        "dilation": steps,
        "groups": integer(minimum=1),
    }


class ConvolutionLayer(ActivatedLayer, WindowLayer):
    """Base of the convolutions; turns the output deltas into pre-activation deltas.

    Attributes:
        default_activation: For architectures without this option.
    """

    default_activation = "rel"

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.groups = kwargs.get("groups", 1)
        filters, channels = kwargs["num_filters"], in_shapes["default"].shape[-1]
        self._check_groups(filters, channels)
        size = self.count_windows(kwargs)
        parameters = {
            "W": BufferStructure(filters, *self.kernel_size, channels // self.groups),
            "bias": BufferStructure(filters),
        }
        output = BufferStructure("T", "B", *size, filters)
        internals = self.set_activation(kwargs.get("activation", self.default_activation), output)
        return {"default": output}, parameters, internals

    def _check_groups(self, filters: int, channels: int) -> None:
        if filters % self.groups:
            raise self.fail(
                f"expected a divisor of num_filters={filters}, got {self.groups}.", option="groups"
            )
        if channels % self.groups:
            axes = ", ".join(self.axes)
            raise self.misfit("default", f"(T, B, {axes}, C) with C a multiple of {self.groups}")

    def _operations(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return the forward and the backward operation."""
        return self.handler.conv2d_forward_batch, self.handler.conv2d_backward_batch

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, Ha = flatten_time(buffers.inputs.default), flatten_time(self.before_activation(buffers))
        (W, bias), windows = buffers.parameters, self.windows
        forward, _ = self._operations()
        forward(
            self.lift(x),
            self.lift(W),
            bias,
            self.lift(Ha),
            windows.padding,
            windows.stride,
            windows.dilation,
            self.groups,
            activation=self.fused_activation,
        )
        self.activate_kept_input(buffers)

    def backward_pass(self, buffers: BufferView) -> None:
        x, dy = flatten_time(buffers.inputs.default), flatten_time(buffers.output_deltas.default)
        needed = self.needs_delta("default")
        dx = self.lift(flatten_time(buffers.input_deltas.default)) if needed else None
        (dW, dbias), windows = buffers.gradients, self.windows
        self.differentiate(buffers)
        _, backward = self._operations()
        backward(
            self.lift(x),
            self.lift(buffers.parameters.W),
            windows.padding,
            windows.stride,
            dx,
            self.lift(dy),
            self.lift(dW),
            dbias,
            add_gradients=not overwrites_all(self, buffers.gradients, "W", "bias"),
            add_in_deltas=not self.overwrites("input_deltas.default"),
            dilation=windows.dilation,
            groups=self.groups,
        )
