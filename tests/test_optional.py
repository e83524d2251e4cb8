"""Optional libraries are imported late and missed politely."""

import re
import sys

import pytest

from brainstorm import optional
from brainstorm.errors import MissingDependencyError
from brainstorm.optional import MissingDependencyMock, has, require


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
