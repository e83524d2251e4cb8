"""Inputs of ONNX graphs: the meaning and size of each axis."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, unknown
from brainstorm.ext.onnx_exchange._body import onnx


def sizes_of_axes(info: Any, letters: str, given: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each axis of an input by its letter, 0 for T and B if they are open.

    Sizes may be given by the letters of the axes, or by their names in the model.
    """
    dims, name = info.type.tensor_type.shape.dim, info.name
    if len(letters) != len(dims) or len(set(letters)) != len(letters):
        raise NetworkValidationError(
            f"ONNX input {name!r}: expected a different letter for each of its {len(dims)} axes, "
            f"got {letters!r}."
        )
    _check_given(name, given, [*letters, *(d.dim_param for d in dims if d.dim_param)])
    sizes = {}
    for letter, dim in zip(letters, dims, strict=True):
        wanted = given.get(letter, given.get(dim.dim_param) if dim.dim_param else None)
        known = max(dim.dim_value, 0)  # some exporters write -1 for open sizes
        if wanted is not None and known not in (0, wanted):
            raise NetworkValidationError(
                f"sizes, {name!r}, axis {letter!r}: the model has {known}, got {wanted}."
            )
        sizes[letter] = int(wanted or known)
        if letter not in "TB" and not sizes[letter]:
            raise NetworkValidationError(
                f"ONNX input {name!r}, axis {letter}: expected a size, got "
                f"{dim.dim_param or 'none'!r}. Only T and B may change from call to call: give it, "
                f"e.g. sizes={{{name!r}: {{{letter!r}: 32}}}}, or say which axes are T and B, e.g. "
                f"axes={{{name!r}: 'TBF'}}."
            )
    return sizes


def _check_given(name: str, given: Any, known: Sequence[str]) -> None:
    if not isinstance(given, Mapping):
        raise NetworkValidationError(
            f"sizes, {name!r}: expected sizes of axes such as {{'W': 160}}, got {given!r}."
        )
    for key, size in given.items():
        if key not in known:
            what = unknown("axis", key, dict.fromkeys(known))
            raise NetworkValidationError(f"sizes, {name!r}: {what}")
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise NetworkValidationError(
                f"sizes, {name!r}, axis {key!r}: expected an integer >= 1, got {size!r}."
            )


def guess_letters(info: Any, nodes: Sequence[Any], is_ours: bool) -> str:
    """Return the letters of the axes of an input, guessed from its rank and the nodes.

    If the graph is one that this package exported, its names of sizes say them.
    """
    dims = info.type.tensor_type.shape.dim
    if {dim.dim_param for dim in dims[:2]} == {"T", "B"}:  # exported by this package
        return "".join(d.dim_param for d in dims[:2]) + string.ascii_lowercase[: len(dims) - 2]
    if is_ours and dims and dims[0].dim_param == "S":
        raise NetworkValidationError(
            f"ONNX input {info.name!r}: expected axes T and B, got the second length S. Models "
            f"with two lengths are written and not read: keep the network's own file."
        )
    if is_ours:
        return "B" + string.ascii_lowercase[: len(dims) - 1]
    moves = [
        (tuple(given.ints), node.input)
        for node in nodes
        if node.op_type == "Transpose"
        for given in node.attribute
        if given.name == "perm"
    ]
    perms = {perm for perm, _ in moves}
    first = {perm for perm, names in moves if info.name in names}
    is_sequence = any(node.op_type in ("LSTM", "GRU", "RNN") for node in nodes)
    steps = "BT" if (1, 0, 2) in perms else "TB"
    if is_sequence and len(dims) == 3:
        return f"{steps}F"
    is_class = info.type.tensor_type.elem_type != onnx().TensorProto.FLOAT
    if is_sequence and len(dims) == 2 and is_class:
        return steps
    images = "BHWC" if (0, 3, 1, 2) in first else "BCHW"
    layouts = {2: "BF", 3: "BCL", 4: images, 5: "BCDHW"}
    if len(dims) not in layouts:
        raise NetworkValidationError(
            f"ONNX input {info.name!r}: expected letters for its {len(dims)} axes. Give them, e.g. "
            f"axes={{{info.name!r}: 'TBF'}}: T, B, C for channels, other letters for others."
        )
    return layouts[len(dims)]
