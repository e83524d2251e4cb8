"""Initializers: shapes, statistics, reproducibility, descriptions, and errors."""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brainstorm import initializers
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import InitializationError, UnknownTypeError, ValidationError, shown
from brainstorm.initializers import (
    ArrayInitializer,
    DenseSqrtFanIn,
    DenseSqrtFanInOut,
    EchoState,
    Gaussian,
    Identity,
    Initializer,
    LstmOptInit,
    Orthogonal,
    RandomWalk,
    SparseInputs,
    SparseOutputs,
    Uniform,
    as_initializer,
    evaluate_initializer,
)
from brainstorm.randomness import RandomState, global_rnd
from tests.networks import build

EXAMPLES = [
    (ArrayInitializer([[1, 2], [3, 4]]), (2, 2)),
    (ArrayInitializer(0.5), (3, 1, 2)),
    (Gaussian(0.5, mean=2.0), (3,)),
    (Uniform(0.3), (4, 5)),
    (Uniform(1.0, 2.0), ()),
    (DenseSqrtFanIn("tanh"), (5, 2, 2, 3)),
    (DenseSqrtFanIn(0.7), (5, 2)),
    (DenseSqrtFanInOut(), (5, 2)),
    (EchoState(0.9), (6, 6)),
    (Identity(scale=0.5), (4, 4)),
    (Identity(enforce_square=False), (4, 3)),
    (LstmOptInit(Gaussian(), 1, 2.0, Uniform()), (8, 3)),
    (Orthogonal(1.5), (3, 5)),
    (RandomWalk("rel"), (4, 4)),
    (RandomWalk(scale=1.1), (4, 4)),
    (SparseInputs(Gaussian(), 3), (5, 4)),
    (SparseOutputs(1.0, 3), (5, 4)),
]
each_example = pytest.mark.parametrize(
    ("initializer", "shape"), EXAMPLES, ids=[type(e).__name__ for e, _ in EXAMPLES]
)


def test_every_public_class_has_an_example():
    public = {getattr(initializers, name) for name in initializers.__all__}
    classes = {c for c in public if isinstance(c, type) and issubclass(c, Initializer)}
    assert classes - {Initializer} == {type(e) for e, _ in EXAMPLES}


@each_example
def test_result_depends_on_the_seed_alone_and_comes_back_from_strict_json(initializer, shape):
    first = evaluate_initializer(initializer, shape, seed=3)
    assert first.shape == shape
    assert np.isfinite(first).all()
    if not isinstance(initializer, ArrayInitializer | SparseOutputs):
        assert not np.array_equal(first, evaluate_initializer(initializer, shape, seed=4))
    text = json.dumps(get_description(initializer), allow_nan=False)
    described = create_from_description(json.loads(text))
    assert type(described) is type(initializer)
    for again in (initializer, described):
        assert np.array_equal(first, evaluate_initializer(again, shape, seed=3))


def test_global_seed_makes_new_initializers_repeatable_whose_calls_differ():
    results = []
    for _ in range(2):
        global_rnd.set_seed(42)
        results.append([Gaussian()((3,)), SparseInputs(Uniform(), 2)((3, 3))])
    for first, second in zip(*results, strict=True):
        assert np.array_equal(first, second)
    initializer = Gaussian()
    drawn = initializer((4,)), initializer((4,)), evaluate_initializer(initializer, [4])
    assert len({array.tobytes() for array in drawn}) == 3
    assert as_initializer(initializer) is initializer


# -- values -------------------------------------------------------------------------------------


#: Initializer, shape, and what each element has as mean and deviation.
STATISTICS = [
    (Gaussian(0.5, mean=2.0), (2, 3), 2.0, 0.5),
    (Uniform(-1, 3), (2, 3), 1.0, 4 / 12**0.5),
    (DenseSqrtFanIn("linear"), (2, 3), 0.0, 1 / 3),
    (DenseSqrtFanIn("rel"), (2, 3, 2), 0.0, (2 / 6) ** 0.5),
    (DenseSqrtFanInOut("linear"), (2, 3), 0.0, 1 / 15**0.5),
    (Orthogonal(), (2, 2), 0.0, 2**-0.5),
    (Orthogonal(), (2, 3), 0.0, 3**-0.5),
    (Orthogonal(2.0), (3, 2), 0.0, 2 * 3**-0.5),
    (Orthogonal(), (2, 2, 2), 0.0, 0.5),
    (Identity(2.0, 0.1), (2, 2), 2 * np.eye(2), 0.1),
    (RandomWalk(), (3, 3), 0.0, np.exp(1 / 6) / 3),
    (EchoState(), (3, 3), 0.0, None),
    (SparseInputs(Gaussian(0.5), 1), (3, 2), 0.0, 0.5 * 3**-0.5),
    (SparseOutputs(Gaussian(0.5), 1), (3, 2), 0.0, 0.5 * 2**-0.5),
]


