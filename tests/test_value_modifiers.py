"""Modifiers: results on handlers, reuse of memory, descriptions, and errors."""

import copy
import json
import pickle
from math import inf, nan

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brainstorm import value_modifiers
from brainstorm import value_modifiers as vm
from brainstorm.data_iterators import Minibatches
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import NetworkValidationError, ValidationError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import FullyConnected
from brainstorm.network import Network
from tests.networks import build, classifier, data_for
from tests.trainings import Call, make_trainer


@pytest.fixture(params=["numpy32", "numpy64", "debug"])
def handler(request):
    if request.param == "debug":
        return DebugHandler(NumpyHandler(np.float64))
    return NumpyHandler(np.float32 if request.param == "numpy32" else np.float64)


def on(handler, values):
    values = np.asarray(values, dtype=handler.dtype)
    array = handler.allocate(values.shape)
    handler.set_from_numpy(array, values)
    return array


def apply(modifier, handler, values):
    array = on(handler, values)
    modifier(handler, array)
    return handler.get_numpy_copy(array)


# -- results ------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    limit=st.floats(0.01, 10),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 99),
)
@example(shape=[5, 3, 3, 2], limit=2.0, scale=1.0, seed=0)
def test_constrain_l2_norm_of_rows_and_filters(shape, limit, scale, seed):
    handler = NumpyHandler(np.float64)
    values = scale * np.random.RandomState(seed).standard_normal(shape)
    result = apply(vm.ConstrainL2Norm(limit), handler, values)
    before, after = (np.linalg.norm(v.reshape(len(v), -1), axis=1) for v in (values, result))
    assert after == pytest.approx(np.minimum(before, limit))
    assert np.array_equal(result[before < 0.999 * limit], values[before < 0.999 * limit])


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float32, s) for s in (1e-30, 1e-20, 1.0, 1e19, 1e30)] + [(np.float64, 1e200)],
)
def test_norms_of_any_size_are_constrained(dtype, scale):
    handler, rows = NumpyHandler(dtype), np.array([[-3.0, -4.0], [0.0, 0.0], [-0.3, 0.4]])
    view = handler.create_from_numpy(rows * scale)
    vm.ConstrainL2Norm(1.0 * scale)(handler, view)
    np.testing.assert_allclose(view / dtype(scale), [[-0.6, -0.8], [0, 0], [-0.3, 0.4]], 1e-6)
    before = view.copy()
    vm.ConstrainL2Norm(1e300)(handler, view)
    np.testing.assert_array_equal(view, before)


@pytest.mark.parametrize(
    ("modifier", "expected"),
    [
        (vm.ClipValues(), [-1.0, -0.5, 0.5, 1.0]),
        (vm.ClipValues(-0.5, 3.0), [-0.5, -0.5, 0.5, 2.0]),
        (vm.ClipValues(low=0), [0, 0, 0.5, 1.0]),
        (vm.ClipValues(low=0, high=None), [0, 0, 0.5, 2.0]),
        (vm.ClipValues(low=None, high=0.0), [-2.0, -0.5, 0, 0]),
        (vm.ClipValues(0.5, 0.5), [0.5, 0.5, 0.5, 0.5]),
        (vm.MaskValues([1, 0, 0.5, 1]), [-2.0, 0, 0.25, 2.0]),
        (vm.FreezeValues([5, 6, 7, 8]), [5, 6, 7, 8]),
        (vm.ConstrainL2Norm(0.1), [-2.0, -0.5, 0.5, 2.0]),  # a bias has no rows
    ],
)
def test_values(handler, modifier, expected):
    assert np.array_equal(apply(modifier, handler, [-2.0, -0.5, 0.5, 2.0]), expected)


def test_decays_add_to_the_gradient_and_others_modify_it_alone(handler):
    parameters = on(handler, [[-2.0, 0.0, 4.0]])
    for modifier, expected in (
        (vm.L1Decay(0.5), [[0.5, 1, 1.5]]),
        (vm.L2Decay(0.5), [[0, 1, 3]]),
        (vm.ClipValues(-1, 0.5), [[0.5, 0.5, 0.5]]),
    ):
        gradients = on(handler, [[1.0, 1.0, 1.0]])
        vm.apply_to_gradient(modifier, handler, parameters, gradients)
        assert np.array_equal(handler.get_numpy_copy(gradients), expected)
    assert np.array_equal(handler.get_numpy_copy(parameters), [[-2, 0, 4]])


# -- memory -------------------------------------------------------------------------------------

