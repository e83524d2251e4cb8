"""What code of neon meets first in the backend, against NumPy, on every handler."""

import copy

import numpy as np
import pytest

from brainstorm.backend import Autodiff, OpTreeNode, gen_backend
from brainstorm.backend.neon import NeonBackend, NeonTensor
from brainstorm.errors import ValidationError
from brainstorm.handlers import DebugHandler, NativeHandler, NumpyHandler, PyCudaHandler
from tests import cudashim

HANDLERS = {
    "numpy": lambda: NumpyHandler(np.float32),
    "native": lambda: NativeHandler(seed=1),
    "debug": lambda: DebugHandler(NumpyHandler(np.float32)),
    "pycuda": lambda: PyCudaHandler(seed=1),
}


@pytest.fixture(params=HANDLERS, scope="module")
def handler(request):
    if request.param == "pycuda" and (missing := cudashim.available()):
        pytest.skip(missing)
    return HANDLERS[request.param]()


@pytest.fixture
def be(handler):
    return gen_backend(handler, rng_seed=1, batch_size=4)


@pytest.fixture
def neon(handler):
    return gen_backend(handler, rng_seed=1, batch_size=4, compat="neon")


@pytest.fixture(params=["", "neon"])
def either(request, handler):
    return gen_backend(handler, rng_seed=1, batch_size=4, compat=request.param or None)


def random(be, *shape, seed=0):
    return be.array(np.random.RandomState(seed).randn(*shape))


def got(tree):
    return tree.asnumpyarray()


# -- shapes from where something stands ------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_classes_take_their_shape_from_what_they_are_assigned_to(either, axis):
    classes = np.array([2, 0, 1, 2])
    expected = np.eye(3)[classes]
    expected = expected.T if axis == 0 else expected
    for shape in ((4,), (4, 1), (1, 4)):
        t = either.array(classes.reshape(shape), np.int32)
        y = either.ones(expected.shape)
        y[:] = either.onehot(t, axis)
        np.testing.assert_array_equal(y.get(), expected)
        y[:] = either.onehot(t, axis=axis) * 2 + y
        np.testing.assert_array_equal(y.get(), 3 * expected)
        tree = y - either.onehot(t, axis)
        assert tree.shape == expected.shape
        np.testing.assert_array_equal(got(either.sum(tree, 0)), 2 * expected.sum(0, keepdims=True))
        assert either.onehot(t, axis, y) is y
        np.testing.assert_array_equal(y.get(), expected)


def test_random_numbers_take_their_shape_from_what_they_are_assigned_to(either):
    y, x = either.empty((50, 40)), either.ones((50, 40))
    for tree in (either.rand(), 1 - either.rand(), either.exp(either.rand()) - 1):
        y[:] = tree
        first = y.get()
        assert 0 <= first.min() < 0.1
        y[:] = tree
        assert not np.array_equal(first, y.get())
    y[:] = x * (either.rand() < 0.25)
    assert 0.2 < y.get().mean() < 0.3
    assert (x * either.rand()).shape == (50, 40)
    assert 0.4 < got(either.mean(either.maximum(either.rand(), x * 0.5)))[0, 0] < 0.7
    same = either.rand()
    y[:] = same - same  # once in a tree or twice: the same numbers
    assert not y.get().any()
    assert either.rand(y) is y
    assert 0.4 < y.get().mean() < 0.6


def test_normal_random_numbers(either):
    y, leaf = either.empty((100, 100)), either.randn((100, 100))
    for tree in (leaf, either.randn(), -either.randn()):
        y[:] = 3 + 2 * tree
        assert abs(y.get().mean() - 3) < 0.1
        assert abs(y.get().std() - 2) < 0.1
    assert leaf.shape == (100, 100)
    assert either.fill_normal(y, mean=-1, stdv=0.5) is y
    assert abs(y.get().mean() + 1) < 0.05
    assert abs(y.get().std() - 0.5) < 0.05