@pytest.mark.parametrize(("initializer", "shape", "mean", "deviation"), STATISTICS)
def test_every_element_has_the_mean_and_deviation_of_its_distribution(
    initializer, shape, mean, deviation
):
    initializer.rnd = RandomState(3)
    drawn = np.array([initializer(shape) for _ in range(4000)]) - mean
    # Of this many elements none is further off than 4 standard errors, whatever the shape is.
    assert_zero(drawn)
    if deviation is not None:
        assert_zero(drawn**2 - deviation**2)


def assert_zero(samples):
    errors = samples.std(axis=0) / len(samples) ** 0.5
    assert (np.abs(samples.mean(axis=0)) < 4 * errors).all()


@pytest.mark.parametrize("n", [2, 3])
def test_orthogonal_matrices_are_uniform(n):
    initializer = Orthogonal()
    initializer.rnd = RandomState(1)
    drawn = np.array([initializer((n, n)) for _ in range(4000)])
    assert_zero(np.linalg.det(drawn))  # reflections are as probable as rotations
    traces = np.trace(drawn, axis1=1, axis2=2)  # Diaconis and Shahshahani, 1994: moments 0, 1, 0
    for moment, expected in ((1, 0), (2, 1), (3, 0)):
        assert_zero(traces**moment - expected)
    turned = np.linalg.qr(np.arange(n * n).reshape(n, n) ** 2.0 + 1)[0] @ drawn
    assert_zero(turned)
    assert_zero(turned**2 - 1 / n)


@pytest.mark.parametrize(
    ("initializer", "low", "high"),
    [
        (Uniform(), -0.1, 0.1),
        (Uniform(0.3), -0.3, 0.3),
        (Uniform(-0.3), -0.3, 0.3),
        (Uniform(1, 3), 1, 3),
        (Uniform(-2, -1), -2, -1),
    ],
)
def test_uniform_fills_its_interval(initializer, low, high):
    values = evaluate_initializer(initializer, (100, 100), seed=0)
    assert low <= values.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < values.max() <= high


LIKE_REL = (
    *("rel", "relu", "el", "elu", "leaky_rel", "leaky_relu"),
    *("gelu", "silu", "swish", "mish", "hard_swish"),
)


@pytest.mark.parametrize(
    ("scale", "fan_in", "fan_in_out"),
    [
        *((name, 6**0.5, 12**0.5) for name in LIKE_REL),
        *((name, 3**0.5, 6**0.5) for name in ("tanh", "selu")),
        ("sigmoid", 4 * 3**0.5, 4 * 6**0.5),
        *((scale, 1, 1) for scale in ("linear", 1.0)),
        (0.5, 0.5, 0.5),
    ],
)
def test_dense_bounds(scale, fan_in, fan_in_out):
    for cls, factor, connections in (
        (DenseSqrtFanIn, fan_in, 50),
        (DenseSqrtFanInOut, fan_in_out, 90),
    ):
        values = evaluate_initializer(cls(scale), (40, 5, 10), seed=0)
        bound = factor / connections**0.5
        assert 0.98 * bound < np.abs(values).max() <= bound


def test_echo_state_has_the_spectral_radius():
    values = evaluate_initializer(EchoState(0.7), (9, 9), seed=0)
    assert np.abs(np.linalg.eigvals(values)).max() == pytest.approx(0.7)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=4))
@example([4, 3, 3, 2])
def test_orthogonal(shape):
    values = Orthogonal(2.0)(shape).reshape(shape[0], -1)
    product = values @ values.T if values.shape[0] <= values.shape[1] else values.T @ values
    assert product == pytest.approx(4 * np.eye(min(values.shape)), abs=1e-9)


