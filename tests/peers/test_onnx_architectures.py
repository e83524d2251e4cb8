"""The usual architectures, written as ONNX by PyTorch: which of them become networks."""

import importlib.util
import io
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange import from_onnx
from brainstorm.handlers import NumpyHandler
from tests.peers.architectures import ARCHITECTURES, POOLS
from tests.peers.comparing import as_data

#: Those that do not, and why.
REFUSED = {
    "CRNN": r"\(LSTM\): expected \(T, B, features\), got \(16, .*\)\. A recurrence runs over",
    "sorted": r"\(TopK\): no layer computes this operator",
    "the first step": "takes some of the time steps .* but the last step",
    "the last cell": "its last cell",
}

#: Those whose inputs are classes.
WORDY = {name for name, (_, _, letters) in ARCHITECTURES.items() if letters in ("BS", "TB", "BT")}

#: Those that are made of single steps by the newer exporter, and why that is no network.
UNROLLED = dict.fromkeys(
    ["RNN", "RNN, both directions", *(f"the {what} of RNN" for what in POOLS)],
    "no layer takes some of the time steps or sequences, but",
)

#: The newer exporter needs a library of its own.
HAS_DYNAMO = importlib.util.find_spec("onnxscript") is not None


PAGE = Path(__file__).parents[2] / "docs" / "exchange.md"


def test_the_page_counts_them():
    every = len(ARCHITECTURES)
    older = every - len(REFUSED)
    newer = older - len(UNROLLED)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    for part in (f"Of {every} common ", f", {older} can be", f"and {newer} from its newer"):
        assert part in text


def exported(module, x, letters, way):
    """Return the model that one of PyTorch's exporters makes of a module."""
    names = "B" if way == "dynamo" else "TB"  # it lets no number of steps be open
    free = {i: letter for i, letter in enumerate(letters) if letter in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they speak of each other, and of traces
        if way == "dynamo":
            shapes = dict.fromkeys(free, torch.export.Dim.DYNAMIC)
            made = torch.onnx.export(
                module,
                (x,),
                dynamo=True,
                dynamic_shapes=(shapes,),
                input_names=["x"],
                verbose=False,
            )
            return made.model_proto  # type: ignore[union-attr]
        stream = io.BytesIO()
        torch.onnx.export(
            module, (x,), stream, dynamo=False, opset_version=17, input_names=["x"],
            dynamic_axes={"x": free} if way == "free" else None,
        )  # fmt: skip
    return onnx.load_from_string(stream.getvalue())


def as_output(y, shape, letters):
    """Return an output as the module has it."""
    if letters.startswith("BT") and len(shape) > 2:
        y = y.swapaxes(0, 1)
    if len(shape) > 3 or (letters == "BCL" and len(shape) == 3):
        y = np.moveaxis(y, -1, 2)
    return y.reshape(shape)


@pytest.mark.parametrize("way", ["free", "fixed", "dynamo"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_becomes_a_network_or_is_refused(name, way):
    if way == "dynamo" and not HAS_DYNAMO:
        pytest.skip("PyTorch's newer exporter needs onnxscript, which is not installed")
    make, shape, letters = ARCHITECTURES[name]
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randint(0, 9, shape) if name in WORDY else torch.randn(shape)
    model = exported(module, x, letters, way)
    refused = {**REFUSED, **UNROLLED} if way == "dynamo" else REFUSED
    if name in refused:
        with pytest.raises(NetworkValidationError, match=refused[name]):
            from_onnx(model, {"x": letters})
        return
    net = from_onnx(model, {"x": letters}, NumpyHandler(np.float32))
    (data,) = (name for name in net.input_names if "targets" not in name)
    axis = letters.index("B")
    for change in (x,) if way == "fixed" else (x, torch.cat([x, x.flip(axis)], axis)):
        expected = module(change).detach().numpy()
        found = net.predict({data: as_data(change.numpy(), letters).astype(np.float32)})
        found = as_output(found, expected.shape, letters)
        np.testing.assert_allclose(found, expected, 1e-3, 1e-4)