def test_a_seed_gives_the_same_numbers_again(either):
    y, found = either.empty((3, 4)), []
    for _ in range(2):
        either.rng_reset()
        for fill in (either.fill_normal, either.make_binary_mask, either.rand, either.randn):
            if fill in (either.rand, either.randn):
                fill(out=y)
            else:
                fill(y)
            found.append(y.get())
    np.testing.assert_array_equal(found[:4], found[4:])


OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b, "//": lambda a, b: a // b, "%": lambda a, b: a % b,
    "**": lambda a, b: a**b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b, "&": lambda a, b: a & b, "|": lambda a, b: a | b,
}  # fmt: skip


@pytest.mark.parametrize("sign", OPERATORS)
def test_operators_on_what_has_no_shape_yet(be, sign):
    numbers = np.array([[0, 2, 1]])
    indices = be.array(numbers, np.int32)
    a = np.eye(3, dtype=np.float32)[numbers[0]].T
    x, y, operator = be.array(np.full((3, 3), 2.0)), be.empty((3, 3)), OPERATORS[sign]
    shift = float(sign in ("/", "//", "%"))  # nothing is divided by 0
    two, hot = np.array(2.0), a + shift
    if sign in "&|":
        two, hot = two.astype(bool), hot.astype(bool)

    def ours():
        return be.onehot(indices, 0) + shift

    for tree, value in (
        (operator(ours(), 2), operator(hot, two)),
        (operator(2, ours()), operator(two, hot)),
        (operator(x, ours()), operator(two, hot)),
        (operator(ours(), x), operator(hot, two)),
    ):
        y[:] = tree
        np.testing.assert_array_equal(y.get(), value)
    y[:] = -be.onehot(indices, 0) + abs(be.onehot(indices, 0)) + ~be.onehot(indices, 0)
    np.testing.assert_array_equal(y.get(), 1 - a)


def test_errors_of_what_has_no_shape_yet(be):
    x, t = be.ones((2, 3)), be.array(np.array([[1, 0, 5]]), np.int32, name="t")
    for name, build in (
        ("sum", lambda: be.sum(be.rand(), 0)),
        ("dot", lambda: be.dot(x, be.rand())),
    ):
        text = rf"a shape for <random numbers, of no shape yet> before {name} .*be.rand\(shape\)"
        with pytest.raises(ValidationError, match=text):
            build()
    be.empty((50, 2))[:] = copy.copy(be.rand())
    with pytest.raises(AttributeError, match=r"of no shape yet> has no 'T'. Give it a shape: be.r"):
        be.rand().T  # noqa: B018
    for act, text in (
        (lambda: be.where(x, be.ones((1, 4)), be.rand()),
         r"with shapes \[\(2, 3\), \(1, 4\)\]: expected shapes"),
        (lambda: be.empty((2, 4)).assign(be.onehot(t, 0)),
         r"onehot\(t, axis=0\) as \(2, 4\): expected 4 indices, .* got 3"),
        (lambda: x.assign(be.onehot(t, 2)), r"onehot\(t, axis=2\) as \(2, 3\): expected axes"),
        (lambda: bool(be.rand()), "Compare trees with 'is'"),
        (lambda: x.assign(be.onehot(t, 0)), "expected indices from 0 to 1, got 0 to 5"),
    ):  # fmt: skip
        if "indices from" in text and isinstance(be.handler, PyCudaHandler):
            continue  # nothing reads what lies on a GPU
        with pytest.raises(ValidationError, match=text):
            act()


# -- out, options, buffers -------------------------------------------------------------------


def test_random_numbers_have_the_axes_of_other_tensors(either):
    like, drawn = either.zeros((2, 3, 4)), either.rand((2, 3, 4))
    assert type(drawn) is type(like)
    for select in (lambda x: x[0], lambda x: x[0, 1], lambda x: x[:, 0, 0], lambda x: x.T):
        assert select(drawn).shape == select(copy.copy(drawn)).shape == select(like).shape


