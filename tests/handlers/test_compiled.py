import threading

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.handlers import NativeHandler, NumpyHandler, binding, compiler
from brainstorm.handlers.native import programs
from brainstorm.handlers.native.programs import NativeExecutor
from brainstorm.handlers.numpy_memory import overlap
from brainstorm.optree import Variable, evaluate, linearise, register_operator, shapes
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import build
from brainstorm.optree.render_c import render_kernel
from brainstorm.optree.stages import NotRenderableError
from tests.handlers.running import LAYOUTS, bound_program, in_threads, needs_compiler, strided

pytestmark = needs_compiler


class compiled(NativeExecutor):
    """Computes a program with C."""

    def __call__(self, inputs, outputs, accumulate=()):
        flags = tuple(accumulate) or (False,) * len(outputs)
        for call in self.calls(inputs, outputs, flags):
            call()


def compare(trees, bindings, rtol=1e-6, threads=2):
    """Run compiled and reference; return the outputs, which lie in memory in any way."""
    rnd, program = np.random.RandomState(0), linearise(trees)
    inputs = [bindings[v] for v in program.inputs]
    outputs = [
        strided(np.ones(program.shape_of(v), program.dtype_of(v)), rnd.choice(list(LAYOUTS)))
        for v in program.outputs
    ]
    compiled(program, threads)(inputs, outputs)
    for out, expected in zip(outputs, evaluate(trees, bindings), strict=True):
        np.testing.assert_allclose(out, expected, rtol=rtol, atol=rtol)
    return outputs


@pytest.mark.usefixtures("own_table")
@pytest.mark.parametrize(("name", "exact"), [("add all", ""), ("argument", ""), ("all", "total")])
def test_other_reductions_do_what_their_row_says(name, exact):
    register_operator(
        name, 1, lambda x, out, axis, keepdims: np.sum(x, axis, keepdims=keepdims, out=out),
        (None,), kind="reduction", shape=shapes.reduction, c="{acc} + {0}", initial="(T)0",
        exact=exact, joins="+" if exact else "",
    )  # fmt: skip
    x, y = Variable((3, 4), np.int8), Variable((2, 3_000_000))
    a, b = np.full(x.shape, 100, np.int8), np.full(y.shape, 0.1, np.float32)
    compare([build(name, (x,), {"axis": 1})], {x: a})
    (found,) = compare([build(name, (y,), {"axis": 1})], {y: b}, rtol=0.1)
    error = abs(found[:, 0] / np.sum(b, 1, np.float64) - 1).max()
    assert (error < 1e-6) == (exact == "total")


@pytest.mark.parametrize("threads", [1, 2])
def test_long_reductions_and_those_of_nothing(threads):
    rnd = np.random.RandomState(0)
    nothing = Variable((3, 0))
    compare([fn.sum(nothing, 1), fn.sum(nothing), nothing + 1], {nothing: np.zeros((3, 0), "f")})
    for shape, axis in (((300_001,), 0), ((30_001, 10), 0), ((2, 150_000), 1), ((300, 700), 0)):
        x = Variable(shape)
        a = (1 + rnd.uniform(-1, 1, shape)).astype(np.float32)
        found = [
            compare([fn.sum(x, axis), fn.max(-x, axis)], {x: a}, rtol=2e-5, threads=threads)
            for _ in range(3)
        ]
        exact = a.astype(np.float64).sum(axis, keepdims=True)
        np.testing.assert_allclose(found[0][0], exact, 2e-7)
        assert len({b"".join(out.tobytes() for out in outputs) for outputs in found}) == 1


def test_without_memory_for_chunks_there_is_one(monkeypatch):
    nothing = "static void *nothing(size_t size) { return NULL; }\n"

    def without_memory(loops, *arguments):
        text = render_kernel(loops, *arguments)
        head, _, rest = text.partition("void *malloc(size_t);\n")
        assert "malloc(" in rest
        return head + nothing + rest.replace("malloc(", "nothing(")

    monkeypatch.setattr(programs, "render_kernel", without_memory)
    monkeypatch.setattr(compiler, "_known", {})
    monkeypatch.setattr(binding, "PARALLEL_WORK", 1)
    a = np.random.RandomState(0).uniform(0, 2, (300, 70)).astype(np.float32)
    x = Variable(a.shape)
    compare([fn.sum(x), fn.sum(x, 0), fn.max(x), fn.max(x, 0)], {x: a}, rtol=1e-5)


def test_what_chunks_compute_takes_no_stack():
    """A machine of many cores has many chunks, and a Python thread may have a small stack."""
    x = Variable((1000, 31 * 256))
    a = np.random.RandomState(0).uniform(0, 2, x.shape).astype(np.float32)
    trees = [fn.sum(x, 0), fn.sum(x * 2, 0), fn.max(x, 0), fn.sum(x, 1)]
    expected = compare(trees, {x: a}, rtol=2e-5, threads=1)
    found = []
    size = threading.stack_size(256 << 10)
    try:
        in_threads(lambda n: found.append(compare(trees, {x: a}, rtol=2e-5, threads=n)), [16])
    finally:
        threading.stack_size(size)
    for got, one in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(got, one, 2e-5)


def test_chunks_keep_all_threads_busy_and_no_more():
    found = []
    for threads, columns in ((1, 40), (2, 40), (32, 40), (64, 40), (32, 1)):  # in tiles
        x = Variable((4096, columns * 256))
        arrays = [np.zeros(x.shape, np.float32)], [np.zeros((1, columns * 256), np.float32)]
        (part,) = bound_program(linearise(fn.sum(x, 0)), *arrays, threads=threads).parts
        found.append(part.numbers[:2].tolist())
    assert found == [[1, 1], [2, 1], [32, 7], [64, 13], [32, 64]]


