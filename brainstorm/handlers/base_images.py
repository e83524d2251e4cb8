"""The operations on images that every handler has: convolution and pooling of whole batches.

Images are (N, H, W, C): image, row, column, channel. A window, stride or dilation is (rows,
columns). A padding is one number for all sides, or for each axis one number or (before, after).
"""
# ruff: noqa: B024, B027, D403 (`operation` makes methods abstract; docstrings start with formulas)

from __future__ import annotations

import abc

from brainstorm.handlers.argument_kinds import Margin
from brainstorm.handlers.contracts import operation
from brainstorm.utils import Array

Pair = tuple[int, int]
Triple = tuple[int, int, int]

_CONV2D_SIZES = (
    "OH == (H + around(padding, 0) - dilation[0]*(KH - 1) - 1)//stride[0] + 1; "
    "OW == (W + around(padding, 1) - dilation[1]*(KW - 1) - 1)//stride[1] + 1; "
    "C == CG*groups; F % groups == 0"
)
_CONV3D_SIZES = (
    "OD == (D + around(padding, 0) - dilation[0]*(KD - 1) - 1)//stride[0] + 1; "
    "OH == (H + around(padding, 1) - dilation[1]*(KH - 1) - 1)//stride[1] + 1; "
    "OW == (W + around(padding, 2) - dilation[2]*(KW - 1) - 1)//stride[2] + 1; "
    "C == CG*groups; F % groups == 0"
)
_POOL_SIZES = (
    "OH == (H + around(padding, 0) - window[0])//stride[0] + 1; "
    "OW == (W + around(padding, 1) - window[1])//stride[1] + 1"
)


class ImageOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    @operation(
        "inputs(N,H,W,C) weights(F,KH,KW,CG) bias(F)? padding:margin stride:pair dilation:pair "
        "groups:int activation:activation -> outputs(N,OH,OW,F)+add_outputs",
        where=_CONV2D_SIZES,
    )
    def conv2d_forward_batch(
        self, inputs: Array, weights: Array, bias: Array, outputs: Array, padding: Margin,
        stride: Pair, dilation: Pair = (1, 1), groups: int = 1, add_outputs: bool = False,
        activation: str = "linear",
    ) -> None:  # fmt: skip
        """outputs[n,p,q,f] = bias[f] + sum over i,j,c of x[n,p*s+i*d,q*s+j*d,c] * weights[f,i,j,c].

        x is `inputs` with `padding` zeros around it; the kernel is not flipped. The channels are in
        `groups` consecutive groups of CG, and so are the F filters: c runs over the group of
        channels with the number of the group of f.

        Args:
            inputs: The images.
            weights: The filters.
            bias: Added, unless it is None or an array of size 0.
            outputs: Overwritten (see `add_outputs`).
            padding: Zeros around the images.
            stride: Rows and columns between successive applications, s.
            dilation: Rows and columns between neighbouring cells of a filter, d.
            groups: Number of groups of channels.
            add_outputs: Add to the outputs.
            activation: Applied to the result in the outputs.
        """

    @operation(
        "inputs(N,H,W,C)? weights(F,KH,KW,CG) padding:margin stride:pair dilation:pair groups:int "
        "out_deltas(N,OH,OW,F) -> in_deltas(N,H,W,C)?+add_in_deltas "
        "weight_deltas(F,KH,KW,CG)?+add_gradients bias_deltas(F)?+add_gradients",
        where=_CONV2D_SIZES,
    )
    def conv2d_backward_batch(
        self, inputs: Array, weights: Array, padding: Margin, stride: Pair, in_deltas: Array,
        out_deltas: Array, weight_deltas: Array, bias_deltas: Array, add_gradients: bool = False,
        add_in_deltas: bool = True, dilation: Pair = (1, 1), groups: int = 1,
    ) -> None:  # fmt: skip
        """Write the derivatives of `conv2d_forward_batch`.

        Derivatives that are None or an array of size 0 are not computed. With in_deltas alone this
        is a transposed convolution (of out_deltas), which needs no inputs.

        Args:
            inputs: As in the forward pass; None or an array of size 0 if no weight_deltas.
            weights: As in the forward pass.
            padding: As in the forward pass.
            stride: As in the forward pass.
            in_deltas: Added to (see `add_in_deltas`).
            out_deltas: Derivatives with respect to the outputs.
            weight_deltas: Overwritten (see `add_gradients`).
            bias_deltas: Overwritten (see `add_gradients`).
            add_gradients: Add to weight_deltas and bias_deltas.
            add_in_deltas: False: overwrite in_deltas.
            dilation: As in the forward pass.
            groups: As in the forward pass.
        """

    @operation(
        "inputs(N,D,H,W,C) weights(F,KD,KH,KW,CG) bias(F) padding:margin3d stride:triple "
        "dilation:triple groups:int activation:activation -> outputs(N,OD,OH,OW,F)",
        where=_CONV3D_SIZES,
    )
    def conv3d_forward_batch(
        self, inputs: Array, weights: Array, bias: Array, outputs: Array, padding: Margin,
        stride: Triple, dilation: Triple = (1, 1, 1), groups: int = 1, activation: str = "linear",
    ) -> None:  # fmt: skip
        """Do the same as `conv2d_forward_batch`, with a further axis (depth) before the rows."""

    @operation(
        "inputs(N,D,H,W,C) weights(F,KD,KH,KW,CG) padding:margin3d stride:triple dilation:triple "
        "groups:int out_deltas(N,OD,OH,OW,F) -> in_deltas(N,D,H,W,C)?+add_in_deltas "
        "weight_deltas(F,KD,KH,KW,CG)+add_gradients bias_deltas(F)+add_gradients",
        where=_CONV3D_SIZES,
    )
    def conv3d_backward_batch(
        self, inputs: Array, weights: Array, padding: Margin, stride: Triple, in_deltas: Array,
        out_deltas: Array, weight_deltas: Array, bias_deltas: Array, add_gradients: bool = False,
        add_in_deltas: bool = True, dilation: Triple = (1, 1, 1), groups: int = 1,
    ) -> None:  # fmt: skip
        """Write the derivatives of `conv3d_forward_batch`; see `conv2d_backward_batch`.

        Only in_deltas may be None or an array of size 0.
        """

    @operation(
        "inputs(N,H,W,C) window:pair padding:margin stride:pair "
        "-> outputs(N,OH,OW,C) argmax(N,OH,OW,C)",
        where=_POOL_SIZES,
    )
    def maxpool2d_forward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair,
        argmax: Array,
    ) -> None:  # fmt: skip
        """outputs = largest input in each window; padding does not count.

        argmax = its index (row * W + column) * C + channel in the image, the first one for ties and
        for NaN, which counts as the largest. A window without inputs has the output 0 and the index
        -1.
        """

    @operation(
        "inputs(N,H,W,C):unread window:pair padding:margin stride:pair -1<=argmax(N,OH,OW,C)<H*W*C "
        "out_deltas(N,OH,OW,C) outputs(N,OH,OW,C):unread "
        "-> in_deltas(N,H,W,C)+add_in_deltas",
        where=_POOL_SIZES,
    )
    def maxpool2d_backward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair,
        argmax: Array, in_deltas: Array, out_deltas: Array, add_in_deltas: bool = True,
    ) -> None:  # fmt: skip
        """in_deltas at each window's argmax += out_deltas; first cleared unless `add_in_deltas`."""

    @operation(
        "inputs(N,H,W,C) window:pair padding:margin stride:pair -> outputs(N,OH,OW,C)",
        where=_POOL_SIZES,
    )
    def avgpool2d_forward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair
    ) -> None:
        """outputs = mean of the inputs in each window; padding does not count."""

    @operation(
        "inputs(N,H,W,C):unread window:pair padding:margin stride:pair out_deltas(N,OH,OW,C) "
        "outputs(N,OH,OW,C):unread -> in_deltas(N,H,W,C)+add_in_deltas",
        where=_POOL_SIZES,
    )
    def avgpool2d_backward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair,
        in_deltas: Array, out_deltas: Array, add_in_deltas: bool = True,
    ) -> None:  # fmt: skip
        """in_deltas in each window += out_deltas / number of inputs in the window.

        Unless `add_in_deltas`, they are cleared first.
        """
