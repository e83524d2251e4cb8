"""Pages that are made from the code say what the code says."""

import importlib.util
from pathlib import Path

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
