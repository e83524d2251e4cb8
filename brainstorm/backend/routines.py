"""Functions of neon's backend that compute immediately, into existing tensors."""

from __future__ import annotations

import math
from typing import Any

from brainstorm.errors import ValidationError
from brainstorm.optree import Expression
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import checked_target, compute_into
from brainstorm.optree.shapes import normalize_shape


class Routines:
    """Functions of a backend; those that write return what they have written to."""

    bsz: int
    rnd: Any
    zeros: Any
    rand: Any

    def iobuf(
        self,
        dim0: Any,
        x: Any = None,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        shared: Any = None,
        parallelism: Any = None,
    ) -> Any:
        """Return zeros for the outputs of a layer: (features, batch), or (features, steps * batch).

        Args:
            dim0: Number of features; or of features and steps; or a shape of more features.
            x: Returned instead, if given.
            dtype: Type of the elements.
            name: Used in text.
            persist_values: Has no effect.
            shared: A tensor whose first elements are reused.
            parallelism: Has no effect.

        Raises:
            ValidationError: The backend has no batch size, or `shared` is no tensor or has too
                few elements.
        """
        if x is not None:
            return x
        if not self.bsz:
            raise ValidationError(
                "iobuf: expected a backend with a batch size. Write gen_backend(batch_size=128), "
                "or be.bsz = 128."
            )
        sizes = normalize_shape(dim0)
        features, steps = sizes if len(sizes) == 2 else (math.prod(sizes), 1)
        shape = (features, steps * self.bsz)
        if shared is None:
            return self.zeros(shape, dtype=dtype, name=name)
        if checked_target(shared).size < math.prod(shape):
            raise ValidationError(
                f"iobuf: expected a shared tensor of at least {math.prod(shape)} elements for "
                f"shape {shape}, got {shared!r} of shape {shared.shape}."
            )
        part = shared.reshape((shared.size, 1))[: math.prod(shape)].reshape(shape)
        return part.fill(0)

    def copy_transpose(self, a: Expression, out: Any, axes: Any = None) -> Any:
        """Compute ``a`` with its axes in another order, by default reversed."""
        return compute_into(out, fn.transpose(a, axes))

    def compound_dot(
        self,
        A: Expression,
        B: Expression,
        C: Any,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
        bsum: Any = None,
    ) -> Any:
        """Compute C = alpha * dot(A, B) + beta * C, with relu before C is added.

        If `bsum` is given, the sums of the rows of C are written to it.
        """
        checked_target(C).assign(_scaled(fn.dot(A, B), C, alpha, beta, relu))
        if bsum is not None:
            compute_into(bsum, fn.sum(C, -1))
        return C

    def batched_dot(
        self,
        A: Expression,
        B: Expression,
        C: Any,
        alpha: float = 1.0,
        beta: float = 0.0,
        relu: bool = False,
    ) -> Any:
        """Compute many products at once, each like `compound_dot`.

        ``C (X, K, N) = A (K, C) or (X, K, C) times B (X, C, N)``; if C is a matrix, the products
        are added up in it.
        """
        product = fn.dot(A, B)
        if checked_target(C).ndim < product.ndim:
            product = fn.sum(product, tuple(range(product.ndim - C.ndim)), keepdims=False)
        return C.assign(_scaled(product, C, alpha, beta, relu))

    def fill_normal(self, out: Any, mean: float = 0.0, stdv: float = 1.0) -> Any:
        """Draw normal random numbers."""
        shape = checked_target(out).shape
        return out.assign(mean + stdv * self.rnd.standard_normal(shape))

    def make_binary_mask(self, out: Any, keepthresh: float = 0.5) -> Any:
        """Draw 1 with probability `keepthresh`, otherwise 0."""
        shape = checked_target(out).shape
        return out.assign(self.rnd.random_sample(shape) <= keepthresh)

    def rng_reset(self) -> None:
        """Restart the random numbers at the seed."""
        self.rnd.reset()

    # -- pairs for the two passes of a layer -------------------------------------------------

    @staticmethod
    def fprop_relu(layer: Any, x: Expression, slope: float = 0.0) -> Any:
        """Return the tree ``maximum(x, 0) + slope * minimum(x, 0)``; `layer` has no effect."""
        return fn.maximum(x, 0) + slope * fn.minimum(x, 0)

    @staticmethod
    def bprop_relu(layer: Any, x: Expression, error: Expression, slope: float = 0.0) -> Any:
        """Return the tree of the gradient of `fprop_relu`, with 0 at 0."""
        return (fn.greater(x, 0) + slope * fn.less(x, 0)) * error

    @staticmethod
    def fprop_softmax(x: Expression, axis: int = 0) -> Any:
        """Return the tree of the softmax."""
        return fn.softmax(x, axis)

    @staticmethod
    def bprop_softmax(x: Expression, error: Expression, axis: int = 0) -> Any:
        """Return the tree of the gradient of `fprop_softmax`, whose input is x."""
        y = fn.softmax(x, axis)
        return y * (error - fn.sum(error * y, axis))

    # -- brackets ----------------------------------------------------------------------------

    def begin(self, block: Any = None, identifier: Any = None) -> None:
        """Do nothing: neon's programs call this when an epoch, a batch or a pass begins."""

    def end(self, block: Any = None, identifier: Any = None) -> None:
        """Do nothing; see `begin`."""

    @staticmethod
    def execute(node: Any) -> Any:
        """Execute an assignment; see `OpTreeNode.execute`."""
        return node.execute()


def _scaled(product: Any, C: Any, alpha: float, beta: float, relu: bool) -> Any:
    tree = product if alpha == 1 else product * alpha
    tree = fn.maximum(tree, 0) if relu else tree
    return tree + beta * C if beta else tree
