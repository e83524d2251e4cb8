"""What tests of compilers compile, in this process or in another one."""

import ctypes

import numpy as np

from brainstorm.handlers import compiler
from brainstorm.handlers.kernel_cache import hash_of
from brainstorm.handlers.native import NativeHandler
from brainstorm.optree import OPERATORS, Variable, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import build
from brainstorm.testing.handler_arguments import Arguments
from tests.handlers.native.lowered import check
from tests.handlers.running import traced

#: What begins the code of a new process.
HERE = f"from {__name__} import *; "
POOLING = [f"{k}pool2d_{way}_batch" for k in ("max", "avg") for way in ("forward", "backward")]


def probe(answer):
    """Return the source of a function that answers."""
    return f"void probe(long *p, const long *n) {{ *p = {answer}; }}\n"


def build_unloaded(source):
    """Compile a probe as `compiler.load` does; what is loaded once is not loaded again by name."""
    here = compiler._compiler_here()
    return compiler._build(here, source, hash_of(f"{here.key}\nprobe\n{source}"))


def ask(address):
    """Return what a function answers."""
    number = np.zeros(1, np.int64)
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)(address)(number.ctypes.data, number.ctypes.data)
    return int(number[0])


def run_formulas(dtype=np.float32, count=None, handler=None):
    """Compute some formulas, of every kind of loop, and compare with what NumPy computes.

    Returns:
        The handler.
    """
    handler = handler or NativeHandler(dtype, threads=2, seed=1)
    x, y = Variable((64, 1500)), Variable((64, 1500))
    arrays = np.random.default_rng(0).uniform(0.1, 2, (2, *x.shape)).astype(dtype)
    trees = [fn.exp(x) * fn.tanh(y) * fn.log(x + 1), fn.softmax(x)]
    if dtype == np.float32:
        trees += [fn.sum(x * y, 0), fn.max(x), fn.argmax(x, 1)]
    for tree in trees[:count]:
        program, out, expected = linearise(tree), np.zeros(tree.shape, dtype), np.zeros(tree.shape)
        inputs = list(arrays[: len(program.inputs)])
        super(NativeHandler, handler).run_program(program, inputs, [expected], [False])
        handler.run_program(program, inputs, [out], [False])
        np.testing.assert_allclose(out, expected, 2e-5)
    return handler


def run_edge_cases():
    """Compute all functions of special numbers, and totals of integers that do not hold them."""
    handler = NativeHandler(threads=1, seed=1)
    special = [0.0, -0.0, 1.0, -1.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, 3e38, -3e38, 0.5]
    x, big = Variable((len(special),)), Variable((3, 40), np.int64)
    names = [name for name, row in OPERATORS.items() if row.is_elementwise and row.c]
    trees = [build(name, (x,) * OPERATORS[name].arity) for name in names]
    trees += [total(big, axis) for total in (fn.sum, fn.prod) for axis in (0, 1)]
    program, count = linearise(trees), len(names)
    arrays = {x: np.array(special, np.float32), big: np.full(big.shape, -(2**63) + 5)}
    outs = [np.zeros(t.shape, np.float32 if k < count else np.int64) for k, t in enumerate(trees)]
    for add in (False, True):
        inputs = [arrays[variable] for variable in program.inputs]
        handler.run_program(program, inputs, outs, [add] * len(outs))
    assert handler._refusals == []
    np.testing.assert_array_equal(outs[count], 30)  # they wrap around at 64 bits


def run_everything():
    """Compute with every kind of kernel, compare with NumPy, and print what compiled it."""
    for dtype in (np.float32, np.float64):
        assert run_formulas(dtype)._refusals == []
    handler = NativeHandler(threads=2, seed=1)
    small = {"M": 5, "K": 7, "N": 37, "transa": False, "transb": False}
    for name in ("dot_mm", "take_rows_mv", *POOLING):
        fixed = small if name == "dot_mm" else {}
        arguments = Arguments(name, 1, np.float32, fixed=fixed, large=not fixed)
        check(handler, name, arguments, 1e-4, 1e-5)
    replay_products(handler)
    print(handler.info()["op-trees"], end="")


def replay_products(handler):
    """Replay some products, and compare with their result."""
    a, b, out = (np.ones(shape, np.float32) for shape in ((2, 3), (3, 16), (2, 16)))
    calls = traced(handler, lambda: [handler.dot_add_mm(a, b, out) for _ in range(3)])
    for function in handler.compile(calls):
        function()
    np.testing.assert_array_equal(out, np.full((2, 16), 10))