def test_integer_and_mixed_inputs():
    i, x, d = Variable((5,), np.int64), Variable((5,)), Variable((5,), np.float64)
    b = Variable((5,), np.bool_)
    bindings = {
        i: np.arange(5), x: np.linspace(0, 1, 5, dtype=np.float32), d: np.ones(5),
        b: np.array([True, False, True, True, False]),
    }  # fmt: skip
    compare([i * x, x + d, fn.where(b, x, d), i + 1, fn.sum(i * d)], bindings)


# -- products and indexing, which are no loops -----------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value"), [(np.int8, 65), (np.uint16, 2**15 + 1), (np.int64, 2**30 + 1)]
)
def test_products_of_integers_alone_are_left_to_numpy_which_is_exact(dtype, value):
    x, a = Variable((1, 3), dtype), np.full((1, 3), value, dtype)
    program, out = linearise(fn.dot(x, fn.transpose(x))), np.zeros((1, 1), np.int64)
    with pytest.raises(NotRenderableError, match="no exact 'dot' of integers in C"):
        compiled(program)([a], [out])
    NativeHandler(seed=1).run_program(program, [a], [out], [False])
    assert out == 3 * value**2


@pytest.mark.parametrize(
    "build",
    [
        lambda x: fn.take(fn.concatenate([x, x], 0), Variable((2,), np.int64), 0),
        lambda x: fn.dot(fn.sum(x, 0), fn.transpose(x)),
        lambda x: fn.cumsum(fn.sum(x, 0), 1),
    ],
)
def test_so_are_operations_with_integers_that_were_computed(build):
    x, a = Variable((2, 2), np.int64), np.array([[2**40 + 1, 1], [1, 2**20]])
    program = linearise(build(x), [x])
    given = [a, np.array([0, 3])][: len(program.inputs)]
    found, expected = np.zeros((2, *program.shape_of(program.outputs[0])), np.int64)
    NativeHandler(seed=1).run_program(program, given, [found], [False])
    NumpyHandler(seed=1).run_program(program, given, [expected], [False])
    np.testing.assert_array_equal(found, expected)
    assert (expected > 2**40).any()


def test_cumulative_sums_of_integers_have_64_bits():
    x, a, out = Variable((999,), np.int16), np.full(999, 2**15 - 1, np.int16), np.zeros(999, int)
    NativeHandler(seed=1).run_program(linearise(fn.cumsum(x)), [a], [out], [False])
    np.testing.assert_array_equal(out, np.arange(1, 1000) * (2**15 - 1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_integers_that_are_joined_keep_all_digits(dtype):
    x, y, a = Variable((2,), dtype), Variable((2,), dtype), np.array([2**24 + 1, 3], dtype)
    out = np.zeros(4, dtype)
    NativeHandler(seed=1).run_program(
        linearise(fn.concatenate([x[::-1], y], 0)), [a, a], [out], [False]
    )
    np.testing.assert_array_equal(out, [3, 2**24 + 1, 2**24 + 1, 3])


def test_what_is_no_index_is_refused_there_too():
    x, at = Variable((4, 3)), Variable((2,), np.int64)
    with pytest.raises(ValidationError, match="expected indices from -4 to 3, got 1 to 4"):
        compiled(linearise(fn.take(x, at)))(
            [np.zeros((4, 3), np.float32), np.array([1, 4])], [np.zeros((2, 3), np.float32)]
        )


# -- memory ----------------------------------------------------------------------------------


def test_two_outputs_in_the_same_memory_are_written_in_order():
    x = Variable((4,))
    a, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    compiled(linearise([x + 1, x * 5]))([a], [out, out], accumulate=[False, True])
    np.testing.assert_array_equal(out, np.full(4, 7))


def test_slices_side_by_side_do_not_overlap():
    wide = np.zeros((3, 8), np.float32)
    found = [overlap(wide[:, :4], wide[:, start : start + 4]) for start in (4, 3, 0)]
    assert found == ["", "other", "same"]


def with_stride(array, stride):
    """The same elements, with another stride on an axis of length 1 in front."""
    return np.lib.stride_tricks.as_strided(array, (1, *array.shape), (stride, *array.strides))


@pytest.mark.parametrize("stride", [0, 4, 48, -8, 1000])
def test_work_in_place_on_one_step_of_a_sequence_needs_no_temporary(stride):
    x, y = Variable((1, 3, 4)), Variable((1, 3, 4))
    trees = [x * 2 + y, fn.tanh(y)]
    memory = np.ones((2, 3, 4), np.float32)
    inputs = [with_stride(memory[i], 48) for i in range(2)]
    outputs = [with_stride(memory[i], stride) for i in range(2)]
    assert overlap(inputs[0], outputs[0]) == "same"
    program = linearise(trees)
    bound = bound_program(program, inputs, outputs, [False, True])
    assert [len(part.loops) for part in bound.parts] == [1]
    compiled(program)(inputs, outputs, [False, True])
    np.testing.assert_allclose(memory[0], 3)
    np.testing.assert_allclose(memory[1], 1 + np.tanh(1), 1e-6)


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", ">f4", ">i8"])
def test_types_that_c_does_not_have(dtype):
    with pytest.raises(NotRenderableError, match=f"no type in C for arrays of {dtype}"):
        compiled(linearise([Variable((3,)) + 1]))([np.zeros(3, dtype)], [np.zeros(3, "f4")])


def test_source_can_be_printed():
    zeros = [np.zeros(3, np.float32)]
    text = NativeExecutor(linearise([Variable((3,)) + 1])).source(zeros, zeros)
    assert "const float v0 = (float)(r0 + ((float)1.0));" in text
