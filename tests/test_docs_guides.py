"""Pages on porting: both sides of a translation compute the same, and what tables name is there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import brainstorm as bs
import brainstorm.all
from brainstorm.ext.state_dicts import load_state_dict
from brainstorm.randomness import global_rnd

PAGE = Path(__file__).parent.parent / "docs" / "porting" / "pytorch.md"
BLOCK = re.compile(r"^```(py|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DATA = ("x", "y", "sequences", "signs")
NAMES = {
    "0.weight": {"Hidden": "0", "Last": "2"},
    "head.bias": {"Lower": "rnn.*_l0", "Upper": "rnn.*_l1", "Last": "head"},
}


def test_both_sides_of_the_page_on_pytorch(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    kept = global_rnd.__getstate__()
    text = PAGE.read_text(encoding="utf-8")
    ours, theirs, compared = {"__name__": "ours"}, {"__name__": "theirs"}, []
    for language, code in re.findall(
        r"^```(py|python)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        if language == "py":
            for name in DATA:
                if name in ours:
                    theirs.setdefault(name, ours[name])
            exec(code, theirs)
            continue
        exec(code, ours)
        if "state_dict = {" in code:
            tensors = {name: torch.tensor(v).float() for name, v in ours["state_dict"].items()}
            theirs["model"].load_state_dict(tensors)
        if "trainer.train(" in code:
            learned = {name: t.numpy() for name, t in theirs["model"].state_dict().items()}
            (names,) = [names for key, names in NAMES.items() if key in learned]
            net = ours["net"]
            before = np.concatenate([value.ravel() for value in ours["state_dict"].values()])
            after = np.concatenate([value.ravel() for value in learned.values()])
            assert np.abs(after - before).max() > 0.05
            same = net.copy()
            load_state_dict(same, learned, names)
            np.testing.assert_allclose(same.get("parameters"), net.get("parameters"), atol=2e-5)
            compared.append(set(names))
    global_rnd.__setstate__(kept)
    assert compared == [{"Hidden", "Last"}, {"Lower", "Upper", "Last"}]
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"])


def names_in_the_last_column(page):
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            last = line.rstrip(" |").rpartition(" | ")[2]
            for code in re.findall(r"`([^`]+)`", last):
                yield from re.findall(r"(?<![\w.\"'])[A-Z][a-z]\w+", code)


@pytest.mark.parametrize("name", ["brainstorm_2015", "mocha", "neon", "pytorch"])
def test_what_tables_of_porting_name_is_there(name):
    known = {"AdaMax", "Dataset", "SplitLayer", "TrainingSummary"}  # of the others
    known |= {"Ca", "Conv", "False", "Hidden", "Last", "None", "True"}
    for module in (
        *(bs.all, bs.data_iterators, bs.handlers, bs.hooks, bs.initializers, bs.layers),
        *(bs.training, bs.value_modifiers, bs.structure, bs.scorers),
    ):
        known.update(module.__all__)
    names = set(names_in_the_last_column(PAGE.with_name(f"{name}.md")))
    assert names
    assert names <= known
