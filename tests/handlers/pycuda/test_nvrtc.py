"""NVRTC: what it compiles, what it says, and what is said where it is missing."""

from unittest import mock

import pytest

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers.pycuda import nvrtc
from brainstorm.handlers.pycuda.nvrtc import Nvrtc, RefusedError

KERNEL = 'extern "C" __global__ void kernel(float *x) { *x = 1.0f; }'


def test_it_compiles_and_says_what_is_wrong(handler):
    arch, header = handler._device.arch, f"#include <cstddef>\n{KERNEL}"
    assert Nvrtc().compile(KERNEL, arch)[0]
    for text, other, expected in (
        ("oops", arch, "(?s)oops.*error|error.*oops"),
        (KERNEL, "sm_none", "INVALID_OPTION|invalid value"),  # without a word of its own
        (header, arch, "error: .*(header|could not open source)"),
    ):
        with pytest.raises(RefusedError, match=expected):
            Nvrtc().compile(text, other)


def test_where_it_is_missing(monkeypatch):
    missing = FileNotFoundError("libnvrtc.so.13 or libnvrtc.so.12 was not found")
    monkeypatch.setattr(nvrtc, "load_library", mock.Mock(side_effect=missing))
    expected = "libnvrtc.so.12 was not found.*pip install nvidia-cuda-nvrtc"
    with pytest.raises(MissingDependencyError, match=expected):
        Nvrtc()
