"""How `make docs` builds the site: pages, reference and gallery; every warning is an error.

All Python blocks of the pages and of the README are run, and their outputs compared with what the
page shows; the quick examples are run by sphinx-gallery, and the notebooks by nbconvert. Nothing is
loaded from the net.
"""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import ExecutePreprocessor
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

import brainstorm

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
from glossary_links import link_terms  # noqa: E402  (it lies beside this file)

LOG = getLogger(__name__)
ROOT = DOCS.parent
EXAMPLES = ROOT / "output" / "examples"  # a copy, because examples write files beside themselves

project = "brainstorm"
author = "the brainstorm authors"
copyright = author
version = release = brainstorm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["gallery_header.rst"]
html_theme = "furo"
html_title = "brainstorm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
myst_heading_anchors = 3
default_role = "literal"
autodoc_typehints = "none"  # the docstrings say it, with shapes
napoleon_use_ivar = True

#: Pages without links to the glossary: lists, itself, and one whose contexts are those of CUDA.
UNLINKED = ("glossary", "gpu", "handlers_reference", "index", "layers", "status")

#: Examples that the build runs; the tests run all of them.
QUICK = (
    "custom_layer",
    "digits_mlp",
    "exchange_weights",
    "expression_layer",
    "gestures",
    "grid_search",
    "lbfgs",
    "onnx_models",
    "resume",
    "xor",
)
logging.getLogger("brainstorm").propagate = False  # a package of the theme prints all messages
for folder in (EXAMPLES, DOCS / "generated"):
    shutil.rmtree(folder, ignore_errors=True)
shutil.copytree(ROOT / "examples", EXAMPLES, ignore=shutil.ignore_patterns("data", "output", "__*"))
shutil.copy(DOCS / "gallery_header.rst", EXAMPLES / "GALLERY_HEADER.rst")
sphinx_gallery_conf = {
    "examples_dirs": str(EXAMPLES),
    "gallery_dirs": "generated/gallery",
    "filename_pattern": rf"/({'|'.join(QUICK)})\.py$",
    "ignore_pattern": r"__init__|char_text",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
    "within_subsection_order": "ExampleTitleSortKey",
}


def run_pages(app: Sphinx, env: object, docnames: list[str]) -> None:
    """Warn about pages to be read whose code prints other than they say, the README included."""
    written = (name for name in docnames if not name.startswith("generated/"))
    pages = [page for name in written if (page := DOCS / f"{name}.md").exists()]
    pages.append(ROOT / "README.md")
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for page, outcome in zip(pages, pool.map(run_page, pages), strict=True):
            if outcome.returncode:
                LOG.warning("%s:\n%s", page, outcome.stdout + outcome.stderr)


def run_page(page: Path) -> subprocess.CompletedProcess[str]:
    """Run the code of a page in a process of its own."""
    command = [
        sys.executable,
        "-W",
        "error",
        str(DOCS / "fill_in_outputs.py"),
        "--check",
        str(page),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def skips(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool:
    """Leave out of a package's page what another page has, and what scikit-learn adds."""
    package = app.env.docname.rpartition("/")[2]
    home = getattr(member, "__module__", None) or package
    is_layer = inspect.isfunction(member) and home.startswith("brainstorm.layers.")  # layers.md
    is_foreign = not f"{home}.".startswith(f"{package}.")
    added = name.startswith("set_") and name.endswith("_request")
    return skip or added or (what == "module" and (is_layer or is_foreign))


def mark_code(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list) -> None:
    """Make literal blocks of what is indented below a paragraph, before napoleon reads it."""
    for number in range(len(lines) - 1, 1, -1):
        above, blank, line = lines[number - 2 : number + 1]
        if line.startswith("    ") and not blank and above[:1].strip():
            lines[number:number] = ["::", ""]


def run_notebooks(app: Sphinx) -> None:
    """Execute the notebooks among the examples, and make pages of them."""
    for path in EXAMPLES.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        ExecutePreprocessor(coalesce_streams=True).preprocess(
            notebook, {"metadata": {"path": str(EXAMPLES)}}
        )
        text, resources = MarkdownExporter().from_notebook_node(notebook)
        (DOCS / "generated").mkdir(exist_ok=True)
        (DOCS / "generated" / f"{path.stem}.md").write_text(text, encoding="utf-8")
        for name, content in resources["outputs"].items():
            (DOCS / "generated" / name).write_bytes(content)


def link_words(app: Sphinx, docname: str, source: list[str]) -> None:
    """Link words that not everybody knows to the glossary, on pages that explain something."""
    if docname.startswith("generated/") or docname in UNLINKED:
        return
    source[0] = link_terms(source[0], "../" * docname.count("/"))


def setup(app: Sphinx) -> None:
    """Connect what Sphinx is to do beside its own work."""
    app.connect("autodoc-skip-member", skips)
    app.connect("autodoc-process-docstring", mark_code, priority=400)
    app.connect("builder-inited", run_notebooks)
    app.connect("env-before-read-docs", run_pages)
    app.connect("source-read", link_words)
