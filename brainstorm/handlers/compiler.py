"""The system's C compiler: from source to a loaded function, with a cache on disk.

What the cache holds is used without a compiler, too (see `kernel_cache`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
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
from brainstorm.handlers.kernel_cache import (
    cache_directory,
    find_files,
    hash_of,
    trusted_directory,
    write_file,
)
from brainstorm.handlers.threads import default_threads, load_library

LOG = logging.getLogger("brainstorm")


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
    """Return whether C can be loaded here, though perhaps not compiled; logs once if it cannot."""
    return bool(_compiler_here().key)


def describe() -> str:
    """Return the compiler that is used, or why there is none."""
    found = _compiler_here()
    if not found.key:
        return f"numpy ({found.problem})"
    made = f"earlier ({found.problem})" if found.problem else f"by {found.command}"
    return f"C, compiled {made}, {'with' if found.flags.has_threads else 'without'} threads"


class _Compiler(NamedTuple):
    """A compiler: what compiled code depends on besides its source, or why it does not work."""

    words: tuple[str, ...] = ()
    key: str = ""
    flags: Flags = BASE
    problem: str = ""

    @property
    def command(self) -> str:
        return shlex.join(self.words)


def _compiler_here() -> _Compiler:
    commands = found_commands()
    with _alone("compiler"):
        return _find_compiler(commands, cache_directory())


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
    """Return the first compiler that works, or else what one has left in the cache.

    A warning is logged if there is neither. In another directory, they are looked for again.
    """
    problems = []
    host = _host()
    for words in commands:
        try:
            version = ""
            with contextlib.suppress(OSError):
                version = run([*words, "--version"]).stdout
            machine = "\n".join([host, *words, version])
            known = _known_compiler(machine) or _new_compiler(words, machine, host)
            return known._replace(words=words)
        except MissingDependencyError as error:
            problems.append(str(error))
    named = f": CC is {os.environ['CC']!r}" if os.environ.get("CC") else ""
    problem = "; ".join(problems) or f"no C compiler was found{named}"
    known = _known_compiler(host) or _Compiler()
    if not known.key:
        LOG.warning(
            "op-trees run on NumPy, which is slower: %s. Install a C compiler, or name one in CC; "
            "if it works elsewhere, set BRAINSTORM_CACHE_DIR to a folder with space, not mounted "
            "noexec.",
            problem,
        )
    return known._replace(problem=problem)


def _host() -> str:
    """Return a text about everything that compiled code depends on besides its compiler."""
    features = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        features = next((line for line in file if line.startswith(("flags", "Features"))), "")
    return "\n".join([platform.machine(), features, repr(GROUPS), os.environ.get("CC", "")])


def _known_compiler(text: str) -> _Compiler | None:
    """Return a compiler, which is not there, from the cache, by a text about it or its host."""
    for _, content in find_files(f"{hash_of(text)}.json"):
        key, *flags = json.loads(content)
        return _Compiler(key=key, flags=Flags(*flags))
    return None


def _new_compiler(words: tuple[str, ...], machine: str, host: str) -> _Compiler:
    """Find the flags that a compiler supports, and store them in the cache."""
    try:
        with tempfile.TemporaryDirectory(dir=trusted_directory(), prefix="build-") as work:
            flags = find_flags(words, Path(work))
        key = f"{machine}\n{flags}"
        for text in (machine, host):
            write_file(f"{hash_of(text)}.json", json.dumps([key, *flags]).encode())
    except OSError as error:
        raise _no_place(error) from None
    return _Compiler(key=key, flags=flags)


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
        MissingDependencyError: There is no compiler, it does not accept the source, or there is
            no space for the result. The same source is not tried again in this process.
    """
    compiler = _compiler_here()
    if not compiler.key:
        raise MissingDependencyError(compiler.problem)
    key = hash_of(f"{compiler.key}\n{name}\n{source}")
    failure = cache_directory(), key
    with _alone(key):
        if failure in _failures:
            raise MissingDependencyError(_failures[failure])
        address = _find_function(key, name)
        if not address and _state.wanted is not None:
            _state.wanted.add((source, name))
        elif not address:
            try:
                address = _build_function(compiler, source, key, name)
            except MissingDependencyError as error:
                if not _failures:
                    LOG.warning("a formula runs without its kernel, which is slower: %s", error)
                _failures[failure] = str(error)
                raise
    return address


def _find_function(key: str, name: str) -> int:
    """Return the address of a function in the cache, or 0."""
    for path, _ in find_files(f"{key}.so"):
        with contextlib.suppress(OSError, AttributeError):
            function = getattr(load_library(str(path)), name)
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    return 0


def _no_place(error: OSError) -> MissingDependencyError:
    return MissingDependencyError(f"{cache_directory()} takes no compiled library: {error}")


def _build_function(compiler: _Compiler, source: str, key: str, name: str) -> int:
    if compiler.problem:
        raise MissingDependencyError(compiler.problem)
    try:
        path = _build(compiler, source, key)
    except OSError as error:
        raise _no_place(error) from None
    address = _find_function(key, name)
    if not address:
        path.unlink(missing_ok=True)
        raise MissingDependencyError(f"{compiler.command} built a library that does not load")
    return address


def _build(compiler: _Compiler, source: str, key: str) -> Path:
    with tempfile.TemporaryDirectory(dir=trusted_directory(), prefix="build-") as work:
        text, library = Path(work, "kernel.c"), Path(work, "kernel.so")
        text.write_text(source)
        command = compiler.flags.command(compiler.words, text, library, "-shared")
        if problem := run_compiler(command):
            raise MissingDependencyError(f"{compiler.command} failed: {problem}")
        return write_file(f"{key}.so", library.read_bytes())