EXAMPLES = {
    "ConstrainL2Norm": lambda: vm.ConstrainL2Norm(0.5),
    "ClipValues": lambda: vm.ClipValues(-0.5, None),
    "MaskValues": lambda: vm.MaskValues(np.eye(3)),
    "FreezeValues": vm.FreezeValues,
    "L1Decay": lambda: vm.L1Decay(0.1),
    "L2Decay": lambda: vm.L2Decay(0.1),
}
each_example = pytest.mark.parametrize("name", EXAMPLES)


def test_every_public_class_has_an_example():
    bases = {"ValueModifier", "GradientModifier"}
    public = {n for n in value_modifiers.__all__ if n[0].isupper()}
    assert public - bases == set(EXAMPLES)


@each_example
def test_changing_the_handler(name):
    modifier = EXAMPLES[name]()
    results = []
    double = DebugHandler(NumpyHandler(np.float64))
    for handler in (NumpyHandler(np.float32), double, NumpyHandler(np.float32)):
        parameters, gradients = on(handler, np.full((3, 3), 0.5)), on(handler, np.ones((3, 3)))
        vm.apply_to_gradient(modifier, handler, parameters, gradients)
        results.append(handler.get_numpy_copy(gradients))
        assert results[-1].dtype == handler.dtype
    assert results[0] == pytest.approx(results[1])
    assert np.array_equal(results[0], results[2])


@each_example
def test_each_copy_allocates_memory_of_its_own_once(name):
    def counted(name, method):
        return lambda *args: calls.append(name) or method(*args)

    handler, calls, modifier = NumpyHandler(np.float32), [], EXAMPLES[name]()
    for method in ("allocate", "set_from_numpy", "get_numpy_copy"):
        setattr(handler, method, counted(method, getattr(handler, method)))
    values, results = np.ones((3, 3), np.float32), []
    vm.apply_to_gradient(modifier, handler, values.copy(), values.copy())
    twin, counts = copy.deepcopy(modifier), [len(calls)]
    for each in (modifier, twin) * 2:
        results.append(2 * values)
        vm.apply_to_gradient(each, handler, values.copy(), results[-1])
        counts.append(len(calls))
    assert all(np.array_equal(results[0], result) for result in results)
    assert counts[0] == counts[1]
    assert counts[2] == counts[-1]


class Slotted(vm.ClipValues):
    __slots__ = ("extra",)


def test_copies_have_the_slots_of_a_class_and_any_protocol_pickles_them():
    modifier = Slotted(-1.0, 1.0)
    modifier.extra = 5
    pickled = [pickle.loads(pickle.dumps(modifier, protocol)) for protocol in range(6)]
    for copied in (copy.copy(modifier), copy.deepcopy(modifier), *pickled):
        assert (type(copied), copied.extra, copied.high) == (Slotted, 5, 1.0)


# -- descriptions -------------------------------------------------------------------------------


@each_example
def test_description_is_strict_json_and_comes_back(name):
    handler, modifier = NumpyHandler(np.float32), EXAMPLES[name]()
    modifier.layer_name, modifier.view_name = "Dense", "W"
    start = np.random.RandomState(0).standard_normal((3, 3)).astype(np.float32)
    vm.apply_to_gradient(modifier, handler, start.copy(), start.copy())
    text = json.dumps(get_description(modifier), allow_nan=False)
    again = create_from_description(json.loads(text))
    assert type(again) is type(modifier)
    assert (again.layer_name, again.view_name) == ("Dense", "W")
    assert json.dumps(get_description(again)) == text
    results = [2 * start, 2 * start]
    for each, gradients in zip((modifier, again), results, strict=True):
        vm.apply_to_gradient(each, handler, start.copy(), gradients)
    assert np.array_equal(*results)


def test_each_training_freezes_the_values_that_it_finds():
    net = Network.from_layer(classifier(FullyConnected(3, name="Hidden")), seed=1)
    net.set_weight_modifiers({"Hidden": {"W": vm.FreezeValues()}})
    for seed in (1, 2, 3):
        net.initialize(Gaussian(0.5), seed=seed)
        before = net.get("Hidden.parameters.W"), net.get("Hidden.parameters.bias")
        make_trainer(epochs=2).train(net, Minibatches(1, **data_for(net)))
        assert np.array_equal(net.get("Hidden.parameters.W"), before[0])
        assert not np.array_equal(net.get("Hidden.parameters.bias"), before[1])


def test_a_hook_freezes_the_values_that_it_finds():
    def freeze(epoch_nr, update_nr, net):
        if update_nr == 2:
            net.set_weight_modifiers({"Hidden": vm.FreezeValues()})
            kept.append(net.get("Hidden.parameters.W"))

    net, kept = Network.from_layer(classifier(FullyConnected(3, name="Hidden")), seed=1), []
    net.initialize(Gaussian(0.5), seed=1)
    make_trainer(Call(freeze), epochs=4).train(net, Minibatches(1, **data_for(net)))
    assert np.array_equal(net.get("Hidden.parameters.W"), kept[0])


