"""Matrix products: against NumPy, on every form of array, and what they cost when repeated."""

import numpy as np
import pytest

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler, packed_products
from brainstorm.handlers.native import products as products_module
from tests.handlers.native.lowered import check_random_calls, native_calls

REFERENCE = NumpyHandler(np.float64, seed=1)


@pytest.fixture(params=[True, False], ids=["all sizes", "some sizes"])
def native(native, monkeypatch, request):
    """One primitive for products of all sizes, or some for one size, whatever is faster here."""
    if request.param is None:
        return request.getfixturevalue("without")
    monkeypatch.setattr(products_module, "takes_all_sizes", lambda library: request.param)
    return native


also_without = pytest.mark.parametrize(
    "native", [True, False, None], indirect=True, ids=["all sizes", "some sizes", "no library"]
)


SIZES = [1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 137, 144]


def stored(rng, shape, transposed=False):
    """A matrix: contiguous, part of a wider one, or stored by columns; `transposed`: its T."""
    rows, columns = shape[::-1] if transposed else shape
    kind = rng.integers(4)
    if kind == 0:
        return rng.standard_normal((rows, columns), np.float32)
    if kind == 1:
        return rng.standard_normal((rows, columns + 5), np.float32)[:, 2:-3]
    if kind == 2:
        return rng.standard_normal((columns, rows), np.float32).T
    return rng.standard_normal((3, rows + 2, columns), np.float32)[1, 1:-1]


def operands(seed):
    rng = np.random.default_rng(seed)
    m, k, n = (int(rng.choice(SIZES)) for _ in range(3))
    transa, transb = bool(rng.integers(2)), bool(rng.integers(2))
    a, b = stored(rng, (m, k), transa), stored(rng, (k, n), transb)
    wide = rng.standard_normal((m, n + 3), np.float32)
    product = (a.T if transa else a).astype(np.float64) @ (b.T if transb else b)
    arguments = {"a": a, "b": b, "out": wide[:, 1:-2], "transa": transa, "transb": transb}
    return arguments, wide, product


def after(wide, product, add):
    """Return what a matrix is when a product is written to its middle, or added there."""
    expected = wide.astype(np.float64)
    expected[:, 1:-2] = product + (expected[:, 1:-2] if add else 0)
    return expected


@pytest.mark.parametrize("add", [False, True])
def test_random_products(native, add):
    name = "dot_add_mm" if add else "dot_mm"
    by_library = 0
    for seed in range(200):
        arguments, wide, product = operands(seed)
        expected = after(wide, product, add)
        by_library += native_calls(native, name, arguments) is not None
        getattr(native, name)(**arguments)
        np.testing.assert_allclose(wide, expected, 1e-5, 1e-5, err_msg=str(arguments))
    assert by_library > 190


def test_random_stacks_of_products(native):
    check_random_calls(native, "batched_dot_mm", strided=True, count=48)


@pytest.mark.parametrize("transb", [False, True])
@pytest.mark.parametrize("transa", [False, True])
@pytest.mark.parametrize("rows", [1100, 1024, 1536])
def test_products_that_are_worth_rearranging(native, rows, transa, transb):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((rows, 72)), rng.standard_normal((72, 50))
    x, y = (v.astype(np.float32) for v in (a, b))
    x, y = (np.ascontiguousarray(v.T if t else v) for v, t in ((x, transa), (y, transb)))
    out = np.ones((rows, 50), np.float32)
    arguments = {"a": x, "b": y, "out": out, "transa": transa, "transb": transb}
    if products_module.takes_all_sizes(native._library):
        copies = transa and rows % 512 == 0
    else:  # 1100 rows are uncommon, those of the transposed x are 72
        copies = rows % 1024 == 0 if transa else rows != 1100
    assert len(native_calls(native, "dot_add_mm", arguments)) == 1 + copies
    native.dot_add_mm(**arguments)
    np.testing.assert_allclose(out, 1 + a @ b, 1e-4, 1e-4)


