"""Accesses that nothing orders are failures, in whatever order threads and blocks run."""

import numpy as np
import pytest

from tests import cudashim

ORDERS = ("forward", "reversed", "shuffled")
PAIR = {"grid": (2, 1), "block": (32, 1, 1)}
ONE = {"grid": (1, 1), "block": (64, 1, 1)}


HEAD = """
#define i threadIdx.x
#define b blockIdx.x
#define KERNEL extern "C" __global__ void
"""


def run(cuda, source, grid, block, name="kernel"):
    """Run one of the kernels of a source, with memory of 256 zeros for each argument; return x."""
    x, counts = cuda.array(np.zeros(256)), cuda.array(np.zeros(256))
    kernel = cuda.kernel(HEAD + source, name, "PP")
    kernel.prepared_call(grid, block, int(x), int(counts))
    return x.get()


def kernel_of(body, name="kernel"):
    """Return the source of a kernel."""
    return f"KERNEL {name}(float *x, unsigned *counts) {{ {body} }}\n"


# Blocks leave a number each; the last one to be done adds them up.
LAST_BLOCK = """
    __shared__ bool last;
    x[1 + b * 32 + i] = 1;
    __syncthreads();
    if (i == 0) {
      BEFORE
      last = atomicAdd(counts, 1u) == 1;
      AFTER
    }
    __syncthreads();
    if (last && i == 0) for (int k = 1; k < 65; k++) x[0] += x[k];
"""
#: What is wrong, and how it is right.
RACES = {
    "blocks write to the same place": (PAIR, "if (i == 0) x[0] = b;", "if (i == 0) x[b] = b;"),
    "they write the same there": (PAIR, "if (i == 0) x[0] = 1;", "if (i + b == 0) x[0] = 1;"),
    "they add without atomics": (PAIR, "if (!i) x[0] += 1;", "if (!i) atomicAdd(x, 1.f);"),
    "one reads what another one writes": (PAIR, "x[b] = x[1 - b];", "if (i == b) x[b] = x[b + 2];"),
    "bytes of a number": (
        PAIR, "if (!i) ((char *)x)[3] = b;", "if (!i) ((char *)x)[b] = b; else x[i + 32 * b] = 1;"
    ),
    "a part of a wider one": (
        PAIR,
        "if (!i) { if (b) *(float2 *)x = {1, 2}; else x[1] = 2; }",
        "if (!i) { if (b) *(float2 *)x = {1, 2}; else x[2] = 2; }",
    ),
    "an atomic beside an access that is none": (
        PAIR, "if (i == 0) { if (b) atomicAdd(x, 1.f); else x[0] = 3; }",
        "if (i == 0) { if (b) atomicAdd(x, 1.f); else atomicExch(x, 3.f); }",
    ),
    "a flag without fences": (
        PAIR,
        "if (!i) { x[b] = 1; if (atomicAdd(counts, 1u)) x[9] = x[1 - b]; }",
        "if (!i) { x[b] = 1; __threadfence(); if (atomicAdd(counts, 1u)) {"
        "__threadfence(); x[9] = x[1 - b]; } }",
    ),
    "the last block has no fence before its atomic": (
        PAIR, LAST_BLOCK.replace("BEFORE", "").replace("AFTER", "__threadfence();"),
        LAST_BLOCK.replace("BEFORE", "__threadfence();").replace("AFTER", "__threadfence();"),
    ),
    "the last block has no fence behind its atomic": (
        PAIR, LAST_BLOCK.replace("BEFORE", "__threadfence();").replace("AFTER", ""),
        LAST_BLOCK.replace("BEFORE", "__threadfence();").replace("AFTER", "__threadfence();"),
    ),
    "the threads do not meet before the last block counts": (
        PAIR,
        LAST_BLOCK.replace("= 1;\n    __syncthreads();", "= 1;").replace(
            "BEFORE", "__threadfence();").replace("AFTER", "__threadfence();"),
        LAST_BLOCK.replace("BEFORE", "__threadfence();").replace("AFTER", "__threadfence();"),
    ),
    "threads of a block": (
        ONE, "x[i] = 1; if (i < 63) x[70] = 1;", "x[i] = 1; if (i == 6) x[70] = 1;"
    ),
    "shared memory": (
        ONE,
        "__shared__ float s[64]; s[i] = 1; if (i) x[i] = s[i - 1];",
        "__shared__ float s[64]; s[i] = 1; __syncthreads(); if (i) x[i] = s[i - 1];",
    ),
    "it is used again too early": (
        ONE,
        "__shared__ float s; if (!i) s = 1; __syncthreads(); x[i] = s; if (!i) s = 2;",
        "__shared__ float s; if (!i) s = 1; __syncthreads(); x[i] = s; __syncthreads();"
        "if (!i) s = 2;",
    ),
    "the barrier is that of a warp": (
        ONE,
        "__shared__ float s[64]; s[i] = 1; __syncwarp(); x[i] = s[63 - i];",
        "__shared__ float s[64]; s[i] = 1; __syncwarp(); x[i] = s[i ^ 31];",
    ),
    "a shuffle is no barrier": (
        {"grid": (1, 1), "block": (32, 1, 1)},
        "__shared__ float s[32]; s[i] = 1; float y = __shfl_sync(~0u, x[i], 3);"
        "x[i] = y + s[31 - i];",
        "__shared__ float s[32]; s[i] = 1; float y = __shfl_sync(~0u, x[i], 3); __syncwarp();"
        "x[i] = y + s[31 - i];",
    ),
}  # fmt: skip


