"""A CUDA device for machines without one: PyCUDA, its kernels and cuBLAS run on the CPU.

`install()` loads a `libcuda.so.1`, a `libcublas.so.13` and a `libnvrtc.so.13` of the tests
(README.md) into the running process before PyCUDA is imported and puts a stand-in for nvcc first
on PATH. Where a real device is, it does nothing, and the same tests run there.
"""

import ctypes
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cudashim.building import CUDNN, UnavailableError, built
from tests.cudashim.nvcc import compile_cuda

__all__ = [
    "available",
    "check",
    "counters",
    "cudnn",
    "install",
    "installed",
    "lose_device",
    "message",
    "reset",
    "set_option",
]

_ORDERS = ("forward", "reversed", "shuffled")
_GUARDS = ("end", "start", "off")
_driver: ctypes.CDLL | None = None
_served: list[ctypes.CDLL] = []


def real_device() -> bool:
    """Whether this machine has a CUDA device.

    Another process looks: a driver that is loaded here would be PyCUDA's, with or without a device.
    """
    look = (
        "import ctypes; driver, count = ctypes.CDLL('libcuda.so.1'), ctypes.c_int(); "
        "failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)); "
        "raise SystemExit(failed or not count.value)"
    )
    command = [sys.executable, "-S", "-E", "-c", look]
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


@functools.cache
def available() -> str:
    """Make `import pycuda.driver` work, by the device or by the shim.

    Returns:
        Nothing, or, for `pytest.mark.skipif`, why PyCUDA cannot be used.
    """
    if importlib.util.find_spec("pycuda") is None:
        return "PYCUDA IS NOT INSTALLED (python tools/build_pycuda.py): GPU TESTS DO NOT RUN"
    try:
        install()
    except (UnavailableError, OSError) as error:
        return f"NO CUDA DEVICE AND NO SHIM, GPU TESTS DO NOT RUN: {error}"
    return ""


def install() -> bool:
    """Load the shim where no CUDA device is; call it before PyCUDA is imported.

    Returns:
        Whether kernels run on the shim; False: on a device.

    Raises:
        UnavailableError: Without a compiler or NVIDIA's header files.
    """
    global _driver
    if _driver is not None:
        return True
    if real_device():
        return False
    folder = built()
    # Libraries that are loaded are found by their names, whatever LD_LIBRARY_PATH says.
    _driver = ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "libcublas.so.13"), mode=ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(folder / "libnvrtc.so.13"), mode=ctypes.RTLD_GLOBAL)
    _serve(nvrtc, folder)
    _driver.cudashim_counter_names.restype = ctypes.c_char_p
    _driver.cudashim_message.restype = ctypes.c_char_p
    _driver.cudashim_set.argtypes = [ctypes.c_char_p, ctypes.c_longlong]
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return True


def _serve(nvrtc: ctypes.CDLL, folder: Path) -> None:
    """Compile what the libnvrtc of the tests gets."""

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
    def compiler(program, source, architecture):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "kernels.cubin")
            done = compile_cuda(str(folder), str(out), architecture, "-", text=source.decode())
            image = b"" if done.returncode else out.read_bytes()
        size = ctypes.c_size_t(len(image))
        nvrtc.cudashim_compiled(ctypes.c_void_p(program), done.stderr.encode(), image, size)
        return done.returncode

    nvrtc.compiler = compiler  # which keeps it
    nvrtc.cudashim_set_compiler(compiler)
    _served.append(nvrtc)


def installed_here() -> bool:
    """Whether the shim is loaded."""
    return _driver is not None


def installed() -> ctypes.CDLL:
    """The shim's driver."""
    if _driver is None:
        raise RuntimeError("cudashim.install() was not called, or a real device is there")
    return _driver


def cudnn() -> ctypes.CDLL:
    """Load the cuDNN of the tests, which nobody finds by its name."""
    return ctypes.CDLL(str(built() / CUDNN))


def counters() -> dict[str, int]:
    """What was done since the last `reset`, by name."""
    names = installed().cudashim_counter_names().decode().split()
    values = (ctypes.c_longlong * len(names))()
    installed().cudashim_counters(values)
    return dict(zip(names, values, strict=True))


def reset() -> None:
    """Counters from zero, options as the environment says, no device lost; memory stays."""
    installed().cudashim_reset()


def set_option(name: str, value: int | str) -> None:
    """Set one of the options of README.md until the next `reset`."""
    words = {"order": _ORDERS, "guard": _GUARDS}.get(name, ())
    number = words.index(value) if isinstance(value, str) else value
    if installed().cudashim_set(name.encode(), number):
        raise ValueError(f"the shim has no option {name!r}")


def lose_device(device: int = 0) -> None:
    """From now on every call of this device fails."""
    installed().cudashim_lose_device(device)


def message() -> str:
    """What the last failing kernel did, in words."""
    return installed().cudashim_message().decode()


def check() -> int:
    """Look for what was written beside allocations; CUDA's error code, 0 if all is well."""
    return installed().cudashim_check()
