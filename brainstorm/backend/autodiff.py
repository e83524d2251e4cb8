"""The gradients of op-trees on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.backend.backend import Backend
from brainstorm.backend.tensors import Tensor
from brainstorm.display import safe_repr
from brainstorm.errors import ValidationError
from brainstorm.optree import (
    Expression,
    OpTreeNode,
    Program,
    Variable,
    gradients,
    linearise,
    postorder,
    substitute,
    views_overlap,
)
from brainstorm.optree.syntax import backend_of


class Autodiff:
    """The gradients of an op-tree.

    If the tree or the requested tensors are overlapping views of one tensor (``dot(x, x.T)``),
    contributions are added up in that tensor, and each view gets its part.

    Args:
        op_tree: The tree.
        be: The backend.
        next_error: Tensor or tree of the tree's shape: the gradient with respect to the tree; None
            stands for ones.
    """

    def __init__(
        self, op_tree: Expression, be: Backend, next_error: Expression | None = None
    ) -> None:
        gradients(op_tree, [], next_error)  # checks the arguments now
        self.op_tree = op_tree
        self.be = be
        self.next_error = next_error
        self._leaves = [x for x in postorder([op_tree]) if isinstance(x, Variable)]
        self._last: tuple[Expression | None, tuple[Any, ...], Program] | None = None

    @safe_repr
    def __repr__(self) -> str:
        return f"Autodiff({self.op_tree!r})"

    def get_grad_op_tree(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the trees of the gradients; zeros for tensors that do not occur.

        They have a backend even if they contain no tensor.
        """
        shared = self._shared_roots(tensors)
        pairs = [(x, x.on_root(shared[x.root.identity])) for x in self._leaves
                 if isinstance(x, Tensor) and x.root.identity in shared]  # fmt: skip
        (tree,) = substitute([self.op_tree], pairs)
        wanted = [shared.get(t.root.identity, t) for t in tensors]
        found = gradients(tree, wanted, self.next_error)
        trees = [
            g if other is t else t.on_root(g)
            for t, other, g in zip(tensors, wanted, found, strict=True)
        ]
        for i, tree in enumerate(trees):
            if isinstance(tree, OpTreeNode) and backend_of(tree) is None:
                trees[i] = tree.with_operands(tree.operands)  # it may be the caller's next_error
                trees[i].__dict__["backend"] = self.be
        return trees

    def cleanup(self) -> None:
        """Drop the values kept for the next call with the same tensors."""
        self._last = None

    def _shared_roots(self, tensors: Sequence[Tensor]) -> dict[Any, Tensor]:
        """Return the tensors with overlapping views, by identity."""
        leaves = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        overlapping = [t for t in tensors if any(views_overlap(t, leaf) for leaf in leaves)]
        return {t.root.identity: t.root for t in overlapping}

    def _program(self, tensors: Sequence[Tensor]) -> Program:
        key = tuple(t.identity for t in tensors)
        last = self._last
        if last is None or last[0] is not self.next_error or last[1] != key:
            last = self.next_error, key, linearise(self.get_grad_op_tree(tensors))
            self._last = last
        return last[2]

    def get_grad_tensor(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients in new tensors."""
        program = self._program(tensors)
        found = [self.be.empty(t.shape, program.dtype_of(x))
                 for t, x in zip(tensors, program.outputs, strict=True)]  # fmt: skip
        self.be.run(program, found)
        return found

    def get_grad_asnumpyarray(self, tensors: Sequence[Tensor]) -> list[np.ndarray]:
        """Return the gradients as NumPy arrays."""
        return [tensor.get() for tensor in self.get_grad_tensor(tensors)]

    def back_prop_grad(
        self, tensors: Sequence[Tensor], buffers: Sequence[Tensor], accumulate: bool = False
    ) -> None:
        """Compute the gradients into existing tensors.

        Args:
            tensors: The tensors to differentiate with respect to.
            buffers: One per tensor, of its shape. `next_error` may be one of them; no other may
                share memory with the tree.
            accumulate: Whether to add to the buffers instead of overwriting them.

        Raises:
            ValidationError: If a buffer has another shape or shares memory.
        """
        if len(tensors) != len(buffers):
            raise ValidationError(
                f"back_prop_grad: expected one buffer per tensor ({len(tensors)}), got "
                f"{len(buffers)}."
            )
        for i, (tensor, buffer) in enumerate(zip(tensors, buffers, strict=True)):
            if tensor.shape != buffer.shape:
                raise ValidationError(
                    f"back_prop_grad: buffer {i} ({buffer!r}): expected shape {tensor.shape}, that "
                    f"of {tensor!r}, got {buffer.shape}."
                )
            for other in (*self._leaves, *(() if accumulate else buffers[:i])):
                if _share(buffer, other):
                    raise ValidationError(
                        f"back_prop_grad: buffer {i} ({buffer!r}) shares memory with {other!r}: "
                        "what is written would overwrite it. Use a buffer of its own."
                    )
        self.be.run(self._program(tensors), buffers, [accumulate] * len(buffers))


def _share(a: Variable, b: Variable) -> bool:
    return bool(a.size) and (a.identity == b.identity or views_overlap(a, b))