@pytest.mark.parametrize(("cls", "name"), [(vm.MaskValues, "mask"), (vm.FreezeValues, "weights")])
def test_arrays_are_copied_and_changed_by_assignment(cls, name):
    given = np.array([1.0, 2.0])
    modifier, handler = cls(given), NumpyHandler(np.float64)
    given[0] = 7.0
    assert np.array_equal(apply(modifier, handler, [1.0, 1.0]), [1, 2])
    with pytest.raises(ValueError, match="read-only"):
        getattr(modifier, name)[0] = 7.0  # it would be ignored
    setattr(modifier, name, given)
    assert np.array_equal(apply(modifier, handler, [1.0, 1.0]), [7, 2])
    with pytest.raises(ValidationError, match=f"^{cls.__name__}: {name}: expected an array of num"):
        setattr(modifier, name, "all")


def test_freeze_values_without_weights_freezes_those_that_it_finds_next():
    modifier, handler = vm.FreezeValues([5.0, 6.0]), NumpyHandler(np.float64)
    modifier.weights = None
    for expected in ([1.0, 2.0], [3.0, 4.0]):
        view = handler.create_from_numpy(np.array(expected))
        modifier.start(handler, view)
        modifier(handler, view)
        assert np.array_equal(view, expected)
    modifier.weights = None
    assert np.array_equal(apply(modifier, handler, [7.0, 8.0]), [7, 8])


# -- errors -------------------------------------------------------------------------------------


def test_gradients_are_not_frozen_at_the_first_ones():
    net = build("mlp")
    net.set_gradient_modifiers({"Projection": {"bias": vm.FreezeValues(np.zeros(3))}})
    with pytest.raises(NetworkValidationError, match=r"got FreezeValues without values, which wou"):
        net.set_gradient_modifiers({"Projection": vm.FreezeValues()})


@pytest.mark.parametrize(
    ("kind", "what"), [(vm.MaskValues, "a mask"), (vm.FreezeValues, "weights")]
)
def test_wrong_shapes(kind, what):
    modifier = kind(np.ones((2, 2)))
    modifier.layer_name, modifier.view_name = "Dense", "W"
    text = f"^{kind.__name__} at 'Dense.W': expected {what} of shape " + r"\(3,\), got \(2, 2\)$"
    with pytest.raises(NetworkValidationError, match=text):
        modifier(NumpyHandler(np.float32), np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("cls", "argument", "text"),
    [
        *(
            (vm.ConstrainL2Norm, v, f".limit: expected a finite number > 0, got {v}")
            for v in (0, inf, nan)
        ),
        (vm.MaskValues, [nan], ": mask: expected finite numbers"),
        (vm.FreezeValues, [inf], ": weights: expected finite"),
        (vm.MaskValues, [[1], [2, 3]], ": mask: expected an array of numbers, with"),
        (vm.FreezeValues, "all", ": weights: expected an array of numbers, with"),
        *((vm.L1Decay, v, f".factor: expected a finite number, got {v}") for v in (None, nan)),
        (vm.L2Decay, None, ".factor: expected a finite number, got None"),
    ],
)
def test_arguments(cls, argument, text):
    with pytest.raises(ValidationError, match=f"^{cls.__name__}{text}"):
        cls(argument)
    with pytest.raises(ValidationError, match="ClipValues: expected low <= high, got 1 and -1"):
        vm.ClipValues(1, -1)


def test_checks_of_the_kind():
    clip, decay = vm.ClipValues(), vm.L2Decay(0.1)
    assert vm.check_weight_modifier(clip) is clip
    assert vm.check_gradient_modifier(clip) is clip
    assert vm.check_gradient_modifier(decay) is decay
    text = r"a ValueModifier, got L2Decay\(factor=0.1\)\. Set it with set_gradient_modifiers"
    with pytest.raises(NetworkValidationError, match=text):
        vm.check_weight_modifier(decay)
    with pytest.raises(NetworkValidationError, match=r"expected a ValueModifier, got 0\.5\.$"):
        vm.check_weight_modifier(0.5)
    text = "expected a GradientModifier or a ValueModifier, got 'x'"
    with pytest.raises(NetworkValidationError, match=text):
        vm.check_gradient_modifier("x")


@pytest.mark.parametrize("kind", [vm.ValueModifier, vm.GradientModifier])
def test_bases_are_abstract(kind):
    with pytest.raises(NotImplementedError, match=f"{kind.__name__} does not define __call__"):
        kind()(*[None] * (2 + (kind is vm.GradientModifier)))
