"""Arrays on a GPU: views, copies, and what other libraries get of them."""

import copy
import ctypes
import gc
import pickle
import weakref

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.numpy_memory import array_at
from brainstorm.handlers.pycuda.arrays import DeviceArray
from tests.handlers.running import in_threads

VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

VIEWS = {
    "index": lambda x: x[1],
    "negative": lambda x: x[-1, 1:],
    "slices": lambda x: x[:, 1:3, ::2],
    "backwards": lambda x: x[::-1, :, ::-2],
    "ellipsis": lambda x: x[..., 1],
    "new axis": lambda x: x[:, None, 2],
    "element": lambda x: x[1, 2, 3, ...],
    "reshape": lambda x: x.reshape(6, 4)[1:].reshape((5, 2, 2)),
    "open size": lambda x: x[:1].reshape((-1, 2)),
    "split": lambda x: x[:, :, 1:3].reshape((6, 2)),
    "turned": lambda x: x.T[1:],
    "transpose": lambda x: x.transpose((1, 0, 2)),
    "nothing": lambda x: x[2:],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_those_of_numpy_for_reading_and_writing(view, handler):
    array, expected = view(handler.create_from_numpy(VALUES)), view(VALUES)
    assert (array.shape, array.size, array.ndim) == (expected.shape, expected.size, expected.ndim)
    assert array.dtype == expected.dtype
    assert array.strides == expected.strides
    assert array.nbytes == expected.nbytes
    np.testing.assert_array_equal(array.get(), expected)
    array, expected = handler.create_from_numpy(VALUES), VALUES.copy()
    handler.mult_st(-1.0, view(array), view(array))
    np.multiply(view(expected), -1.0, out=view(expected))
    np.testing.assert_array_equal(array.get(), expected)


def test_values_from_the_host_can_be_assigned(handler):
    array, expected = handler.create_from_numpy(VALUES), VALUES.copy()
    for key, value in ((0, 7.0), ((1, slice(None), 2), [1, 2, 3]), (..., VALUES[:, :, ::-1])):
        array[key] = value
        expected[key] = value
        np.testing.assert_array_equal(array.get(), expected)


MISTAKES = [
    (lambda x: x.T.reshape((24,)), "cannot be reshaped to .* without a copy"),
    (lambda x: x[:, :, 1:].reshape((18,)), "cannot be reshaped to .* without a copy"),
    (lambda x: x.reshape((5, 5)), "cannot reshape array of size 24"),
    *(
        (lambda x, key=key: x[key], "cannot be indexed by")
        for key in ([0, 1], np.array([True, False]), True, 1.0, "x")
    ),
    *(
        (use, r"is on a GPU. Copy it with get\(\)")
        for use in (np.asarray, np.sum, list, bool, float, copy.copy)
    ),
]


@pytest.mark.parametrize(("use", "text"), MISTAKES)
def test_there_are_only_views_and_no_silent_copies(use, text, handler):
    error = TypeError if "on a GPU" in text else HandlerValidationError
    with pytest.raises(error, match=text):
        use(handler.create_from_numpy(VALUES))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
def test_a_deep_or_pickled_copy_has_memory_of_its_own(copied, handler):
    array = handler.create_from_numpy(VALUES)[:, 1:]
    same, device = copied(array), array.device
    handler.fill(array, 0.0)
    np.testing.assert_array_equal(same.get(), VALUES[:, 1:])
    assert same.device is device


def test_length_and_text(handler):
    array = handler.create_from_numpy(VALUES)
    assert len(array) == 2
    assert repr(array[0]).startswith("DeviceArray(float32[3, 4] on ")


def test_the_array_interface_of_cuda(handler):
    array = handler.create_from_numpy(VALUES)
    interface = array.__cuda_array_interface__
    assert interface["data"] == (array.address, False)
    assert (interface["shape"], interface["typestr"]) == ((2, 3, 4), "<f4")
    assert (interface["strides"], interface["version"]) == (None, 3)
    assert interface["stream"] == handler._device.stream.handle
    part = array[1, :, 1:].__cuda_array_interface__
    assert part["data"][0] == array.address + 13 * 4
    assert (part["shape"], part["strides"]) == ((3, 3), (16, 4))


class Tensor(ctypes.Structure):
    """A managed tensor of dlpack.h, version 0.8."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]  # fmt: skip


def _consume(capsule):
    """Return the address of a capsule's tensor, and take it over as a consumer does."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, b"dltensor")
    api.PyCapsule_SetName(capsule, b"used_dltensor")
    return address


def test_dlpack_hands_over_any_view(handler):
    array = handler.create_from_numpy(VALUES)[1, :, 1:]
    memory = weakref.ref(array.memory)
    assert array.__dlpack_device__() == (2, 0)
    address = _consume(array.__dlpack__(stream=1))
    tensor = Tensor.from_address(address)
    assert tensor.data == array.address
    assert (tensor.device_type, tensor.device_id, tensor.ndim) == (2, 0, 2)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (2, 32, 1, 0)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 3], [4, 1])
    del array
    gc.collect()
    assert memory() is not None  # it is the consumer's now
    tensor.deleter(address)
    assert memory() is None


