"""The text of all kernels, for compilers on machines without a GPU."""

import re

import pytest

from brainstorm.handlers.pycuda import modules
from tools.gpu_sources import OF_CLUSTERS, kernel_sources

SOURCES = kernel_sources()


def test_every_kernel_is_there():
    assert set(SOURCES) == {
        *modules.FILES, "op_trees_int", "op_trees_ptrdiff_t", "recurrences", OF_CLUSTERS
    }  # fmt: skip
    assert all(re.search("__(global|device)__", text) for text in SOURCES.values())
    assert not any("#include" in text for text in SOURCES.values())
    texts = "".join(SOURCES[file] for file in modules.FILES)
    of_elements = re.findall(r"__ float (\w+)\([^)]*unsigned i\b", texts)
    assert len(of_elements) == 6
    assert all(f"({name}(p0" in SOURCES["op_trees_int"] for name in of_elements)


@pytest.mark.parametrize("name", [*modules.FILES, "op_trees_ptrdiff_t", "recurrences", OF_CLUSTERS])
def test_they_compile_by_themselves(name, handler):
    assert modules._cached(SOURCES[name], handler._device.arch)
