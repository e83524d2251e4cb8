"""Kernels run as on a device, and what a device would leave undefined is seen."""

import numpy as np
import pytest

from tests import cudashim

ORDERS = ("forward", "reversed", "shuffled")
BLOCK = (64, 1, 1)


def launched(cuda, source, size=64, block=BLOCK, grid=(1, 1), shared=0):
    """Run `kernel(float *x)` on the numbers 0, 1, 2, ...; return what it leaves."""
    x = cuda.array(np.arange(size))
    cuda.kernel(source, "kernel", "P").prepared_call(grid, block, int(x), shared_size=shared)
    return x.get()


REVERSE = """
__global__ void kernel(float *x) {
  __shared__ float copy[64];
  copy[threadIdx.x] = x[threadIdx.x];
  BARRIER
  x[threadIdx.x] = copy[63 - threadIdx.x];
}"""


@pytest.mark.parametrize("order", ORDERS)
def test_threads_meet_at_barriers_and_a_missing_one_shows_as_nan(order, cuda):
    cudashim.set_option("order", order)
    source = REVERSE.replace("BARRIER", "__syncthreads();")
    np.testing.assert_array_equal(launched(cuda, source), np.arange(64)[::-1])
    cudashim.set_option("races", 0)
    assert np.isnan(launched(cuda, REVERSE.replace("BARRIER", ""))).any()


def test_a_barrier_that_is_missed_in_one_order_only(cuda):
    """Each thread reads what the one before it wrote: in forward order that is there by luck."""
    source = """
    __global__ void kernel(float *x) {
      __shared__ float copy[64];
      copy[threadIdx.x] = x[threadIdx.x];
      if (threadIdx.x) x[threadIdx.x] = copy[threadIdx.x - 1];
    }"""
    cudashim.set_option("races", 0)
    expected = np.r_[0, np.arange(63)]
    np.testing.assert_array_equal(launched(cuda, source), expected)
    cudashim.set_option("order", "reversed")
    assert np.isnan(launched(cuda, source)[1:]).all()


@pytest.mark.parametrize(
    "body",
    [
        "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();",
        "if (threadIdx.x % 2) __syncwarp(); else __syncthreads();",
    ],
)
def test_a_divergent_barrier_is_a_failed_launch(body, cuda):
    with pytest.raises(cuda.driver.LaunchError, match="launch failure"):
        launched(cuda, f"__global__ void kernel(float *x) {{ {body} }}")
    assert "divergent barrier: 32 threads wait at" in cudashim.message()
    assert "in kernel kernel, block (0, 0, 0)" in cudashim.message()


def test_threads_that_have_ended_are_not_waited_for(cuda):
    launched(cuda, "__global__ void kernel(float *x) { if (threadIdx.x < 9) __syncthreads(); }")


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_and_votes(order, cuda):
    cudashim.set_option("order", order)
    source = """
    __device__ float warp_sum(float v) {
      for (int step = 16; step; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
      return v;
    }
    __global__ void kernel(float *x) {
      int i = threadIdx.x;
      float sum = warp_sum(x[i]), pair = __shfl_xor_sync(0xffffffffu, x[i], 1);
      float before = __shfl_up_sync(0xffffffffu, x[i], 1);
      float third = __shfl_sync(0xffffffffu, x[i], 3);
      float group = __shfl_sync(0xffffffffu, x[i], 1, 8);
      unsigned odd = __ballot_sync(0xffffffffu, i & 1);
      int any = __any_sync(0xffffffffu, i == 5), all = __all_sync(0xffffffffu, i < 32);
      float v[9] = {sum, pair, before, third, group, (float)(odd & 0xff), (float)any, (float)all};
      if (i % 32 < 8) x[i] = v[i % 32];
      else x[i] = group;
    }"""
    x = launched(cuda, source)
    first, second = np.arange(32), np.arange(32, 64)
    np.testing.assert_array_equal(x[:8], [first.sum(), 0, 1, 3, 1, 0b10101010, 1, 1])
    np.testing.assert_array_equal(x[32:40], [second.sum(), 32, 33, 35, 33, 0b10101010, 0, 0])
    np.testing.assert_array_equal(x[8:32], np.repeat([9, 17, 25], 8))


def test_a_lane_that_takes_no_part_gives_nan(cuda):
    source = """
    __global__ void kernel(float *x) {
      if (threadIdx.x < 8) x[threadIdx.x] = __shfl_down_sync(0xffu, x[threadIdx.x], 4);
    }"""
    x = launched(cuda, source)
    np.testing.assert_array_equal(x[:4], [4, 5, 6, 7])
    assert np.isnan(x[4:8]).all()