def test_out_may_stand_behind_the_operands(either):
    x, y = random(either, 3, 4), random(either, 3, 4, seed=1)
    a, b = x.get(), y.get()
    for name, arguments, expected in (
        ("add", (x, y), a + b),
        ("exp", (x,), np.exp(a)),
        ("clip", (x, -0.5, 0.5), np.clip(a, -0.5, 0.5)),
        ("sum", (x, 0), a.sum(0, keepdims=True)),
        ("max", (x, 1), a.max(1, keepdims=True)),
        ("argmax", (x, 0), a.argmax(0)[None]),
        ("dot", (x, y.T), a @ b.T),
        ("transpose", (x,), a.T),
        ("softmax", (x, 1), np.exp(a) / np.exp(a).sum(1, keepdims=True)),
        ("take", (x, either.array(np.array([2, 0]), np.int32).reshape(2), 0), a[[2, 0]]),
    ):
        out = either.empty(expected.shape)
        assert getattr(either, name)(*arguments, out) is out
        np.testing.assert_allclose(out.get(), expected, 1e-5, 1e-6, err_msg=name)
        assert getattr(either, name)(*arguments, out=out) is out


def test_reductions_have_the_arguments_of_neon(neon):
    x, out = random(neon, 3, 4), neon.empty((3, 1))
    a = x.get()
    for name in ("mean", "var", "std"):
        assert getattr(neon, name)(x, 1, None, out) is out
        np.testing.assert_allclose(out.get()[:, 0], getattr(a, name)(1), 1e-5)
        assert getattr(neon, name)(x, axis=1, partial=None, keepdims=False).shape == (3, 1)
    for name in ("sum", "max", "min"):
        assert getattr(neon, name)(x, 1, None).shape == (3, 1)
        assert getattr(neon, name)(x, 1, None, True).shape == (3, 1)
        assert getattr(neon, name)(x, 1, out, False) is out
        np.testing.assert_allclose(out.get()[:, 0], getattr(a, name)(1), 1e-5)
        with pytest.raises(ValidationError, match=f"no shape yet> before {name} changes it"):
            getattr(neon, name)(neon.rand(), 1)
        assert getattr(neon, name)(x).shape == (1, 1)
    for name in ("argmax", "argmin"):
        assert getattr(neon, name)(x, 1, out, True) is out
        np.testing.assert_array_equal(got(getattr(neon, name)(x))[:, 0], getattr(a, name)(1))


def test_what_a_backend_knows(handler):
    be = gen_backend(handler, batch_size=8, rng_seed=3, stochastic_round=False, device_id=0)
    assert (be.default_dtype, be.bsz, be.rng.get_seed()) == (np.float32, 8, 3)
    assert be.begin("minibatch", 1) is be.end("minibatch", 1) is None
    assert gen_backend("mkl").handler
    with pytest.raises(ValidationError, match="unknown compat 'caffe'"):
        gen_backend(handler, compat="caffe")
    with pytest.raises(ValidationError, match="expected False, got True. Numbers are rounded"):
        gen_backend(handler, stochastic_round=True)


def test_buffers_of_layers(either):
    shared = either.ones((3, 20))
    for sizes, shape in ((5, (5, 4)), ((5, 3), (5, 12)), ((2, 3, 2), (12, 4))):
        buffer = either.iobuf(sizes, name="out", persist_values=False, parallelism="Data")
        assert (buffer.shape, buffer.name, buffer.get().any()) == (shape, "out", False)
        part = either.iobuf(sizes, shared=shared)
        assert (part.shape, part.root, part.get().any()) == (shape, shared, False)
    assert either.iobuf(5, x=shared) is shared
    assert either.iobuf(2, dtype=np.int32).dtype == np.int32
    with pytest.raises(ValidationError, match=r"at least 64 elements for shape \(16, 4\), got"):
        either.iobuf(16, shared=shared)
    either.bsz = 0
    with pytest.raises(ValidationError, match="expected a backend with a batch size. Write gen_b"):
        either.iobuf(5)


# -- what is computed at once ----------------------------------------------------------------


