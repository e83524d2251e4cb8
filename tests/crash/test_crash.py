"""A few kills; `make test-crash` does hundreds."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from tests.crash.harness import torment

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def test_nothing_is_lost():
    counts = torment(3, seed=1, per_run=1)
    assert counts.losses == []
    assert counts.kills == 3
    assert counts.runs >= 3
    assert counts.resumes > 0
    assert counts.files > 20


def test_what_is_lost_is_noticed(monkeypatch):
    @contextlib.contextmanager
    def in_place(path, copies=()):
        Path(path).write_bytes(b"")
        yield Path(path)
        for copy in copies:
            shutil.copyfile(path, copy)

    monkeypatch.setattr("brainstorm.files.atomic_file", in_place)
    # Which loss comes first is a matter of moments: a damaged file, an older state, a missing copy.
    assert torment(100, seed=1).losses
