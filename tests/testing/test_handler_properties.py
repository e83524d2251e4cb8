"""The kit must find what is wrong: for every property handlers that lack it, in one operation."""

from __future__ import annotations

import ctypes
import tracemalloc

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.handlers import DebugHandler, Handler, NumpyHandler, register_activation
from brainstorm.optree import functions as fn
from brainstorm.testing import HANDLER_PROPERTIES, PropertyError, check_handler, handler_harness
from brainstorm.testing.handler_arguments import Arguments

RIGHT = {
    "float32": lambda: NumpyHandler(np.float32, seed=1),
    "float64": lambda: NumpyHandler(np.float64, seed=1),
    "checked": lambda: DebugHandler(NumpyHandler(np.float32, seed=1)),
}


@pytest.mark.parametrize("property", HANDLER_PROPERTIES)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_handler_has_every_property(name, property, monkeypatch):
    if name != "float32":  # the others have the same methods
        monkeypatch.setattr(handler_harness, "EXAMPLES", 4)
    check_handler(RIGHT[name](), properties=[property])


def right(name):
    return getattr(NumpyHandler, name)


def is_finite(self, a):
    with np.errstate(all="ignore"):
        return bool(np.isfinite(a.sum()))


#: property, part of the message, operation that is broken, and how.
BROKEN = [
    ("operations and arguments are those of handler",
     r"float32, multiply: is public, but no operation of Handler. Begin it with '_'", "multiply",
     lambda self, a, b, out: right("mult_tt")(self, a, b, out)),
    ("results equal the reference",
     r"Broken float32, modulo_tt\(a\(.*\), b\(.*\), out\(.*\)\), out\[.*\]: expected [-.\d]+, "
     r"got [-.\d]+ \(\d+ of \d+ elements differ\)", "modulo_tt",
     lambda self, a, b, out: np.mod(a, b, out=out)),  # with the sign of b
    ("results equal the reference", r"mult_st\(s=.*raises \w+", "mult_st",
     lambda self, s, t, out: np.multiply(t, ctypes.c_float(s).value, out=out)),  # may be in memory
    ("results equal the reference", r"reverse_time\(x.*, mask\(.*\), out\[", "reverse_time",
     lambda self, x, mask, out, add=False: right("reverse_time")(self, x, None, out, add)),
    ("what is added to is added to", r"copy_to_if\(src.*, dest\[", "copy_to_if",
     lambda self, src, dest, cond: np.multiply(src, cond != 0, out=dest)),
    ("what is not finite is found", "expected False with nan in a, got True", "is_fully_finite",
     lambda self, a: not np.isinf(a).any()),
    ("what is not finite is found", "expected True with None in a, got False", "is_fully_finite",
     is_finite),
    ("derivatives equal central differences", r"act_func_deriv\['el'\], dx\[", "el_deriv",
     lambda self, x, y, dy, dx: np.copyto(dx, np.where(y >= 0, dy, dy * y))),
    ("derivatives equal central differences", r"act_func_deriv\['rel'\].*raises TypeError",
     "rel_deriv",
     lambda self, x, y, dy, dx: np.multiply(dy, np.greater(x, 0), out=dx)),  # x may be None
    ("random streams repeat", "fill_gaussian, again from the seed", "fill_gaussian",
     lambda self, mean, std, out, stream=None: right("fill_gaussian")(self, mean, std, out)),
    ("random numbers have their distribution", "expected the deviation 0.5, got 0.2",
     "fill_gaussian",
     lambda self, mean, std, out, stream=None: right("fill_gaussian")(
         self, mean, std * std, out, stream)),
    ("new arrays are what was asked for", r"zeros\(3\).*(0, 'float32'|'float64')", "zeros",
     lambda self, shape: np.zeros(shape)),
    ("copies hold the same in memory of their own", r"get_numpy_copy of .*content\[",
     "get_numpy_copy", lambda self, mem: mem),
    ("nothing is allocated in steady state",
     r"expected at most \d+ bytes in a second run, got", "clip_t",
     lambda self, a, a_min, a_max, out: np.copyto(out, np.clip(a, a_min, a_max))),
]  # fmt: skip


def breaks(property, match, operation=None):
    def collect(function):
        BROKEN.append((property, match, operation or function.__name__, function))
        return function

    return collect


@breaks("operations and arguments are those of handler", r"dot_mm: expected the arguments \(a, b")
def dot_mm(self, a, b, out, transa=True, transb=False):
    right("dot_mm")(self, a, b, out, transa, transb)


