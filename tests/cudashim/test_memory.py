"""Device memory: undefined at first, guarded at both sides, limited, and of one device."""

import gc

import numpy as np
import pytest

from tests import cudashim

TOUCH = "__global__ void kernel(float *x, int i, float *y) { y[0] = x[i]; x[i] = 1; }"


def touched(cuda, x, i):
    y = cuda.empty(1)
    kernel = cuda.kernel(TOUCH, "kernel", "PiP")
    kernel.prepared_call((1, 1), (1, 1, 1), int(x), i, int(y))
    return y.get()[0]


@pytest.mark.parametrize(
    ("guard", "i", "races"),
    [("end", 100, 0), ("start", -1, 0), ("end", -1, 1), ("start", 100, 1), ("off", 100, 1)],
)
def test_an_overrun_is_an_illegal_access(guard, i, races, cuda):
    cudashim.set_option("races", races)
    cudashim.set_option("guard", guard)
    x = cuda.empty(100)
    assert np.isnan(x.get()).all()  # as all new memory
    touched(cuda, x, 0)
    with pytest.raises(cuda.driver.Error, match="illegal memory access"):
        touched(cuda, x, i)
    assert f"byte {4 * i} of an allocation of 400 bytes" in cudashim.message()


@pytest.mark.parametrize(("guard", "i"), [("start", 100), ("end", -1), ("end", 98), ("off", 98)])
def test_what_is_written_on_the_side_without_a_guard_page_is_found(guard, i, cuda):
    cudashim.set_option("races", 0)
    cudashim.set_option("guard", guard)
    x = cuda.empty(98)
    assert cudashim.check() == 0
    assert np.isnan(touched(cuda, x, i))
    assert cudashim.check() == 700
    assert "written beside an allocation of 392 bytes" in cudashim.message()


def test_memory_that_was_freed(cuda):
    x = cuda.empty(100)
    address = int(x)
    x.memory.free()
    with pytest.raises(cuda.driver.Error, match="illegal memory access"):
        touched(cuda, address, 0)
    assert "of a freed allocation of 400 bytes" in cudashim.message()


def test_addresses_of_host_memory_that_is_not_pinned(cuda):
    values = np.zeros(4, np.float32)
    with pytest.raises(cuda.driver.LogicError, match="invalid argument"):
        cuda.driver.memcpy_htod(values.ctypes.data, values)
    with pytest.raises(cuda.driver.Error, match="illegal memory access"):
        touched(cuda, values.ctypes.data, 0)
    assert "argument 0 of kernel kernel is address 0x" in cudashim.message()
    assert "which is no device memory" in cudashim.message()
    cudashim.reset()
    values = cuda.driver.pagelocked_zeros(4, np.float32)
    touched(cuda, values.ctypes.data, 2)
    np.testing.assert_array_equal(values, [0, 0, 1, 0])


def test_copies_stay_within_an_allocation(cuda):
    x = cuda.empty(4)
    for call in (
        lambda: cuda.driver.memcpy_htod(int(x), np.zeros(5, np.float32)),
        lambda: cuda.driver.memcpy_dtoh(np.zeros(5, np.float32), int(x)),
        lambda: cuda.driver.memcpy_dtod(int(x), int(x) + 4, 16),
        lambda: cuda.driver.memset_d32(int(x), 0, 5),
    ):
        with pytest.raises(cuda.driver.LogicError, match="invalid argument"):
            call()


def test_rows_of_a_matrix_are_copied(cuda):
    x = cuda.empty(12).set(np.arange(12))
    copy = cuda.driver.Memcpy2D()
    out = np.zeros((3, 2), np.float32)
    copy.set_src_device(int(x))
    copy.set_dst_host(out)
    copy.src_x_in_bytes, copy.src_pitch, copy.dst_pitch = 4, 16, 8
    copy.width_in_bytes, copy.height = 8, 3
    copy(aligned=True)
    np.testing.assert_array_equal(out, [[1, 2], [5, 6], [9, 10]])


def test_memory_ends(cuda):
    gc.collect()  # PyCUDA frees what is garbage before it gives up
    free, _ = cuda.driver.mem_get_info()
    used = (8 << 30) - free
    cudashim.set_option("memory", used + 1000)
    x = cuda.empty(200)
    assert cuda.driver.mem_get_info() == (200, used + 1000)
    with pytest.raises(cuda.driver.MemoryError, match="out of memory"):
        cuda.empty(51)
    x.memory.free()
    cuda.empty(51)