def refused():
    """Arguments that oneDNN does not get."""
    rng = np.random.default_rng(0)
    f = lambda *shape: rng.standard_normal(shape, np.float32)  # noqa: E731
    n = 60  # what is smaller is not oneDNN's
    square, wide = f(n, n), f(2 * n, 2 * n)
    yield "more axes than the others", (f(2, n, n), f(n, n), f(2, n, n))
    yield "nothing to add up", (f(3, 0), f(0, 4), f(3, 4))
    yield "nothing to write", (f(0, 3), f(3, 4), f(0, 4))
    yield "every second element", (wide[::2, ::2], f(n, n), f(n, n))
    yield "backwards", (square[::-1], f(n, n), f(n, n))
    yield "repeated rows", (np.broadcast_to(f(n), (n, n)), f(n, n), f(n, n))
    yield "another type", (f(n, n).astype(np.float64), f(n, n), f(n, n))
    yield "in place", (square, f(n, n), square)
    yield "overlapping", (wide[:n, :n], f(n, n), wide[3 : n + 3, 3 : n + 3])


@pytest.mark.parametrize("case", [name for name, _ in refused()])
def test_what_numpy_does(native, case):
    a, b, out = dict(refused())[case]
    assert native_calls(native, "dot_mm", {"a": a, "b": b, "out": out}) is None
    expected = a.astype(np.float64) @ b
    native.dot_mm(a, b, out)
    np.testing.assert_allclose(out, expected, 1e-5, 1e-5)


@also_without
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_many_positive_summands(native, rows, columns, rng):
    """As of gradients of one unit for a million rows."""
    a, b = (rng.random((2**20, n), np.float32) for n in (rows, columns))
    out, expected = np.ones((rows, columns), np.float32), a.T.astype(float) @ b
    native.dot_mm(a, b, out, transa=True)
    np.testing.assert_allclose(out, expected, 1e-5)
    native.dot_add_mm(a, b, out, transa=True)
    np.testing.assert_allclose(out, 2 * expected, 1e-5)
    if columns == 1:
        native.affine_mm(a.T, b.T, np.full(1, 0.5, np.float32), out, "linear")
        np.testing.assert_allclose(out, expected + 0.5, 1e-5)
    with pytest.raises(ValueError, match="mismatch"):
        native.dot_mm(a, b, np.ones((rows + 1, columns), np.float32), transa=True)


@also_without
def test_affine(native):
    rng = np.random.default_rng(1)
    for activation in native.activations:
        for _ in range(4):
            m, k, n = (int(rng.choice(SIZES)) for _ in range(3))
            a, b = stored(rng, (m, k)), stored(rng, (n, k))
            wide, bias = np.zeros((m, n + 2), np.float32), stored(rng, (n, 1))[:, 0]
            out, expected = wide[:, 1:-1], np.zeros((m, n))
            x = (a.astype(np.float64) @ b.T + bias).clip(-80, 80)
            if np.abs(x).max() > 79:
                continue
            REFERENCE.act_func[activation](x, expected)
            native.affine_mm(a, b, bias, out, activation)
            np.testing.assert_allclose(out, expected, 2e-4, 2e-5, err_msg=activation)
            assert not wide[:, [0, -1]].any()


@also_without
def test_affine_without_rows_or_columns(native):
    for m, n in ((0, 2), (2, 0), (0, 0)):
        a, b, bias, out = (np.ones(shape, np.float32) for shape in ((m, 3), (n, 3), n, (m, n)))
        native.affine_mm(a, b, bias, out, "linear")


def test_which_activations_are_fused(native):
    a, b, bias = (np.ones(shape, np.float32) for shape in ((4, 4), (4, 4), (4,)))
    arguments = {"a": a, "b": b, "bias": bias, "out": np.ones((4, 4), np.float32)}
    alone = set()
    for name in native.activations:
        calls = native_calls(native, "affine_mm", {**arguments, "activation": name})
        if calls is None or len(calls) > 1:
            alone.add(name)
    assert alone == {"exp", "rel", "relu", "hard_sigmoid", "hard_swish", "selu", "mish", "softplus"}


@pytest.mark.parametrize("rows", [1, 801])
@pytest.mark.parametrize("activation", NativeHandler.activations)
def test_activations_of_products_are_as_exact_as_others_and_have_the_right_sign(
    native, activation, rows
):
    sizes = np.logspace(-6, 1.9, 400)  # up to 79
    x = np.concatenate([-sizes, sizes, [0.0]]).astype(np.float32)
    a, b = (x, np.ones(1)) if rows > 1 else (np.ones(1), x)
    a, b = (np.asarray(each, np.float32).reshape(-1, 1) for each in (a, b))
    out = np.zeros((len(a), len(b)), np.float32)
    expected = np.zeros(out.shape)
    native.affine_mm(a, b, np.zeros(len(b), np.float32), out, activation)
    REFERENCE.act_func[activation](x.astype(np.float64).reshape(out.shape), expected)
    np.testing.assert_allclose(out, expected, 1e-5, 5e-7)  # x times the rounding of erf
    assert not (out * expected < 0).any()


