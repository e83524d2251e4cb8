"""Run the Python blocks of pages, and write what they print into the text blocks that follow them.

    python docs/fill_in_outputs.py docs/optrees.md
    python docs/fill_in_outputs.py --check docs/optrees.md   # compare instead of writing

All blocks of a page share one namespace and run in an empty folder. A block in text or C that
directly follows one in Python is its output; all others stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PAIR = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n^```(text|c)\n.*?^```$)?", re.MULTILINE | re.DOTALL
)


def with_outputs(text: str, name: str = "page") -> str:
    """Return a page with the outputs that its blocks in Python print."""
    namespace = {"__name__": name}

    def replaced(pair: re.Match[str]) -> str:
        code, language = pair.groups()
        line = text.count("\n", 0, pair.start(1))
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(compile("\n" * line + code, name, "exec"), namespace)
        block = f"```python\n{code}```"
        return block if language is None else f"{block}\n\n```{language}\n{stream.getvalue()}```"

    with empty_folder():
        return PAIR.sub(replaced, text)


@contextlib.contextmanager
def empty_folder() -> Iterator[None]:
    """Let code work in a folder that is removed in the end, its temporary files included."""
    before, temporary = Path.cwd(), tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tempfile.tempdir = folder
        try:
            yield
        finally:
            os.chdir(before)
            tempfile.tempdir = temporary


def difference(page: Path) -> str:
    """Return how the outputs of a page differ from what its code prints, empty if they do not."""
    text = page.read_text(encoding="utf-8")
    filled = with_outputs(text, str(page))
    lines = difflib.unified_diff(
        text.splitlines(), filled.splitlines(), "on the page", "printed", lineterm="", n=1
    )
    return "\n".join(lines)


def main() -> int:
    """Fill in or check the pages that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    failed = False
    for page in arguments.pages:
        page = page.resolve()
        if not arguments.check:
            filled = with_outputs(page.read_text(encoding="utf-8"), str(page))
            page.write_text(filled, encoding="utf-8")
        elif text := difference(page):
            sys.stdout.write(f"{page} says something else than its code prints:\n{text}\n")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
