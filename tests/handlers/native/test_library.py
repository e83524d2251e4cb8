"""Finding oneDNN, and everything that can be wrong with what is found."""

import re
import shutil
import subprocess
import sys

import pytest

from brainstorm.handlers.compiler import found_commands
from brainstorm.handlers.native import NativeHandler, library
from brainstorm.handlers.native.library import PROTOTYPES, UnsupportedError, load
from tests.handlers.running import in_process, needs_compiler


def test_it_is_found_once(native):
    found, name = load()
    assert found.version.startswith("3.")
    assert name == f"oneDNN {found.version} ({found.path})"
    assert load()[0] is found


def test_it_is_found_by_its_distribution(native, monkeypatch, tmp_path):
    expected = list(library._candidates())
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    found = list(library._candidates())
    assert found[-1] == "libdnnl.so.3"
    assert found == expected[-len(found) :]


def test_switched_off(without):
    assert load() == (None, "BRAINSTORM_ONEDNN is off")
    assert without.info()["products"].endswith("(BRAINSTORM_ONEDNN is off)")


def test_a_file_that_is_missing_or_no_library(monkeypatch, tmp_path):
    path = tmp_path / "libdnnl.so.3"
    for content in (None, "not a library"):
        if content:
            path.write_text(content)
        monkeypatch.setenv("BRAINSTORM_ONEDNN", str(path))
        library._load.cache_clear()
        found, reason = load()
        assert found is None
        assert reason.startswith(f"no oneDNN ({path}: ")
        assert reason.endswith("Run pip install onednn-cpu-gomp")


def test_an_application_without_the_library_says_how_it_is_packaged(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setenv("BRAINSTORM_ONEDNN", str(tmp_path / "missing.so"))
    assert load()[1].endswith(
        "with the application: --add-binary .../lib/libdnnl.so.3:lib (PyInstaller)"
    )


FOREIGN = {
    "version 2": (2, 0, r"expected oneDNN 3, got 2\.7\.1"),
    "no engine": (3, 5, "dnnl_engine_create returned status 5"),
    "functions are missing": (None, 0, "undefined symbol: dnnl_"),
}


@pytest.mark.parametrize("case", FOREIGN)
@needs_compiler
def test_foreign_libraries(monkeypatch, tmp_path, case):
    major, status, match = FOREIGN[case]
    text = "int nothing;"
    if major is not None:
        others = [name for name in PROTOTYPES if name != "dnnl_version"]
        text = f"static int v[3] = {{{major}, 7, 1}}; int *dnnl_version(void) {{ return v; }}\n"
        text += "\n".join(f"int {name}(void) {{ return {status}; }}" for name in others)
    source, path = tmp_path / "foreign.c", tmp_path / "foreign.so"
    source.write_text(text)
    command = [*found_commands()[0], "-shared", "-fPIC", str(source), "-o", str(path)]
    subprocess.run(command, check=True)
    monkeypatch.setenv("BRAINSTORM_ONEDNN", str(path))
    found, reason = load()
    assert found is None
    assert re.search(match, reason)
    assert reason in NativeHandler(seed=1).info()["convolutions"]


def test_a_copy_elsewhere_can_be_named(native, tmp_path):
    path = tmp_path / "copied.so"
    shutil.copy(load()[0].path, path)
    code = "from brainstorm.handlers import NativeHandler as H; print(H(seed=1).info()['products'])"
    assert str(path) in in_process(code, BRAINSTORM_ONEDNN=str(path))[0]


def test_nothing_is_loaded_by_an_import():
    code = "import brainstorm.handlers.native; print('libdnnl' in open('/proc/self/maps').read())"
    assert in_process(code)[0] == "False\n"


def test_status_codes_are_checked(native):
    with pytest.raises(UnsupportedError, match="dnnl_memory_desc_create_with_tag returned status"):
        load()[0].create("dnnl_memory_desc", 99, None, 3, 1, way="_with_tag")


def test_what_is_created_when_ctrl_c_comes_is_destroyed(native, monkeypatch):
    found, destroyed = load()[0], []
    functions, check = found._library, found.check
    destroy = functions.dnnl_stream_destroy
    monkeypatch.setattr(
        functions, "dnnl_stream_destroy", lambda each: destroyed.append(destroy(each))
    )

    def interrupted(*arguments):
        check(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(found, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        found.stream()
    assert destroyed == [0]
