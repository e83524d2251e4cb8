"""NVIDIA GPUs: PyCUDA for memory, streams and kernels, cuBLAS for products."""
# ruff: noqa: D102 (operations are documented in the base classes)

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.native.elementwise import OPERATIONS, program_of
from brainstorm.handlers.pycuda import streams
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.blas import PROVIDERS
from brainstorm.handlers.pycuda.builders import BUILDERS
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.composed import ComposedProgram, is_composed
from brainstorm.handlers.pycuda.cudnn import Cudnn
from brainstorm.handlers.pycuda.driver import Device, Memory, failure, load_driver
from brainstorm.handlers.pycuda.graphs import Graph
from brainstorm.handlers.pycuda.launches import Launch
from brainstorm.handlers.pycuda.modules import Modules
from brainstorm.handlers.pycuda.programs import DeviceProgram
from brainstorm.handlers.pycuda.transfers import Uploads
from brainstorm.optree import Program, formula
from brainstorm.optree import functions as fn
from brainstorm.randomness import RandomState
from brainstorm.utils import Array

__all__ = ["PyCudaHandler"]

#: How products are computed.
COMPUTE = ("f32", "tf32", "bf16")
#: How many sets of arguments, and constants in device memory, are remembered.
MOST_CALLS, MOST_CONSTANTS = 8192, 1000

_not_finite = formula(lambda a: fn.sum(fn.not_equal(a - a, 0.0), None, False))


