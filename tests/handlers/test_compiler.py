"""The C compiler: the first that works is used, none is run twice for the same, none is needed."""

import logging
import os
import re
import shutil
import sys

import numpy as np
import pytest

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers import compiler, kernel_cache
from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.pycuda.libraries import path_of
from brainstorm.layers import Gru, Recurrent
from brainstorm.testing.handler_arguments import Arguments
from brainstorm.training import MomentumStepper
from tests.handlers.compiling import ask, build_unloaded, probe, replay_products, run_formulas
from tests.handlers.native.lowered import check
from tests.handlers.running import in_process, in_threads, needs_compiler
from tests.networks import batch_for, trainable
from tests.trainings import run_steps


@needs_compiler
def test_the_first_compiler_that_works_is_used(cache, tmp_path, monkeypatch):
    works = compiler.found_commands()[0][0]
    for name, target in {"cc": shutil.which("false"), "gcc": works}.items():
        (tmp_path / name).symlink_to(target)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler.shutil, "which", {n: str(tmp_path / n) for n in ("cc", "gcc")}.get)
    assert compiler.describe().startswith(f"C, compiled by {tmp_path / 'gcc'}, ")


# -- compilers that do not work --------------------------------------------------------------


def running(name):
    """Return a function that compares an operation of a handler with the reference."""
    arguments = Arguments(name, 1, np.float32)
    return lambda handler: check(handler, name, arguments, 1e-4, 1e-5, is_native=False)


PATHS = {
    "formulas": lambda handler: run_formulas(count=1, handler=handler),
    "small products": running("dot_mm"),
    "pooling": running("maxpool2d_forward_batch"),
    "rows": running("take_rows_mv"),
    "replay": replay_products,
    "steps": lambda handler: trained_steps(handler=handler),
}
#: The second makes no programs.
BROKEN = {
    "exit 1": "failed: it returned 1",
    "exit 0": "failed: its program does not run: .*No such file",
    r"printf '\303\050 no' >&2; exit 1": "failed: \N{REPLACEMENT CHARACTER}\\( no",
    'exec $COMPILER -x c++ "$@"': "it compiles C\\+\\+; name a compiler of C",
}


@needs_compiler
@pytest.mark.parametrize("text", BROKEN, ids=BROKEN.values())
def test_a_useless_compiler_is_said_once_and_is_asked_once(cache, script, caplog, text):
    calls = script(text)
    with caplog.at_level(logging.WARNING, "brainstorm"):
        for path in (*PATHS.values(), *PATHS.values()):
            path(NativeHandler(seed=1))
    (record,) = caplog.records
    assert re.search("op-trees run on NumPy, .*" + BROKEN[text], record.getMessage(), re.DOTALL)
    asked = len(calls())
    with pytest.raises(MissingDependencyError, match=BROKEN[text]):
        compiler.load(probe(10), "probe")
    assert re.search(BROKEN[text], NativeHandler(seed=1).info()["op-trees"])
    assert len(calls()) == asked


@pytest.mark.parametrize("command", ["no-such-compiler-here", "gcc '"])
@pytest.mark.parametrize("path", PATHS)
def test_a_missing_compiler_is_said_once_wherever_it_is_missed(
    cache, monkeypatch, caplog, path, command
):
    monkeypatch.setenv("CC", command)
    with caplog.at_level(logging.WARNING, "brainstorm"):
        for _ in range(2):
            PATHS[path](NativeHandler(seed=1))
    missing = f"no C compiler was found: CC is {command!r}"
    assert [record.getMessage() for record in caplog.records] == [
        f"op-trees run on NumPy, which is slower: {missing}. "
        "Install a C compiler, or name one in CC; if it works elsewhere, "
        "set BRAINSTORM_CACHE_DIR to a folder with space, not mounted noexec."
    ]
    assert NativeHandler(seed=1).info()["op-trees"] == f"numpy ({missing})"
    assert not compiler.is_available()
    with pytest.raises(MissingDependencyError, match=re.escape(missing)):
        compiler.load(probe(10), "probe")


