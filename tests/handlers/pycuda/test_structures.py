"""What is compiled depends on addresses and strides; what is computed does not."""

import itertools

import numpy as np
import pytest

from brainstorm.handlers.pycuda import launches
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.fusing import fused
from brainstorm.handlers.pycuda.groups import Group, Walk
from brainstorm.handlers.pycuda.launches import BLOCKS, MANY
from brainstorm.handlers.pycuda.structures import WIDEST, structure_of
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.optree.cuda_structure import THREADS
from brainstorm.optree.loops import Loop, Read, Write
from brainstorm.optree.render_cuda import render_cuda
from tests.handlers.running import on, traced

copied, doubled = formula(lambda x: x), formula(lambda x: x + x)
summed = formula(lambda x, y: x + y)


def structures_of(handler, operations):
    """Return the structures of the kernels of operations, none of which runs."""
    pieces = fused(piece for call in traced(handler, operations) for piece in call.pieces)
    return [structure_of(piece.group) for piece in pieces]


def lanes_of(handler, its_formula, inputs, out):
    (structure,) = structures_of(handler, lambda: handler.compute(its_formula, inputs, [out]))
    return structure.lanes


def walk_of(size, type_="float", pointers=(0, 1 << 40), strides=((1,), (1,))):
    """Return the loop of a copy."""
    loop = Loop((False,), (Read(type_, "unit"),), (), (Write(type_, "unit", ("r0", type_), False),))
    return Walk(loop, (size,), strides, pointers, ())


# -- several elements at once ----------------------------------------------------------------------


DTYPES = ["float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool"]
#: Types that are copied from and to: the largest says how many elements there are at once.
COPIES = [
    *zip(DTYPES, DTYPES, strict=True),
    ("uint8", "float32"), ("float32", "float64"), ("bool", "float32"), ("int64", "float32"),
    ("uint8", "bool"), ("float32", "int16"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "target"), COPIES)
@pytest.mark.parametrize("order", ["forward", "shuffled"])
def test_copies_of_all_sizes_to_and_from_all_addresses(kind, target, order, handler, shim, rng):
    shim.set_option("order", order)
    values = rng.integers(0, 100, 100).astype(kind)
    source = handler.create_from_numpy(values)
    most = WIDEST // max(np.dtype(each).itemsize for each in (kind, target))
    for size, start, to in itertools.product([*range(1, 10), 33], (0, 1), (0, 1)):
        memory = handler.create_from_numpy(np.zeros(100, target))
        part, out = source[start : start + size], memory[to : to + size]
        lanes = 1 if start or to or size == 1 else most
        assert lanes_of(handler, copied, [part], out) == lanes
        handler.compute(copied, [part], [out])
        expected = np.zeros(100, target)
        expected[to : to + size] = values[start : start + size]
        np.testing.assert_array_equal(memory.get(), expected)


#: Operands of shape (6, 8) that are cut out of memory of 12 rows, how wide; and how many lanes.
OPERANDS = {
    "all of it": (8, lambda m: m[:6], 4),
    "wider rows": (12, lambda m: m[:6, :8], 4),
    "rows at odd addresses": (10, lambda m: m[:6, :8], 1),
    "from an odd column on": (12, lambda m: m[:6, 1:9], 1),
    "from a whole pack on": (12, lambda m: m[:6, 4:], 4),
    "every second row": (8, lambda m: m[::2], 4),
    "rows reversed": (8, lambda m: m[5::-1], 4),
    "columns reversed": (8, lambda m: m[:6, ::-1], 1),
    "every second column": (16, lambda m: m[:6, ::2], 1),
    "transposed": (6, lambda m: m[:8].T, 1),
    "a row for all": (8, lambda m: m[0], 4),
    "an odd row for all": (9, lambda m: m[1, :8], 1),
    "a column for all": (8, lambda m: m[:6, :1], 4),
    "a number for all": (9, lambda m: m[1, 1], 4),
}


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("name", OPERANDS)
def test_operands_of_all_strides(name, accumulate, handler, rng):
    width, cut, lanes = OPERANDS[name]
    values, others = rng.normal(size=(12, width)).astype("f"), rng.normal(size=(6, 8)).astype("f")
    x, y, out = cut(on(handler, values)), on(handler, others), handler.ones((6, 8))
    assert lanes_of(handler, summed, [x, y], out) == lanes
    handler.compute(summed, [x, y], [out], accumulate)
    np.testing.assert_array_equal(out.get(), cut(values) + others + np.float32(accumulate))