def test_products_into_what_is_there(either):
    A, B, C = random(either, 3, 4), random(either, 4, 5, seed=1), random(either, 3, 5, seed=2)
    a, b, c, sums = A.get(), B.get(), C.get(), either.empty((3, 1))
    for alpha, beta, relu in ((1, 0, False), (2, 0, True), (0.5, 3, False), (-1, 0.5, True)):
        C[:] = c
        assert either.compound_dot(A, B, C, alpha, beta, relu, bsum=sums) is C
        product = alpha * (a @ b)
        expected = (np.maximum(product, 0) if relu else product) + beta * c
        np.testing.assert_allclose(C.get(), expected, 1e-5, 1e-5)
        np.testing.assert_allclose(sums.get()[:, 0], expected.sum(1), 1e-4, 1e-4)


def test_many_products_at_once(either):
    W, X, Y = random(either, 3, 4), random(either, 6, 4, 5, seed=1), either.ones((6, 3, 5))
    w, x, y = W.get(), X.get(), Y.get()
    np.testing.assert_allclose(either.batched_dot(W, X, Y).get(), w @ x, 1e-4, 1e-5)
    either.batched_dot(W, X, Y, alpha=2, beta=1, relu=True)
    np.testing.assert_allclose(Y.get(), np.maximum(2 * (w @ x), 0) + w @ x, 1e-4, 1e-5)
    Y[:] = y
    dW = either.empty((3, 4))
    either.batched_dot(Y, X.transpose(0, 2, 1), dW)
    np.testing.assert_allclose(dW.get(), np.einsum("xkn,xcn->kc", y, x), 1e-4, 1e-5)


def test_copies_masks_and_pairs(either):
    x, error = random(either, 2, 3, 4), random(either, 2, 3, 4, seed=1)
    x[:, 1] = 0
    a, e = x.get(), error.get()
    for axes in (None, (1, 2, 0)):
        expected = a.transpose(axes)
        out = either.empty(expected.shape)
        assert either.copy_transpose(x, out, axes) is out
        np.testing.assert_array_equal(out.get(), expected)
    mask = either.make_binary_mask(either.empty((50, 50)), keepthresh=0.8)
    assert set(np.unique(mask.get())) == {0, 1}
    assert 0.75 < mask.get().mean() < 0.85
    relu = np.where(a > 0, a, 0.25 * a)
    np.testing.assert_allclose(got(either.fprop_relu(None, x, 0.25)), relu)
    slope = np.where(a > 0, 1, 0.25 * (a < 0))
    np.testing.assert_allclose(got(either.bprop_relu(None, x, error, 0.25)), slope * e)
    tree = either.fprop_softmax(x, 1)
    expected = np.exp(a) / np.exp(a).sum(1, keepdims=True)
    np.testing.assert_allclose(got(tree), expected, 1e-5)
    (derived,) = Autodiff(tree, either, error).get_grad_asnumpyarray([x])
    np.testing.assert_allclose(got(either.bprop_softmax(x, error, 1)), derived, 1e-4, 1e-6)
    for with_default, of_rows in (
        (either.fprop_softmax(x), either.fprop_softmax(x, 0)),
        (either.bprop_softmax(x, error), either.bprop_softmax(x, error, 0)),
    ):
        np.testing.assert_array_equal(got(with_default), got(of_rows))


def test_arrays_that_cannot_be_computed_into_are_refused(either):
    A, wrong = either.ones((2, 2)), np.zeros((2, 2))
    for call in (
        lambda: either.copy_transpose(A, wrong),
        lambda: either.compound_dot(A, A, wrong),
        lambda: either.compound_dot(A, A, wrong, beta=1),
        lambda: either.compound_dot(A, A, either.empty((2, 2)), bsum=wrong),
        lambda: either.batched_dot(A, A, wrong),
        lambda: either.fill_normal(wrong),
        lambda: either.make_binary_mask(wrong),
        lambda: either.iobuf(2, shared=wrong),
    ):
        with pytest.raises(
            ValidationError, match=r"a tensor to assign to, got ndarray\. Use be.em"
        ):
            call()


# -- the rules of neon -----------------------------------------------------------------------


