"""The first minute on a machine with a GPU: python -m tests.gpu_smoke.

Is the whole chain there, does it compute what NumPy computes, and what do a launch, a graph and a
copy cost? Every part stands alone: one that fails says why, and the next one goes on. Without a
GPU it runs on the CPU driver of the tests, which shows that it works and nothing else.
"""

import importlib.util
import platform
import sys
import time
import traceback

import numpy as np

from brainstorm.ext.mpi.nccl import find_nccl
from brainstorm.handlers import NumpyHandler, PyCudaHandler
from brainstorm.handlers.pycuda.libraries import path_of
from brainstorm.handlers.pycuda.modules import compile_text
from brainstorm.initializers import Gaussian
from brainstorm.layers import Dropout, FullyConnected, Lstm
from brainstorm.network import Network
from brainstorm.randomness import global_rnd
from brainstorm.training import SgdStepper
from tests import cudashim
from tests.networks import classifier
from tools.gpu_sources import kernel_sources

failures = []


def part(function):
    """Run a part, and go on whatever happens."""
    start = time.perf_counter()
    print(f"== {function.__name__.replace('_', ' ')}", flush=True)
    try:
        function()
    except Exception:
        failures.append(function.__name__)
        traceback.print_exc(limit=4)
    print(f"   {time.perf_counter() - start:.1f} s", flush=True)


def microseconds(handler, function, repeats=200):
    """Return the shortest time of a call, with waiting for the GPU at the end of them all."""
    function()
    best = float("inf")
    for _ in range(5):
        handler._device.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        handler._device.synchronize()
        best = min(best, (time.perf_counter() - start) / repeats)
    return 1e6 * best


def trained(layers, handler, steps, time_size):
    """Return the parameters after some steps, and the microseconds of a step."""
    global_rnd.set_seed(1)
    net = Network.from_layer(classifier(*layers(), features=(256,), classes=10))
    net.set_handler(handler)
    net.initialize(Gaussian(0.1), seed=2)
    rnd, stepper = np.random.RandomState(3), SgdStepper(0.1)
    stepper.start(net)
    data = {
        "default": rnd.normal(size=(time_size, 64, 256)).astype(np.float32),
        "targets": rnd.randint(0, 10, (time_size, 64, 1)),
    }
    net.provide_external_data(data)
    for _ in range(steps):
        stepper.run()
    parameters = handler.get_numpy_copy(net.buffer.parameters)
    on_gpu = isinstance(handler, PyCudaHandler)
    return parameters, microseconds(handler, stepper.run, 20) if on_gpu else 0.0


def main():
    """Run all parts."""
    missing = cudashim.available()
    if missing:
        sys.exit(missing)
    handler = PyCudaHandler(seed=1)

    @part
    def what_is_here():
        print("  ", platform.python_version(), "NumPy", np.__version__)
        for name, value in handler.info().items():
            print(f"   {name}: {value}")
        find_nccl()
        for name in ("cuda", "cublas", "cublasLt", "cudnn", "nvrtc", "nvrtc-builtins", "nccl"):
            print(f"   lib{name}: {path_of(name) or 'NOT FOUND'}")
        for name in ("torch", "triton", "nvidia"):
            print(f"   {name}: {'there' if importlib.util.find_spec(name) else 'NOT FOUND'}")

    @part
    def all_kernels_compile():
        for text in kernel_sources().values():
            compile_text(text, handler._device.arch)

    @part
    def networks_train_as_on_numpy():
        kinds = {
            "MLP": (lambda: (FullyConnected(256, "rel", name="H1"), FullyConnected(256)), 1),
            "LSTM": (lambda: (Lstm(64, name="Lstm"),), 10),
            "LSTM in clusters": (lambda: (Lstm(200, name="Lstm"),), 10),
            "with Dropout (other numbers)": (lambda: (Dropout(0.5), FullyConnected(64)), 1),
        }
        for name, (layers, time_size) in kinds.items():
            got, planned = trained(layers, PyCudaHandler(seed=1), 10, time_size)
            expected, _ = trained(layers, NumpyHandler(np.float32, seed=1), 10, time_size)
            difference = np.abs(got - expected).max()
            print(f"   {name}: differs by {difference:.1e}, {planned:.0f} us a step")
            if difference > 1e-4 and "Dropout" not in name:
                raise AssertionError(f"{name} trains otherwise than on NumPy")

    @part
    def precisions_of_products():
        rnd = np.random.RandomState(0)
        a, b = rnd.normal(size=(2, 1024, 1024)).astype(np.float32)
        exact = a.astype(np.float64) @ b
        for compute, most in (("f32", 1e-5), ("tf32", 2e-3), ("bf16", 2e-2)):
            on = PyCudaHandler(seed=1, compute=compute)
            x, y, out = on.create_from_numpy(a), on.create_from_numpy(b), on.zeros((1024, 1024))
            on.dot_mm(x, y, out)
            error = np.abs(out.get() - exact).max() / np.abs(exact).max()
            spent = microseconds(on, lambda on=on, x=x, y=y, out=out: on.dot_mm(x, y, out), 5)
            print(f"   {compute}: relative error {error:.1e}, {2e-6 * 1024**3 / spent:.1f} TFLOP/s")
            if error > most:
                raise AssertionError(f"products in {compute} are off by {error:.1e}")

    @part
    def what_calls_cost():
        x = handler.ones((1000,))
        print(f"   operation: {microseconds(handler, lambda: handler.add_tt(x, x, x)):.2f} us")
        with handler.tracing() as trace:
            for _ in range(20):
                handler.mult_st(1.0, x, x)
        print(f"   graph of 20 operations: {microseconds(handler, trace.replay):.2f} us")
        for size in (1000, 1_000_000):
            values, target = np.ones(size, np.float32), handler.zeros((size,))
            spent = microseconds(
                handler, lambda v=values, t=target: handler.set_from_numpy(t, v), 20
            )
            print(
                f"   {4 * size} bytes from the host: {spent:.1f} us, {4e-3 * size / spent:.2f} GB/s"
            )

    print("failed: " + ", ".join(failures) if failures else "all parts passed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
