"""CUDA kernels, compiled as C++ with the grid as loops, against the interpreter."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import shutil
import subprocess

import numpy as np
import pytest

from brainstorm.handlers.pycuda.groups import Group, walks_of
from brainstorm.handlers.pycuda.structures import structure_of
from brainstorm.optree import Variable, evaluate, gradients, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.cuda_structure import blocks_of
from brainstorm.optree.render_cuda import CUDA_HEAD, kernel_name, render_cuda
from tests.handlers.running import specialized
from tests.optree import nan_cases
from tests.optree.test_random_trees import grown

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="NO C++ COMPILER: CUDA KERNELS ARE NOT TESTED"
)

#: A device of 3 blocks of 32 threads, which run one after the other, the last one first. There is
#: one worker for each column, as others could not wait for each other.
HOST = """
#include <cmath>
#include <cstddef>
#include <cstdint>
using namespace std;
#define __global__
#define __device__
#define __forceinline__
#define __shared__ static
#define __syncthreads()
#define __threadfence()
static unsigned atomicAdd(unsigned *place, unsigned number) { return (*place += number) - number; }
struct dimension { unsigned x, y; };
static dimension gridDim = {3, 1}, blockDim, blockIdx, threadIdx;
"""
LAUNCH = """
extern "C" void launch_NAME(const intptr_t *p, const intptr_t *n, const double *c) {
  NAME_arguments a;
  for (size_t i = 0; i < sizeof a.p / sizeof *a.p; i++) a.p[i] = (char *)p[i];
  for (size_t i = 0; i < sizeof a.n / sizeof *a.n; i++) a.n[i] = n[i];
  CONSTANTS
  blockDim = BLOCK;
  for (unsigned i = gridDim.x * 32; i-- > 0;) {
    blockIdx.x = i / 32, threadIdx.x = i % 32 % blockDim.x, threadIdx.y = i % 32 / blockDim.x;
    NAME(a);
  }
}
"""


def compiled(structures, folder):
    names = [kernel_name(structure) for structure in structures]
    source = HOST + CUDA_HEAD
    for name, structure in dict(zip(names, structures, strict=True)).items():
        text = render_cuda(structure, name)
        assert text.count("__global__") == 1
        block = "{1, 32}" if "worker = threadIdx.x" in text else "{32, 1}"
        (loop,) = structure.loops
        constants = [f"a.c{k} = *c++;" for k in range(len(loop.constants))]
        launch = LAUNCH.replace("NAME", name).replace("BLOCK", block)
        source += text + launch.replace("CONSTANTS", " ".join(constants))
    path = folder / hashlib.sha256(source.encode()).hexdigest()
    if not path.with_suffix(".so").exists():
        path.with_suffix(".cpp").write_text(source)
        command = ["g++", "-O0", "-shared", "-fPIC", "-o", f"{path}.so", f"{path}.cpp"]
        subprocess.run(command, check=True)
    library = ctypes.CDLL(f"{path}.so")
    return [getattr(library, f"launch_{name}") for name in names]


def run(trees, bindings, folder, accumulate=False, index="int", dtypes=None):
    """Return the values of trees, computed by the kernels."""
    program = linearise(trees)
    inputs = [bindings[variable] for variable in program.inputs]
    types = dtypes or [program.dtype_of(v) for v in program.outputs]
    outputs = [np.ones(tree.shape, dtype) for tree, dtype in zip(trees, types, strict=True)]
    special, given = specialized(program, inputs, outputs, [accumulate] * len(outputs))
    (part,) = special.parts
    walks = list(walks_of(part, part.pointers(special.addresses(given))))
    structures = [dataclasses.replace(structure_of(Group((walk,))), index=index) for walk in walks]
    for walk, launch in zip(walks, compiled(structures, folder), strict=True):
        numbers = [n for row in (walk.sizes, *walk.strides) for n in row]
        launch(
            np.array(walk.pointers, np.intp).ctypes,
            np.array(numbers, np.intp).ctypes,
            np.array(walk.constants, float).ctypes,
        )
    return outputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cuda")


@pytest.mark.parametrize("seed", range(12))
def test_random_trees_and_their_gradients(seed, folder):
    tree, _, bindings = grown(seed)
    trees = [tree, *gradients(tree, list(bindings))]
    accumulate = bool(seed % 2)
    found = run(trees, bindings, folder, accumulate, "ptrdiff_t" if seed % 3 else "int")
    for got, expected in zip(found, evaluate(trees, bindings), strict=True):
        np.testing.assert_allclose(got, expected + accumulate, 1e-9, 1e-12)


@pytest.mark.parametrize("index", ["int", "ptrdiff_t"])
def test_an_index_beyond_what_float32_counts_is_exact(folder, index):
    a = np.zeros(2**24 + 5, np.int8)
    a[-2], a[-4] = 1, -1
    x = Variable(a.shape, a.dtype)
    for dtype in (np.int32, np.int64, np.float64):
        trees = [fn.argmax(x), fn.argmin(x)]
        found = run(trees, {x: a}, folder, index=index, dtypes=[dtype] * 2)
        assert [int(out[0]) for out in found] == [2**24 + 3, 2**24 + 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_goes_in_and_comes_out(folder, dtype):
    nan_cases.check(dtype, lambda trees, bindings: run(trees, bindings, folder))


def test_one_formula_is_one_kernel_and_a_softmax_is_three():
    x = Variable((4, 6))
    zeros = np.zeros((4, 6), np.float32)
    for tree, count in ((fn.tanh(x) * x + 1, 1), (fn.softmax(x), 3)):
        program = linearise(tree)
        special, _ = specialized(program, [zeros], [zeros.copy()])
        assert [len(part.loops) for part in special.parts] == [count]


@pytest.mark.parametrize(
    ("axis", "shape", "expected"),
    [
        (1, (5, 1000), (256, 1, 5, 1, 5)),  # a block for each row
        (1, (1000, 5), (4, 64, 16, 1, 1000)),  # 64 rows for each block, of four threads
        (0, (1000, 64), (32, 8, 2, 3, 64)),  # neighbours in memory are neighbours in a block
        (0, (2, 64), (32, 1, 2, 1, 64)),
        (0, (10**6, 1), (256, 1, 1, 122, 1)),  # as many blocks as have enough to do
        (1, (2, 10**7), (256, 1, 2, 128, 2)),  # as many as a GPU has use for
        (None, (4, 60), (256, 1, 1, 1, 240)),  # no reduction
    ],
)
def test_how_many_threads_there_are(axis, shape, expected):
    x = Variable(shape)
    tree = fn.tanh(x) if axis is None else fn.sum(x, axis)
    program = linearise(tree)
    arrays = [np.zeros(shape, np.float32), np.zeros(tree.shape, np.float32)]
    special, _ = specialized(program, arrays[:1], arrays[1:])
    (part,) = special.parts
    (loop,) = part.loops
    sizes = part.numbers[2 : 2 + loop.rank]
    assert blocks_of(loop, sizes.tolist()) == expected