def test_dlpack_of_repeated_and_of_no_elements_and_of_other_types(handler):
    repeated = handler.create_from_numpy(VALUES[0, 0]).broadcast_to((3, 4))
    tensor = Tensor.from_address(_consume(repeated.__dlpack__()))
    assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 4], [0, 1])
    assert Tensor.from_address(_consume(handler.zeros((0, 3)).__dlpack__())).data is None
    with pytest.raises(HandlerValidationError, match="DLPack has no such arrays. Copy it first."):
        handler.create_from_numpy(np.zeros(3, "M8[s]")).__dlpack__()


def test_dlpack_copies_if_it_is_asked_to(handler):
    array = handler.create_from_numpy(VALUES)
    on_host = np.from_dlpack(array[:, 1:], device="cpu")
    np.testing.assert_array_equal(on_host, VALUES[:, 1:])

    capsule = array.__dlpack__(copy=True, dl_device=(2, 0))
    tensor = Tensor.from_address(_consume(capsule))
    assert (tensor.device_type, tensor.data == array.address) == (2, False)
    shadow = array_at(tensor.data, VALUES.shape, VALUES.dtype)
    copied = DeviceArray(array.device, None, shadow)
    np.testing.assert_array_equal(copied.get(), VALUES)
    tensor.deleter(ctypes.addressof(tensor))

    assert Tensor.from_address(_consume(array.__dlpack__(copy=False))).data == array.address
    for options in ({"dl_device": (1, 0), "copy": False}, {"dl_device": (2, 1)}):
        with pytest.raises(BufferError, match=r"DLPack cannot use its memory. Leave the device"):
            array.__dlpack__(**options)


def test_a_capsule_that_nobody_takes_is_freed(handler):
    array = handler.create_from_numpy(VALUES)
    memory, capsule = weakref.ref(array.memory), array.__dlpack__()
    del array
    assert memory() is not None
    del capsule
    assert memory() is None


@pytest.mark.filterwarnings("error")
def test_memory_is_freed_by_any_thread(handler, shim, request):
    gc.disable()  # or it may be freed at any time
    request.addfinalizer(gc.enable)
    gc.collect()
    before = shim.counters()["live_bytes"]
    cycle = [handler.zeros((10_000,))]
    cycle.append(cycle)
    del cycle
    assert shim.counters()["live_bytes"] == before + 40_000
    in_threads(gc.collect, [2])
    assert shim.counters()["live_bytes"] == before


def test_memory_is_freed_with_the_last_view(handler, shim):
    for _ in range(2):  # makes memory for transfers
        handler.create_from_numpy(np.zeros(10_000, np.float32))
    gc.collect()
    before = shim.counters()["live_bytes"]
    view = handler.create_from_numpy(np.zeros(10_000, np.float32))[5:10]
    assert shim.counters()["live_bytes"] == before + 40_000
    del view
    gc.collect()
    assert shim.counters()["live_bytes"] == before
