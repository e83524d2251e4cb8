"""How arrays of a GPU would get from rank to rank: with fakes of the GPU, of NCCL and of MPI."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from brainstorm.errors import TrainingError
from brainstorm.ext.mpi import nccl, transports
from brainstorm.ext.mpi.nccl import NcclTransport, find_nccl
from brainstorm.ext.mpi.transports import (
    DeviceTransport,
    HostTransport,
    PinnedTransport,
    choose_transport,
)
from brainstorm.handlers import NumpyHandler
from tests.ext.mpi.fakes import FakeWorld


class DeviceArray:
    """Memory that NumPy does not reach, but for the fakes."""

    def __init__(self, values, index=0, dtype=np.float32):
        self.memory = np.array(values, dtype)
        self.size, self.shape, self.dtype = self.memory.size, self.memory.shape, self.memory.dtype
        self.synchronized = 0
        self.device = SimpleNamespace(index=index, synchronize=self._synchronize)

    def _synchronize(self):
        self.synchronized += 1

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.memory.ctypes.data, False), "stream": 99}

    def __imul__(self, factor):
        self.memory *= factor
        return self


class FakeDriver:
    """The part of ``pycuda.driver`` that is used."""

    def __init__(self):
        self.made = []

    def pagelocked_empty(self, shape, dtype):
        self.made.append((shape, np.dtype(dtype).name))
        return np.empty(shape, dtype)

    def memcpy_dtoh(self, array, address):
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def memcpy_htod(self, address, array):
        ctypes.memmove(address, array.ctypes.data, array.nbytes)


@pytest.fixture
def driver(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(transports, "require", lambda module, extra: fake)
    return fake


class FakeNccl:
    """The functions of the library, as two ranks with the same values would see them."""

    def __init__(self, **results):
        self.calls, self.results = [], results
        self.ncclGetErrorString = lambda code: f"error {code}".encode()

    def __getattr__(self, name):
        def function(*args):
            self.calls.append((name, args))
            if name == "ncclGetUniqueId":
                args[0]._obj.internal = b"unique"
            elif name == "ncclCommInitRank":
                assert args[2].internal == b"unique"
                args[0]._obj.value = 77
            elif name == "ncclAllReduce":
                where = ctypes.cast(args[0], ctypes.POINTER(ctypes.c_float))
                np.ctypeslib.as_array(where, (args[2].value,))[...] *= 2
            elif name == "ncclCommGetAsyncError":
                args[1]._obj.value = self.results.get("later", 0)
            return self.results.get(name, 0)

        return function


def test_nccl_is_called_as_its_header_says():
    library = FakeNccl()
    transport = NcclTransport(library, FakeWorld(0, 2))
    array = DeviceArray([[1, 2, 3]])
    transport.wait(transport.start_sum(array))
    transport.check()
    np.testing.assert_array_equal(array.memory, [[2, 4, 6]])
    transport.broadcast(array)
    names = [name for name, _ in library.calls]
    assert names == [
        "ncclGetUniqueId",
        "ncclCommInitRank",
        "ncclAllReduce",
        "ncclCommGetAsyncError",
        "ncclBroadcast",
    ]
    address = array.memory.ctypes.data
    values = [arg.value for arg in library.calls[2][1]]
    assert values == [address, address, 3, nccl.TYPES["float32"], nccl.SUM, 77, 99]
    root = [arg.value for arg in library.calls[4][1]]
    assert root == [address, address, 3, nccl.TYPES["float32"], 0, 77, 99]
    assert [arg.value for arg in library.calls[1][1][1:4:2]] == [2, 0]


def test_only_rank_0_makes_the_id():
    library = FakeNccl()
    world = FakeWorld(1, 2)
    world.share = lambda value: b"unique" + value[6:]
    NcclTransport(library, world)
    assert [name for name, _ in library.calls] == ["ncclCommInitRank"]


def test_errors_of_nccl():
    with pytest.raises(TrainingError, match=r"^ncclCommInitRank: NCCL says 'error 5' \(error 5\)"):
        NcclTransport(FakeNccl(ncclCommInitRank=5), FakeWorld(0, 2))
    transport = NcclTransport(FakeNccl(later=6), FakeWorld(0, 2))
    with pytest.raises(TrainingError, match=r"^ncclCommGetAsyncError: NCCL says 'error 6'"):
        transport.check()
    for in_progress in (0, nccl.IN_PROGRESS):
        NcclTransport(FakeNccl(later=in_progress), FakeWorld(0, 2)).check()


def test_pinned_memory_is_made_once_and_brings_the_sum_back(driver):
    world = FakeWorld(0, 2)
    transport = PinnedTransport(world)
    array = DeviceArray([[1, 2], [3, 4]])
    for factor in (2, 4):
        transport.sum(array)
        np.testing.assert_array_equal(array.memory, factor * np.array([[1, 2], [3, 4]]))
    transport.broadcast(array)
    assert driver.made == [((4,), "float32")]
    assert array.synchronized == 3
    assert len(world.broadcasts) == 1


def test_memory_for_one_type_is_not_used_for_another(driver):
    transport = PinnedTransport(FakeWorld(0, 2))
    for dtype in (np.float32, np.float64, np.float32):
        array = DeviceArray([1, 2, 3], dtype=dtype)
        transport.sum(array)
        np.testing.assert_array_equal(array.memory, [2, 4, 6])
    assert driver.made == [((3,), "float32"), ((3,), "float64")]


def test_slices_of_one_size_that_are_under_way_have_memory_of_their_own(driver):
    transport = PinnedTransport(FakeWorld(0, 2))
    first, second = DeviceArray([1, 2]), DeviceArray([5, 6])
    requests = [transport.start_sum(first), transport.start_sum(second)]
    for request in requests:
        transport.wait(request)
    np.testing.assert_array_equal(first.memory, [2, 4])
    np.testing.assert_array_equal(second.memory, [10, 12])
    assert len(driver.made) == 2


def test_a_cuda_aware_mpi_gets_what_the_gpu_has_finished():
    world = FakeWorld(0, 2)
    array = DeviceArray([1, 2])
    transport = DeviceTransport(world)
    transport.sum(array)
    transport.broadcast(array)
    assert array.synchronized == 2
    assert world.summed == world.broadcasts == [array]
    np.testing.assert_array_equal(array.memory, [2, 4])


@pytest.mark.parametrize(
    ("has_nccl", "is_aware", "other_device", "expected"),
    [
        ((True, True), (False, False), 1, NcclTransport),
        ((True, True), (True, True), 0, DeviceTransport),  # NCCL refuses to share a GPU
        ((True, False), (True, True), 1, DeviceTransport),
        ((True, True), (False, False), 0, PinnedTransport),
        ((False, True), (True, False), 1, PinnedTransport),
    ],
)
def test_all_ranks_take_the_best_way_that_all_have(
    monkeypatch, driver, has_nccl, is_aware, other_device, expected
):
    monkeypatch.setattr(transports, "is_cuda_aware", lambda: is_aware[0])
    monkeypatch.setattr(transports, "find_nccl", lambda: FakeNccl() if has_nccl[0] else None)
    world = FakeWorld(0, 2)
    answers = iter([("host0", other_device), has_nccl[1], is_aware[1]])
    world.gather = lambda value: [value, next(answers)]
    world.hosts = ["host0", "host0"]
    handler = SimpleNamespace(array_type=DeviceArray, zeros=lambda shape: DeviceArray([0.0]))
    assert type(choose_transport(world, handler)) is expected


def test_arrays_of_the_host_need_nothing():
    assert type(choose_transport(FakeWorld(0, 2), NumpyHandler())) is HostTransport


def test_nccl_is_looked_for_where_other_libraries_are(monkeypatch):
    monkeypatch.setattr(nccl, "load_library", lambda *arguments: arguments)
    assert find_nccl() == ("nccl", (2,))

    def missing(name, versions):
        raise FileNotFoundError

    monkeypatch.setattr(nccl, "load_library", missing)
    assert find_nccl() is None


@pytest.mark.parametrize("answer", [True, False])
def test_mpi_says_whether_it_knows_gpus(answer, monkeypatch):
    library = SimpleNamespace(MPIX_Query_cuda_support=lambda: 1) if answer else SimpleNamespace()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert transports.is_cuda_aware() == answer