@pytest.mark.parametrize(
    ("act_func", "n", "factor"),
    [
        ("linear", 50, np.exp(1 / 100)),
        ("rel", 50, 2**0.5 * np.exp(1.2 / 47.6)),
        ("relu", 4, 2**0.5 * np.exp(1.2 / 3.6)),
    ],
)
def test_random_walk(act_func, n, factor):
    plain = evaluate_initializer(RandomWalk(act_func, scale=1.0), (n, n), seed=0)
    values = evaluate_initializer(RandomWalk(act_func), (n, n), seed=0)
    assert values == pytest.approx(factor * plain)
    assert plain.std() == pytest.approx(1 / n, rel=0.3)


def test_lstm_opt_init_has_four_blocks():
    values = LstmOptInit(1, [[2, 2], [3, 3]], ArrayInitializer(5), Uniform(7.0, 7.0))((8, 2))
    assert np.array_equal(values[:, 0], [1, 1, 2, 3, 5, 5, 7, 7])


@settings(max_examples=20)
@given(connections=st.integers(1, 4), more=st.integers(0, 5), other=st.integers(1, 6))
def test_sparse_initializers_keep_exactly_the_connections(connections, more, other):
    values = SparseInputs(3.0, connections)((connections + more, other))
    assert (np.count_nonzero(values, axis=0) == connections).all()
    values = SparseOutputs(3.0, connections)((other, connections + more))
    assert (np.count_nonzero(values, axis=1) == connections).all()


def test_array_initializer_keeps_a_copy_and_returns_copies():
    given_array = np.ones((2, 2))
    initializer = ArrayInitializer(given_array)
    given_array[:] = 5
    initializer((2, 2))[:] = 6
    assert np.array_equal(initializer((2, 2)), np.ones((2, 2)))


# -- conversion and evaluation ------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.int64(2), [2, 2], (2, 2), np.full(2, 2)]
)
def test_plain_values_are_initializers(value):
    assert isinstance(as_initializer(value), ArrayInitializer)
    assert np.array_equal(evaluate_initializer(value, (2,)), [2, 2])


@pytest.mark.parametrize("value", ["rel", None, {"W": 1}, Gaussian])
def test_other_values_are_type_errors(value):
    text = re.escape(f"expected an Initializer, a number, a list or an array, got {shown(value)}.")
    with pytest.raises(UnknownTypeError, match=f"^{text}$") as error:
        as_initializer(value)
    assert isinstance(error.value, TypeError)


def test_fallback_serves_shapes_that_the_first_cannot():
    assert np.array_equal(evaluate_initializer(Orthogonal(), (3,), fallback=1), np.ones(3))
    assert evaluate_initializer(Orthogonal(), (3, 3), fallback=1).shape == (3, 3)
    first = evaluate_initializer(Orthogonal(), (3,), fallback=Gaussian(), seed=5)
    assert np.array_equal(first, evaluate_initializer(Gaussian(), (3,), seed=5))
    with pytest.raises(InitializationError, match="EchoState"):
        evaluate_initializer(Orthogonal(), (3,), fallback=EchoState())


def test_values_that_are_not_finite_are_refused_whatever_the_fallback():
    class Infinite(Initializer):
        def __call__(self, shape):
            return np.full(shape, math.inf)

    text = r"Infinite\(\): expected finite numbers from it, "
    with pytest.raises(InitializationError, match=f"^{text}"):
        evaluate_initializer(Infinite(), (3, 3), fallback=0)
    net = build("mlp")
    with pytest.raises(InitializationError, match=f"^parameter '.*.parameters.W': {text}"):
        net.initialize({"default": 0.0, "*": {"W": Infinite()}})