@needs_compiler
@pytest.mark.parametrize("library", ["echo no >", "echo | $COMPILER -shared -xc - -o"])
def test_a_library_that_does_not_load_is_said_once_and_is_not_built_again(
    cache, script, caplog, library
):
    """It is none, or it is empty."""
    calls = script(f"""
case " $* " in *" -shared "*) for w in "$@"; do test "$o" = -o && {library} $w; o=$w; done;;
*) exec $COMPILER "$@";; esac
""")
    asked = []
    for _ in range(2):
        for path in PATHS.values():
            path(NativeHandler(seed=1))
        asked.append(len(calls()))
    assert asked[0] == asked[1]
    text = "a formula runs without its kernel, .* built a library that does not load"
    (record,) = caplog.records
    assert re.search(text, record.getMessage())
    assert {path.suffix for path in cache.iterdir()} == {".json"}


@needs_compiler
def test_a_source_that_is_refused_is_not_compiled_again(cache, script, caplog):
    calls = script("""
for w in "$@"; do case "$w" in *kernel.c) grep -q loop0 "$w" && { echo "too hard" >&2; exit 1; };;
esac; done
exec $COMPILER "$@"
""")
    with caplog.at_level(logging.WARNING, "brainstorm"):
        for _ in range(3):
            run_formulas(count=1)
    refused = [words for words in calls() if "kernel.c" in words]
    assert len(refused) == 1
    for _ in range(2):
        with pytest.raises(MissingDependencyError, match="nonsense"):
            compiler.load("nonsense", "probe")
    (said,) = (record.getMessage() for record in caplog.records)
    place = os.environ["CC"][4:16]
    assert said.startswith(f"a formula runs without its kernel, which is slower: sh {place}")
    assert len(calls()) == 1 + sum("probe.c" in words for words in calls()) + 2


@needs_compiler
def test_a_full_disk_is_a_missing_compiler_and_none_of_another_directory(
    cache, tmp_path, monkeypatch
):
    text = "takes no compiled library: .* No space left"
    with monkeypatch.context() as patch:
        patch.setattr(kernel_cache.os, "replace", no_space)
        with pytest.raises(MissingDependencyError, match=text):
            compiler.load(probe(12), "probe")
        assert not list(cache.iterdir())
    with pytest.raises(MissingDependencyError, match=text):
        compiler.load(probe(12), "probe")
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path / "other"))
    assert ask(compiler.load(probe(12), "probe")) == 12


# -- several at once -------------------------------------------------------------------------------


def trained_steps(layer=Recurrent, handler=None):
    """Train a small network for two steps, and return what it computes."""
    handler = handler or NativeHandler()
    net, stepper = trainable(layer(5), handler=handler), MomentumStepper(0.1, 0.9)
    stepper.start(net)
    parameters = run_steps(net, stepper, [batch_for(6, 3)] * 2)
    return len(stepper.traces), parameters


@needs_compiler
def test_all_kernels_that_a_first_step_lacks_are_compiled_before_it_runs(cache, monkeypatch):
    built, build, compile_all = [], compiler._build_function, compiler.compile_all

    def noted(*args):
        built.append(args[2])
        return build(*args)

    def known(wanted):
        compile_all(wanted)
        built.append("the step runs")

    monkeypatch.setattr(compiler, "_build_function", noted)
    monkeypatch.setattr(compiler, "compile_all", known)
    traces, first = trained_steps()
    assert traces == 1  # which the first step has left
    assert built.index("the step runs") == len(built) - 1 > 5
    monkeypatch.setattr(compiler, "_known", {})
    _, second = trained_steps()
    assert built[-2:] == ["the step runs"] * 2
    np.testing.assert_array_equal(first, second)
    trained_steps(Gru)
    assert built.count("the step runs") == 3
    assert built[-1] == "the step runs" != built[-2]


@needs_compiler
def test_what_is_collected_is_compiled_at_the_end(cache):
    elsewhere, wanted, again = [], set(), set()
    with compiler.collecting(wanted):
        assert compiler.load(probe(5), "probe") == 0
        assert compiler.load("this is no C", "probe") == 0
        in_threads(lambda n: elsewhere.append(ask(compiler.load(probe(n), "probe"))), [6, 7])
        with compiler.collecting(None):
            assert ask(compiler.load(probe(8), "probe")) == 8
    assert sorted(elsewhere) == [6, 7]
    assert len(wanted) == 2
    compiler.compile_all(wanted)
    with compiler.collecting(again):
        assert ask(compiler.load(probe(5), "probe")) == 5
        with pytest.raises(MissingDependencyError, match="failed"):
            compiler.load("this is no C", "probe")
    assert not again


