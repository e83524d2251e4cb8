"""Networks as ONNX models, and back.

    save_onnx(net, "net.onnx")      # what net.predict computes, for any runtime
    same = load_onnx("net.onnx")    # a Network; also from models of other origin
    model = to_onnx(net)            # the same in memory, as onnx.ModelProto
    same = from_onnx(model)

An exported model has the same inputs and outputs as `Network.predict`: arrays (T, B, features...)
in float32, where T and B may differ in every call. A layer with a corresponding ONNX operator is
exported as that operator; images are transposed to (N, C, H, W) once, and not between two layers.
Layers made of several operators become functions, which runtimes expand and `from_onnx` recognizes.
If there is no counterpart, an error names the layer or the node.

An imported network has layers that compute the outputs of the model, with channels last. A softmax
at the end becomes a `SoftmaxCE` with a `Loss`, so the network can be trained at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from brainstorm.disk import atomic_file, open_regular
from brainstorm.errors import NetworkValidationError, shown
from brainstorm.ext.onnx_exchange import (  # noqa: F401  (most of them register functions)
    _body,
    _broadcasting,
    _export,
    _export_layers,
    _export_sequences,
    _import,
    _import_arithmetic,
    _import_features,
    _import_recurrence,
    _import_sizes,
    _import_views,
    _import_weights,
)
from brainstorm.files import PathLike, intact, opened
from brainstorm.handlers import Handler
from brainstorm.network import Network
from brainstorm.network.network import check_network
from brainstorm.optional import require

__all__ = ["from_onnx", "load_onnx", "save_onnx", "to_onnx"]


def to_onnx(net: Network, output_name: str | Sequence[str] | None = None) -> Any:
    """Return the computation of `net.predict` as an ONNX model (opset 21, IR 10).

    Args:
        net: The network.
        output_name: As in `Network.predict`: a path, a list of paths, or `None`.

    Returns:
        A checked ``onnx.ModelProto``. Its inputs are the data that the outputs depend on, with the
        same names; the names of its outputs are like ``'Output.predictions'``.

    Raises:
        MissingDependencyError: onnx is not installed.
        NetworkValidationError: There is no counterpart of a layer or of an option in ONNX.
    """
    check_network("to_onnx", net)
    _body.onnx()
    with net.alone():  # all of one update
        return _export.Exporter(net, output_name).write()


def save_onnx(
    net: Network, filename: PathLike, output_name: str | Sequence[str] | None = None
) -> None:
    """Write the model of `to_onnx`; the file is replaced atomically."""
    content = to_onnx(net, output_name).SerializeToString()
    with atomic_file(filename) as temporary:
        temporary.write_bytes(content)


def from_onnx(
    model: Any,
    axes: Mapping[str, str] | None = None,
    handler: Handler | None = None,
    sizes: Mapping[str, Mapping[str, int]] | None = None,
    outputs: Sequence[str] | None = None,
) -> Network:
    """Return a network for an ONNX model.

    Args:
        model: An ``onnx.ModelProto``.
        axes: Name of an input or output to one letter for each of its axes: T, B, C for channels
            (which are last in the network), others for other features, e.g. ``{'x': 'BHWC'}``.
            The default for inputs is (B, F), (B, C, L), (B, C, H, W) or (B, C, D, H, W); in models
            with a recurrent operator (T, B, F), or (B, T, F) if they are transposed. Outputs have
            their channels where the inputs have them.
        handler: Computes everything; `None`: the default handler.
        sizes: Name of an input to the sizes of its axes that the model leaves open, by their
            letters or by their names in the model: ``{'x': {'W': 160}}``. T and B may stay open.
        outputs: Names of the wanted tensors, which need not be outputs of the model; for each of
            them there will be a layer of that name. `None`: the outputs of the model.

    Returns:
        The network. Its data are (T, B, features...), with T = 1 if the model has no T; they have
        the names of the model's inputs; a single one is called ``'default'``, except if the model
        was made by `to_onnx`. Constants that are combined with data become parameters.

    Raises:
        MissingDependencyError: onnx is not installed.
        NetworkValidationError: No layer computes a node; the message names it.
    """
    if not isinstance(model, _body.onnx().ModelProto):
        raise NetworkValidationError(
            f"from_onnx: expected an onnx.ModelProto, got {shown(model)}. load_onnx reads files."
        )
    importer = _import.Importer(model, axes, sizes, outputs)
    importer.read()
    return importer.build(handler)


def load_onnx(
    filename: PathLike,
    axes: Mapping[str, str] | None = None,
    handler: Handler | None = None,
    sizes: Mapping[str, Mapping[str, int]] | None = None,
    outputs: Sequence[str] | None = None,
) -> Network:
    """Return the network in a file; see `from_onnx`.

    Raises:
        FileNotFoundError: There is no such file.
        FileFormatError: It is truncated, or not an ONNX model.
    """
    library = _body.onnx()
    decode_error = require("google.protobuf.message", "onnx").DecodeError
    with opened(filename, "model in ONNX") as stream:
        try:
            model = library.load(stream, load_external_data=False)
            _read_external(model.graph, os.path.dirname(os.fspath(filename)))
            library.checker.check_model(model)
        except (decode_error, library.checker.ValidationError) as error:
            raise ValueError(str(error).strip()) from error
    with intact(repr(os.fspath(filename)), "network"):
        return from_onnx(model, axes, handler, sizes, outputs)


def _read_external(graph: Any, folder: str) -> None:
    """Read the tensors of a graph from other files beside the model, each byte once."""
    held = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    left: dict[str, int] = {}
    for tensor in (*graph.initializer, *held):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        name = place["location"]
        if os.path.basename(name) != name:
            raise ValueError(f"tensor {tensor.name!r} lies in {name!r}, not beside the model")
        with open_regular(os.path.join(folder, name)) as file:
            size = os.fstat(file.fileno()).st_size
            start = int(place.get("offset", 0))
            length = int(place.get("length", size - start))
            left[name] = left.get(name, size) - length
            if not 0 <= start <= start + length <= size or left[name] < 0:
                raise ValueError(f"tensor {tensor.name!r} is not in {name!r}, or others are")
            file.seek(start)
            tensor.raw_data = file.read(length)
        tensor.data_location = tensor.DEFAULT
        del tensor.external_data[:]
