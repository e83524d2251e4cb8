"""The page of features and targets is up to date, and all that it names is there."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

GENERATOR = Path(__file__).parent.parent / "docs" / "make_status.py"


@pytest.fixture
def status():
    spec = importlib.util.spec_from_file_location("make_status", GENERATOR)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def groups_of(status):
    return status.read_groups(status.ROWS.read_text(encoding="utf-8"))


def test_the_page_is_up_to_date(status):
    assert status.PAGE.read_text(encoding="utf-8") == status.make_page(), "run: make status"


def test_every_named_test_and_example_exists(status):
    rows = [row for group in groups_of(status) if group.section != "Targets" for row in group.rows]
    named = [pair for row in rows for pair in status.evidence(row)]
    assert len(named) > 500
    for path, name in named:
        assert name in status.defined(path), f"{path}::{name}"
        assert re.fullmatch(r"(tests/(\w+/)*test_\w+|examples/\w+)\.py", path)
        assert not name or name.startswith("test_")


def test_no_text_breaks_a_table(status):
    page = status.make_page()
    assert "{" not in page  # figures that were not understood
    tables = list(status.tables(page))
    assert len(tables) == len([group for group in groups_of(status) if group.rows])
    for heading, *rows in tables:
        assert all(len(row) == len(heading) and all(row[:2]) for row in rows)


def test_nothing_is_said_twice(status):
    groups = groups_of(status)
    rows = [row for group in groups for row in group.rows]
    said = Counter(row.statement for row in rows)
    titles = Counter((group.section, group.title) for group in groups)
    shown = Counter(
        (row.statement, *pair)
        for group in groups
        if group.section != "Targets"
        for row in group.rows
        for pair in status.evidence(row)
    )
    assert [what for what, count in (said + titles + shown).items() if count > 1] == []


# -- the generator --------------------------------------------------------------------------------


@pytest.fixture
def page_of(status, monkeypatch, tmp_path):
    """Return a function that makes a page of rows, beside a page with a table."""
    (tmp_path / "speed.md").write_text(
        "| net | time | memory |\n|---|---|---|\n| A | 1.5 (2) | 7 |\n\n12 steps\n\n"
        "| net | memory | peak |\n|---|---|---|\n| A | 8 | 9 |\n"
    )
    monkeypatch.setattr(status, "ROWS", tmp_path / "status.txt")
    monkeypatch.setattr(status, "DOCS", tmp_path)

    def make(text):
        status.ROWS.write_text(text)
        return status.make_page()

    return make


def test_features_are_rows_with_what_shows_them(page_of):
    page = page_of(
        "# One\n\n## Empty\n\n## Full\nIt works\n"
        "    tests/test_status.py::test_the_page_is_up_to_date\n"
        "    tests/test_docs.py examples/xor.py\n"
        "# Different on purpose\n## Less\nNo less\n    examples/xor.py\n"
    )
    assert "[status.txt](status.txt). 1 features, each" in page
    assert page.partition("\n## ")[2] == (
        "One\n\n### Full\n\n| feature | shown by |\n| --- | --- |\n| It works | "
        "`tests/test_status.py`: `the_page_is_up_to_date`; `tests/test_docs.py`; "
        "`examples/xor.py` |\n\n"
        "## Different on purpose\n\n### Less\n\n| difference: before, and here | shown "
        "by |\n| --- | --- |\n| No less | `examples/xor.py` |\n"
    )


def test_figures_are_read_from_pages(page_of):
    page = page_of(
        "# Targets\n## Speed\n"
        "Fast\n    figure: {speed.md | A | time} ms, {speed.md | A | peak} MB\n"
        "    command: `make bench`\n"
        "Steady\n    figure: {speed.md ~ (\\d+) steps}\n    cause: {speed.md | A | memory} MB\n"
    )
    assert "| Fast | 1.5 (2) ms, 9 MB | `make bench` |  |\n" in page
    assert "| Steady | 12 |  | 7 MB |\n" in page


def test_all_that_is_missing_is_listed(page_of):
    text = (
        "# One\n## Features\nFirst\n    tests/test_status.py::test_nothing\nSecond\n"
        "    examples/xor.py tests/test_none.py::test_x\n"
        "Third\n    examples/none.py\nFourth\n"
        "# Targets\n## Speed\nFifth\n    figure: {speed.md | B | time}\n"
        "Sixth\n    figure: {speed.md ~ (\\d+) leaps}\n"
    )
    with pytest.raises(ValueError, match="First") as caught:
        page_of(text)
    assert str(caught.value).splitlines() == [
        "First: there is no tests/test_status.py::test_nothing",
        "Second: there is no tests/test_none.py::test_x",
        "Third: there is no examples/none.py",
        "Fourth: nothing shows it",
        "there is no {speed.md | B | time}",
        "there is no {speed.md ~ (\\d+) leaps}",
    ]