#: All of them, so that they are compiled together.
SOURCE = "".join(
    kernel_of(wrong, f"wrong_{k}") + kernel_of(right, f"right_{k}")
    for k, (_, wrong, right) in enumerate(RACES.values())
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("k", range(len(RACES)), ids=RACES.keys())
def test_a_race_is_a_failed_launch(k, order, cuda):
    launch = list(RACES.values())[k][0]
    cudashim.set_option("order", order)
    run(cuda, SOURCE, **launch, name=f"right_{k}")
    with pytest.raises(cuda.driver.LaunchError, match="launch failure"):
        run(cuda, SOURCE, **launch, name=f"wrong_{k}")
    assert "a race: a thread " in cudashim.message()
    assert f"and nothing orders them, in kernel wrong_{k}, block (" in cudashim.message()


def test_it_says_who_did_what_and_can_be_switched_off(cuda):
    source = kernel_of("if (i == 3) x[5] = b;")
    with pytest.raises(cuda.driver.LaunchError):
        run(cuda, source, **PAIR)
    assert cudashim.message() == (
        "a race: a thread writes byte 20 of an allocation of 1024 bytes, which a thread of block 0 "
        "writes, and nothing orders them, in kernel kernel, block (1, 0, 0), thread (3, 0, 0)"
    )
    cudashim.reset()
    cudashim.set_option("races", 0)
    run(cuda, source, **PAIR)


def test_launches_are_ordered(cuda):
    """What one kernel left is no matter of the next one."""
    x = cuda.array(np.zeros(8))
    source = "__global__ void kernel(float *x, int k) { if (blockIdx.x == k) x[threadIdx.x] += 1; }"
    kernel = cuda.kernel(source, "kernel", "Pi")
    for k in (0, 1, 1, 0):
        kernel.prepared_call((2, 1), (8, 1, 1), int(x), k)
    np.testing.assert_array_equal(x.get(), np.full(8, 4))


def test_every_thread_has_its_own_variables(cuda):
    body = "float v[8]; for (int k = 0; k < 8; k++) v[k] = i + k; BARRIER x[32 * b + i] = v[b];"
    for barrier in ("", "__syncthreads();"):
        x = run(cuda, kernel_of(body.replace("BARRIER", barrier)), **PAIR)
        np.testing.assert_array_equal(x[:64], np.r_[:32, 1:33])


def test_a_launch_is_watched_up_to_a_size(cuda):
    """Bookkeeping of all that large kernels touch would fill the memory."""
    x = cuda.empty(1 << 22)
    source = """
    __global__ void kernel(float *x, int size) {
      for (int i = threadIdx.x; i < size; i += blockDim.x) x[i] = 1;
      x[size] = 1;
    }"""
    kernel = cuda.kernel(source, "kernel", "Pi")
    kernel.prepared_call((1, 1), (32, 1, 1), int(x), (1 << 22) - 1)
    with pytest.raises(cuda.driver.LaunchError):
        kernel.prepared_call((1, 1), (32, 1, 1), int(x), 1000)