def test_neons_rules_are_those_of_its_backend_alone(handler):
    be, neon = gen_backend(handler), gen_backend(handler, compat="neon")
    x, y = be.array(np.arange(6).reshape(2, 3)), neon.array(np.arange(6).reshape(2, 3))
    assert isinstance(neon, NeonBackend)
    assert isinstance(y, NeonTensor)
    assert (x.dtype.kind, y.dtype) == ("i", np.float32)
    assert (x[:, 0].shape, y[:, 0].shape) == ((2,), (2, 1))
    assert (be.argmax(x).shape, neon.argmax(y).shape) == ((1, 1), (2, 1))
    assert (be.array([1, 2]).shape, neon.array([1, 2]).shape) == ((2,), (2, 1))


def test_what_is_indexed_has_two_axes(neon):
    x = random(neon, 4, 3)
    a = x.get()
    for index, kept in (
        (1, np.s_[1:2]), (-1, np.s_[-1:]), (np.s_[:, 0], np.s_[:, :1]), ((1, 2), np.s_[1:2, 2:3]),
        (np.s_[..., -1], np.s_[:, -1:]), (np.s_[1:3, 1], np.s_[1:3, 1:2]), (np.s_[:2], np.s_[:2]),
    ):  # fmt: skip
        assert isinstance(x[index], NeonTensor)
        np.testing.assert_array_equal(x[index].get(), a[kept])
    x[:, 1] = 5
    x[2] = [7, 8, 9]
    np.testing.assert_array_equal(x.get()[:, 1], [5, 5, 8, 5])
    b = random(neon, 2, 3, 4)
    assert [b[i].shape for i in (0, (0, 1), (0, 1, 2), np.s_[:, 1])] == [
        (3, 4), (1, 4), (1, 1), (2, 4)
    ]  # fmt: skip
    np.testing.assert_array_equal(b[1, 2].get(), b.get()[1, 2:3])
    assert (b.T.shape, b.transpose(2, 1, 0).shape, x.T.shape) == ((2, 4, 3), (4, 3, 2), (3, 4))
    np.testing.assert_array_equal(got(x[np.array([2, 0])]), x.get()[[2, 0]])
    with pytest.raises(ValidationError, match="expected an index from -4 to 3, got 4"):
        x[4]


