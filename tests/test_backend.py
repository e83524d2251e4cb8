"""neon's face: every example of its guide, and every trap that its users fell into."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

from brainstorm.backend import Autodiff, OpTreeNode, Tensor, gen_backend
from brainstorm.errors import ValidationError
from brainstorm.handlers import DebugHandler, Handler, NumpyHandler
from brainstorm.optree import Variable
from brainstorm.optree import functions as fn
from brainstorm.testing import approx_fprime
from tests.trainings import takes_less_than


@pytest.fixture
def be():
    return gen_backend("cpu", rng_seed=1)


@pytest.fixture
def be64():
    return gen_backend("cpu", np.float64, rng_seed=1)


def random(be, *shape, name=None, seed=0):
    return be.array(np.random.RandomState(seed).randn(*shape), name=name)


# -- the examples of the guide ---------------------------------------------------------------


def test_guide_creating_tensors(be):
    zeros, filled, assigned, f = np.zeros((4, 4)), be.empty((4, 4)), be.empty((4, 4)), be.empty(4)
    filled.fill(0.0)
    assigned[:] = 0
    others = be.zeros((4, 4)), be.zeros_like(zeros), be.array(zeros), assigned.copy(filled)
    for x in (filled, assigned, *others):
        assert isinstance(x, Tensor)
        np.testing.assert_array_equal(x.get(), zeros)
    f[:] = 1 / (1 + be.exp(-1 * filled[0]))
    np.testing.assert_array_equal(f.get(), np.full(4, 0.5))


def test_guide_creating_trees(be):
    x1, x2, out = be.ones((2, 2)), be.ones((2, 2)), be.empty((2, 2))
    t1, t2 = x1 * x2, x1 - x2
    for f in (x1 + x2, x1 + t2, t1 + t2, be.mean(x1), OpTreeNode.build("add", x1, x2)):
        assert isinstance(f, OpTreeNode)
        assert len(f) == 3
    assert OpTreeNode.build("sqrt", x1 * 4, None, out=out) is out
    np.testing.assert_array_equal(out.get(), 2)
    f = OpTreeNode({"op": "add", "shape": (2, 2)}, x1, x2)
    assert OpTreeNode.build("assign", out, f - 5) is out
    np.testing.assert_array_equal(out.get(), -3)


def test_guide_autodiff(be):
    x0, x1 = be.array(np.full((3, 3), 1.0), name="x0"), be.array(np.full((3, 3), 2.0), name="x1")
    ad = Autodiff(op_tree=x0 * x0 + x0 * x1, be=be, next_error=None)
    found = ad.get_grad_asnumpyarray([x0, x1])  # 2 * x0 + x1, x0
    np.testing.assert_array_equal(found, [np.full((3, 3), 4), np.full((3, 3), 1)])
    ad = Autodiff(be.tanh((x0 * x1) + (x0 / x1)), be)
    for tree in ad.get_grad_op_tree([x0, x1]):
        assert "tanh((x0 * x1) + (x0 / x1))" in OpTreeNode.pp(tree)
    slope = 1 - np.tanh(2.5) ** 2
    expected = [np.full((3, 3), slope * 2.5), np.full((3, 3), slope * 0.75)]
    np.testing.assert_allclose(ad.get_grad_asnumpyarray([x0, x1]), expected, rtol=1e-5)


@pytest.mark.parametrize("first", [0, 1, 4, 7])
def test_guide_dynamic_trees(be, first):
    x = be.array(np.array([[first, 5, 8], [9, 5, 0]]), name="x0")
    f = be.zeros(OpTreeNode.shape(x), name="tensor-zero")
    for _ in range(x.get()[0, 0]):
        f = f + x
    f = f + (be.tanh(x) if first % 2 else be.sig(x))
    assert "tensor-zero" + " + x0)" * first in OpTreeNode.pp(f)
    values = x.get().astype(np.float64)
    z = np.tanh(values) if first % 2 else 1 / (1 + np.exp(-values))
    slope = 1 - z * z if first % 2 else z * (1 - z)
    (found,) = Autodiff(f, be).get_grad_asnumpyarray([x])
    np.testing.assert_allclose(found, first + slope, rtol=1e-3, atol=1e-5)


# -- getting a backend (trap: a process-wide singleton) ----------------------------------------


def test_random_numbers_are_drawn_when_a_tree_is_assigned(be):
    """Gradients belong to those of the last assignment."""
    u = be.rand((40, 50), name="u")
    x, y, drawn = be.ones((40, 50), name="x"), be.empty((40, 50)), []
    tree = x * (u < 0.25)
    for _ in range(2):
        drawn.append(y.assign(tree).get())
        np.testing.assert_array_equal(drawn[-1], u.get() < 0.25)
        np.testing.assert_array_equal(Autodiff(tree, be).get_grad_asnumpyarray([x])[0], drawn[-1])
    assert np.any(drawn[0] != drawn[1])
    assert 0.15 < drawn[0].mean() < 0.35
    y[:] = u.T.T - u  # the leaf and a view of it: the same numbers
    assert not y.get().any()


def test_backends_are_independent_and_copy():
    one, two = gen_backend("cpu"), gen_backend("cpu", np.float64)
    array = np.ones((2, 2), np.float32)
    x = one.array(array)
    array[:] = 5
    assert (x.dtype, two.ones(2).dtype) == (np.float32, np.float64)
    for method in (x.get, x.asnumpyarray):  # in neon the second was a live reference on the CPU
        method()[:] = 7
        np.testing.assert_array_equal(x.get(), 1)
    x[:] = x + 1
    np.testing.assert_array_equal(x.get(), 2)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_copies_of_tensors_are_others_in_every_tree(be, copied):
    x, y = be.array([[1.0, 2.0], [3.0, 4.0]], name="x"), be.empty((2, 2))
    row, drawn, tree = copied(x[0]), copied(be.rand((2, 2))), copied(2 * x)
    row[:] = 10
    y[:] = x + row
    assert (y.get().tolist(), row.name) == ([[11, 12], [13, 14]], "x")
    y[:] = tree
    assert y.get().tolist() == [[2, 4], [6, 8]]
    values = [drawn.get()]
    for _ in range(2):
        y[:] = drawn
        values.append(y.get())
    assert len({v.tobytes() for v in values}) == 3


def test_random_numbers_repeat_with_a_seed_and_are_below_one(be):
    a, b = (gen_backend("cpu", rng_seed=3).rand((2, 3)).get() for _ in range(2))
    np.testing.assert_array_equal(a, b)
    be.rnd.random_sample = lambda size: np.full(size, 1 - 2.0**-40)
    assert be.rand(3).get().max() < 1  # in float32, too


def test_backends_of_handlers_and_names(monkeypatch):
    handler, devices = NumpyHandler(np.float64, seed=1), []
    gpu = "brainstorm.backend.PyCudaHandler"
    monkeypatch.setattr(gpu, lambda device: devices.append(device) or handler)
    be, named = gen_backend(handler), gen_backend(handler, np.float32)
    assert (be.handler, be.ones(2).dtype, named.ones(2).dtype) == (handler, "f8", "f4")
    assert isinstance(gen_backend().handler, Handler)
    for name in ("gpu", "nervanagpu"):
        assert gen_backend(name).handler is gen_backend(name, device_id=2).handler is handler
    assert devices == [0, 2, 0, 2]
    with pytest.raises(ValidationError, match="unknown backend 'tpu'. Choices are: cpu, gpu"):
        gen_backend("tpu")
    with pytest.raises(ValidationError, match="expected float32 or float64, got float16"):
        gen_backend("cpu", np.float16)


# -- tensors -----------------------------------------------------------------------------------


def test_tensor_surface(be):
    x = be.array([[1, 2, 3], [4, 5, 6]], name="x")
    assert (x.shape, x.dtype, x.name, x.size, x.ndim) == ((2, 3), np.float32, "x", 6, 2)
    assert repr(x) == "x"
    assert x.is_contiguous
    assert not x.T.is_contiguous
    assert x.base is None
    assert x[0].base is x
    assert x[0][1:].root is x
    assert x.backend is be
    assert be.ones_like(x).get().sum() == 6
    assert be.empty_like(x * 2).shape == (2, 3)
    assert be.zeros_like(be.zeros(2, np.int32)).dtype == np.int32
    assert be.full((2, 2), 3).shape == (2, 2)
    assert x.set(np.zeros((2, 3))) is x
    y = be.ones((2, 3))
    assert x.copy_from(y) is x
    np.testing.assert_array_equal(x.asnumpyarray(), 1)


def test_trees_become_tensors_and_arrays(be64):
    tree = be64.sum(be64.array([[1.0, 2.0]]) * 2)
    assert tree.asnumpyarray() == [[6]]
    tensor = tree.astensor()
    assert isinstance(tensor, Tensor)
    assert (tensor.backend, tensor.dtype, tensor.shape) == (be64, np.float64, (1, 1))


def test_views_follow_numpy_at_any_rank(be):
    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x, s_ = be.array(a), np.s_
    for index in (1, (1, 2), (1, 2, 3), (..., 1), s_[:, 1:, ::-2], s_[None, ..., 0], s_[:]):
        assert x[index].shape == a[index].shape
        np.testing.assert_array_equal(x[index].get(), a[index])
    x[1, 2] = 9
    assert np.all(x.get()[1, 2] == 9)
    np.testing.assert_array_equal(x.T.get(), x.get().T)
    for order in ((1, 0, 2), ((1, 0, 2),)):
        np.testing.assert_array_equal(x.transpose(*order).get(), x.get().transpose(1, 0, 2))
    flat = x.reshape(-1, 4)
    flat[0] = -1
    assert np.all(x.get()[0, 0] == -1)
    assert x.reshape((24,)).shape == (24,)
    assert be.zeros((0, 3)).reshape(3, 0).shape == (3, 0)


def test_assigning(be):
    x = be.zeros((2, 3))
    y = be.array([[1.0], [2.0]])
    x[:] = y
    np.testing.assert_array_equal(x.get(), [[1, 1, 1], [2, 2, 2]])
    x[0] = np.arange(3)
    x[1] = [7, 8, 9]
    np.testing.assert_array_equal(x.get(), [[0, 1, 2], [7, 8, 9]])
    x[:, 1:] = y * 2
    x[1, 0] = np.float64(0.5)
    np.testing.assert_array_equal(x.get(), [[0, 2, 2], [0.5, 4, 4]])
    x[0] += 1
    np.testing.assert_array_equal(x.get()[0], [1, 3, 3])
    assert be.exp(y, out=be.empty((2, 1))).get().shape == (2, 1)
    count = be.zeros(3, np.int32)
    count[:] = 2
    count[1:] = count[1:] * 3
    np.testing.assert_array_equal(count.get(), [2, 6, 6])


VARIABLE = Variable(3, name="v")


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda be, x: x.assign(be.ones((2, 2)) + 1),
         r"an op-tree that broadcasts to \(2, 3\), got .*'add'.* of shape \(2, 2\)"),
        (lambda be, x: x.assign(np.ones(2)),
         r"x: expected values that broadcast to \(2, 3\), got s"),
        (lambda be, x: x.set(np.ones(3)), r"x: expected values of shape \(2, 3\), got \(3,\)"),
        (lambda be, x: x[2], r"tensor x of shape \(2, 3\): expected an index from -2 to"),
        (lambda be, x: x.__setitem__([0, 1], 5),
         "index of what is assigned to, got an array. Write"),
        (lambda be, x: x["a"], "as index, got str. Several indices are an array"),
        (lambda be, x: x.T.reshape(6), r"reshaping to \(6,\) would copy"),
        (lambda be, x: x.reshape(5), "expected a shape of 6 elements, got 5"),
        *((lambda be, x, value=value: x.assign(value), f"x: expected real numbers, got a.* {kind}")
          for value, kind in (("abc", "<U3"), (None, "object"), (1j, "complex128"))),
        (lambda be, x: be.exp(x, out=np.ones((2, 3))),
         "expected a tensor to assign to, got ndarray"),
        (lambda be, x: x.assign(VARIABLE + 1), r"tensors as variables, got v of shape \(3,\)"),
    ],
)  # fmt: skip
def test_errors_of_tensors(be, act, text):
    with pytest.raises(ValidationError, match=text):
        act(be, be.zeros((2, 3), name="x"))


def test_tensors_of_another_handler_are_refused(be):
    debug, x = gen_backend(DebugHandler(NumpyHandler(np.float32))), be.zeros((2, 3), name="x")
    text = r"expected tensors of DebugHandler, got x of \w+Handler. Copy it: be.array\(x.get\(\)\)"
    for tree in (x, x + 1):
        with pytest.raises(ValidationError, match=text):
            debug.zeros((2, 3))[:] = tree


def test_numpy_scalars_are_numbers_and_arrays_are_no_operands(be):
    x, out = be.ones((2, 2)), be.empty((2, 2))
    for tree in (x * np.float32(2), np.float64(2) * x, 2 * x, x + np.int64(1), np.ones(())[()] + x):
        out[:] = tree
        np.testing.assert_array_equal(out.get(), 2)
    for operation in (lambda a: x * a, lambda a: a * x, lambda a: x == a,
                      lambda _: np.asarray(x), lambda _: iter(x)):  # fmt: skip
        with pytest.raises(TypeError):
            operation(np.ones((2, 2)))


# -- execution -----------------------------------------------------------------------------------


def test_executing_again_allocates_nothing(be):
    x, out, other = be.ones((500, 500)), be.empty((500, 500)), be.zeros((500, 500))
    tree = be.softmax(be.dot(x, x) * 0.001 + x)
    ad = Autodiff(tree, be, next_error=other)

    def execute():
        out[:] = tree
        ad.back_prop_grad([x], [out], accumulate=True)

    execute()
    execute()
    with takes_less_than(300_000):  # one array has 1 MB
        execute()


# -- Autodiff ------------------------------------------------------------------------------------


def test_gradients_leave_the_next_error_as_it_is(be):
    x, other = be.ones((2, 3)), gen_backend("cpu")
    for error in (be.ones((2, 3)), fn.full((2, 3), 2.0)):
        before = dict(vars(error))
        assert Autodiff(x + 1, other, next_error=error).get_grad_op_tree([x])[0].shape == (2, 3)
        assert vars(error) == before


def test_the_next_error_can_be_replaced(be):
    x = be.array([[1.0, 2.0]])
    ad = Autodiff(x * x, be, next_error=be.ones((1, 2)))
    np.testing.assert_array_equal(ad.get_grad_asnumpyarray([x])[0], [[2, 4]])
    ad.next_error = be.array([[5.0, 1.0]])
    np.testing.assert_array_equal(ad.get_grad_asnumpyarray([x])[0], [[10, 4]])


@pytest.mark.parametrize(
    "make",
    [
        lambda be, x: be.dot(x, x.T),
        lambda be, x: be.dot(x.T, x),
        lambda be, x: x[:2] * x[1:3] + be.tanh(x[2:]) if x.shape[0] == 3 else x[:2] * x[1:3],
        lambda be, x: x.T * 2,
        lambda be, x: be.exp(x[:, ::-1]) * x,
        lambda be, x: be.dot(x.reshape(4, 3), x) + x[0, 1],
    ],
)
def test_gradients_through_views_of_one_tensor(be64, make):
    x = random(be64, 3, 4, name="x")
    tree = make(be64, x)
    error, out = random(be64, *tree.shape, seed=5), be64.empty(tree.shape)

    def objective(values):
        x[:], out[:] = values, tree
        return (out.get() * error.get()).sum()

    start = x.get()
    expected = approx_fprime(start, objective, 1e-5)
    x[:] = start
    ad = Autodiff(tree, be64, error)
    np.testing.assert_allclose(ad.get_grad_asnumpyarray([x])[0], expected, atol=1e-6)
    # asked for a view: that part of the whole
    part = x.T[1:, 1:]
    np.testing.assert_allclose(ad.get_grad_asnumpyarray([part])[0], expected.T[1:, 1:], atol=1e-6)


def test_autodiff_is_a_type_and_keeps_nothing_alive(be):
    """Nor do programs live longer than their trees."""
    x = be.ones((2, 2))
    watched = []
    for _ in range(5):
        tree = be.exp(x) * x
        ad = Autodiff(tree, be)
        assert isinstance(ad, Autodiff)
        (found,) = ad.get_grad_tensor([x])
        found[:] = tree
        watched += map(weakref.ref, (ad, found, *tree.__dict__["programs"].values()))
    del tree, ad, found
    gc.collect()
    assert not any(reference() for reference in watched)


def test_back_prop_grad_overwrites_or_adds(be64):
    x, y = random(be64, 3, 2), random(be64, 2, seed=1)
    dx, dy = be64.ones((3, 2)), be64.ones(2)
    ad = Autodiff(x * y, be64)
    ad.back_prop_grad([x, y], [dx, dy])
    np.testing.assert_allclose(dx.get(), np.broadcast_to(y.get(), (3, 2)))
    np.testing.assert_allclose(dy.get(), x.get().sum(0))
    ad.back_prop_grad([x, y], [dx, dy], accumulate=True)
    np.testing.assert_allclose(dx.get(), 2 * np.broadcast_to(y.get(), (3, 2)))
    np.testing.assert_allclose(dy.get(), 2 * x.get().sum(0))
    column = be64.zeros((3, 5))
    ad.back_prop_grad([x, x], [column[:, 1:3], column[:, 3:]])
    np.testing.assert_allclose(column.get()[:, 1:], np.tile(y.get(), (3, 2)))


def test_the_error_may_be_any_of_the_buffers(be64):
    x, y, error = random(be64, 3, 3), random(be64, 3, 3, seed=1), random(be64, 3, 3, seed=2)
    e, dy = error.get(), be64.empty((3, 3))
    Autodiff(be64.dot(x, y), be64, error).back_prop_grad([x, y], [error, dy])
    np.testing.assert_allclose(error.get(), e @ y.get().T)
    np.testing.assert_allclose(dy.get(), x.get().T @ e)


def test_errors_of_back_prop_grad(be):
    x, y = be.ones((2, 3), name="x"), be.ones((2, 3), name="y")
    buffer = be.ones((2, 3), name="buffer")
    ad = Autodiff(x * y, be)
    for tensors, buffers, text in (
        ([x, y], [buffer], r"one buffer per tensor \(2\), got 1"),
        ([x], [be.ones((3, 2))], r"buffer 0 \(.*\): expected shape \(2, 3\), that of x"),
        ([x], [y], r"buffer 0 \(y\) shares memory with y"),
        ([x], [y[:, ::-1]], r"buffer 0 \(y\) shares memory with y"),
        ([x, y], [buffer, buffer], r"buffer 1 \(buffer\) shares memory with buffer"),
    ):
        with pytest.raises(ValidationError, match=text):
            ad.back_prop_grad(tensors, buffers)


def test_every_function_is_a_method(be):
    for name in fn.__all__:
        assert callable(getattr(be, name))
        assert getattr(be, name).__doc__
