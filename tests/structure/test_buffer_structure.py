"""Shape templates and buffer structures."""

import numpy as np
import pytest

from brainstorm.errors import StructureValidationError, ValidationError
from brainstorm.structure.buffer_structure import (
    BufferStructure,
    StructureTemplate,
    combine_buffer_structures,
)


@pytest.mark.parametrize(
    ("shape", "scaling"),
    [((3, 4), ()), (("B", 3), ("B",)), (("T", "B", 2, 3), ("T", "B"))],
)
def test_markers_tell_how_a_buffer_grows(shape, scaling):
    structure = BufferStructure(*shape)
    assert structure.scaling_shape == scaling
    assert structure.buffer_type == structure.first_feature_dim == len(scaling)
    assert structure.feature_shape == shape[len(scaling) :]
    assert structure.nr_dims == len(shape)
    assert structure.scales_with_time == ("T" in scaling)
    assert structure.scales_with_batch_size == ("B" in scaling)


def test_square_structures():
    structure, both = BufferStructure("T", "B", 3, "T"), BufferStructure("T", "B", 2, "S")
    assert (structure.is_square, both.is_square) == (True, True)
    assert (structure.get_shape(5, 7), both.get_shape(5, 7, 9)) == ((5, 7, 3, 5), (5, 7, 2, 9))
    assert structure.feature_size == 3
    assert both.with_times_exchanged().shape == ("S", "B", 2, "T")
    assert BufferStructure.from_layout(structure.to_json(0)).shape == structure.shape
    assert not StructureTemplate("T", "B", "...").matches(structure)


def test_a_second_time():
    structure = BufferStructure("S", "B", 3, context_size=1)
    assert (structure.buffer_type, structure.time, structure.scales_with_time) == (2, "S", True)
    assert structure.get_shape(5, 7, 9) == (10, 7, 3)
    assert structure.template == "(S+1, B, 3)"
    exchanged = structure.with_times_exchanged()
    assert (exchanged.shape, exchanged.context_size) == (("T", "B", 3), 1)
    assert BufferStructure("B", 3).with_times_exchanged() == BufferStructure("B", 3)


@pytest.mark.parametrize(
    ("shape", "kwargs", "message"),
    [
        ((), {}, "at least one dimension"),
        (("T", 3), {}, "markers in front"),
        (("B", "T", 3), {}, "markers in front"),
        ((3, "B"), {}, "markers in front"),
        (("T", "B"), {}, "at least one feature dimension"),
        (("T", "B", 2.5), {}, "must be ints >= 0"),
        (("T", "B", "F"), {}, "must be ints >= 0"),
        (("T", "B", "T", 3), {}, "markers in front"),
        (("B", "T"), {}, "markers in front"),
        (("S", 3), {}, "markers in front"),
        (("T", "S", 3), {}, "markers in front"),
        (("S", "B", "T", 3), {}, r"as \('T', 'B', ...\), \('S', 'B', ...\) or \('B', ...\)"),
        (("T", "B", 3, "B"), {}, "markers in front"),
        (("T", "B", 3, "T"), {"context_size": 1}, "only a time sized shape"),
        (("T", "B", 3), {"context_size": -1}, "context_size must be an int >= 0"),
        (("B", 3), {"context_size": 1}, "only a time sized shape"),
        (("B", 3), {"persistent": True}, "only a constant size buffer"),
    ],
)
def test_invalid_structures(shape, kwargs, message):
    with pytest.raises(StructureValidationError, match=message):
        BufferStructure(*shape, **kwargs)


@pytest.mark.parametrize("features", [("F", 3), ("...", 3), ("F", "..."), ("x",)])
def test_invalid_templates(features):
    with pytest.raises(StructureValidationError, match=r"all ints, all 'F' \(any size\), or"):
        StructureTemplate("T", "B", *features)


def test_sizes_may_come_from_numpy():
    shape = BufferStructure("T", "B", np.int64(3)).shape
    assert (shape, type(shape[2])) == (("T", "B", 3), int)


@pytest.mark.parametrize(
    ("template", "shape", "matches"),
    [
        (("T", "B", 3), ("T", "B", 3), True),
        (("T", "B", 3), ("T", "B", 4), False),
        (("T", "B", "F"), ("T", "B", 4), True),
        (("T", "B", "F"), ("T", "B", 4, 5), False),
        (("T", "B", "..."), ("T", "B", 4, 5), True),
        (("T", "B", "..."), ("B", 4, 5), False),
        (("T", "B", "..."), ("S", "B", 4), False),
        (("S", "B", "..."), ("S", "B", 4), True),
        (("S", "B", "..."), ("T", "B", 4), True),
        (("S", "B", 1), ("B", 1), False),
        (("B", "..."), ("B", 4), True),
        (("...",), ("T", "B", 4), True),
        (("...",), (4, 5), True),
    ],
)
def test_matching(template, shape, matches):
    assert StructureTemplate(*template).matches(BufferStructure(*shape)) == matches


def test_round_trip_through_a_layout_node():
    for structure in (
        BufferStructure("T", "B", 3, context_size=2, is_backward_only=True),
        BufferStructure(4, persistent=True, initial_value=1.0),
    ):
        again = BufferStructure.from_layout(structure.to_json(0))
        assert again.__dict__ == structure.__dict__
        assert {again, structure, BufferStructure(*structure.shape)} == {structure}  # by shape
        assert again != BufferStructure(5)


def test_joining():
    joined = combine_buffer_structures(
        [BufferStructure("T", "B", 2, 3, context_size=1), BufferStructure("T", "B", 2, 5)]
    )
    assert (joined.shape, joined.context_size) == (("T", "B", 2, 8), 0)
    assert combine_buffer_structures([]).shape == (0,)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ([("T", "B", 2), ("B", 2)], "time sized buffer .* and a batch sized one"),
        ([("T", "B", 2, 3), ("T", "B", 3, 3)], "all dimensions but the last must agree"),
        ([("T", "B", 2), ("S", "B", 2)], r"cannot join \(T, B, 2\) and \(S, B, 2\): all"),
        ([("T", "B", 3, "T")], r"cannot connect \(T, B, 3, T\): no layer takes"),
    ],
)
def test_what_cannot_be_joined(shapes, text):
    with pytest.raises(ValidationError, match=text):
        combine_buffer_structures([BufferStructure(*shape) for shape in shapes])
