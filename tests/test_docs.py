"""The pages of the documentation: links, contents, and the tools; `make docs` runs their code."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import brainstorm

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if not page.is_relative_to(DOCS / "generated"))
DOCUMENTS = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
NAMES = [page.relative_to(DOCS).as_posix() for page in PAGES]
#: Example -> why the documentation shows it without running it.
SHOWN = {
    "char_lstm": "takes minutes",
    "char_transformer": "takes minutes",
    "digits_cnn": "takes a minute",
    "number_words": "takes a minute",
    "mpi_digits": "is started by mpiexec",
    "optuna_search": "is started by mpiexec",
    "unet": "takes half a minute",
}


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def constant(name):
    """Return a constant of conf.py, which does things when it is imported."""
    for node in ast.parse((DOCS / "conf.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def test_code_of_pages_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load("fill_in_outputs").with_outputs("```python\nopen('left', 'w').close()\n```\n")
    assert not list(tmp_path.iterdir())


def test_outputs_are_filled_in_and_other_blocks_left_alone(tmp_path):
    fill = load("fill_in_outputs")
    page = tmp_path / "page.md"
    blocks = ("text\nkept\n", "python\nx = 2\nprint(x)\n", "text\n3\n", "python\nprint(1)\n")
    last = "Text.\n\n```text\nkept\n```\n"
    page.write_text("".join(f"```{block}```\n\n" for block in blocks) + last)
    assert fill.with_outputs(page.read_text()) == page.read_text().replace("\n3\n", "\n2\n")
    assert "-3\n+2" in fill.difference(page)
    page.write_text("# Title\n\n```python\nraise ValueError\n```\n")
    with pytest.raises(ValueError) as raised:
        fill.difference(page)
    assert raised.traceback[-1].lineno == 3  # the line in the page


@pytest.mark.parametrize("name", ["layers", "handlers"])
def test_pages_that_are_made_from_the_code_are_up_to_date(name):
    page = load(f"make_{name}_page")
    advice = f"run: python docs/make_{name}_page.py"
    assert page.PAGE.read_text(encoding="utf-8") == page.make_page(), advice


def test_every_page_is_in_the_table_of_contents():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```{toctree}\n(.*?)```", text, flags=re.DOTALL)
    entries = [re.sub(r".*<(.+)>", r"\1", line) for tree in trees for line in tree.splitlines()]
    listed = {page for entry in entries for page in NAMES if Path(page).match(f"{entry}.md")}
    assert listed == {*NAMES} - {"index.md"}


def test_every_recipe_states_a_problem_and_is_in_the_table_of_recipes():
    table = (DOCS / "recipes" / "index.md").read_text(encoding="utf-8")
    for page in set((DOCS / "recipes").glob("*.md")) - {DOCS / "recipes" / "index.md"}:
        assert f"]({page.name}) |\n" in table
        assert "\n\n**Problem.** " in page.read_text(encoding="utf-8"), page.name


@pytest.mark.parametrize("page", [*PAGES, *DOCUMENTS], ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        place = installed((page.parent / target).resolve()) if target else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), f"{target}#{anchor}"


def test_the_library_is_installed_from_its_folder():
    """On PyPI its name is that of the library of 2015."""
    for path in [*PAGES, *DOCUMENTS, *(ROOT / "examples").glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install[^`\n]*\s['\"]?brainstorm\b", text), path.name


def test_messages_lead_to_sections_that_are_there():
    page, found = DOCS / "not_learning.md", set()
    for path in Path(brainstorm.__file__).parent.rglob("*.py"):
        found |= set(re.findall(r"\bsee\([\"']([\w-]+)", path.read_text(encoding="utf-8")))
    assert len(found) >= 4
    assert found <= anchors(page)
    assert brainstorm.errors.see("overfitting") == f"See docs/{page.name}#overfitting."


def test_first_uses_of_words_are_linked_to_the_glossary():
    links = load("glossary_links")
    headings = anchors(DOCS / "glossary.md")
    assert {term.replace(" ", "-") for term in links.LINKED.values()} <= headings
    text = (
        "# A hook\n\nHooks, [hooks](x.md) and `hook`; two hooks, a hook, unhooked, `rel`.\n\n"
        "```python\nstepper = 1\n```\n\n    stepper\n\n| stepper |\n\na null buffer, a\nbuffer\n"
    )
    expected = text.replace("two hooks", "two [hooks](../glossary.md#hook)")
    expected = expected.replace("`rel`", "[`rel`](../glossary.md#rel)")
    expected = expected.replace("null buffer", "[null buffer](../glossary.md#null-buffer)")
    expected = expected.replace("a\nbuffer", "a\n[buffer](../glossary.md#buffer)")
    assert links.link_terms(text, "../") == expected


def installed(place):
    """Return where a file is; those of the package can be elsewhere: tools/test_installed.sh."""
    if (ROOT / "brainstorm") not in place.parents:
        return place
    return Path(brainstorm.__file__).parents[1] / place.relative_to(ROOT)


def anchors(page):
    """Return the anchors that a forge and MyST give to headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_build_runs_every_example_that_is_quick():
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"char_text"}
    quick = set(constant("QUICK"))
    assert quick <= examples
    assert examples - quick <= SHOWN.keys()


def test_examples_begin_with_a_title():
    for path in (ROOT / "examples").glob("*.py"):
        title, line = path.read_text(encoding="utf-8").removeprefix('"""').split("\n")[:2]
        assert line == "=" * len(title), path.name