@also_without
@pytest.mark.parametrize("where", ["a", "b", "bias"])
def test_nan_goes_through_every_activation(native, where):
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 4, 5), (9, 3, 1), (16, 16, 16), (70, 33, 50)):
        arrays = {"a": (m, k), "b": (n, k), "bias": (n,)}
        arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in arrays.items()}
        arrays[where].flat[-1] = np.nan
        product = arrays["a"] @ arrays["b"].T + arrays["bias"]
        for activation in native.activations:
            out = np.zeros((m, n), np.float32)
            native.affine_mm(**arrays, out=out, activation=activation)
            np.testing.assert_array_equal(np.isnan(out), np.isnan(product), activation)


# -- repeated products -----------------------------------------------------------------------


def test_random_repeated_products(native):
    for seed in range(200):
        given, wide, product = operands(seed)
        expected = after(wide, 2 * product, True)
        multiply = native.repeated_dot_add(given["b"], given["transb"])
        for _ in range(2):
            multiply(given["a"].T if given["transa"] else given["a"], given["out"])
        np.testing.assert_allclose(wide, expected, 1e-5, 2e-5)


def test_a_matrix_is_packed_as_it_is_at_each_time(native):
    a, b, out = (np.ones((40, 40), np.float32) for _ in range(3))
    first = native.repeated_dot_add(b)
    first(a, out)
    b *= 2
    first(a, out)
    assert out[0, 0] == 81
    native.repeated_dot_add(b)(a, out)
    first(a, out)
    assert out[0, 0] == 81 + 160


def test_packed_memory_goes_when_memory_moves_and_what_was_not_packed_is_taken_as_it_is(native):
    a, b, out = (np.ones((40, 40), np.float32) for _ in range(3))
    product = native.repeated_dot_add(b)
    assert len(native.lane.packed) == 1
    native.lane.clear()
    for value in range(1, 4):
        b[...] = value
        product(a, out)
        assert not native.lane.packed
    assert out[0, 0] == 1 + 40 + 80 + 120


def test_matrices_that_stay_packed_are_bounded(native):
    a, out = np.ones((3, 40), np.float32), np.zeros((3, 40), np.float32)
    kept = [np.full((40, 40), k, np.float32) for k in range(packed_products.MOST_PACKED + 9)]
    packed = [native.repeated_dot_add(b) for b in kept]
    assert len(native.lane.packed) == packed_products.MOST_PACKED
    for k, product in enumerate(packed):
        out[...] = 0
        product(a, out)
        np.testing.assert_array_equal(out, np.full((3, 40), 40 * k))


@pytest.mark.parametrize("k", [4, 300])
def test_a_matrix_whose_copy_was_dropped_is_packed_again(k, native):
    rng = np.random.default_rng(0)
    a, b, *others = (
        rng.standard_normal((k, k), np.float32) for _ in range(packed_products.MOST_PACKED + 2)
    )
    for matrix in (b, *others):
        native.pack_m(matrix)
    native.pack_m(b.T, transb=True)
    b[...] = 2 * b
    native.pack_m(b)
    out = np.zeros((k, k), np.float32)
    native.dot_add_packed(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-3, atol=1e-3)


# -- cost and repeatability ------------------------------------------------------------------


def products(handler, a, b, bias, out):
    handler.dot_mm(a, b, out)
    handler.dot_add_mm(a, b, out, transa=True)
    handler.affine_mm(a, b, bias, out, activation="tanh")
    handler.dot_add_packed(a, b, out)


def test_a_second_call_creates_nothing(native, counted):
    a, b, out = np.random.default_rng(0).standard_normal((3, 320, 320), np.float32)
    bias = np.ones(320, np.float32)
    for _ in range(2):  # memory grows to what the largest needs
        products(native, a, b, bias, out)
    assert "matmul" in counted
    assert ("reorder" in counted) == (not products_module.takes_all_sizes(native._library))
    held = [id(memory) for memory in native.lane.held.values()]
    counted.clear()
    products(native, a, b, bias, out)
    products(native, a[:], b[:], bias[:], out[:])
    assert counted == []
    assert [id(memory) for memory in native.lane.held.values()] == held