@breaks("results equal the reference", "conv2d_forward_batch.*raises TypeError")
def conv2d_forward_batch(
    self, inputs, weights, bias, outputs, padding, stride, dilation=(1, 1), groups=1,
    add_outputs=False,
):  # fmt: skip
    out, bias = np.zeros_like(outputs), bias + 0  # None is allowed
    right("conv2d_forward_batch")(
        self, inputs, weights, bias, out, padding, stride, dilation, groups
    )
    np.copyto(outputs, out + outputs * add_outputs)


@breaks("results equal the reference", r"argmax_m\(m.*, out\[\d+, 0\]: expected")
def argmax_m(self, m, out):
    out[:, 0] = m.shape[1] - 1 - np.argmax(m[:, ::-1], axis=1)  # the last of equal ones


@breaks("slices of wider arrays do as well", r"sigmoid\(x.*, y\[")
def sigmoid(self, x, y):
    flat = y if y.flags.c_contiguous else y.copy()
    right("sigmoid")(self, x, flat)


@breaks("slices of wider arrays do as well", r"fill\(mem.*, beside mem\[.*\]: expected 7")
def fill(self, mem, val):
    whole = mem if mem.base is None or mem.flags.c_contiguous else mem.base
    right("fill")(self, whole if whole.size < 500 else mem, val)


@breaks("results may overwrite arguments", r"subtract_tt\(.*\) with out = b, out\[")
def subtract_tt(self, a, b, out):
    np.copyto(out, a)
    np.subtract(out, b, out=out)


@breaks("what is read is not changed", r"tanh\(x.*\), x\[")
def tanh(self, x, y):
    np.multiply(x, 2, out=x)
    np.multiply(x, 0.5, out=x)
    np.tanh(x, out=y)
    x[...] += np.finfo(x.dtype).eps * x


@breaks("what is added to is added to", r"add_rows_mv\(m.*, out\[")
def add_rows_mv(self, m, v, out):
    out[v[:, 0].astype(int)] += m  # once, though rows repeat


@breaks(
    "what is overwritten may be garbage", r"sum_t\(a.*, out(\[\]|\[[\d, ]+\]): expected .*got nan"
)
def sum_t(self, a, axis, out):
    np.multiply(out, 0, out=out)
    np.add(out, np.sum(a, axis=axis).reshape(out.shape), out=out)


@breaks("what is overwritten may be garbage", r"conv2d_backward_batch\(.*got nan")
def conv2d_backward_batch(
    self, inputs, weights, padding, stride, in_deltas, out_deltas, weight_deltas, bias_deltas,
    add_gradients=False, add_in_deltas=True, dilation=(1, 1), groups=1,
):  # fmt: skip
    if in_deltas is not None:
        in_deltas *= float(add_in_deltas)
    right("conv2d_backward_batch")(
        self, inputs, weights, padding, stride, in_deltas, out_deltas, weight_deltas, bias_deltas,
        add_gradients, True, dilation, groups,
    )  # fmt: skip


@breaks("activations in place agree with the others", r"inplace_act_func\['softplus'\], x\[")
def softplus(self, x, y):
    np.exp(x, out=y)
    np.log1p(y, out=y) if x is not y else np.log(y, out=y)


@breaks("activations in place agree with the others", r"inplace_act_func_deriv\['silu'\], dy\[")
def silu_deriv(self, x, y, dy, dx):
    right("silu_deriv")(self, x, y, dy, dx)
    if dx is dy:
        np.multiply(dx, 2, out=dx)


@breaks("random streams repeat", "generate_probability_mask: two streams, or a stream twice")
def generate_probability_mask(self, mask, probability, stream=None):
    stream = self.create_random_stream(1)
    right("generate_probability_mask")(self, mask, probability, stream)


class Forgetful:
    """A stream that forgets half a state."""

    def __init__(self, stream):
        self.generator, self.get_state = stream.generator, stream.get_state

    def set_state(self, state):
        pass


@breaks("random streams repeat", "from a state", "create_random_stream")
def create_forgetful_stream(self, seed):
    return Forgetful(right("create_random_stream")(self, seed))


@breaks(
    "random numbers have their distribution", "share beyond two deviations 0.0455", "fill_gaussian"
)
def fill_uniform(self, mean, std, out, stream=None):
    numbers = (stream or self.stream).generator.random(out.shape) - 0.5
    np.copyto(out, numbers * np.sqrt(12) * std + mean)


