"""Networks as text, as text for Graphviz, and as pictures."""

import re
import shutil

import pytest

import brainstorm as bs
from brainstorm.errors import MissingDependencyError, ValidationError
from brainstorm.layers import FullyConnected, Input, Loss
from brainstorm.tools import create_net_from_spec, draw_network, network_as_dot, network_as_svg


@pytest.fixture
def small():
    return create_net_from_spec("regression", 3, 2, "Ft5")


def test_the_info_is_table_and_tree(small, capsys):
    text = bs.tools.get_network_info(small)
    small.summary()
    assert text.startswith(capsys.readouterr().out.partition("\n")[2])
    assert text.endswith(f"\n\n{small.tree()!r}")
    assert "FullyConnected(size=5, activation='tanh')  from Input" in text
    bs.tools.print_network_info(small)
    assert capsys.readouterr().out == text + "\n"


def test_drawing_as_graphviz_text(small, tmp_path):
    draw_network(small, tmp_path / "net.dot")
    text = (tmp_path / "net.dot").read_text()
    assert text == network_as_dot(small)
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("digraph network {", "}")
    assert {
        r'  "FullyConnected" [label="FullyConnected\n(T, B, 5)\n20 parameters", '
        'fillcolor="#d6e6f7"];',
        '  "Input" -> "FullyConnected";',
        '  "Input" -> "Output" [label="targets > targets"];',
        '  "Output" -> "Loss" [label="loss > default"];',
    } <= set(lines)
    assert r'  "Output_projection" [label="Output_projection\nFullyConnected\n' in text
    assert sum(" -> " in line for line in lines) == 5


def test_names_are_escaped():
    name = 'a "b" \\n'
    inp = Input({name: ("T", "B", 2)})
    inp - name >> FullyConnected(1) >> Loss()
    lines = network_as_dot(bs.Network.from_layer(inp)).splitlines()
    escaped = r"a \"b\" \\n"
    assert f'  "Input" -> "FullyConnected" [label="{escaped} > default"];' in lines
    assert f'label="Input\\n{escaped} (T, B, 2)"' in lines[3]


needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


@needs_dot
def test_pictures(small, tmp_path):
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for ending, begin in begins.items():
        draw_network(small, tmp_path / f"net.{ending}")
        assert (tmp_path / f"net.{ending}").read_bytes().startswith(begin)
    assert len(list(tmp_path.iterdir())) == len(begins)
    assert re.fullmatch("<svg .*>20 parameters<.*</svg>\\s*", network_as_svg(small), re.DOTALL)


@pytest.mark.parametrize("name", ["net", "net.hdf5", "net.PNG"])
def test_an_unknown_ending(small, tmp_path, name):
    with pytest.raises(ValidationError, match=rf"drawing '.*{name}': expected a name that ends in"):
        draw_network(small, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_needs_the_program_dot(small, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = "drawing 'net.png' needs the program 'dot' of Graphviz on the PATH. Install Graphviz"
    with pytest.raises(MissingDependencyError, match=f"^{message}, or write the text with file_"):
        draw_network(small, "net.png")
