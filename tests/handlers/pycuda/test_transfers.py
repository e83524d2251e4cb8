"""From the host to the GPU: every dtype and size, in order, and without waiting."""

import numpy as np
import pytest

from brainstorm.errors import OutOfMemoryError
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import transfers
from tests.handlers.running import in_threads

DTYPES = ("bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", ">f4")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 5, transfers.SMALL // 4 + 1, transfers.SMALL + 1])
def test_arrays_of_any_dtype_are_converted_or_keep_it(size, dtype, handler):
    values = (np.arange(size) % 100).astype(dtype)
    array = handler.zeros((size,))
    handler.set_from_numpy(array, values)
    np.testing.assert_array_equal(array.get(), values.astype(np.float32))
    same = handler.create_from_numpy(values)
    assert same.dtype == values.dtype.newbyteorder("=")
    np.testing.assert_array_equal(same.get(), values)


@pytest.mark.parametrize("rows", [3, 5000])
def test_strided_arrays_on_both_sides(rows, handler):
    source = np.arange(rows * 12, dtype=np.float32).reshape(rows, 12)[:, 1::3]
    wide = handler.zeros((rows, 9))
    handler.set_from_numpy(wide[:, 2:6], source)
    expected = np.zeros((rows, 9), np.float32)
    expected[:, 2:6] = source
    np.testing.assert_array_equal(wide.get(), expected)


@pytest.mark.parametrize("size", [10, 3000, 100_000])
def test_values_may_change_as_soon_as_they_are_given(size, monkeypatch, shim):
    """Many times more than the memory that is used again, with streams that work late."""
    monkeypatch.setattr(transfers, "RING", 2 * transfers.SMALL)
    shim.set_option("late", 1)
    handler = PyCudaHandler(seed=1)
    target, total = handler.zeros((size,)), handler.zeros((size,))
    values = np.zeros(size, np.float32)
    count = 3 * transfers.RING // (4 * size) + 20
    for number in range(count):
        values.fill(number % 5)  # small, so that float32 holds the sums
        handler.set_from_numpy(target, values)
        handler.add_tt(total, target, total)
    np.testing.assert_array_equal(total.get(), np.full(size, sum(n % 5 for n in range(count))))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_very_large_arrays_need_no_other_memory_and_come_in_order(
    dtype, handler, monkeypatch, shim
):
    monkeypatch.setattr(transfers, "MOST_PINNED", 50_000)
    values = np.random.RandomState(0).randint(0, 200, 90_000).astype(dtype)
    before = shim.counters()["allocations"]
    handler.create_from_numpy(values)
    assert shim.counters()["allocations"] == before + 1
    array = handler.zeros(values.shape)
    shim.set_option("late", 1)
    for _ in range(2):
        handler.set_from_numpy(array, values)
        handler.mult_st(2.0, array, array)
    np.testing.assert_array_equal(array.get(), 2 * values.astype(np.float32))


def test_the_next_batch_goes_up_while_this_one_is_computed(handler, shim):
    """With streams that do nothing before somebody waits, the host never waits for the GPU."""
    values, array = np.ones(10_000, np.float32), handler.zeros((10_000,))
    handler.set_from_numpy(array, values)
    handler.mult_st(2.0, array, array)
    handler._device.synchronize()
    shim.reset()
    handler.set_from_numpy(array, values)
    handler.mult_st(2.0, array, array)
    handler.set_from_numpy(array, values)
    counts = shim.counters()
    assert counts["blocking_copies"] == counts["dtoh"] == 0


@pytest.mark.filterwarnings("error")
def test_after_running_out_of_memory_arrays_go_up_as_before_from_any_thread(shim):
    handler = PyCudaHandler(seed=1)
    small, large = handler.zeros((10_000,)), handler.zeros((3_000_000,))
    values = np.arange(3_000_000, dtype=np.float32)
    for _ in range(2):
        handler.set_from_numpy(small, values[:10_000])
    shim.set_option("memory", 16 << 20)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            handler.set_from_numpy(large, values)
    shim.set_option("memory", 1 << 30)
    in_threads(lambda given: handler.set_from_numpy(large, given), [values])
    np.testing.assert_array_equal(large.get(), values)


def test_all_handlers_of_a_gpu_share_its_scratch_memory(shim):
    handler = PyCudaHandler(seed=1)
    before = shim.counters()["live_bytes"]
    others = [PyCudaHandler(seed=1) for _ in range(3)]
    assert shim.counters()["live_bytes"] - before < 1000 * len(others)
    x, out = handler.zeros((100_000, 2)), handler.zeros((100_000, 1))
    before = shim.counters()["live_bytes"]
    handler.sum_t(x, 1, out)
    assert shim.counters()["live_bytes"] - before < 1000