def test_numbers_of_rows_that_are_not_common_share_primitives(native, counted):
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((1200, 90), np.float32), np.eye(90, dtype=np.float32)
    deltas, gradients = np.ones((1200, 90), np.float32), np.zeros((90, 90), np.float32)
    for rows in range(200, 1200, 23):
        native.dot_mm(x[:rows], weights, deltas[:rows])
        np.testing.assert_array_equal(deltas[:rows], x[:rows])
        native.dot_mm(x[:rows], deltas[:rows], gradients, transa=True)
        np.testing.assert_allclose(gradients, x[:rows].T @ x[:rows], 1e-4, 1e-3)
        stacks = x[:rows].reshape(rows, 9, 10), np.zeros((rows, 9, rows), np.float32)
        native.batched_dot_mm(stacks[0], stacks[0], stacks[1], transb=True)
    assert counted.count("matmul") < 60


def test_a_library_without_code_for_all_sizes_has_it_for_each(native, counted, monkeypatch):
    assert products_module.has_code_for_all_sizes(native._library)
    for name in ("takes_all_sizes", "has_code_for_all_sizes"):
        monkeypatch.setattr(products_module, name, lambda library: False)
    x, out = np.ones((600, 90), np.float32), np.zeros((600, 90), np.float32)
    for rows in (501, 503, 507):
        native.dot_mm(x[:rows], x[:90], out[:rows])
        np.testing.assert_array_equal(out[:rows], np.full((rows, 90), 90))
    assert counted.count("matmul") == 3


def test_primitives_are_shared_by_arrays_of_the_same_form(native, counted):
    for _ in range(3):
        a, b, out = (np.ones((99, 99), np.float32) for _ in range(3))
        native.dot_mm(a, b, out)
        assert out[0, 0] == 99
    assert counted.count("matmul") == counted.count("dnnl_primitive") == 1


def test_same_bits(native):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((333, 1000), np.float32), rng.standard_normal((1000, 77), np.float32)
    found = set()
    for _ in range(10):
        out, handler = np.zeros((333, 77), np.float32), NativeHandler(seed=1)
        handler.dot_mm(a, b, out)
        handler.dot_add_packed(a, b, out)
        found.add(out.tobytes())
    assert len(found) == 1


# -- bfloat16 --------------------------------------------------------------------------------


def test_random_products_in_bfloat16(half):
    """Each factor is off by up to one part in 2 ** 8, each sum by as much as float32 allows."""
    for seed in range(200):
        given, _, expected = operands(seed)
        half.dot_mm(**given)
        left, right = (np.abs(given[name]) for name in "ab")
        largest = (left.T if given["transa"] else left) @ (right.T if given["transb"] else right)
        np.testing.assert_array_less(np.abs(given["out"] - expected), 2**-7 * largest + 1e-6)


@pytest.mark.parametrize("native", [False], indirect=True, ids=["some sizes"])  # as with AMX
def test_bfloat16_is_another_product_and_keeps_the_memory_in_float32(half, native):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 128, 128), np.float32)
    exact, rounded = np.zeros((2, 128, 128), np.float32)
    native.dot_mm(a, b, exact)
    half.dot_mm(a, b, rounded)
    assert 1e-4 < np.abs(exact - rounded).max() < 0.5
    assert half.info()["compute"] == "bf16"
    again = create_from_description(get_description(half))
    assert again.info()["compute"] == "bf16"


def test_a_cpu_without_bfloat16(native, monkeypatch):
    monkeypatch.setattr(products_module, "has_half_products", lambda library: False)
    with pytest.raises(HandlerValidationError, match=r"no code for it on this CPU \(it needs AMX"):
        NativeHandler(compute="bf16")


def test_repeated_products_in_bfloat16(half):
    rng = np.random.default_rng(0)
    for m, k, n, transb in ((32, 256, 1024, True), (32, 1024, 256, False), (5, 100, 300, True)):
        b = rng.standard_normal((n, k) if transb else (k, n), np.float32)
        multiply = half.repeated_dot_add(b, transb)
        wide = rng.standard_normal((m, k + 3), np.float32)
        for a in (wide[:, 1:-2], rng.standard_normal((m, k), np.float32)):
            out = np.ones((m, n), np.float32)
            multiply(a, out)
            right = b.T if transb else b
            expected = 1 + a.astype(np.float64) @ right
            bound = 2**-7 * (np.abs(a).astype(np.float64) @ np.abs(right))
            np.testing.assert_array_less(np.abs(out - expected), bound)
