"""Clusters: blocks that run together, and can wait for each other."""

import numpy as np
import pytest

from tests import cudashim

#: Each thread leaves a number, and reads that of the next block of its cluster.
SOURCE = """
extern "C" __global__ __cluster_dims__(4, 1, 1)
void kernel(float *x, float *y) {
  __shared__ float own[32];
  extern __shared__ float dynamic[];
  const int block = blockIdx.x, next = block / 4 * 4 + (block + 1) % 4;
  own[threadIdx.x] = dynamic[threadIdx.x] = block;
  x[block * 32 + threadIdx.x] = block + 1;
  BARRIER
  y[block * 32 + threadIdx.x] = x[next * 32 + 31 - threadIdx.x] + own[31 - threadIdx.x]
      + dynamic[31 - threadIdx.x];
}
"""
BARRIER = "cudashim_cluster_barrier(__LINE__);"


def run(cuda, barrier, grid=8):
    x, y = cuda.empty(32 * grid), cuda.empty(32 * grid)
    kernel = cuda.kernel(SOURCE.replace("BARRIER", barrier), "kernel", "PP")
    kernel.prepared_call((grid, 1), (32, 1, 1), int(x), int(y), shared_size=128)
    return y.get().reshape(grid, 32)


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
def test_a_cluster_meets_and_each_block_has_shared_memory_of_its_own(order, cuda):
    cudashim.set_option("order", order)
    expected = np.array([2, 3, 4, 1, 6, 7, 8, 5]) + 2 * np.arange(8)
    np.testing.assert_array_equal(run(cuda, BARRIER), expected[:, None] * np.ones(32))


@pytest.mark.parametrize("barrier", ["", "__syncthreads();", f"if (threadIdx.x) {BARRIER}"])
def test_without_a_barrier_of_the_cluster_it_is_a_race(barrier, cuda):
    with pytest.raises(cuda.driver.LaunchError):
        run(cuda, barrier)
    assert "a race: a thread " in cudashim.message()


def test_blocks_that_wait_for_each_other_at_different_barriers(cuda):
    with pytest.raises(cuda.driver.LaunchError):
        run(cuda, f"if (block % 4) {BARRIER} else \n {BARRIER}")
    assert "96 threads wait at a cluster's barrier in line" in cudashim.message()


@pytest.mark.parametrize(("capability", "grid"), [(90, 6), (80, 8)])
def test_clusters_are_whole_and_need_a_new_gpu(capability, grid, cuda):
    run(cuda, BARRIER)
    cudashim.set_option("capability", capability)
    with pytest.raises(cuda.driver.LogicError, match="cluster"):
        run(cuda, BARRIER, grid)


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
def test_a_read_behind_the_barrier_is_remembered_beside_older_ones(order, cuda):
    source = """
    extern "C" __global__ __cluster_dims__(2, 1, 1)
    void kernel(float *x, float *y) {
      const int block = blockIdx.x, i = threadIdx.x;
      float read = i == 0 ? x[0] : 0;
      cudashim_cluster_barrier(__LINE__);
      if (block == 0 && i == 5) read += x[0];
      if (block == 1 && i == 0) x[0] = 2;
      y[block * 32 + i] = read;
    }
    """
    cudashim.set_option("order", order)
    x, y = cuda.array([1.0]), cuda.empty(64)
    with pytest.raises(cuda.driver.LaunchError):
        cuda.kernel(source, "kernel", "PP").prepared_call((2, 1), (32, 1, 1), int(x), int(y))
    assert "a race: a thread " in cudashim.message()