@needs_compiler
def test_what_was_listed_is_not_run(cache):
    """A kernel that was not compiled is at address 0."""
    handler, other = NativeHandler(seed=1), NativeHandler(seed=1)
    x, y, z = handler.ones((4, 5)), handler.zeros((4, 5)), other.zeros((4, 5))

    def fails():
        other.tanh(x, z)  # another handler computes as ever
        handler.tanh(x, y)
        product = handler.repeated_dot_add(handler.ones((5, 5)))
        handler.loop(range(4), lambda t: product(x[t : t + 1], y[t : t + 1]))
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError, match="^$"):
            handler.trace(fails)
        np.testing.assert_allclose(z, np.tanh(1), rtol=1e-6)
        assert not y.any()
    handler.tanh(x, y)
    np.testing.assert_array_equal(y, z)


@needs_compiler
def test_an_interrupted_compilation_ends_and_is_done_again(cache, monkeypatch):
    load, asked = compiler.load, []

    def interrupted(source, name):
        asked.append(source)
        raise KeyboardInterrupt

    wanted = {(probe(n), "probe") for n in range(20)}
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "load", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compiler.compile_all(wanted)
    assert len(asked) < 20
    assert ask(load(probe(3), "probe")) == 3
    traces, _ = trained_steps()
    assert traces == 1


@needs_compiler
def test_where_no_thread_can_be_started_kernels_are_compiled_later(cache):
    code = f"from {__name__} import *; atexit.register(lambda: print(trained_steps()[0]))"
    assert in_process(f"import atexit; {code}") == ("1\n", "")


def no_space(source, target):
    raise OSError(28, "No space left on device")


# -- the cache -------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux", reason="names of files may have to be UTF-8")
def test_a_cache_may_have_any_name(cache, monkeypatch):
    odd = cache / os.fsdecode(b"\xff $(x)\n'")
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(odd))
    assert ask(compiler.load(probe(5), "probe")) == 5
    assert {path.suffix for path in odd.iterdir()} == {".so", ".json"}
    assert path_of("nothing") is None  # which reads the names of all libraries


@needs_compiler
@pytest.mark.parametrize("content", ["truncated", "empty", "foreign", "changed"])
def test_files_that_are_not_what_they_should_be_are_built_again(cache, content):
    other, path = (build_unloaded(probe(answer)) for answer in (7, 6))
    good, foreign, files = path.read_bytes(), other.read_bytes(), set(cache.iterdir())
    path.write_bytes(
        {
            "truncated": good[: len(good) // 2],
            "empty": b"",
            "foreign": foreign,  # a sound library of another source under this name
            "changed": foreign[:-32] + good[-32:],
        }[content]
    )
    assert ask(compiler.load(probe(6), "probe")) == 6
    assert set(cache.iterdir()) == files


@needs_compiler
def test_what_is_known_of_a_compiler_is_found_again_and_checked(cache):
    known = compiler._compiler_here()
    for content in (None, b""):
        for path in cache.iterdir():
            if content is not None:
                path.write_bytes(content)
        compiler._find_compiler.cache_clear()
        assert compiler._compiler_here() == known


@needs_compiler
def test_a_cache_serves_where_there_is_no_compiler_and_nothing_is_written(
    cache, monkeypatch, caplog
):
    """Kernels that it lacks run on NumPy, after one warning."""
    run_formulas()
    before = compiler._compiler_here()
    monkeypatch.setattr(compiler, "found_commands", lambda: ())
    monkeypatch.setattr(compiler, "_known", {})
    monkeypatch.setattr(kernel_cache, "trusted_directory", None)
    for _ in range(2):
        assert run_formulas()._refusals == []
    assert compiler._compiler_here() == before._replace(words=(), problem="no C compiler was found")
    assert compiler.describe().startswith("C, compiled earlier (no C compiler was found), with")
    assert caplog.records == []
    for _ in range(2):
        assert run_formulas(np.float64)._refusals == ["no C compiler was found"]
    assert [record.getMessage() for record in caplog.records] == [
        "a formula runs without its kernel, which is slower: no C compiler was found"
    ]
