"""The system's C compiler: from source to a loaded function, with a cache on disk.

The cache is the directory in BRAINSTORM_CACHE_DIR, or ``brainstorm`` in the user's cache directory,
which no other user can write to (see `kernel_cache`). The name of a library is the hash of
everything that it depends on (source, compiler, flags, processor), so it is found at once however
many there are. It is created by renaming, and loaded only if it ends with the hash of its name and
content. So processes need no locks, and truncated or foreign files are built again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import os
import platform
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from brainstorm.errors import MissingDependencyError
from brainstorm.forks import renew_after_fork
from brainstorm.handlers.compiler_flags import (
    BASE,
    GROUPS,
    Flags,
    find_flags,
    run,
    run_compiler,
)
from brainstorm.handlers.kernel_cache import read_trusted, trusted_directory
from brainstorm.handlers.threads import default_threads, load_library

LOG = logging.getLogger("brainstorm")

#: Characters of a hash.
HASH = 32


def found_commands() -> tuple[tuple[str, ...], ...]:
    """Return the command in CC, or else what there is of cc, gcc and clang, by preference."""
    wanted = os.environ.get("CC", "").strip()
    try:
        words = shlex.split(wanted)
    except ValueError:  # an unclosed quotation mark
        words = [wanted]
    if words:
        return (tuple(words),) if shutil.which(words[0]) else ()
    return tuple((found,) for found in map(shutil.which, ("cc", "gcc", "clang")) if found)


def is_available() -> bool:
    """Return whether C can be compiled and loaded here; logs once if it cannot."""
    return not _compiler_here()[1].problem


def describe() -> str:
    """Return the compiler that is used, or why there is none."""
    found = _compiler_here()[1]
    if found.problem:
        return f"numpy ({found.problem})"
    threads = "with" if found.flags.has_threads else "without"
    return f"C, compiled by {shlex.join(found.command)}, {threads} threads"


class _Compiler(NamedTuple):
    """A compiler: what compiled code depends on besides its source, or why it does not work."""

    command: tuple[str, ...] = ()
    key: str = ""
    flags: Flags = BASE
    problem: str = ""


def _compiler_here() -> tuple[Path, _Compiler]:
    try:
        directory = trusted_directory()
    except OSError as error:
        return Path(), _Compiler(problem=str(error))
    commands = found_commands()
    with _alone("compiler"):
        return directory, _find_compiler(commands, directory)


class _Alone:
    """Locks by key: of threads that want the same, one does it, and the others find it done."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        self._guard, self._locks = threading.Lock(), dict[str, Any]()

    def __call__(self, key: str) -> Any:
        with self._guard:
            return self._locks.setdefault(key, threading.RLock())  # signal handlers compute, too


_alone = _Alone()


@functools.lru_cache
def _find_compiler(commands: tuple[tuple[str, ...], ...], directory: Path) -> _Compiler:
    """Return the first compiler that works; log a warning if there is none."""
    problems = []
    for command in commands:
        try:
            machine = _machine(command)
            flags = _known_flags(machine, directory) or _new_flags(command, machine, directory)
            return _Compiler(command, f"{machine}\n{flags}", flags)
        except MissingDependencyError as error:
            problems.append(str(error))
    named = f": CC is {os.environ['CC']!r}" if os.environ.get("CC") else ""
    problem = "; ".join(problems) or f"no C compiler was found{named}"
    LOG.warning(
        "op-trees run on NumPy, which is slower: %s. Install a C compiler, or name one in CC; if "
        "it works elsewhere, set BRAINSTORM_CACHE_DIR to a folder with space, not mounted noexec.",
        problem,
    )
    return _Compiler(problem=problem)


def _machine(command: tuple[str, ...]) -> str:
    """Return a text about everything that the flags of a compiler depend on."""
    version = ""
    with contextlib.suppress(OSError):
        version = run([*command, "--version"]).stdout
    features = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        features = next((line for line in file if line.startswith(("flags", "Features"))), "")
    return "\n".join([*command, version, platform.machine(), features, repr(GROUPS)])


def _known_flags(machine: str, directory: Path) -> Flags | None:
    """Return the flags from the cache: a library compiled with them, which returns them."""
    library = _find_library(directory, _hash(machine))
    if library is None:
        return None
    texts = (library.flags_options, library.flags_libraries)
    for function in texts:
        function.restype = ctypes.c_char_p
    return Flags(*(function().decode() for function in texts))