def test_arrays_of_one_axis_are_columns_and_integers_numbers(neon):
    options = {"persist_values": False, "parallel": True}
    for values in ([1, 2, 3], np.array([1, 2, 3])):
        x = neon.array(values, **options)
        assert (x.shape, x.dtype) == ((3, 1), np.float32)
    assert neon.array(2).shape == (1, 1)
    assert neon.array([1, 2], np.int32, "t", False).dtype == np.int32
    for make in (neon.zeros, neon.ones, neon.empty):
        assert make(5, **options).shape == make((5, 1), np.float32, "x", True, False).shape
    assert neon.zeros_like(x, **options).shape == neon.ones_like(x, name="y").shape == (3, 1)
    x[:] = [4, 5, 6]
    x[:2] = np.array([7, 8])
    np.testing.assert_array_equal(x.get(), [[7], [8], [6]])
    row = neon.zeros((1, 3))
    row[:] = [1, 2, 3]
    np.testing.assert_array_equal(row.get(), [[1, 2, 3]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_small_integers_are_rounded_and_limited(neon, dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = np.array([[-1e6, low - 1, low, 0.4, 1.5, 2.5, high, high + 1, 1e6]], np.float32)
    expected = np.clip(np.rint(values), low, high)
    x, target = neon.array(values), neon.zeros(values.shape, dtype)
    for source in (x, x * 1, values, x + neon.rand() * 1e-7):
        target[:] = 0
        target[:] = source
        np.testing.assert_array_equal(target.get(), expected)
    np.testing.assert_array_equal(neon.array(values, dtype).get(), expected)
    other = neon.zeros(values.shape, dtype)
    other[:] = target
    np.testing.assert_array_equal(other.get(), expected)
    target[:] = 300.0 if dtype == np.uint8 else 7.6
    assert (target.get() == (255 if dtype == np.uint8 else 8)).all()


@pytest.mark.parametrize("values", ["abc", [[1], [1, 2]], [1j], None, np.array([1j])])
def test_only_real_numbers_become_tensors(either, values):
    with pytest.raises(ValidationError, match="array: expected real numbers, in lists of equal"):
        either.array(values)
    with pytest.raises(ValidationError, match="expected real numbers, .* by assigning them"):
        either.array(either.ones((2, 2)) + 1)


@pytest.mark.parametrize("dtype", ["foo", np.complex64, "datetime64", {"a": 1}, ("f4", "x")])
def test_only_real_types_are_taken(either, dtype):
    for make in (either.zeros, either.ones, either.empty, either.array):
        with pytest.raises(ValidationError, match="expected a type of real numbers such as"):
            make((2, 2), dtype=dtype)
    with pytest.raises(ValidationError, match="expected a type of real numbers such as"):
        gen_backend(datatype=dtype)


def test_new_tensors_are_like_something_with_a_shape_and_copies(either):
    for make in (either.zeros_like, either.ones_like, either.empty_like):
        with pytest.raises(ValidationError, match=r"a tensor, tree or array to be like, got \[1\]"):
            make([1])
    x = either.ones((2, 3))
    copied = either.array(x)
    x[:] = 0
    np.testing.assert_array_equal(copied.get(), np.ones((2, 3)))


# -- trees and gradients ---------------------------------------------------------------------


def test_a_shape_that_would_need_a_copy_is_refused(be):
    with pytest.raises(ValidationError, match="without a copy|would copy"):
        be.ones((3, 4)).T.reshape(12)


def test_assignments_can_be_built_and_executed(either):
    x, out, tree = either.ones((2, 3)), either.zeros((2, 3)), None
    tree = OpTreeNode({"op": "assign", "shape": (2, 3)}, out, x + 1)
    assert not out.get().any()
    assert either.execute(tree) is tree.execute() is out
    np.testing.assert_array_equal(out.get(), 2)
    transposed = either.empty((3, 2))
    out[:] = [[1, 2, 3], [4, 5, 6]]
    assert (x * out).transpose(transposed) is out.transpose(out=transposed) is transposed
    np.testing.assert_array_equal(transposed.get(), out.get().T)


def test_gradients_without_a_tensor_in_them_evaluate(either):
    x, y = random(either, 2, 3), either.ones((3, 2))
    for tree, expected in (
        (x, 1), (x + 1, 1), (either.sum(x), 1), (x > 2, 0), (x - x, 0), (either.transpose(x), 1),
        (x[0], [[1, 1, 1], [0, 0, 0]]), (either.dot(x, y), 2), (either.floor(x), 0),
    ):  # fmt: skip
        (gradient,) = Autodiff(tree, either).get_grad_op_tree([x])
        for found in (gradient.asnumpyarray(), (gradient * 1).astensor().get()):
            np.testing.assert_array_equal(found, np.broadcast_to(expected, (2, 3)))


def test_gradients_can_be_asked_again_with_other_tensors_and_after_a_cleanup(either):
    x, y = random(either, 2, 3), random(either, 2, 3, seed=1)
    ad = Autodiff(x * x * y, either)
    first = ad.get_grad_asnumpyarray([x])
    np.testing.assert_allclose(ad.get_grad_asnumpyarray([y])[0], x.get() ** 2, 1e-5)
    np.testing.assert_array_equal(ad.get_grad_asnumpyarray([x]), first)
    ad.cleanup()
    np.testing.assert_array_equal(ad.get_grad_asnumpyarray([x]), first)


def test_an_array_of_indices_picks_and_is_differentiated(be):
    x = random(be, 4, 3)
    a, i = x.get(), be.array(np.array([2, -1, 2]))
    for tree, expected in ((x[i], a[[2, -1, 2]]), (x[[0, -2]], a[[0, -2]]),
                           ((x * 2)[:, np.array([1])], 2 * a[:, [1]])):  # fmt: skip
        np.testing.assert_array_equal(got(tree), expected)
    (gradient,) = Autodiff(x[i], be).get_grad_asnumpyarray([x])
    np.testing.assert_array_equal(gradient[:, 0], [0, 0, 2, 1])