def test_parts_of_a_warp_exchange_different_numbers_of_values(cuda):
    source = """
    __global__ void kernel(float *x) {
      float v = x[threadIdx.x];
      if (threadIdx.x < 16) v += __shfl_xor_sync(0xffffu, v, 1);
      x[threadIdx.x] = __shfl_sync(0xffffffffu, v, 31 - threadIdx.x);
    }"""
    x = launched(cuda, source, block=(32, 1, 1))
    np.testing.assert_array_equal(x[:16], 31 - np.arange(16))
    np.testing.assert_array_equal(x[16:32], 4 * (np.arange(16)[::-1] // 2) + 1)


def test_shared_memory_is_undefined_at_the_beginning_of_every_block(cuda):
    source = """
    __global__ void kernel(float *x) {
      __shared__ float a[2][32], b; __shared__ float4 c[3];
      extern __shared__ float dynamic[];
      float old[4] = {a[1][threadIdx.x], b, c[2].w, dynamic[threadIdx.x]};
      __syncthreads();
      a[1][threadIdx.x] = dynamic[threadIdx.x] = 1;
      if (threadIdx.x == 0) b = 2, c[2].w = 3;
      __syncthreads();
      x[blockIdx.x * 32 + threadIdx.x] = threadIdx.x < 4 ? old[threadIdx.x] : a[1][31] + b + c[2].w;
    }"""
    x = launched(cuda, source, block=(32, 1, 1), grid=(2, 1), shared=128).reshape(2, 32)
    assert np.isnan(x[:, :4]).all()
    np.testing.assert_array_equal(x[:, 4:], 6)


def test_overrun_of_dynamic_shared_memory(cuda):
    source = """
    __global__ void kernel(float *x) {
      extern __shared__ float dynamic[];
      dynamic[threadIdx.x] = 0;
    }"""
    launched(cuda, source, shared=256)
    with pytest.raises(cuda.driver.Error, match="illegal memory access"):
        launched(cuda, source, shared=128)


def test_more_shared_memory_than_was_asked_for(cuda):
    kernel = cuda.kernel("__global__ void kernel(float *x) {}", "kernel", "P")
    x = cuda.empty(1)
    with pytest.raises(cuda.driver.LogicError, match="invalid argument"):
        kernel.prepared_call((1, 1), BLOCK, int(x), shared_size=50_000)
    attribute = cuda.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
    kernel.set_attribute(attribute, 50_000)
    kernel.prepared_call((1, 1), BLOCK, int(x), shared_size=50_000)


def test_a_macro_hides_neither_a_kernel_nor_its_barrier(cuda):
    source = """
    #define MEET __syncthreads()
    #define KERNEL(name, expression) \\
      __global__ void __launch_bounds__(64) name(float *x) { \\
        __shared__ float s[64]; s[threadIdx.x] = x[threadIdx.x]; MEET; \\
        float y = s[63 - threadIdx.x]; x[threadIdx.x] = expression; }
    KERNEL(kernel, y + 1)
    KERNEL(other, y + 2)
    """
    np.testing.assert_array_equal(launched(cuda, source), np.arange(64)[::-1] + 1)


def test_atomics_vectors_hints_and_bits(cuda):
    source = """
    __device__ unsigned short to_bf16(float x) {
      unsigned bits = __float_as_uint(x);
      return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
    __constant__ float scale[2] = {1.5f, 2.5f};
    __global__ void kernel(float *x) {
      float4 v = reinterpret_cast<float4 *>(x)[threadIdx.x + 1];
      float w = __ldg(x + 20), h = __uint_as_float(to_bf16(1.00390625f) << 16);
      __syncthreads();
      if (threadIdx.x == 3) {
        x[0] = v.x + v.y + v.z + v.w;
        x[1] = w * scale[1];
        x[2] = h;
        x[3] = __popc(255u) + __clz(1) + __umulhi(1u << 31, 6u) + max(3, 4.5f) + min(2u, 1u);
        x[4] = atomicMax(x + 5, 9.f) + atomicCAS((int *)x + 6, 0, 0);
      }
      atomicAdd(x + 7, 1.0f);
    }"""
    x = launched(cuda, source, block=(4, 1, 1))
    np.testing.assert_array_equal(x[[0, 1, 2, 5, 7]], [16 + 17 + 18 + 19, 50, 1, 9, 11])
    assert x[3] == 8 + 31 + 3 + 4.5 + 1


def test_the_order_of_blocks(cuda):
    """Each block doubles what the block before it leaves, or what was there before."""
    source = """
    __global__ void kernel(float *x) {
      x[blockIdx.x + 1] = 2 * x[blockIdx.x];
    }"""

    cudashim.set_option("races", 0)

    def found():
        return tuple(launched(cuda, source, 65, block=(1, 1, 1), grid=(64, 1)))

    assert found() == (0,) * 65
    cudashim.set_option("order", "reversed")
    assert found() == (0, *range(0, 128, 2))
    cudashim.set_option("order", "shuffled")
    assert len({found() for _ in range(9)}) > 5


def test_places_of_threads_and_blocks(cuda):
    source = """
    __global__ void kernel(float *x) {
      int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      x[block * 12 + thread] = block * 100 + thread;
    }"""
    for order in ORDERS:
        cudashim.set_option("order", order)
        x = launched(cuda, source, 288, block=(2, 3, 2), grid=(2, 3, 4))
        np.testing.assert_array_equal(x, (np.arange(24)[:, None] * 100 + np.arange(12)).ravel())


def test_an_integer_division_by_zero_is_seen(cuda):
    source = "__global__ void kernel(float *x) { x[0] = 5 / (int)x[0]; }"
    with pytest.raises(cuda.driver.LaunchError):
        launched(cuda, source, block=(1, 1, 1))
    assert "divided by zero" in cudashim.message()


@pytest.mark.parametrize(("type_", "given", "takes"), [("long long", "i", 16), ("int", "q", 12)])
def test_arguments_of_another_size_are_refused(type_, given, takes, cuda, capfd):
    source = f"__global__ void kernel(float *x, {type_} n) {{}}"
    kernel = cuda.kernel(source, "kernel", f"P{given}")
    with pytest.raises(cuda.driver.LogicError, match="invalid argument"):
        kernel.prepared_call((1, 1), BLOCK, int(cuda.empty(1)), 3)
    text = f"kernel kernel takes {takes} bytes of arguments, got {28 - takes}"
    assert text in capfd.readouterr().err


def test_what_does_not_compile_says_where(cuda):
    with pytest.raises(cuda.driver.CompileError, match=r"kernel\.cu:4"):
        cuda.kernel("\n__global__ void kernel(float *x) {\n  x[0] = y;\n}", "kernel", "P")