def _new_flags(command: tuple[str, ...], machine: str, directory: Path) -> Flags:
    """Find the flags that a compiler supports, and store them in the cache."""
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as work:
            flags = find_flags(command, Path(work))
    except OSError as error:
        raise _no_place(directory, error) from None
    source = "".join(
        f"const char *flags_{name}(void) {{ return {json.dumps(text)}; }}\n"
        for name, text in flags._asdict().items()
    )
    _build_library(command, flags, source, _hash(machine), directory)
    return flags


#: Sources with the functions wanted of them.
Sources: TypeAlias = set[tuple[str, str]]


class _State(threading.local):
    """Where this thread collects what must be compiled, if it does not compile it."""

    wanted: Sources | None = None


_state = _State()


@contextlib.contextmanager
def collecting(wanted: Sources | None) -> Iterator[None]:
    """Let `load` return 0 for what must be compiled, and add it there; None: as usual."""
    before, _state.wanted = _state.wanted, wanted
    try:
        yield
    finally:
        _state.wanted = before


def compile_all(wanted: Sources) -> None:
    """Compile sources side by side, the longest first; errors are raised by `load`."""

    def compile_one(given: tuple[str, str]) -> None:
        with contextlib.suppress(MissingDependencyError):
            load(*given)

    if wanted:
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        pool = ThreadPoolExecutor(default_threads())
        try:
            list(pool.map(compile_one, sorted(wanted, key=lambda given: -len(given[0]))))
        except RuntimeError:
            pass  # no thread can be started, such as at exit: `load` compiles the rest
        finally:  # Ctrl-C
            pool.shutdown(cancel_futures=True)


#: Addresses of functions that were loaded.
_known: dict[Hashable, int] = {}


def load_once(key: Hashable, source: Callable[[], str], name: str) -> int:
    """Return what `load` does, without asking it again for the same key."""
    address = _known.get(key) or load(source(), name)
    if address:
        _known[key] = address
    return address


#: What was wrong with sources, by directory and cache key: they are not compiled again.
_failures: dict[tuple[Path, str], str] = {}


def load(source: str, name: str) -> int:
    """Return the address of a function of C source, compiled unless the cache has it.

    While `collecting`, it is 0 if it must be compiled.

    Args:
        source: The source.
        name: The function.

    Raises:
        MissingDependencyError: If there is no compiler, it does not accept the source, or there is
            no space for the result. The same source is not tried again in this process.
    """
    directory, compiler = _compiler_here()
    if compiler.problem:
        raise MissingDependencyError(compiler.problem)
    key = _hash(f"{compiler.key}\n{name}\n{source}")
    with _alone(key):
        if (directory, key) in _failures:
            raise MissingDependencyError(_failures[directory, key])
        library = _find_library(directory, key)
        if library is None and _state.wanted is not None:
            _state.wanted.add((source, name))
            return 0
        if library is None:
            try:
                library = _build_library(compiler.command, compiler.flags, source, key, directory)
            except MissingDependencyError as error:
                if not _failures:
                    LOG.warning("a formula runs without its kernel, which is slower: %s", error)
                _failures[directory, key] = str(error)
                raise
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _find_library(directory: Path, key: str) -> ctypes.CDLL | None:
    """Load a library if it is what its name says."""
    path = directory / f"{key}.so"
    content = read_trusted(path)
    if content is None or content != _sealed(key, content[:-HASH]):
        return None
    with contextlib.suppress(OSError):
        return load_library(str(path))
    return None


def _sealed(key: str, content: bytes) -> bytes:
    """Return a library with a hash at its end, which loaders ignore."""
    return content + _hash(key.encode() + content).encode()


def _hash(content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(content).hexdigest()[:HASH]


def _no_place(directory: Path, error: OSError) -> MissingDependencyError:
    return MissingDependencyError(f"{directory} takes no compiled library: {error}")


def _build_library(
    command: tuple[str, ...], flags: Flags, source: str, key: str, directory: Path
) -> ctypes.CDLL:
    try:
        path = _build(command, flags, source, key, directory)
    except OSError as error:
        raise _no_place(directory, error) from None
    library = _find_library(directory, key)
    if library is None:
        path.unlink(missing_ok=True)
        raise MissingDependencyError(f"{shlex.join(command)} built a library that does not load")
    return library


def _build(command: tuple[str, ...], flags: Flags, source: str, key: str, directory: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as work:
        text, library = Path(work, "kernel.c"), Path(work, "kernel.so")
        text.write_text(source)
        if problem := run_compiler(flags.command(command, text, library, "-shared")):
            raise MissingDependencyError(f"{shlex.join(command)} failed: {problem}")
        path = directory / f"{key}.so"
        library.write_bytes(_sealed(key, library.read_bytes()))
        library.chmod(0o700)
        os.replace(library, path)
        return path
