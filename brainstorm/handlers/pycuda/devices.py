"""The GPUs of this process, each of which all its handlers share."""

from __future__ import annotations

import threading
import weakref

import numpy as np

from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.transfers import Uploads

_devices: weakref.WeakValueDictionary[int, Device] = weakref.WeakValueDictionary()
_finding = threading.Lock()


def find_device(index: int) -> Device:
    """Return a GPU by its number, the same for all handlers.

    So everything in its memory is computed in one order, whichever handlers the arrays are of.

    Raises:
        MissingDependencyError: PyCUDA is not installed.
        DeviceError: There is no driver, no such GPU, or it is too old.
    """
    with _finding:
        device = _devices.get(index)
        if device is None:
            device = Device(index)
            device.upload = Uploads(device)
            _devices[index] = device
    return device


def uploaded(index: int, content: np.ndarray) -> DeviceArray:
    """Return an array in new memory of a GPU, with the content of one of the host."""
    array = DeviceArray.new(find_device(index), content.shape, content.dtype)
    array[...] = content
    return array
