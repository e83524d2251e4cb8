"""The handler for NVIDIA GPUs: PyCUDA for memory, streams and kernels, cuBLAS for products."""
# ruff: noqa: D102 (operations are documented in the base classes)

from __future__ import annotations

import abc
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import integer
from brainstorm.errors import HandlerValidationError, shown
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.lowering import Lowering, Memo, lowered
from brainstorm.handlers.pycuda import builders, images, streams
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.blas import Cublas
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.cudnn import Cudnn
from brainstorm.handlers.pycuda.devices import find_device
from brainstorm.handlers.pycuda.driver import Memory, load_driver
from brainstorm.handlers.pycuda.fusing import Piece
from brainstorm.handlers.pycuda.graphs import Graph
from brainstorm.handlers.pycuda.launches import Launch, load
from brainstorm.handlers.pycuda.nvrtc import find_nvrtc
from brainstorm.handlers.pycuda.programs import DeviceExecutor
from brainstorm.handlers.traces import Trace
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.randomness import RandomState
from brainstorm.utils import Array

#: The precisions of products.
COMPUTE = ("f32", "tf32", "bf16")

#: The arguments that a description has unless they have these values.
_USUAL = {"device": 0, "compute": "f32"}

#: The attributes that `_connect` creates and that copies do not take over; nor the constants.
_CONNECTED = {
    "_device", "_blas", "_cudnn", "_memo", "_halves", "EMPTY", "_flag", "_constants",
}  # fmt: skip

_not_finite = formula(lambda a: fn.sum(fn.not_equal(a - a, 0.0), None, False))