@pytest.mark.parametrize(
    ("values", "got"),
    [(np.zeros((1, 2)), r"float64 of shape \(1, 2\)"), (["x", "x"], r"<U1 of shape \(2,\)")],
)
def test_users_initializer_is_checked(values, got):
    class Own(Initializer):
        def __call__(self, shape):
            return np.array(values)

    text = rf"^Own: expected an array of numbers of shape \(2,\) from it, got {got}. Correct its __"
    with pytest.raises(InitializationError, match=text):
        evaluate_initializer(Own(), (2,))
    with pytest.raises(NotImplementedError, match="Initializer does not define __call__"):
        Initializer()((1,))


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initializer", "shape", "expected"),
    [
        (ArrayInitializer([1, 2]), (3,), "ArrayInitializer: expected the shape of its array, (2,)"),
        (ArrayInitializer([1, 2]), (1, 2), "expected the shape of its array, (2,)"),
        (DenseSqrtFanIn(), (3,), "DenseSqrtFanIn: expected a shape with at least 2 dimensions"),
        (DenseSqrtFanIn(), (3, 0), "none of size 0"),
        (DenseSqrtFanInOut(), (), "DenseSqrtFanInOut: expected a shape with at least 2 dimensions"),
        (EchoState(), (3, 2), "EchoState: expected a square shape (n, n)"),
        (EchoState(), (3,), "expected a square shape (n, n)"),
        (EchoState(), (0, 0), "expected a matrix with an eigenvalue other than 0"),
        (Identity(), (3, 2), "Identity: expected a square shape (n, n)"),
        (Identity(enforce_square=False), (3,), "expected a shape with 2 dimensions"),
        (LstmOptInit(), (6, 2), "LstmOptInit: expected a first dimension that is a multiple of 4"),
        (LstmOptInit(), (), "a multiple of 4"),
        (Orthogonal(), (3,), "Orthogonal: expected a shape with at least 2 dimensions"),
        (RandomWalk(), (3, 2), "RandomWalk: expected a square shape (n, n)"),
        (RandomWalk(), (0, 0), "RandomWalk: expected a square shape (n, n) with n > 0"),
        (SparseInputs(1, 3), (2, 9), "SparseInputs: expected at least 3 on dimension 0"),
        (SparseOutputs(1, 3), (9, 2), "SparseOutputs: expected at least 3 on dimension 1"),
        (SparseOutputs(1, 3), (9,), "SparseOutputs: expected a shape with 2 dimensions"),
    ],
)
def test_shapes_that_cannot_be_served(initializer, shape, expected):
    with pytest.raises(InitializationError) as error:
        initializer(shape)
    text = str(error.value)
    assert expected in text
    assert f"got {shape}. Use another initializer for this parameter, or give a fallback." in text


def test_standard_deviation_and_mean_in_the_wrong_order():
    swapped = create_from_description(get_description(Gaussian(0, 1)))  # as in older files
    text = r"expected std > 0, got 0, and the mean 1\. The order is Gaussian\(std, mean\)"
    with pytest.raises(ValidationError, match=text):
        swapped((2, 3))
    assert not Gaussian(0)((2, 3)).any()


@pytest.mark.parametrize(
    ("cls", "arguments", "text"),
    [
        (ArrayInitializer, [[[1], [2, 3]]], "ArrayInitializer: expected rows of equal length"),
        (ArrayInitializer, [["a"]], "ArrayInitializer: expected real numbers, got <U1 values"),
        (ArrayInitializer, [1j], "expected real numbers, got complex128 values"),
        (Gaussian, [-1], r"Gaussian.std: expected a finite number >= 0, got -1"),
        (Uniform, [2, 1], "Uniform: expected low <= high, got 2 and 1"),
        (Uniform, [-1e308, 1e308], "Uniform: expected a finite distance from low to high, got -1"),
        (DenseSqrtFanIn, ["sigmoi"], "DenseSqrtFanIn: unknown scale 'sigmoi'. Choices are: rel, ta"
         ".*Did you mean 'sigmoid'.* Or give a number"),
        (DenseSqrtFanIn, [math.inf], "DenseSqrtFanIn: unknown scale inf. Choices are: "),
        (EchoState, [-1], "EchoState.spectral_radius: expected a finite number >= 0, got -1"),
        (DenseSqrtFanInOut, [[1]],
         r"DenseSqrtFanInOut.scale: expected a string or a number, got \[1\]"),
        (RandomWalk, ["tanh"],
         "RandomWalk.act_func: expected one of 'linear', 'rel', 'relu', got 'tanh'"),
        (LstmOptInit, [None], "expected an Initializer, a number"),
        (SparseInputs, [1, 0], "SparseInputs.connections: expected an int >= 1, got 0"),
    ],
)  # fmt: skip
def test_arguments_are_checked_at_once(cls, arguments, text):
    with pytest.raises(ValidationError, match=text):
        cls(*arguments)


def test_initializers_of_2015_refuse_vectors():
    class Rows(Initializer):
        def __call__(self, shape):
            self._assert_atleast2d(shape)
            return np.ones(shape)

    assert evaluate_initializer(Rows(), (2, 3), fallback=2).sum() == 6
    assert evaluate_initializer(Rows(), (3,), fallback=2).sum() == 6
    with pytest.raises(InitializationError, match="Rows: expected a shape with at least 2 dimens"):
        Rows()((3,))
