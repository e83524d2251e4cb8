"""The tree of views that a layout describes; `test_buffers` has it with memory behind it."""

import numpy as np
import pytest

from brainstorm.errors import NetworkValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.structure.hubs import Hub
from brainstorm.structure.view_tree import create_buffer_views_from_layout

VIEW, FLOAT32 = {"@type": "BufferView", "@index": 0}, NumpyHandler(np.float32)


def array(index, **marks):
    return {"@type": "array", "@index": index, **{f"@{key}": v for key, v in marks.items()}}


def test_views_say_when_shared_memory_is_theirs():
    args = [np.zeros((2, 5), np.float32)], [Hub(["a", "b"], [], 1, False, size=5)], FLOAT32
    a = array(0, shape=("B", 3), hub=0, slice=(0, 3), lives="A forward to B backward")
    layout = {**VIEW, "a": a, "b": array(1, shape=("B", 2), hub=0, slice=(3, 5))}
    views = create_buffer_views_from_layout(layout, *args)
    shared = "a  (B, 3)  float32[2, 3]  24 B  shared: A forward to B backward"
    assert repr(views) == f"{shared}\nb  (B, 2)  float32[2, 2]  16 B"
    del a["@lives"]
    assert create_buffer_views_from_layout(layout, *args, views) is views
    assert "shared" not in repr(views)


def test_views_know_their_paths():
    below = {**VIEW, "x": array(0, shape=(0,))}
    layout = {**VIEW, "A": {**below, "parameters": dict(below)}}
    views = create_buffer_views_from_layout(layout, [], [], FLOAT32)
    assert repr(views.A.parameters) == "A.parameters\n  x  (0,)  float32[0]  0 B"
    assert [node.path for node in views.A.tree().nodes] == ["A.x", "A.parameters"]
    with pytest.raises(NetworkValidationError, match=r"buffer\['A\.parameters\.x'\]\[:\] ="):
        views.A.parameters.x = 1
