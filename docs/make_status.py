"""Write docs/status.md: every feature with what shows it, every target with the figure reached.

    python docs/make_status.py

The words are in status.txt: sections (``#``), groups (``##``) and rows, each a line with indented
lines below it. Below a feature stand the tests and examples that show it,

    Rows are cut into columns
        tests/test_cutting.py::test_rows ::test_columns
        examples/cutting.py

where ``::test_columns`` is in the same file as what stands before it; below a target stand lines
``figure:``, ``command:`` and ``cause:``. In these, ``{page.md | row | column}`` is a cell of a
table of that page (of the first that has both), and ``{page.md ~ pattern}`` what the group of a
regular expression finds there. Groups without rows are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
ROOT = DOCS.parent
ROWS = DOCS / "status.txt"
PAGE = DOCS / "status.md"

HEADER = """# Status

Made by `make status` from [status.txt](status.txt); a test keeps it up to date. {features}
features, each with the tests or the examples that show it: `tests/test_x.py`: `name` is the
function `test_name` of that file, and `pytest tests/test_x.py -k name` runs it alone. Tests in
`tests/peers` compare with PyTorch and JAX: `make test-peers`. Figures are read from the pages where
the measurements stand.
"""

#: Headings of the columns, by section.
FEATURES = ("feature", "shown by")
HEADINGS = {
    "Different on purpose": ("what is not there, and what is instead", "shown by"),
    "Targets": ("target", "reached", "with", "where it fell short: why"),
}


class Row(NamedTuple):
    """A line of status.txt, and the indented lines below it."""

    statement: str
    details: tuple[str, ...]


class Group(NamedTuple):
    """The rows under a heading."""

    section: str
    title: str
    rows: list[Row]


def read_groups(text: str) -> list[Group]:
    """Return the groups of status.txt, in order."""
    groups: list[Group] = []
    section = ""
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("# "):
            section = line[2:]
        elif line.startswith("## "):
            groups.append(Group(section, line[3:], []))
        elif line.startswith(" "):
            statement, details = groups[-1].rows.pop()
            groups[-1].rows.append(Row(statement, (*details, line.strip())))
        else:
            groups[-1].rows.append(Row(line, ()))
    return groups


# -- what shows a feature -------------------------------------------------------------------------


def evidence(row: Row) -> list[tuple[str, str]]:
    """Return (file, name) of all that shows a feature; where the file shows it, the name is ''."""
    found: list[tuple[str, str]] = []
    for word in " ".join(row.details).split():
        path, _, name = word.partition("::")
        found.append((path or found[-1][0], name))
    return found


@cache
def defined(path: str) -> frozenset[str]:
    """Return the functions and classes at the top of a file, and '' if there is such a file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    kinds = (ast.FunctionDef, ast.ClassDef)
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return frozenset(("", *(node.name for node in body if isinstance(node, kinds))))


def shown_by(row: Row) -> str:
    """Return the cell with what shows a feature.

    Raises:
        ValueError: Nothing does, or something of it does not exist.
    """
    files: dict[str, list[str]] = {}
    for path, name in evidence(row):
        if name not in defined(path):
            raise ValueError(f"{row.statement}: there is no {path}{'::' * bool(name)}{name}")
        files.setdefault(path, []).append(name.removeprefix("test_"))
    if not files:
        raise ValueError(f"{row.statement}: nothing shows it")
    return "; ".join(
        f"`{path}`" + ": " * any(names) + ", ".join(f"`{name}`" for name in names if name)
        for path, names in files.items()
    )


# -- figures of targets ---------------------------------------------------------------------------

PLACEHOLDER = re.compile(r"\{(\w+\.md) ([|~]) ([^{}]+)\}")


@cache
def read_page(name: str) -> str:
    """Return the text of a page."""
    return (DOCS / name).read_text(encoding="utf-8")


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a page as lists of rows of cells, headings first."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [re.split(r"\s*\|\s*", line)[1:-1] for line in block.splitlines()]
        yield [lines[0], *lines[2:]]


def find_figure(match: re.Match[str]) -> str:
    """Return what a placeholder stands for.

    Raises:
        ValueError: The page does not have it.
    """
    page, kind, what = match.groups()
    if kind == "~":
        if found := re.search(what, read_page(page)):
            return found[1]
    else:
        row, column = what.split(" | ")
        for heading, *body in tables(read_page(page)):
            for cells in body:
                if column in heading and cells[0] == row:
                    return cells[heading.index(column)]
    raise ValueError(f"there is no {match[0]}")


def figures(row: Row) -> list[str]:
    """Return the cells with figure, command and cause of a target.

    Raises:
        ValueError: A page does not have what is asked of it.
    """
    cells = dict(line.split(": ", 1) for line in row.details)
    names = ("figure", "command", "cause")
    return [PLACEHOLDER.sub(find_figure, cells.get(name, "")) for name in names]


# -- the page -------------------------------------------------------------------------------------


def make_table(group: Group, problems: list[str]) -> str:
    """Return the table of a group; what is wrong with its rows is added to `problems`."""
    heading = HEADINGS.get(group.section, FEATURES)
    lines = [[*heading], ["---"] * len(heading)]
    for row in group.rows:
        try:
            cells = figures(row) if group.section == "Targets" else [shown_by(row)]
        except ValueError as error:
            problems.append(str(error))
        else:
            lines.append([row.statement, *cells])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def make_page() -> str:
    """Return the whole page.

    Raises:
        ValueError: Tests, examples or figures do not exist; the message lists them.
    """
    groups = [group for group in read_groups(ROWS.read_text(encoding="utf-8")) if group.rows]
    count = sum(len(group.rows) for group in groups if group.section not in HEADINGS)
    problems: list[str] = []
    parts, section = [HEADER.format(features=count)], ""
    for group in groups:
        if group.section != section:
            section = group.section
            parts.append(f"## {section}\n")
        parts.append(f"### {group.title}\n\n{make_table(group, problems)}\n")
    if problems:
        raise ValueError("\n".join(problems))
    return "\n".join(parts)


if __name__ == "__main__":
    try:
        PAGE.write_text(make_page(), encoding="utf-8")
    except ValueError as error:
        sys.exit(str(error))
