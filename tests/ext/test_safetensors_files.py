"""Networks as safetensors files."""

import json
import signal
import sys

import numpy as np
import pytest
import safetensors.numpy

from brainstorm import layers as bl
from brainstorm.errors import FileFormatError, UnknownTypeError
from brainstorm.ext.safetensors_files import ENTRY, load_safetensors, save_safetensors
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.value_modifiers import ClipValues

X = np.random.RandomState(0).normal(size=(2, 3, 4)).astype(np.float32)


@pytest.fixture
def net():
    inp = bl.Input({"default": ("T", "B", 4)})
    first = bl.FullyConnected(6, name="First")
    inp >> first >> bl.BatchNorm() >> bl.TiedFullyConnected(first, name="Back") >> bl.Lstm(3)
    net = Network.from_layer(inp, handler=NumpyHandler(np.float32))
    net.initialize(Gaussian(0.5))
    net.set_weight_modifiers(First=ClipValues(-2, 2))
    net.provide_external_data({"default": X})
    net.forward_pass(training_pass=True)
    return net


def test_a_network_comes_back_as_it_was(net, tmp_path):
    save_safetensors(net, tmp_path / "net.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]
    same = load_safetensors(tmp_path / "net.safetensors")
    assert same.__describe__() == net.__describe__()
    np.testing.assert_array_equal(same.get("parameters"), net.get("parameters"))
    np.testing.assert_array_equal(same.predict(X), net.predict(X))
    handler = NumpyHandler(np.float64)
    other = load_safetensors(tmp_path / "net.safetensors", handler)
    assert other.handler is handler
    np.testing.assert_allclose(other.predict(X), net.predict(X), 1e-5, 1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on the size of files")
def test_a_full_disk_is_an_os_error(net, tmp_path):
    import resource

    path, (_, hard) = tmp_path / "net.safetensors", resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match=r"net.safetensors' cannot be written: .*File too large"):
            save_safetensors(net, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.iterdir())


def test_others_find_named_tensors(net, tmp_path):
    save_safetensors(net, tmp_path / "net.safetensors")
    tensors = safetensors.numpy.load_file(tmp_path / "net.safetensors")
    assert len(tensors) == 2 + 4 + 1 + 15  # W of First is not there twice
    assert {"BatchNorm.internals.running_mean", "Back.parameters.bias"} <= set(tensors)
    for path, array in tensors.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, net.get(path))


def test_a_file_of_others_is_refused(tmp_path):
    path = tmp_path / "other"
    safetensors.numpy.save_file({"fc.weight": np.zeros(3)}, path)
    text = r"was not written by save_safetensors.*load_state_dict"
    with pytest.raises(FileFormatError, match=text):
        load_safetensors(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a safetensors file of a network: it is truncated or of another"),
        ("[" * 999, "cannot be read as a safetensors file of a network: it is truncated or of"),
        ("[]", "it is truncated or of another kind .*: expected a dict"),
        ('{"a": NaN}', "NaN is not a number that a description can hold"),
        ('{"a": 1%s}' % ("0" * 20), "10{19}... is not a number that a description can hold"),
        ("{}", "net' holds no network: KeyError.'handler'.*"),
    ],
)
def test_metadata_that_describe_no_network_are_refused(tmp_path, text, message):
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "net", {ENTRY: text})
    with pytest.raises(FileFormatError, match=message):
        load_safetensors(tmp_path / "net")


def test_a_missing_layer_type_is_named(net, tmp_path):
    description = net.__describe__()
    description["architecture"]["First"]["@type"] = "Unheard"
    metadata = {ENTRY: json.dumps(description)}
    safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "net", metadata)
    with pytest.raises(UnknownTypeError, match="unknown layer type 'Unheard'"):
        load_safetensors(tmp_path / "net")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("Lstm.parameters.Wz", "Lstm.parameters.W",
         r"net': its arrays do not fit its description: expected \['Lstm.parameters.Wz'\], got "
         r"\['Lstm.parameters.W'\]\.$"),
        *((path, path, rf"net', {path}: expected shape \(6,\), got \(2, 3\)\.$")
          for path in ("First.parameters.bias", "BatchNorm.internals.running_mean")),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(net, tmp_path, old, new, text):
    path = tmp_path / "net"
    save_safetensors(net, path)
    tensors = safetensors.numpy.load_file(path)
    del tensors[old]
    tensors[new] = np.zeros((2, 3), np.float32)
    safetensors.numpy.save_file(tensors, path, {ENTRY: json.dumps(net.__describe__())})
    with pytest.raises(FileFormatError, match=text):
        load_safetensors(path)


@pytest.mark.parametrize(
    ("save", "load"),
    [(save_safetensors, load_safetensors), (Network.save_as_hdf5, Network.from_hdf5)],
)
def test_negative_variances_are_refused(net, tmp_path, save, load):
    net.buffer.BatchNorm.internals.running_var[2] = -0.5
    save(net, tmp_path / "net")
    text = r"net', layer 'BatchNorm' \(.*\): running_var: expected variances >= 0, got -0\.5\.$"
    with pytest.raises(FileFormatError, match=text):
        load(tmp_path / "net")
