"""The page of features and targets is up to date, and all that it names is there."""

import re
from collections import Counter

import pytest

from tests.test_docs import load


@pytest.fixture
def status():
    return load("make_status")


def groups_of(status):
    return status.read_groups(status.ROWS.read_text(encoding="utf-8"))


def test_the_page_is_up_to_date(status):
    assert status.PAGE.read_text(encoding="utf-8") == status.make_page(), "run: make status"


def test_features_are_shown_by_tests_and_examples(status):
    named = [p for g in groups_of(status) if g.section != "Targets" for p in status.evidence(g)]
    assert len(named) > 200
    assert not [p for p in named if not re.fullmatch(r"(tests|examples)/(\w+/)*\w+(\.py)?", p)]


def test_no_text_breaks_a_table(status):
    page = status.make_page()
    assert "{" not in page  # figures that were not understood
    tables = list(status.tables(page))
    assert len(tables) == len([g for g in groups_of(status) if g.section == "Targets"])
    for heading, *rows in tables:
        assert all(len(row) == len(heading) and all(row[:2]) for row in rows)


def test_nothing_is_said_twice(status):
    groups = groups_of(status)
    said = Counter(row.statement for group in groups for row in group.rows)
    titles = Counter((group.section, group.title) for group in groups)
    shown = Counter((group.title, path) for group in groups for path in group.details)
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


def test_features_are_listed_with_what_shows_them(page_of):
    page = page_of(
        "# One\n\n## Empty\n\n## Full\n    tests/test_docs.py examples\nIt works\nWell\n"
        "# Different on purpose\n## Less\n    examples/xor.py\nNo less\n"
    )
    assert page.partition("\n## ")[2] == (
        "One\n\n### Full\n\n* It works\n* Well\n\nShown by `tests/test_docs.py`, `examples`.\n\n"
        "## Different on purpose\n\n### Less\n\n* No less\n\nShown by `examples/xor.py`.\n"
    )


def test_figures_are_read_from_pages(page_of):
    page = page_of(
        "# Targets\n## Speed\n    `make bench`\n"
        "Fast\n    figure: {speed.md | A | time} ms, {speed.md | A | peak} MB\n"
        "Steady\n    figure: {speed.md ~ (\\d+) steps}\n    cause: {speed.md | A | memory} MB\n"
    )
    assert "| Fast | 1.5 (2) ms, 9 MB |  |\n" in page
    assert "| Steady | 12 | 7 MB |\n\nMeasured by `make bench`.\n" in page


def test_all_that_is_missing_is_listed(page_of):
    text = (
        "# One\n## First\n    tests/test_none.py\nRow\n## Second\nRow\n"
        "# Targets\n## Speed\nThird\n    figure: {speed.md | B | time}\n"
        "## Rate\nFourth\n    figure: {speed.md ~ (\\d+) leaps}\n"
    )
    with pytest.raises(ValueError, match="First") as caught:
        page_of(text)
    assert str(caught.value).splitlines() == [
        "First: there is no tests/test_none.py",
        "Second: nothing shows it",
        "there is no {speed.md | B | time}",
        "there is no {speed.md ~ (\\d+) leaps}",
    ]