@breaks(
    "random numbers have their distribution",
    r"mask\[.*\]: expected 1",
    "generate_probability_mask",
)
def scale_mask(self, mask, probability, stream=None):
    right("generate_probability_mask")(self, mask, probability, stream)
    np.divide(mask, probability, out=mask)


@breaks("new arrays are what was asked for", "expected an address divisible by 64, got")
def allocate(self, shape):
    flat = right("allocate")(self, int(np.prod(shape)) + 1)
    return flat[1:].reshape(shape)


@breaks("copies hold the same in memory of their own", "create_from_numpy of int64.*content")
def create_from_numpy(self, arr):
    copied = right("create_from_numpy")(self, arr)
    copied.reshape(-1)[:] = arr.ravel(order="K")  # the order in memory, not that of the elements
    return copied


@breaks("copies hold the same in memory of their own", "set_from_numpy of float.*arr")
def set_from_numpy(self, mem, arr):
    right("set_from_numpy")(self, mem, arr)
    if arr.dtype != np.int64 and arr.flags.f_contiguous:
        arr += 1


def test_every_property_is_broken_by_some_handler():
    assert {property for property, *_ in BROKEN} == set(HANDLER_PROPERTIES)


@pytest.mark.parametrize(("property", "match", "operation", "function"), BROKEN)
def test_a_broken_handler_is_found(property, match, operation, function):
    broken = type("Broken", (NumpyHandler,), {operation: function})
    chosen = [operation] if operation in Handler.operations() else None
    if operation == "create_random_stream":
        chosen = ["fill_gaussian"]
    with pytest.raises(PropertyError, match=f"^property '{property}': Broken float32, ") as caught:
        check_handler(broken(np.float32, seed=1), chosen, properties=[property])
    assert caught.match(match)


def test_other_operations_do_not_matter():
    wrong = type("Wrong", (NumpyHandler,), {"tanh": lambda self, x, y: np.sinh(x, out=y)})
    check_handler(wrong(np.float64, seed=1), ["sigmoid", "sigmoid_deriv", "fill", "zeros"])
    with pytest.raises(PropertyError, match=r"Wrong float64, tanh\(x"):
        check_handler(wrong(np.float64, seed=1), ["sigmoid", "tanh"])


def test_names_of_what_is_missing_or_unknown():
    broken = type("Broken", (NumpyHandler,), {"add_tt": None})
    with pytest.raises(PropertyError, match="float32, add_tt: expected a method, got none"):
        check_handler(broken(seed=1), ["add_tt"])
    with pytest.raises(ValidationError, match="unknown property 'all'"):
        check_handler(NumpyHandler(seed=1), properties=["all"])
    with pytest.raises(ValidationError, match=r"unknown operation 'dot'.*"):
        check_handler(NumpyHandler(seed=1), ["dot"])


@pytest.mark.usefixtures("fresh_registry")
def test_registered_activations_are_proved_too():
    register_activation("root", lambda x: fn.sqrt(x * x + 1), lambda y: y)  # not its slope
    with pytest.raises(PropertyError, match=r"act_func_deriv\['root'\], dx\["):
        check_handler(NumpyHandler(seed=1), properties=["derivatives equal central differences"])


def test_tracing_that_was_on_stays_on():
    tracemalloc.start()
    try:
        property = "nothing is allocated in steady state"
        check_handler(NumpyHandler(seed=1), ["add_tt"], properties=[property])
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


# -- the arguments --------------------------------------------------------------------------------


def test_flags_come_in_all_combinations():
    flags = {
        tuple(Arguments("dot_mm", 0, example=n).values[f] for f in ("transa", "transb"))
        for n in range(4)
    }
    assert len(flags) == 4


def test_arguments_repeat_and_differ():
    first, again, other = (Arguments("add_mv", seed) for seed in (3, 3, 4))
    assert str(first) == str(again)
    for name, values in first.values.items():
        np.testing.assert_array_equal(values, again.values[name])
    assert not np.array_equal(first.values["m"], other.values["m"])


def test_optional_arguments_are_sometimes_absent():
    seen = [Arguments("conv2d_backward_batch", 0, example=n).values for n in range(60)]
    for name in ("inputs", "in_deltas", "weight_deltas", "bias_deltas"):
        assert {values[name] is None for values in seen} == {True, False}
    assert all(v["weight_deltas"] is None for v in seen if v["inputs"] is None)


def test_conditions_that_nothing_fulfils_are_told():
    with pytest.raises(ValidationError, match=r"Arguments\('split_add_tt'\): found none"):
        Arguments("split_add_tt", fixed={"M": 0})
