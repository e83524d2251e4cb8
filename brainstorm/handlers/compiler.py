"""The system's C compiler: from source to a loaded function, by way of a cache on disk.

The cache is the directory in BRAINSTORM_CACHE_DIR, or ``brainstorm`` in the user's cache
directory. A library's name there consists of the hash of everything that it depends on (source,
compiler, flags, processor) and the hash of its content. It appears by renaming, is loaded only if
the content has that hash, and has to return the first hash when it is asked. So nothing has to be
locked, and what is cut short, or comes from elsewhere, is built again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from brainstorm.errors import MissingDependencyError

__all__ = ["cache_directory", "compiler_command", "is_available", "load"]

LOG = logging.getLogger("brainstorm")

# Threaded jumps would make masked special cases of what is clamped, and partial redundancy
# elimination branches, with which a loop is not vectorised.
_BASE = (
    "-std=gnu11 -O3 -fno-math-errno -fno-trapping-math -fno-thread-jumps -fno-tree-pre "
    "-ffp-contract=fast -shared -fPIC -w"
)
# GCC would use half of AVX-512's registers, as wide ones slowed down the processors of 2017.
_NATIVE = "-march=native"
if platform.machine() in ("x86_64", "AMD64"):
    _NATIVE += " -mprefer-vector-width=512"
#: From the fastest code to what every compiler understands; the first that works is used.
FLAGS = (
    (f"{_BASE} {_NATIVE} -fopenmp -DBS_VECTOR_LIBRARY", "-lmvec -lm"),
    (f"{_BASE} {_NATIVE} -fopenmp", "-lm"),
    (f"{_BASE} {_NATIVE} -fopenmp-simd", "-lm"),
    (_BASE, "-lm"),
)
#: Seconds that the compiler may take.
PATIENCE = 120


def compiler_command() -> list[str] | None:
    """Return the command of the C compiler: that in the variable CC, else cc, gcc or clang."""
    wanted = shlex.split(os.environ.get("CC", ""))
    if wanted:
        return wanted if shutil.which(wanted[0]) else None
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return None if found is None else [found]


def is_available() -> bool:
    """Return whether C can be compiled and loaded here; logs once if it cannot."""
    command = compiler_command()
    return _works(tuple(command or ()), str(cache_directory()))


def _probe_source(seal: str) -> str:
    return (
        f'const char *probe_seal(void) {{ return "{seal}"; }}\n'
        "void probe(char *const *p, const long *n) { }\n"
    )


@functools.lru_cache
def _works(command: tuple[str, ...], directory: str) -> bool:
    reason = "no C compiler was found"
    if command:
        try:
            load(_probe_source, "probe")
            return True
        except MissingDependencyError as error:
            reason = str(error)
    LOG.warning(
        "op-trees run on NumPy, which is slower: %s. Install a C compiler, or name one in CC.",
        reason,
    )
    return False


def cache_directory() -> Path:
    """Return where compiled libraries are kept; the directory may not exist yet."""
    chosen = os.environ.get("BRAINSTORM_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "brainstorm"


@functools.lru_cache
def _private_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="brainstorm-"))


def _writable_directory() -> Path:
    """Return the cache directory if it is ours to write, otherwise one for this process."""
    directory = cache_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        foreign = hasattr(os, "getuid") and directory.stat().st_uid != os.getuid()
        if not foreign and os.access(directory, os.W_OK):
            return directory
    except OSError:
        pass
    return _private_directory()


@functools.lru_cache
def _machine(command: tuple[str, ...]) -> str:
    """Return what compiled code depends on besides its source."""
    try:
        version = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=False
        ).stdout
    except OSError:
        version = ""
    features = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        features = next((line for line in file if line.startswith(("flags", "Features"))), "")
    return "\n".join([*command, version, platform.machine(), features, repr(FLAGS)])


def load(render: Callable[[str], str], name: str) -> Callable[..., None]:
    """Return a function of C source, compiled unless the cache has it.

    Args:
        render: Gives the source of the function, and of a function ``const char *name_seal(void)``
            that returns the text passed to `render`.
        name: The function; it takes two pointers.

    Raises:
        MissingDependencyError: If there is no compiler, it does not accept the source, or there is
            no place for what it makes.
    """
    command = tuple(compiler_command() or ())
    text = "\n".join([_machine(command) if command else "", name, render("")])
    seal = hashlib.sha256(text.encode()).hexdigest()[:32]
    directory = _writable_directory()
    for path in sorted(directory.glob(f"{seal}-*.so")):
        function = _load_checked(path, seal, name)
        if function is not None:
            return function
    if not command:
        raise MissingDependencyError("no C compiler was found")
    try:
        path = _build(command, render(seal), seal, directory)
    except OSError as error:
        raise MissingDependencyError(f"{directory} takes no compiled library: {error}") from None
    function = _load_checked(path, seal, name)
    if function is None:
        raise MissingDependencyError(f"{shlex.join(command)} made a library that does not load")
    return function


def _load_checked(path: Path, seal: str, name: str) -> Callable[..., None] | None:
    """Load a library if it is what its name says."""
    try:
        if _content_hash(path.read_bytes()) != path.stem.partition("-")[2]:
            return None
        library = ctypes.CDLL(str(path))
        ask = getattr(library, f"{name}_seal")
        ask.restype = ctypes.c_char_p
        if ask() != seal.encode():
            return None
        function = getattr(library, name)
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    return function


def _content_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _build(command: tuple[str, ...], source: str, seal: str, directory: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as work:
        text, library = Path(work, "kernel.c"), Path(work, "kernel.so")
        text.write_text(source)
        messages = ""
        for flags, libraries in FLAGS:
            words = [*command, *flags.split(), str(text), "-o", str(library), *libraries.split()]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise MissingDependencyError(f"{shlex.join(command)}: {error}") from None
            if done.returncode == 0:
                path = directory / f"{seal}-{_content_hash(library.read_bytes())}.so"
                os.replace(library, path)
                return path
            messages = messages or done.stderr
    raise MissingDependencyError(f"{shlex.join(command)} failed: {messages.strip()[:1000]}")
