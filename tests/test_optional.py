"""Optional libraries are imported late and missed politely."""

import importlib
import re
import sys

import numpy as np
import pytest

from brainstorm import optional
from brainstorm.data_iterators import Undivided
from brainstorm.errors import MissingDependencyError
from brainstorm.ext import estimators
from brainstorm.ext.onnx_exchange import from_onnx, load_onnx, save_onnx, to_onnx
from brainstorm.ext.optimize import LbfgsStepper
from brainstorm.ext.safetensors_files import load_safetensors, save_safetensors
from brainstorm.ext.tensorboard import TensorBoardWriter
from brainstorm.hooks import LogPlotter
from brainstorm.optional import MissingDependencyMock, has, require
from brainstorm.tools import create_net_from_spec, draw_network, plot_logs
from tests.trainings import fail_after, make_trainer


def test_require_returns_the_module():
    assert require("json.decoder", "plot") is sys.modules["json.decoder"]


def test_a_missing_library_is_named_with_the_extra_that_brings_it():
    text = (
        "this needs no_such_library, which cannot be imported (No module named 'no_such_library'). "
        "Install it with: pip install 'brainstorm[plot]'"
    )
    with pytest.raises(MissingDependencyError, match=f"^{re.escape(text)}$") as caught:
        require("no_such_library.part", "plot")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def train(net, *hooks, stepper=None):
    data = Undivided(default=np.zeros((1, 4, 3)), targets=np.zeros((1, 4, 2)))
    make_trainer(*hooks, stepper=stepper, epochs=1).train(net, data)


@pytest.mark.parametrize(
    ("library", "extra", "use"),
    [
        ("graphviz", "draw", lambda net, path: draw_network(net, f"{path}.png")),
        ("matplotlib", "plot", lambda *_: plot_logs({"a": [1.0]})),
        ("matplotlib", "plot", lambda net, path: train(net, fail_after(0), LogPlotter("a", path))),
        ("onnx", "onnx", lambda net, _: to_onnx(net)),
        ("onnx", "onnx", lambda *_: from_onnx(None)),
        ("onnx", "onnx", save_onnx),
        ("onnx", "onnx", lambda _, path: load_onnx(path)),
        ("safetensors", "safetensors", save_safetensors),
        ("safetensors", "safetensors", lambda _, path: load_safetensors(path)),
        ("scipy", "scipy", lambda net, _: train(net, stepper=LbfgsStepper())),
        ("sklearn", "sklearn", lambda *_: importlib.reload(estimators)),
        ("tensorboardX", "tensorboard", lambda net, path: train(net, TensorBoardWriter(path))),
    ],
)
def test_what_needs_a_library_names_its_extra_and_writes_nothing(
    tmp_path, monkeypatch, library, extra, use
):
    net = create_net_from_spec("regression", 3, 2, "F4")
    for name in [library, *sys.modules]:
        if name.partition(".")[0] == library:
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=rf"pip install 'brainstorm\[{extra}\]'"):
        use(net, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_fails_to_import_is_reported_too(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("raise ImportError('libfoo.so is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match="libfoo.so is missing"):
        require("broken_library", "draw")


def test_has_does_not_import(tmp_path, monkeypatch):
    (tmp_path / "quiet_library.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert has("quiet_library")
    assert has("quiet_library.part")
    assert "quiet_library" not in sys.modules
    assert not has("no_such_library")


@pytest.mark.parametrize("library", ["pycuda", "bokeh"])
def test_the_names_of_2015_say_what_is_there_and_stand_for_what_is_not(library):
    assert getattr(optional, f"has_{library}") == has(library)
    mock = getattr(optional, f"{library}_mock")
    assert isinstance(mock, MissingDependencyMock)
    text = rf"^this needs {library}\. Install it with: pip install {library}$"
    for use in (lambda: mock.autoinit, mock, lambda: mock(1, a=2)):
        with pytest.raises(MissingDependencyError, match=text):
            use()
    with pytest.raises(AttributeError, match="'brainstorm.optional' has no attribute 'has_x'"):
        _ = optional.has_x
