"""The operations on images that every handler has: convolution and pooling of whole batches.

Images are (N, H, W, C): image, row, column, channel. A window or stride is (rows, columns); the
padding is the same on all four sides.
"""
# ruff: noqa: B024, B027, D403 (`operation` makes methods abstract; docstrings start with formulas)

from __future__ import annotations

import abc

from brainstorm.handlers.contracts import operation
from brainstorm.utils import Array

__all__ = ["ImageOperations"]

Pair = tuple[int, int]

_CONV_SIZES = "OH == (H + 2*padding - KH)//stride[0] + 1; OW == (W + 2*padding - KW)//stride[1] + 1"
_POOL_SIZES = (
    "OH == (H + 2*padding - window[0])//stride[0] + 1; "
    "OW == (W + 2*padding - window[1])//stride[1] + 1"
)


class ImageOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    @operation(
        "inputs(N,H,W,C) weights(F,KH,KW,C) bias(F) padding:int stride:pair -> outputs(N,OH,OW,F)",
        where=_CONV_SIZES,
    )
    def conv2d_forward_batch(
        self,
        inputs: Array,
        weights: Array,
        bias: Array,
        outputs: Array,
        padding: int,
        stride: Pair,
    ) -> None:
        """outputs[n,p,q,f] = bias[f] + sum over i,j,c of x[n,p*s+i,q*s+j,c] * weights[f,i,j,c].

        x is `inputs` with `padding` zeros on every side; the kernel is not flipped.
        """

    @operation(
        "inputs(N,H,W,C) weights(F,KH,KW,C) padding:int stride:pair out_deltas(N,OH,OW,F) "
        "-> in_deltas(N,H,W,C)?+add_in_deltas weight_deltas(F,KH,KW,C)+add_gradients "
        "bias_deltas(F)+add_gradients",
        where=_CONV_SIZES,
    )
    def conv2d_backward_batch(
        self,
        inputs: Array,
        weights: Array,
        padding: int,
        stride: Pair,
        in_deltas: Array,
        out_deltas: Array,
        weight_deltas: Array,
        bias_deltas: Array,
        add_gradients: bool = False,
        add_in_deltas: bool = True,
    ) -> None:
        """Write the derivatives of `conv2d_forward_batch`.

        Args:
            inputs: As in the forward pass.
            weights: As in the forward pass.
            padding: As in the forward pass.
            stride: As in the forward pass.
            in_deltas: Added to (see `add_in_deltas`); None or an array of size 0: not computed.
            out_deltas: Derivatives with respect to the outputs.
            weight_deltas: Overwritten (see `add_gradients`).
            bias_deltas: Overwritten (see `add_gradients`).
            add_gradients: Add to weight_deltas and bias_deltas.
            add_in_deltas: False: overwrite in_deltas.
        """

    @operation(
        "inputs(N,H,W,C) window:pair padding:int stride:pair "
        "-> outputs(N,OH,OW,C) argmax(N,OH,OW,C)",
        where=_POOL_SIZES,
    )
    def maxpool2d_forward_batch(
        self,
        inputs: Array,
        window: Pair,
        outputs: Array,
        padding: int,
        stride: Pair,
        argmax: Array,
    ) -> None:
        """outputs = largest input in each window; padding does not count.

        argmax = its index (row * W + column) * C + channel in the image; of equal inputs the
        first. A window without inputs gives 0 and the index -1.
        """

    @operation(
        "inputs(N,H,W,C) window:pair padding:int stride:pair -1<=argmax(N,OH,OW,C)<H*W*C "
        "out_deltas(N,OH,OW,C) outputs(N,OH,OW,C) -> in_deltas(N,H,W,C)+",
        where=_POOL_SIZES,
    )
    def maxpool2d_backward_batch(
        self,
        inputs: Array,
        window: Pair,
        outputs: Array,
        padding: int,
        stride: Pair,
        argmax: Array,
        in_deltas: Array,
        out_deltas: Array,
    ) -> None:
        """in_deltas at each window's argmax += out_deltas."""

    @operation(
        "inputs(N,H,W,C) window:pair padding:int stride:pair -> outputs(N,OH,OW,C)",
        where=_POOL_SIZES,
    )
    def avgpool2d_forward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: int, stride: Pair
    ) -> None:
        """outputs = mean of the inputs in each window; padding does not count."""

    @operation(
        "inputs(N,H,W,C) window:pair padding:int stride:pair out_deltas(N,OH,OW,C) "
        "outputs(N,OH,OW,C) -> in_deltas(N,H,W,C)+",
        where=_POOL_SIZES,
    )
    def avgpool2d_backward_batch(
        self,
        inputs: Array,
        window: Pair,
        outputs: Array,
        padding: int,
        stride: Pair,
        in_deltas: Array,
        out_deltas: Array,
    ) -> None:
        """in_deltas in each window += out_deltas / number of inputs in the window."""
