"""The folder of compiled code: what others could have put there is not run."""

import os
import re
import stat
from types import SimpleNamespace

import pytest

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers import compiler, kernel_cache
from brainstorm.handlers.kernel_cache import find_files, trusted_directory, write_file
from tests.handlers.compiling import ask, build_unloaded, probe
from tests.handlers.running import in_process, needs_compiler

NOBODY = 65534
IS_ALONE_IN = kernel_cache._is_alone_in
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT: FOREIGN FILES ARE NOT TESTED")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache that is ours, below a folder that is ours."""
    folder = tmp_path / "above" / "cache"
    folder.mkdir(parents=True)
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(folder))
    monkeypatch.setattr(kernel_cache, "_is_alone_in", lambda group: False)
    kernel_cache._warn.cache_clear()
    return folder


def make_foreign_link(cache):
    cache.rename(cache.with_name("other"))
    cache.symlink_to("other")
    os.chown(cache, NOBODY, NOBODY, follow_symlinks=False)


def make_foreign(path):
    os.chown(path, NOBODY, NOBODY)


UNSAFE = {
    "others write": (lambda c: c.chmod(0o707), r"/cache can be written by others \(mode 707\)"),
    "a group writes": (lambda c: c.chmod(0o770), r"/cache can be written by others \(mode 770\)"),
    "sticky": (lambda c: c.chmod(0o1777), r"/cache can be written by others \(mode 1777\)"),
    "above": (lambda c: c.parent.chmod(0o777), r"/above can be written by others \(mode 777\)"),
    "read only": (lambda c: c.chmod(0o500), "/cache cannot be written"),
    "a file": (lambda c: (c.rmdir(), c.touch()), r"/cache cannot be created \(.*File exists"),
    "foreign": (make_foreign, "/cache belongs to user 65534"),
    "foreign above": (lambda c: make_foreign(c.parent), "/above belongs to user 65534"),
    "foreign link": (make_foreign_link, "/cache belongs to user 65534"),
}
NEEDS_ROOT = {name for name in UNSAFE if name.startswith("foreign")}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=as_root if k in NEEDS_ROOT else ()) for k in UNSAFE]
)
def test_a_folder_that_others_can_write_is_not_used_and_a_warning_says_why(cache, kind, caplog):
    if kind == "read only" and os.geteuid() == 0:
        pytest.skip("ROOT MAY WRITE EVERYWHERE: READ-ONLY FOLDERS ARE NOT TESTED")
    make, why = UNSAFE[kind]
    make(cache)
    found = [trusted_directory() for _ in range(2)]
    assert found[0] == found[1] != cache
    assert stat.S_IMODE(found[0].stat().st_mode) == 0o700
    assert len(caplog.records) == 1
    assert re.fullmatch(
        f"compiled code is cached only for this process, because /.*{why}.*. Set "
        f"BRAINSTORM_CACHE_DIR to a folder that only you can write to.",
        caplog.text.partition("kernel_cache.py:")[2].partition(" ")[2].strip(),
    )


def test_folders_that_only_we_can_write_are_used(cache, tmp_path, monkeypatch, caplog):
    cache.parent.chmod(0o1777)  # as /tmp is: nobody replaces what belongs to others
    link = tmp_path / "link"
    link.symlink_to(cache)
    new = tmp_path / "new/cache"
    for given, used in ((cache, cache), (link, cache), (new, new)):
        monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(given))
        assert trusted_directory() == used
    assert {stat.S_IMODE(path.stat().st_mode) for path in (new, new.parent)} == {0o700}
    assert not caplog.records