class PyCudaHandler(Lowering):
    """Handler for float32 arrays on an NVIDIA GPU.

    Operations are put into a stream, and return before they are computed; reading an array
    (`get_numpy_copy`, ``array.get()``) waits. The launches of an operation are cached, with packed
    arguments; a trace is replayed as a CUDA graph. Threads may share a handler. Results have the
    same bits for the same seed, GPU and library versions.

    Args:
        seed: Seeds `rnd`; `None` draws a seed from `global_rnd`.
        device: Number of the GPU, as in CUDA.
        compute: Precision of products and convolutions: 'f32' is exact, 'tf32' rounds factors to 11
            significant bits, 'bf16' to 8, as well as the results of convolutions by cuDNN. Sums,
            parameters and everything else stay in float32.

    Raises:
        HandlerValidationError: An argument is not valid.
        MissingDependencyError: PyCUDA, cuBLAS or NVRTC is not installed.
        DeviceError: There is no driver, no such GPU, or it is too old.

    Attributes:
        context: ``'cuda:0'`` and the like.
    """

    array_type = DeviceArray
    causal_rows = 2048

    def __init__(self, seed: int | None = None, device: int = 0, compute: str = "f32") -> None:
        if device not in integer(0):
            raise HandlerValidationError(
                f"PyCudaHandler(device): expected the number of a GPU, got {shown(device)}"
            )
        if compute not in COMPUTE:
            raise HandlerValidationError(
                f"PyCudaHandler(compute): expected one of {', '.join(map(repr, COMPUTE))}, got "
                f"{compute!r}"
            )
        self._number, self._compute = int(device), compute
        self.dtype = np.dtype(np.float32)
        self.context = f"cuda:{device}"
        self._connect()
        self.rnd = RandomState(seed)
        self.stream = self.create_random_stream(self.rnd.generate_seed())

    def _connect(self) -> None:
        self._device = find_device(self._number)
        self._blas = Cublas(self._device, self._compute)
        self._cudnn = Cudnn.found(self._device, self._compute)
        make_executor = functools.partial(DeviceExecutor, device=self._device)
        self._memo = Memo(make_executor, self._build_program)
        #: Memory to the matrices in it, by their places: what they are rounded to.
        self._halves: weakref.WeakKeyDictionary[Memory, dict[Any, DeviceArray]]
        self._halves = weakref.WeakKeyDictionary()
        self.EMPTY, self._flag = self.allocate(0), self.allocate(())

    def __describe__(self) -> dict[str, Any]:
        options = {"device": self._number, "compute": self._compute}
        chosen = {name: value for name, value in options.items() if value != _USUAL[name]}
        return {"@type": type(self).__name__, **chosen}

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if name not in _CONNECTED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    def info(self) -> dict[str, str]:
        from importlib.metadata import version  # slow to import

        driver, device = load_driver(), self._device
        compiler = find_nvrtc().name
        own = f"own kernels, compiled by {compiler}"
        return {
            "handler": type(self).__name__,
            "dtype": self.dtype.name,
            "device": f"{device.name} ({device.arch}, number {device.index})",
            "compute": self._compute,
            "pycuda": version("pycuda"),
            "driver": "{}.{}".format(*divmod(driver.get_driver_version() // 10, 100)),
            "products": f"cuBLAS {self._blas.version}",
            "convolutions": (f"cuDNN {self._cudnn.version}, or " if self._cudnn else "")
            + f"cuBLAS on columns of {own}",
            "pooling": own,
            "op-trees": f"CUDA C, compiled by {compiler}",
            "random numbers": own,
        }

    # -- executing -----------------------------------------------------------------------------

    @property
    def memo(self) -> Memo:
        return self._memo

    @property
    def stream(self) -> Any:
        """The random stream of operations without one; a trace keeps that of its recording."""
        return self._stream

    @stream.setter
    def stream(self, stream: Any) -> None:
        self._stream = stream
        self._evict(self.memo.forget)  # calls have the address of the stream before

    def _build_calls(
        self, name: str, builder: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> list[Building]:
        for array in arguments.values():
            self._check_device(name, array)
        with self._device.lock:
            building = Building(self, name)
            builder(building, **arguments)
            building.finish()
        return [building]

    def _build_program(self, executor: DeviceExecutor, *given: Any) -> list[Building]:
        for array in itertools.chain(*given[:2]):
            self._check_device(executor.program.name, array)
        return self._build_calls(
            executor.program.name, lambda building: executor.collect(building, *given), {}
        )

    def _check_device(self, name: str, array: Any) -> None:
        array = getattr(array, "state", array)  # of a stream of random numbers
        device = getattr(array, "device", self._device)
        if device is not self._device:
            raise HandlerValidationError(
                f"{name}: expected arrays on {self._device.name} (number {self._device.index}), "
                f"got {array!r} (number {device.index}). Copy it: "
                f"handler.create_from_numpy(x.get())."
            )

    def new_lane(self) -> Any:
        memo, partial = self.memo, functools.partial
        clear, trim = partial(self._evict, memo.forget), partial(self._evict, memo.trim)
        return types.SimpleNamespace(clear=clear, trim=trim, version=0)

    def _evict(self, drop: Callable[[], None]) -> None:
        with self._device.lock:  # not while a graph is captured: this frees memory
            drop()

    def call(self, function: Callable[[], Any], is_queued: bool = False) -> None:
        if not is_queued:
            super().call(function)
            return
        building, everything = Building(self, "queued"), [(0, 2**64)]
        building.pieces.append(Piece([], everything, launch=Launch(None, function)))
        self.execute((building,), "queued")

    def loop(self, steps: Sequence[int], body: Callable[[int], None]) -> None:
        for t in steps:  # every launch is a node of the graph
            body(t)

    def trace(self, function: Callable[[], None]) -> Trace:
        with self.tracing(runs=False) as trace:  # its kernels are those of the graph
            function()
        if trace.reads:  # something depends on values that were not computed
            return super().trace(function)
        trace.replay()
        return trace

    def compile(self, calls: Sequence[Callable[[], Any]]) -> Sequence[Callable[[], Any]]:
        functions: list[Any] = []
        for is_graph, group in itertools.groupby(calls, lambda call: isinstance(call, Building)):
            found: Any = list(group)
            functions += [Graph(self._device, found)] if is_graph else found
        graphs = [function for function in functions if isinstance(function, Graph)]
        with self._device.lock:
            launches = [launch for graph in graphs for launch in graph.launches]
            load(self._device, launches)
            for graph in graphs:
                graph.capture()
        return functions

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, shape: int | tuple[int, ...]) -> Array:
        sizes = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        return DeviceArray.new(self._device, sizes, self.dtype)

    def create_from_numpy(self, arr: Any) -> Array:
        self._check_host(arr)
        dtype = arr.dtype.newbyteorder("=")
        array = DeviceArray.new(self._device, arr.shape, dtype)
        self._device.upload(arr.astype(dtype, copy=False), array)
        return array

    def get_numpy_copy(self, mem: Array) -> Any:
        self._check_own(mem)
        return mem.get()

    def set_from_numpy(self, mem: Array, arr: Any) -> None:
        values = self._fitting(mem, arr)
        self._check_device("set_from_numpy", mem)
        self._device.upload(values, mem)

    def is_fully_finite(self, a: Array) -> bool:
        if not a.size:
            return True
        with self._device.lock:
            self.compute(_not_finite, [a], [self._flag])
            return not self._flag.get()

    def create_random_stream(self, seed: int) -> Any:
        return streams.DeviceStream(self._device, seed)


# What has a builder, a function of its name, is built.
for _builders in (builders, images, streams):
    for _name in Handler.operations().keys() & vars(_builders).keys():
        setattr(PyCudaHandler, _name, lowered(_name, getattr(_builders, _name)))
abc.update_abstractmethods(PyCudaHandler)