def test_devices_have_their_own_memory_and_functions(cuda):
    other = cuda.other_device()
    x = cuda.empty(4)
    kernel = cuda.kernel(TOUCH, "kernel", "PiP")
    assert cuda.driver.Device.count() == 2
    other.push()
    try:
        total = 8 << 30
        assert cuda.driver.mem_get_info() == (total, total)
        with pytest.raises(cuda.driver.LogicError, match="invalid argument"):
            cuda.driver.memset_d32(int(x), 0, 4)
        with pytest.raises(cuda.driver.LogicError, match="invalid resource handle"):
            kernel.prepared_call((1, 1), (1, 1, 1), int(x), 0, int(x))
        with pytest.raises(cuda.driver.Error, match="illegal memory access"):
            touched(cuda, x, 0)  # a kernel of the other device
        assert "argument 0 of kernel kernel" in cudashim.message()
    finally:
        cudashim.reset()
        other.pop()


def test_what_is_freed_was_waited_for(cuda):
    """Also pinned memory: a copy from it that is on its way gets there."""
    cudashim.set_option("late", 1)
    x, y, stream = cuda.empty(4), cuda.empty(4), cuda.driver.Stream()
    for place in ("device", "host"):
        values = cuda.driver.pagelocked_empty(4, np.float32)
        values[:] = 3
        before = cudashim.counters()["synchronisations"]
        cuda.driver.memcpy_htod_async(int(x), values, stream)
        if place == "device":
            y.memory.free()
        else:
            del values
        assert cudashim.counters()["synchronisations"] == before + 1
    np.testing.assert_array_equal(x.get(), np.full(4, 3))


def test_counters_count(cuda):
    x = cuda.empty(4)
    y = cuda.empty(4)
    before = cudashim.counters()
    x.set(np.zeros(4))
    x.get()
    cuda.driver.memcpy_dtod(int(y), int(x), 16)
    cuda.driver.memset_d32(int(x), 0, 4)
    cuda.driver.Context.synchronize()
    z = cuda.empty(2)
    z.memory.free()
    found = {k: v - before[k] for k, v in cudashim.counters().items() if v != before[k]}
    copies = {"htod": 1, "dtoh": 1, "dtod": 1, "memsets": 1, "blocking_copies": 3}
    # To free memory is to wait for everything.
    assert found == {**copies, "synchronisations": 2, "allocations": 1, "frees": 1}


STRUCTURES = """
struct Inner { short n; float *p; float at(int i) const { return p[i]; } };
struct Outer { char *rows[2], c; Inner inner[2]; double d; const float *last; };
typedef struct { float *p; } Nameless;
__global__ void kernel(int n, const Outer outer) { if (n) *outer.inner[1].p = 3; }
"""


@pytest.mark.parametrize("place", [0, 8, 32, 48, 64])
def test_pointers_in_structures_are_checked(place, cuda):
    kernel, x = cuda.kernel(STRUCTURES, "kernel", "i4x72s"), cuda.empty(4)
    arguments = np.zeros(9, np.uint64)
    arguments[[0, 1, 4, 6, 8]] = int(x)
    kernel.prepared_call((1, 1), (1, 1, 1), 1, arguments.tobytes())
    assert x.get()[0] == 3
    arguments[place // 8] = 4096
    with pytest.raises(cuda.driver.Error, match="illegal memory access"):
        kernel.prepared_call((1, 1), (1, 1, 1), 0, arguments.tobytes())
    text = f"the pointer at byte {place} of argument 1 of kernel kernel is address 0x1000, which is"
    assert text in cudashim.message()


PACKS = """
struct alignas(16) Pack { float x[4]; };
extern "C" __global__ void kernel(float *x, int from, int to) {
  Pack a = *(Pack *)(x + from), b;
  for (int lane = 0; lane < 4; lane++) b.x[lane] = 2 * a.x[lane];
  *(Pack *)(x + to) = b;
}
"""


@pytest.mark.parametrize(("places", "byte"), [((2, 4), 8), ((0, 5), 20)])
def test_wide_accesses_are_at_multiples_of_their_size(places, byte, cuda):
    kernel, x = cuda.kernel(PACKS, "kernel", "Pii"), cuda.array(np.arange(12))
    kernel.prepared_call((1, 1), (1, 1, 1), int(x), 0, 4)
    np.testing.assert_array_equal(x.get()[:8], [0, 1, 2, 3, 0, 2, 4, 6])
    with pytest.raises(cuda.driver.Error, match="cuLaunchKernel failed: misaligned address"):
        kernel.prepared_call((1, 1), (1, 1, 1), int(x), *places)
    assert cudashim.message() == (
        f"byte {byte} of an allocation of 48 bytes is no address of 16 bytes at once, in kernel "
        f"kernel, block (0, 0, 0), thread (0, 0, 0)"
    )
