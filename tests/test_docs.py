"""Pages that are made from the code say what the code says."""

import importlib.util
import re
from pathlib import Path

import pytest

from brainstorm.randomness import global_rnd

DOCS = Path(__file__).parent.parent / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_layers_is_up_to_date():
    page = load("make_layers_page")
    assert page.PAGE.read_text(encoding="utf-8") == page.make_page(), (
        "run: python docs/make_layers_page.py"
    )


def test_the_page_of_optrees_runs_and_prints_what_it_says():
    text = (DOCS / "optrees.md").read_text(encoding="utf-8")
    assert load("fill_in_outputs").with_outputs(text) == text, (
        "run: python docs/fill_in_outputs.py docs/optrees.md"
    )
    assert text.count("```c\n") == 2
    assert "```text\n```" not in text


@pytest.mark.parametrize("name", ["data", "exchange", "inspection", "pictures"])
def test_pages_run_and_print_what_they_say(name):
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    kept = global_rnd.__getstate__()
    filled = load("fill_in_outputs").with_outputs(text)
    global_rnd.__setstate__(kept)
    assert filled == text, f"run: python docs/fill_in_outputs.py docs/{name}.md"


def test_links_of_pages_lead_somewhere():
    for page in DOCS.glob("*.md"):
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (DOCS / target).exists(), f"{page.name}: {target}"