@pytest.mark.parametrize(
    ("columns", "width", "lanes"),
    [(4, 4, 4), (7, 7, 1), (10, 10, 1), (12, 12, 4), (7, 12, 1), (8, 12, 4)],
)
def test_a_row_must_consist_of_whole_packs_if_there_are_several(
    columns, width, lanes, handler, rng
):
    values, row = rng.normal(size=(5, width)).astype("f"), rng.normal(size=columns).astype("f")
    x, y, memory = on(handler, values), on(handler, row), handler.zeros(values.shape)
    part, out = x[:, :columns], memory[:, :columns]
    assert lanes_of(handler, summed, [part, y], out) == lanes
    handler.compute(summed, [part, y], [out])
    expected = np.zeros_like(values)
    expected[:, :columns] = values[:, :columns] + row
    np.testing.assert_array_equal(memory.get(), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bits_do_not_depend_on_addresses(dtype, handler, rng):
    tree = formula(lambda x, y: fn.tanh(x) * fn.exp(y) + fn.sig(x / 3.0))
    values = rng.normal(size=(2, 1001)).astype(dtype)
    found = []
    for start in (0, 1):
        memory = [handler.create_from_numpy(np.zeros(1002, dtype)) for _ in range(3)]
        x, y, out = (array[start : start + 1001] for array in memory)
        x[...], y[...] = values
        assert (lanes_of(handler, tree, [x, y], out) > 1) == (not start)
        handler.compute(tree, [x, y], [out])
        found.append(out.get())
    assert found[0].tobytes() == found[1].tobytes()


def test_sums_in_chunks_depend_neither_on_the_grid_nor_on_which_block_is_the_last(
    handler, rng, monkeypatch, shim
):
    x, found = on(handler, rng.normal(size=(3000, 50))), set()
    for order, blocks in (("forward", 16), ("forward", 1), ("reversed", 16), ("shuffled", 16)):
        shim.set_option("order", order)
        monkeypatch.setattr(launches, "BLOCKS", blocks)
        outputs = [handler.zeros(shape) for shape in ((1, 50), (3000, 1), (1, 1), (1, 50))]
        sums = formula(lambda x: [fn.sum(x, 0), fn.sum(x, 1), fn.sum(x), fn.max(x, 0)])
        handler.compute(sums, [x], outputs)
        found.add(b"".join(out.get().tobytes() for out in outputs))
    assert len(found) == 1


@pytest.mark.parametrize(("columns", "lanes"), [(16, 4), (8, 4), (10, 1), (7, 1)])
def test_roundings_to_bfloat16(columns, lanes, handler, rng):
    values = rng.normal(size=(5, columns)).astype("f")
    values[0, :3] = np.nan, np.inf, -0.0
    array = handler.create_from_numpy(values)
    building = Building(handler, "rounding")
    building.rounded(array)
    assert structure_of(building.pieces[0].group).lanes == lanes
    building()
    ((half,),) = (known.values() for known in handler._halves.values())
    rounded = half.get()[:, :columns].astype(np.uint32) << 16
    np.testing.assert_allclose(rounded.view(np.float32), values, 2**-8)
    assert not half.get()[:, columns:].any()


def test_what_is_done_at_once_is_in_the_graph_too(handler):
    """Loops of a kernel do as many elements as all of them can."""
    x, y = handler.zeros((6, 8)), handler.zeros((6, 8))
    odd = handler.zeros((56,))[1:49].reshape((6, 8))
    for last, lanes in ((y, 4), (odd, 1)):
        both = lambda last=last: (handler.tanh(x, y), handler.mult_st(2.0, y, last))  # noqa: E731
        (one,) = structures_of(handler, both)
        assert len(one.loops) == 2
        assert one.lanes == lanes


def test_functions_of_whole_arrays_and_reductions_have_one_element_at_once(handler):
    x, out, rows, row = (handler.zeros(s) for s in ((6, 8), (4, 8), (4, 1), (1, 8)))
    for operation in (
        lambda: handler.take_rows_mv(x, rows, out),
        lambda: handler.sum_t(x, 0, row),
        lambda: handler.softmax_m(x, x),
        lambda: handler.compute(formula(lambda x: fn.argmax(x, 0)), [x], [row]),
    ):
        (one,) = structures_of(handler, operation)
        assert one.lanes == 1


# -- what is compiled ------------------------------------------------------------------------------


def test_other_sizes_and_addresses_are_no_other_structure(handler):
    def found(size, start):
        x, y, out = (handler.zeros((size + start,))[start:] for _ in range(3))
        return structures_of(handler, lambda: handler.add_tt(x, y, out))

    assert found(8, 0) == found(1001, 0) == found(9, 4)
    assert found(8, 1) == found(1001, 3)


def test_strides_of_one_and_zero_are_in_the_text_and_others_are_arguments(handler):
    x, column, row = (handler.zeros(shape) for shape in ((6, 8), (6, 1), (8,)))
    tree = formula(lambda x, y, z: x * y + z)
    arrays = [x[:, :4], column, row[:4]], [x[:, 4:]]
    (one,) = structures_of(handler, lambda: handler.compute(tree, *arrays))
    assert [access.steps for access in one.accesses] == [
        ("any", "unit"), ("unit", "fixed"), ("fixed", "unit"), ("any", "unit")
    ]  # fmt: skip
    text = render_cuda(one, "kernel")
    assert "x0[i0 * a.n[2] + i1]" in text
    assert "x1[i0]" in text
    assert "x2[i1]" in text


@pytest.mark.parametrize("lanes", [1, 4])
def test_contiguous_arrays_are_accessed_without_divisions(lanes, handler):
    x, out = (handler.zeros((6, 9)).reshape((54,))[lanes == 1 :] for _ in range(2))
    (one,) = structures_of(handler, lambda: handler.tanh(x, out))
    assert one.lanes == lanes
    text = render_cuda(one, "kernel")
    assert not {"/", "%", "a.n[1]"} & set(text.split())
    assert "[i0]" in text


def test_only_what_nothing_writes_is_restricted(handler):
    x, y, z = (handler.zeros((6, 8)) for _ in range(3))
    halves = handler.zeros((96,))
    for operation, constant in (
        (lambda: handler.add_tt(x, y, z), [1, 1, 0]),
        (lambda: handler.add_tt(x, y, x), [0, 1, 0]),
        (lambda: handler.compute(doubled, [halves[::2]], [halves[1::2]]), [0, 0]),
        (lambda: (handler.tanh(x, y), handler.add_tt(y, x, z)), [1, 0, 0, 1, 0]),
    ):
        (one,) = structures_of(handler, operation)
        assert [access.is_constant for access in one.accesses] == constant
        text = render_cuda(one, "kernel")
        named = {access.first for access in one.accesses if access.is_constant}
        assert text.count("__restrict__") == len(named)


def test_what_a_loop_has_written_has_one_name_in_the_next(handler):
    x, y, z = (handler.zeros((6, 8)) for _ in range(3))
    (one,) = structures_of(handler, lambda: (handler.tanh(x, y), handler.add_tt(y, x, z)))
    assert [access.first for access in one.accesses] == [0, 1, 1, 0, 4]
    one, _ = structures_of(handler, lambda: (handler.tanh(x[:, :4], y[:, :4]), handler.tanh(y, z)))
    assert [access.first for access in one.accesses] == [0, 1]


@pytest.mark.parametrize(
    ("size", "index"), [(8, "int"), (MANY - 1, "int"), (MANY, "ptrdiff_t"), (2**40, "ptrdiff_t")]
)
def test_indices_are_as_wide_as_the_number_of_elements_needs(size, index):
    one = structure_of(Group((walk_of(size),)))
    assert (one.index, one.lanes) == (index, 4)
    text = render_cuda(one, "kernel")
    assert f"{index} item = (({index})blockIdx.x * blockDim.x + threadIdx.x) * 4;" in text
    assert ("ptrdiff_t" in text) == (index == "ptrdiff_t")


def test_indices_of_32_bits_do_not_overflow_behind_the_last_element():
    multiprocessors = 256
    assert MANY + multiprocessors * BLOCKS * THREADS * WIDEST <= 2**31
