"""Trees as text, as HTML and with rich: aligned, folded where they are long, and escaped."""

import io

import numpy as np
import pytest
import rich.console

from brainstorm import display
from brainstorm.display import Node, Statistics, Tree
from tests.markup import Page


def leaf(name, path=None, **cells):
    return Node(name, path or name, {"array": "float32[2]", "bytes": "8 B", **cells})


def group(name, *children, note=""):
    return Node(name, name, note=note, children=children)


def numbered(count, arrays=1):
    children = [leaf(f"a{i}") for i in range(arrays)]
    return Tree([group(f"L{i}", *children) for i in range(count)])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1.0, -3.0], [5.0, 1.0]], (-3.0, 1.0, 5.0, 0, 0)),
        ([np.nan, np.inf, -np.inf, 2.0, np.nan, 4.0], (2.0, 3.0, 4.0, 2, 2)),
        (np.zeros((0, 3)), (np.nan, np.nan, np.nan, 0, 0)),
        ([np.nan] * 3, (np.nan, np.nan, np.nan, 3, 0)),
        ([3e38] * 4, (3e38, 3e38, 3e38, 0, 0)),  # whose sum would overflow
    ],
)
def test_statistics(values, expected):
    found = Statistics.of(np.array(values, np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_columns_are_aligned():
    tree = Tree([leaf("W", template="(2, 3)"), group("x", leaf("bias", bytes="1.5 KiB"))], "Title")
    assert repr(tree).split("\n") == [
        "Title",
        "  W       (2, 3)  float32[2]      8 B",
        "  x",
        "    bias          float32[2]  1.5 KiB",
    ]


def test_statistics_have_headings():
    values = Statistics.of(np.array([1.0, 2.0])).as_cells()
    assert repr(Tree([leaf("W", **values)])).split("\n") == [
        "                    min  mean  max  NaN  Inf",
        "W  float32[2]  8 B    1   1.5    2    0    0",
    ]
    assert Statistics.of(np.zeros(0)).as_cells()["min"] == "nan"


def test_what_has_one_text_follows_its_name():
    tree = Tree([leaf("a"), Node("long_name", "x", {"array": "not allocated"})])
    assert repr(tree).split("\n")[1] == "long_name  not allocated"


def test_long_trees_are_folded():
    short = numbered(5, arrays=2)
    assert repr(short.folded()) == repr(short)
    folded = repr(numbered(60, arrays=2).folded()).split("\n")
    assert folded == [f"L{i}  2 arrays" for i in range(60)]
    folded = repr(numbered(1000).folded()).split("\n")
    assert len(folded) == display.MOST_ARRAYS + 1
    assert folded[-51:-49] == ["... 900 more ...", "L950  1 arrays"]


def test_lists_of_lines_lose_their_middle():
    lines = [str(i) for i in range(display.MOST_ARRAYS)]
    assert display.without_middle(lines, str) is lines
    shown = display.without_middle([*lines, "last"], "{} more".format)
    assert len(shown) == display.MOST_ARRAYS + 1
    assert (shown[0], shown[50], shown[-1]) == ("0", "1 more", "last")


def test_html_is_nested_and_says_the_paths():
    tree = Tree([group("Hidden", group("parameters", leaf("W", "Hidden.parameters.W")))], "Title")
    found = Page(tree._repr_html_()).elements
    assert [a["title"] for tag, a in found if tag == "details"] == ["Hidden", "parameters"]
    assert [a["title"] for tag, a in found if tag == "tr"] == ["Hidden.parameters.W"]


def test_html_of_large_trees_is_closed():
    assert "<details title" in (small := numbered(3)._repr_html_())
    assert small.count(" open ") == 3
    assert " open" not in numbered(display.UNFOLDED_ARRAYS + 1)._repr_html_()


EVIL = '</td><script>alert("1")</script>&"\'<img src=x onerror=alert(1)>'


def test_html_is_escaped():
    nodes = [Node(EVIL, EVIL, {"array": EVIL, "note": EVIL}), group(EVIL, leaf("a"), note=EVIL)]
    text = Tree([*nodes, Node(EVIL, EVIL, note=EVIL)], EVIL)._repr_html_()
    found = Page(text).elements
    assert {tag for tag, _ in found} == {
        "div", "table", "tr", "td", "details", "summary", "small",
    }  # fmt: skip
    assert {name for _, attributes in found for name in attributes} == {"style", "title", "open"}
    assert text.count("alert") == 2 * 11  # nothing was left out


def test_rich_shows_a_tree_and_reads_no_markup():
    tree = Tree([group("[red]x", leaf("W"), note="a note"), leaf("[b]")], "Title\x1b[2J")
    console = rich.console.Console(width=60, color_system=None, record=True, file=io.StringIO())
    console.print(tree)
    lines = [line.rstrip() for line in console.export_text().rstrip().split("\n")]
    assert repr(tree).startswith("Title\\x1b[2J\n")
    assert lines == [
        "Title\\x1b[2J",
        "├── [red]x  a note",
        "│   └── W  float32[2]  8 B",
        "└── [b]  float32[2]  8 B",
    ]
