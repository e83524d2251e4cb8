"""How many threads a CUDA kernel has; that it computes the right values: `test_kernels.py`."""

import numpy as np
import pytest

from brainstorm.optree import Variable, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.cuda_structure import blocks_of
from tests.handlers.running import bound_program


@pytest.mark.parametrize(
    ("axis", "shape", "expected"),
    [
        (1, (5, 1000), (256, 1, 5, 1)),  # a block for each row
        (1, (1000, 5), (4, 64, 16, 1)),  # 64 rows for each block, of four threads
        (0, (1000, 64), (32, 8, 2, 15)),  # neighbours in memory are neighbours in a block
        (0, (1000, 200), (32, 8, 7, 15)),
        (0, (2, 64), (32, 1, 2, 1)),
        (0, (10**6, 1), (256, 1, 1, 488)),  # as many blocks as have enough to do
        (1, (2, 10**7), (256, 1, 2, 256)),  # as many as a GPU has use for
        (None, (4, 60), (256, 1, 1, 1)),  # no reduction
    ],
)
def test_how_many_threads_there_are(axis, shape, expected):
    x = Variable(shape)
    tree = fn.tanh(x) if axis is None else fn.sum(x, axis)
    program = linearise(tree)
    arrays = [np.zeros(shape, np.float32), np.zeros(tree.shape, np.float32)]
    bound = bound_program(program, arrays[:1], arrays[1:])
    (part,) = bound.parts
    (loop,) = part.loops
    sizes = part.numbers[2 : 2 + loop.rank]
    assert blocks_of(loop, sizes.tolist()) == expected