class PyCudaHandler(Handler):
    """Handler for float32 arrays on an NVIDIA GPU.

    Operations are put into a stream, and return before they are computed; whoever reads an array
    (`get_numpy_copy`, ``array.get()``) waits. In steady state an operation looks its launches up,
    whose arguments are packed, and a plan is a CUDA graph. Threads may share a handler. Same seed,
    same GPU, same versions of the libraries: same bits.

    Args:
        seed: Seeds `rnd`; `None` draws a seed from `global_rnd`.
        device: Number of the GPU, as CUDA counts.
        compute: How products and convolutions are computed: 'f32' exactly, 'tf32' with factors
            rounded to 11 significant bits, 'bf16' with 8. Sums, parameters and everything else
            stay in float32.
        cublas: What calls cuBLAS: 'ctypes', or 'skcuda' for scikit-cuda (with 'f32' alone).

    Raises:
        HandlerValidationError: An argument is none of these.
        MissingDependencyError: PyCUDA, cuBLAS or the compiler is not installed.
        DeviceError: There is no driver, no such GPU, or it is too old.

    Attributes:
        context: ``'cuda:0'`` and the like.
    """

    array_type = DeviceArray
    plans_at_once = True  # the kernels of a plan are compiled together

    def __init__(
        self,
        seed: int | None = None,
        device: int = 0,
        compute: str = "f32",
        cublas: str = "ctypes",
    ) -> None:
        for name, value, choices in (
            ("compute", compute, COMPUTE),
            ("cublas", cublas, tuple(PROVIDERS)),
        ):
            if value not in choices:
                raise HandlerValidationError(
                    f"PyCudaHandler({name}): expected one of {', '.join(map(repr, choices))}, got "
                    f"{value!r}"
                )
        self._device = Device(device)
        self._compute, self._provider = compute, cublas
        self._modules = Modules.of(self._device)
        self._blas = PROVIDERS[cublas](self._device, compute)
        self._cudnn = Cudnn.found(self._device, compute)
        self._known: dict[Any, Building] = {}
        self._alive: dict[Any, Any] = {}
        self._programs: dict[int, tuple[Any, DeviceProgram | ComposedProgram]] = {}
        self._constants: dict[Any, DeviceArray] = {}
        #: Memory to the matrices in it that were packed: place to what it was rounded to.
        self._packed: weakref.WeakKeyDictionary[Memory, dict[Any, DeviceArray]] = (
            weakref.WeakKeyDictionary()
        )
        self._error = load_driver().Error
        self._device.upload = Uploads(self._device, self._copy)

        self.dtype = np.dtype(np.float32)
        self.context = f"cuda:{device}"
        self.rnd = RandomState(seed)
        self.EMPTY, self._flag = self.allocate(0), self.allocate(())
        self.stream = self.create_random_stream(self.rnd.generate_seed())
        super().__init__()

    def __describe__(self) -> dict[str, Any]:
        chosen = {"device": self._device.index, "compute": self._compute, "cublas": self._provider}
        usual = {"device": 0, "compute": "f32", "cublas": "ctypes"}
        return {
            "@type": type(self).__name__,
            **{name: value for name, value in chosen.items() if value != usual[name]},
        }

    @classmethod
    def __new_from_description__(cls, description: Mapping[str, Any]) -> PyCudaHandler:
        names = ("device", "compute", "cublas")
        return cls(**{name: description[name] for name in names if name in description})

    def __reduce__(self) -> Any:
        return type(self), (None, self._device.index, self._compute, self._provider)

    def info(self) -> dict[str, str]:
        from importlib.metadata import version  # takes longer than the rest of this module

        driver, device = load_driver(), self._device
        own = "own kernels, compiled by nvcc"
        return {
            "handler": type(self).__name__,
            "dtype": self.dtype.name,
            "device": f"{device.name} ({device.arch}, number {device.index})",
            "compute": self._compute,
            "pycuda": version("pycuda"),
            "driver": "{}.{}".format(*divmod(driver.get_driver_version() // 10, 100)),
            "products": f"{self._blas.name} {self._blas.version}",
            "convolutions": (f"cuDNN {self._cudnn.version}, or " if self._cudnn else "")
            + f"{self._blas.name} on columns of {own}",
            "pooling": own,
            "op-trees": "CUDA C, compiled by nvcc",
            "random numbers": own,
        }

    # -- executing -----------------------------------------------------------------------------

    def _execute(self, building: Building, what: str) -> None:
        self._device.enter()
        try:
            with self._device.lock:
                for launch in building.launches:
                    launch.run()
        except self._error as error:
            raise failure(error, what) from error

    def _build(self, name: str, arguments: Mapping[str, Any]) -> Building | None:
        """Collect the launches of an operation; None: it is done by the host."""
        building = Building(self)
        if name == "run_program":
            building.run(**arguments)
        elif name in BUILDERS:
            BUILDERS[name](building, **arguments)
        elif name in OPERATIONS:
            values = Handler.operations()[name].signature.bind(**arguments).args
            building.run(**program_of(OPERATIONS[name](building, *values)))
        else:
            return None
        building.finish()
        return building

    def _load(self, *buildings: Building) -> None:
        """Load the kernels of all launches."""
        launches = [launch for building in buildings for launch in building.launches]
        self._modules.load(self._device, [x.kernel for x in launches if x.kernel is not None])
        for launch in launches:
            launch.bind(self._modules)

    def _find(self, name: str, arguments: Mapping[str, Any], key: Any) -> Building:
        """Build an operation, and remember it by the identities of its arguments."""
        with self._device.lock:
            building = self._build(name, arguments)
            assert building is not None
            self._load(building)
        if name != "run_program" and list in map(type, arguments.values()):
            return building  # lists may change
        known, alive = self._known, self._alive
        if len(known) >= MOST_CALLS:
            oldest = next(iter(known))
            del known[oldest], alive[oldest]

        def gone(_: Any) -> None:
            known.pop(key, None)
            alive.pop(key, None)

        # An entry lives no longer than its arrays, whose identities may be given to others. What
        # else was passed is kept, so that nothing else has its identity.
        watched: list[Any] = []
        for value in arguments.values():
            for item in value if type(value) is list else [value]:
                is_watched = isinstance(item, (DeviceArray, Program))
                watched.append(weakref.ref(item, gone) if is_watched else item)
        known[key], alive[key] = building, watched
        return building

    def _build_step(self, operation: Any) -> Building | None:
        """Build a step of a plan; None: only Python can do it."""
        if operation.name == "queued":
            building = Building(self)
            building.launches.append(Launch(None, operation.function))
            return building
        return None if operation.function else self._build(operation.name, operation.arguments)

    def compile_plan(self, operations: Sequence[Any]) -> list[Callable[[], Any]]:
        """Return functions that do operations again: graphs, and what only Python can do."""
        with self._device.lock:
            found = [self._build_step(operation) for operation in operations]
            self._load(*filter(None, found))
        functions: list[Callable[[], Any]] = []
        pairs = zip(operations, found, strict=True)
        for is_graph, group in itertools.groupby(pairs, lambda pair: pair[1] is not None):
            if is_graph:
                functions.append(Graph(self._device, [(o.arguments, b) for o, b in group if b]))
            else:
                functions += [operation.bound_to(self) for operation, _ in group]
        return functions

    # -- op-trees ------------------------------------------------------------------------------

    def run_program(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
    ) -> None:
        key = (id(program), *map(id, inputs), *map(id, outputs), *map(bool, accumulate))
        building = self._known.get(key)
        if building is None:
            arguments = {
                "program": program,
                "inputs": list(inputs),
                "outputs": list(outputs),
                "accumulate": list(accumulate),
            }
            building = self._find("run_program", arguments, key)
        self._execute(building, "run_program")

    def _executor(self, program: Program) -> DeviceProgram | ComposedProgram:
        """Return what turns a program into launches; it lives as long as the program."""
        key, programs = id(program), self._programs
        entry = programs.get(key)
        if entry is None:
            # A copy: what holds the program itself would keep it for ever.
            alone = dataclasses.replace(program)
            executor = (
                ComposedProgram(alone, self)
                if is_composed(alone)
                else DeviceProgram(alone, self._device)
            )
            watch = weakref.ref(program, lambda _: programs.pop(key, None))
            entry = programs[key] = watch, executor
        return entry[1]

    def _constant(self, name: Any, make: Callable[[], np.ndarray]) -> DeviceArray:
        """Return an array that many operations use, made when it is first asked for."""
        array = self._constants.get(name)
        if array is None:
            if len(self._constants) >= MOST_CONSTANTS:
                self._constants.clear()  # who uses them keeps them
            array = self._constants[name] = self.create_from_numpy(make())
        return array

    def _copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy from one array to another one of any dtype."""
        building = Building(self)
        building.copy(source, target)
        self._load(building)
        self._execute(building, "copy")

    # -- memory ------------------------------------------------------------------------------

    def allocate(self, shape: int | tuple[int, ...]) -> Array:
        sizes = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        return DeviceArray.new(self._device, sizes, self.dtype)

    def create_from_numpy(self, arr: Any) -> Array:
        if not isinstance(arr, np.ndarray):
            raise HandlerValidationError(
                f"create_from_numpy(arr): argument 'arr': expected a NumPy array, got "
                f"{type(arr).__name__}"
            )
        array = DeviceArray.new(self._device, arr.shape, arr.dtype)
        self._device.upload(arr, array)
        return array

    def get_numpy_copy(self, mem: Array) -> Any:
        self._check_own(mem)
        return mem.get()

    def set_from_numpy(self, mem: Array, arr: Any) -> None:
        self._device.upload(self._fitting(mem, arr), mem)

    def is_fully_finite(self, a: Array) -> bool:
        if not a.size:
            return True
        with self._device.lock:
            self.compute(_not_finite, [a], [self._flag])
            return not self._flag.get()

    def create_random_stream(self, seed: int) -> Any:
        return streams.DeviceStream(self._device, seed)


def _method(name: str) -> Callable[..., None]:
    signature = Handler.operations()[name].signature

    @functools.wraps(getattr(Handler, name))
    def run(self: PyCudaHandler, *args: Any, **kwargs: Any) -> None:
        key = (name, *map(id, args), *kwargs, *map(id, kwargs.values()))
        building = self._known.get(key)
        if building is None:
            arguments = signature.bind(*args, **kwargs).arguments
            building = self._find(name, arguments, key)
        self._execute(building, name)

    run.__isabstractmethod__ = False  # type: ignore[attr-defined]
    return run


for _name in {**OPERATIONS, **BUILDERS}:
    setattr(PyCudaHandler, _name, _method(_name))
abc.update_abstractmethods(PyCudaHandler)
