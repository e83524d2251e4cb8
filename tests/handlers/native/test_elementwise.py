"""Operations that are op-trees: 200 random calls each, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.handlers import compiler
from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.native.elementwise import OPERATIONS
from brainstorm.testing.handler_arguments import Arguments, Call
from tests.handlers.native.lowered import native_calls


@pytest.mark.skipif(
    not compiler.is_available(), reason="NO C COMPILER: OP-TREES ARE RUN BY NUMPY, AS TESTED THERE"
)
@pytest.mark.parametrize("name", OPERATIONS)
def test_random_calls(name):
    handler = NativeHandler(seed=1)
    for seed in range(200):
        arguments = Arguments(name, seed, np.float32, example=seed % 4)
        call = Call(handler, arguments, strided=bool(seed & 4))
        assert native_calls(handler, name, call.values) is not None
        call.run()
        for written, expected in arguments.expected().items():
            np.testing.assert_allclose(
                call.get(written), expected, 1e-5, 1e-6, err_msg=f"{arguments}: {written}"
            )