def test_a_home_and_the_present_folder_are_found_where_a_program_first_looks(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    for given, used in (("~/mine", "mine"), ("", ".cache/brainstorm"), ("a/b", "a/b")):
        monkeypatch.setenv("BRAINSTORM_CACHE_DIR", given)
        monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
        monkeypatch.chdir(tmp_path)
        assert trusted_directory() == tmp_path / used
        monkeypatch.chdir("elsewhere")
        assert trusted_directory() == tmp_path / used
    assert not caplog.records
    assert os.listdir() == []


def test_a_home_that_is_not_there_is_no_folder_called_tilde(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", "~nobody-of-this-name/cache")
    kernel_cache._warn.cache_clear()
    trusted_directory()
    assert "because ~nobody-of-this-name/cache is not an absolute path. Set BRAIN" in caplog.text
    assert os.listdir() == []


def test_no_folder_is_relative_to_a_present_folder_that_was_removed(tmp_path, monkeypatch, caplog):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", "no/longer")
    kernel_cache._warn.cache_clear()
    assert not list(find_files("a"))
    trusted_directory()
    assert "because no/longer is not an absolute path. Set BRAIN" in caplog.text


@pytest.mark.parametrize("members", [[], ["somebody"]])
def test_a_group_of_this_user_alone_is_nobody_else(cache, monkeypatch, members):
    group = SimpleNamespace(gr_name="user", gr_mem=members)
    monkeypatch.setattr(kernel_cache.grp, "getgrgid", lambda gid: group)
    user = SimpleNamespace(pw_name="user", pw_gid=cache.stat().st_gid or 1)
    monkeypatch.setattr(kernel_cache.pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(kernel_cache, "_is_alone_in", IS_ALONE_IN.__wrapped__)
    os.chown(cache, -1, user.pw_gid)
    cache.chmod(0o770)
    assert (trusted_directory() == cache) == (not members)


@pytest.mark.parametrize(
    "kind",
    ["others write", "a group writes", "a link", "a FIFO", pytest.param("foreign", marks=as_root)],
)
def test_a_file_that_others_can_write_is_not_read(cache, kind):
    path = write_file("file", b"code")
    assert list(find_files("file")) == [(path, b"code")]
    if kind == "a link":
        path.rename(cache / "other")
        path.symlink_to("other")
    elif kind == "a FIFO":
        path.unlink()
        os.mkfifo(path)
    elif kind == "foreign":
        make_foreign(path)
    else:
        path.chmod(0o606 if kind == "others write" else 0o660)
    assert list(find_files("file")) == []


@needs_compiler
@pytest.mark.parametrize("place", ["folder", "file"])
def test_code_that_somebody_else_has_put_there_is_not_run(cache, place):
    """Hashes are no secrets: everybody can make a library that has them."""
    evil, path = (build_unloaded(probe(answer)) for answer in (66, 5))
    content = evil.read_bytes()[:-32]
    path.write_bytes(content + kernel_cache._seal(path.name, content))
    files = set(cache.iterdir())
    (cache if place == "folder" else path).chmod(0o777)
    assert ask(compiler.load(probe(5), "probe")) == 5
    assert set(cache.iterdir()) == files


PROCESS = """
import os, sys
from brainstorm.handlers.kernel_cache import trusted_directory
found = trusted_directory()
child = os.fork()
if child == 0:
    assert trusted_directory() == found
    sys.exit()
os.waitpid(child, 0)
assert found.is_dir()
print(found)
"""
WORKER = """
import multiprocessing
from brainstorm.handlers.kernel_cache import trusted_directory
worker = multiprocessing.get_context("fork").Process(
    target=lambda: print(trusted_directory(), flush=True)
)
worker.start()
worker.join()
"""


@pytest.mark.parametrize("script", [PROCESS, WORKER], ids=["process", "worker"])
def test_private_folders_are_removed_at_the_end_of_the_process_that_made_them(cache, script):
    cache.chmod(0o777)
    printed, said = in_process(script)
    assert said.startswith("compiled code is cached only for this process, because ")
    assert not os.path.exists(printed.strip())
    assert printed.strip() != ""


@needs_compiler
def test_where_others_can_write_everywhere_nothing_is_compiled(cache, monkeypatch):
    cache.chmod(0o777)
    monkeypatch.setattr(kernel_cache, "_private", [])
    monkeypatch.setattr(kernel_cache.tempfile, "tempdir", str(cache))
    with pytest.raises(MissingDependencyError, match="no folder for compiled code: .*/cache can"):
        compiler.load(probe(5), "probe")
