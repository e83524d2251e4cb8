"""Every compiler that works makes every kernel, with the flags that it has, and is asked once."""

import importlib.util
import os
import platform
import shutil
import subprocess
import sys

import pytest

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers import compiler, compiler_flags
from brainstorm.handlers.compiler_flags import find_flags
from brainstorm.handlers.native.library import load
from tests.handlers.compiling import HERE, run_formulas
from tests.handlers.running import in_process, needs_compiler


def test_a_compiler_that_hangs_is_stopped_with_its_processes_and_not_asked_again(
    cache, script, monkeypatch
):
    calls, pipes = script("sleep 600 & echo begun; wait", command=["none"]), []

    def time_out(process, timeout):
        assert process.stdout.readline() == "begun\n"
        pipes.append(os.dup(process.stdout.fileno()))
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", time_out)
    assert not compiler.is_available()
    assert f"was not done after {compiler_flags.PATIENCE} seconds" in compiler.describe()
    assert len(calls()) == 1
    with open(pipes[0]) as pipe:
        assert pipe.read() == ""  # this ends when all have ended that could write there


COMPILERS = {
    "gcc": ["gcc"],
    "clang": ["clang"],
    "zig": [sys.executable, "-m", "ziglang", "cc"],
    "tcc": ["tcc"],  # knows neither vectors nor threads
}


def is_installed(name):
    if name == "zig":
        return importlib.util.find_spec("ziglang") is not None
    return shutil.which(name) is not None


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_makes_every_kernel_and_is_asked_once(name, cache, script):
    if not is_installed(name):
        pytest.skip(f"{name.upper()} IS NOT INSTALLED: KERNELS THAT IT COMPILES ARE NOT TESTED")
    if name == "tcc" and load()[0] is None:
        pytest.skip("TCC HAS NO VECTORS: WITHOUT ONEDNN NOTHING NATIVE DOES SMALL PRODUCTS FOR IT")
    calls = script(command=COMPILERS[name])
    info, messages = in_process(f"{HERE}run_everything()")
    assert info.startswith(f"C, compiled by {os.environ['CC'].replace(chr(39), '')}, with")
    found = {word: [x for x in calls() if word in x] for word in ("--version", "probe.c", "kernel")}
    assert len(found["--version"]) == 1
    assert len(found["probe.c"]) == 1 if name == "gcc" else 1 < len(found["probe.c"]) < 15
    # One kernel has vectors, which tcc does not know: oneDNN or NumPy does small products.
    refused = 1 if name == "tcc" else 0
    assert len(found["kernel"]) - refused == len(list(cache.glob("*.so")))
    assert messages.count("a formula runs without its kernel, which is slower") == refused
    if name == "gcc":
        before = len(calls())
        in_process(f"{HERE}run_formulas()")
        assert calls()[before:] == ["--version"]


@pytest.mark.skipif(not is_installed("gcc"), reason="GCC IS NOT INSTALLED")
def test_kernels_do_nothing_that_c_leaves_undefined(cache, script):
    command = 'exec $COMPILER "$@" -fsanitize=undefined -fsanitize-undefined-trap-on-error'
    script(command, COMPILERS["gcc"])
    in_process(f"{HERE}run_edge_cases()", PYTHONFAULTHANDLER="1")


REFUSING = """
case " $* " in *" {} "*) echo "what is {}?" >&2; exit 1;; esac
exec $COMPILER "$@"
"""


@needs_compiler
@pytest.mark.parametrize(
    ("refused", "remaining"),
    [
        ("-fopenmp", "-fopenmp-simd"),
        ("-lmvec", "-fopenmp"),
        ("-march=native", "-fopenmp"),
        ("-fno-tree-pre", "-march=native"),
        ("-std=gnu11", "-fopenmp"),
    ],
)
def test_a_flag_that_is_refused_costs_itself_alone(cache, script, refused, remaining):
    script(REFUSING.format(refused, refused))
    handler = run_formulas(count=1)
    assert handler._refusals == []
    flags = compiler._compiler_here().flags
    words = f"{flags.options} {flags.libraries}".split()
    assert refused not in words
    assert remaining in words
    threads = "without" if refused == "-fopenmp" else "with"
    assert handler.info()["op-trees"].endswith(f", {threads} threads")


@needs_compiler
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="NO GNU C LIBRARY, WHICH IT IS OF")
def test_a_vector_library_that_lacks_functions_is_not_used(cache, script, tmp_path):
    """That of the GNU C library before 2.35 has `exp`, but not `tanh` and `erf`."""
    old = ("_ZGVbN2v_exp", "_ZGVcN4v_exp", "_ZGVdN4v_exp", "_ZGVeN8v_exp")
    (tmp_path / "old.c").write_text("".join(f"void {name}(void) {{}}" for name in old))
    build = ["-shared", "-fPIC", tmp_path / "old.c", "-o", tmp_path / "libmvec.so"]
    subprocess.run([*compiler.found_commands()[0], *build], check=True)
    (tmp_path / "libm.so").write_text("INPUT ( -l:libm.so.6 )")  # without the other one
    script(f'exec $COMPILER -L{tmp_path} "$@"')
    assert compiler.is_available()
    assert "-lmvec" not in compiler._compiler_here().flags.libraries


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_do_not_start_are_not_used(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(compiler_flags, "_PROBE", f"int main() {{ return {threads} - 2; }}")
    if threads == 2:
        assert find_flags(compiler.found_commands()[0], tmp_path).has_threads
    else:
        with pytest.raises(MissingDependencyError, match="its program returns 255"):
            find_flags(compiler.found_commands()[0], tmp_path)


@needs_compiler
def test_a_compiler_that_takes_openmp_and_ignores_it_has_no_threads(cache, script):
    script('exec $COMPILER $(echo "$@" | sed s/-fopenmp//)')
    assert compiler.is_available()
    assert compiler.describe().endswith(", without threads")


@needs_compiler
def test_what_the_user_wants_of_openmp_is_nothing_against_the_compiler(cache, monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    assert compiler.describe().endswith(", with threads") or "clang" in compiler.describe()
