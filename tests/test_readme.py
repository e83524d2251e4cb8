"""The README: its code runs, prints what it says, and what it names exists."""

import importlib
import re
from pathlib import Path

import pytest

import brainstorm as bs
from tests.test_docs import DOCUMENTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def code_blocks(text):
    """Return (language, content) of all fenced blocks."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def test_the_code_runs_in_order_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks(README)
    namespace = {"__name__": "__main__"}
    shown = 0
    for (language, code), (following, text) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        exec(compile(code, "README.md", "exec"), namespace)
        printed = capsys.readouterr().out
        if following == "text":
            assert printed == text
            shown += 1
    assert sum(language == "python" for language, _ in blocks) >= 8
    assert shown == sum(language == "text" for language, _ in blocks)


def test_the_packages_exist():
    rows = re.findall(r"^\| (`brainstorm.*?) \|", README, flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(?:brainstorm)?\.(\w+)`", row)]
    packages = {path.stem for path in Path(bs.__file__).parent.iterdir()}
    private = {"__init__", "__main__", "__pycache__", "_version", "all", "py"}
    assert set(names) == packages - private
    assert len(names) == len(set(names))
    for name in names:
        importlib.import_module(f"brainstorm.{name}")


def test_there_are_as_many_layers_as_it_says():
    assert "more than fifty layers" in README
    assert len(set(bs.layers.__all__) - {"Layer"}) > 50


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_make_targets_exist(document):
    makefile, text = (ROOT / "Makefile").read_text(), document.read_text()
    commands = "".join(code for language, code in code_blocks(text) if language == "sh")
    targets = re.findall(r"^make ([\w-]+)", commands, flags=re.MULTILINE)
    for target in targets + re.findall(r"`make ([\w-]+)`", text):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_extras_exist():
    extras = re.findall(r"\.\[([\w,]+)\]", README)
    metadata = (ROOT / "pyproject.toml").read_text()
    assert extras
    for extra in ",".join(extras).split(","):
        assert re.search(rf"^{extra} = \[", metadata, flags=re.MULTILINE)
