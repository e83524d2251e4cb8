"""Files on disk: whole or not at all, regular ones only, and one writer at a time."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from brainstorm import disk
from brainstorm.data_iterators import save_data
from brainstorm.disk import FileHold, atomic_file, open_regular
from brainstorm.errors import FileFormatError
from brainstorm.ext.onnx_exchange import load_onnx, save_onnx
from brainstorm.ext.safetensors_files import load_safetensors, save_safetensors
from brainstorm.tools import create_net_from_spec
from brainstorm.training import Logs
from tests.fuzz import places


@pytest.fixture
def removed(tmp_path, monkeypatch):
    """What somebody else removes before it is locked: the first file."""
    real, removed = disk._flock, []

    def remove_first(handle, exclusive):
        if not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        real(handle, exclusive)

    monkeypatch.setattr(disk, "_flock", remove_first)
    return removed


def test_an_atomic_file_replaces_the_old_one_with_ordinary_permissions(tmp_path):
    target = tmp_path / "file.txt"
    for text in ("old", "new"):
        with atomic_file(target) as temporary:
            assert temporary.parent == tmp_path
            assert temporary != target
            temporary.write_text(text)
        assert target.read_text() == text
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "plain"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("existed", [True, False])
def test_a_crash_while_writing_leaves_what_was_there_and_no_temporary(tmp_path, existed, error):
    target = tmp_path / "file.txt"
    if existed:
        target.write_text("old")
    with pytest.raises(error), atomic_file(str(target)) as temporary:  # noqa: PT012
        temporary.write_text("half of the n")
        raise error
    assert os.listdir(tmp_path) == (["file.txt"] if existed else [])
    assert not existed or target.read_text() == "old"


def test_a_crash_while_renaming_leaves_no_temporary(tmp_path, monkeypatch):
    def fail(path, target):
        raise OSError(5, "the cable")

    monkeypatch.setattr(Path, "replace", fail)
    for copies in ((), [tmp_path / "copy"]):
        temporary = atomic_file(tmp_path / "file", copies)
        with pytest.raises(OSError, match="the cable"), temporary as file:
            file.write_text("x")
        assert os.listdir(tmp_path) == []


def test_what_killed_processes_left_behind_is_removed(tmp_path):
    """But nothing that a living process, or this one, still writes, nor other files."""
    left, other = tmp_path / ".file.txt.12345678.tmp", tmp_path / ".file.txt.mine.tmp"
    for path in (left, other):
        path.write_text("half of the n")
    code = (
        "import sys\nfrom brainstorm.disk import atomic_file\n"
        f"with atomic_file({str(tmp_path / 'file.txt')!r}) as temporary:\n"
        "    print(temporary, flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        theirs = Path(process.stdout.readline().strip())
        assert not left.exists()
        with atomic_file(tmp_path / "file.txt") as ours, atomic_file(tmp_path / "file.txt"):
            assert ours.exists()
            assert theirs.exists()
        process.kill()
    assert theirs.exists()
    with atomic_file(tmp_path / "file.txt"):
        assert not theirs.exists()
    assert sorted(os.listdir(tmp_path)) == [other.name, "file.txt"]


def test_a_temporary_that_is_taken_for_abandoned_is_made_anew(tmp_path, removed):
    with atomic_file(tmp_path / "file.txt") as temporary:
        temporary.write_text("new")
    assert removed != [temporary]
    assert (tmp_path / "file.txt").read_text() == "new"


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "fcntl", None)
    left = tmp_path / ".file.txt.12345678.tmp"
    left.write_text("half of the n")
    with atomic_file(tmp_path / "file.txt") as temporary:
        temporary.write_text("new")
    assert sorted(os.listdir(tmp_path)) == [left.name, "file.txt"]


# -- what is no file ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a device", "a socket"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "it"
    places.put_special(kind, str(path))
    text = f"^{re.escape(repr(str(path)))}: expected a file, got {kind}. "
    with pytest.raises(FileFormatError, match=f"{text}Copy its content to a"), open_regular(path):
        pass
    for names in ((path,), (tmp_path / "file", [path])):
        with pytest.raises(FileFormatError, match=f"{text}Choose"), atomic_file(*names):
            pass
    assert os.listdir(tmp_path) == ["it"]


READERS = {**places.READERS, "ONNX": load_onnx, "safetensors": load_safetensors}
WRITERS = {
    "network": lambda path: create_net_from_spec("regression", 1, 1, "").save_as_hdf5(path),
    "data": lambda path: save_data(path, {"x": np.zeros((1, 1, 1))}),
    "logs": Logs().save_as_hdf5,
    "JSON": Logs().to_json,
    "CSV": Logs().to_csv,
    "ONNX": lambda path: save_onnx(create_net_from_spec("regression", 1, 1, ""), path),
    "safetensors": lambda p: save_safetensors(create_net_from_spec("regression", 1, 1, ""), p),
}


@pytest.mark.parametrize("use", [*READERS.values(), *WRITERS.values()])
def test_everything_that_reads_or_writes_refuses_a_fifo(tmp_path, use):
    path = str(tmp_path / "it")
    os.mkfifo(path)
    text = f"^{re.escape(repr(path))}: expected a file, got a FIFO"
    with pytest.raises(FileFormatError, match=text):
        use(path)
    assert os.listdir(tmp_path) == ["it"]


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.9, 0.99, None])
@pytest.mark.parametrize(
    ("kind", "called"),
    [
        ("network", "network file"),
        ("data", "data file"),
        ("logs", "logs file"),
        ("ONNX", "model in ONNX"),
        ("safetensors", "safetensors file of a network"),
    ],
)
def test_what_is_truncated_of_another_kind_or_missing_is_named(tmp_path, kind, called, part):
    path = tmp_path / "it"
    WRITERS[kind](path)
    whole, name = path.read_bytes(), re.escape(repr(str(path)))
    path.write_bytes(b"a letter to my aunt" if part is None else whole[: int(len(whole) * part)])
    text = f"^{name} cannot be read as a {called}: it is truncated or of another kind"
    with pytest.raises(FileFormatError, match=text):
        READERS[kind](path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"^there is no file {name}$"):
        READERS[kind](path)


def test_what_becomes_a_fifo_between_the_look_and_the_opening_is_refused(tmp_path, monkeypatch):
    path, look = tmp_path / "it", os.stat
    path.write_text("a file")

    def swap(name, **options):
        found = look(name, **options)
        if name == str(path) and stat.S_ISREG(found.st_mode):
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "stat", swap)
    with pytest.raises(FileFormatError, match="expected a file, got a FIFO"), open_regular(path):
        pass


@pytest.mark.parametrize("name", ["none", "a\0b"])
def test_a_file_or_folder_that_is_not_there_is_named(tmp_path, name):
    path = str(tmp_path / name)
    text = f"^there is no file {re.escape(repr(path))}$"
    with pytest.raises(FileNotFoundError, match=text), open_regular(path):
        pass
    text = f"^there is no folder {re.escape(repr(path))} for 'file.txt'$"
    with pytest.raises(FileNotFoundError, match=text), atomic_file(f"{path}/file.txt"):
        pass


def test_a_link_is_followed_also_into_another_folder_and_to_what_does_not_exist_yet(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk/theirs")
    copy, there = tmp_path / "copy", tmp_path / "disk/theirs"
    for text in ("new", "newer"):
        for left in (tmp_path / ".link.12345678.tmp", tmp_path / "disk/.theirs.12345678.tmp"):
            left.write_text("half of the n")
        with atomic_file(tmp_path / "link", [copy]) as temporary:
            assert temporary.parent == tmp_path / "disk"
            temporary.write_text(text)
        with open_regular(tmp_path / "link") as file:
            assert file.read() == text.encode()
        assert (there.read_text(), copy.read_text()) == (text, text)
        assert os.readlink(tmp_path / "link") == "disk/theirs"
    assert sorted(os.listdir(tmp_path)) == ["copy", "disk", "link"]
    assert os.listdir(tmp_path / "disk") == ["theirs"]
    hold = FileHold(tmp_path / "link")
    with pytest.raises(BlockingIOError):
        FileHold(there)
    hold.release()


def test_a_link_that_leads_nowhere_is_an_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to("none/file")
    texts = {"loop": "Too many levels of symbolic links: .*loop", "astray": "no folder .*none' for"}
    for name, text in texts.items():
        with pytest.raises(OSError, match=text), atomic_file(tmp_path / name):
            pass
    assert sorted(os.listdir(tmp_path)) == ["astray", "loop"]


# -- copies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_links", [True, False])
def test_copies_get_the_content_before_the_file_does(tmp_path, monkeypatch, has_links):
    def no_links(*names):
        raise OSError(1, "no links")

    order, replace = [], Path.replace
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(
        Path, "replace", lambda path, new: (order.append(new.name), replace(path, new))
    )
    with atomic_file(tmp_path / "file", [tmp_path / "a", str(tmp_path / "b")]) as temporary:
        temporary.write_text("x")
    assert order == ["a", "b", "file"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(order, "x")


# -- one writer -----------------------------------------------------------------------------------


def test_a_file_is_held_by_one_until_it_lets_go(tmp_path):
    path, own = tmp_path / "file", "another hook or training of this process"
    first = FileHold(path)
    whole = re.escape(f"process {os.getpid()} on {socket.gethostname()}, since ")
    assert re.fullmatch(f"{whole}.*20..", (tmp_path / ".file.lock").read_text())
    with pytest.raises(BlockingIOError, match=f"^{own}$"):
        FileHold(path)
    first.release()
    assert os.listdir(tmp_path) == []
    second = FileHold(path)
    first.release()  # once is enough: it is not his any more
    with pytest.raises(BlockingIOError, match=own):
        FileHold(path)
    second.release()


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_a_name_may_be_as_long_as_the_file_system_lets_it(tmp_path, name):
    path = tmp_path / name
    hold = FileHold(path)
    with pytest.raises(BlockingIOError):
        FileHold(path)
    for _ in range(2):
        with atomic_file(path) as temporary:
            temporary.write_text("x")
    hold.release()
    assert os.listdir(tmp_path) == [name]


def test_a_process_that_is_killed_holds_nothing_and_its_children_neither(tmp_path):
    code = (
        "import os, sys, time\nfrom brainstorm.disk import FileHold\n"
        f"hold = FileHold({str(tmp_path / 'file')!r})\n"
        "child = os.fork()\n"
        # The child speaks, not its parent: until it runs, it has what its parent had.
        "if child == 0:\n    hold.release()\n    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        child = int(process.stdout.readline())
        with pytest.raises(BlockingIOError, match=f"process {process.pid} on"):
            FileHold(tmp_path / "file")
        process.kill()
        process.wait()
        FileHold(tmp_path / "file").release()
        os.kill(child, signal.SIGKILL)


def test_a_lock_that_was_just_removed_is_made_anew(tmp_path, removed):
    hold = FileHold(tmp_path / "file")
    with pytest.raises(BlockingIOError):
        FileHold(tmp_path / "file")
    hold.release()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["no locks", "a FIFO", "a link"])
def test_where_nothing_can_be_locked_everybody_may_write(tmp_path, monkeypatch, kind):
    other = tmp_path / "other"
    if kind == "no locks":
        monkeypatch.setattr(disk, "fcntl", None)
    elif kind == "a FIFO":
        os.mkfifo(tmp_path / ".file.lock")
    else:
        (tmp_path / ".file.lock").symlink_to(other)
    for _ in range(2):
        FileHold(tmp_path / "file").release()
    assert not other.exists()


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path, monkeypatch):
    """It is never asked for by setting another one: files of other threads would get that."""
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        with atomic_file(tmp_path / "new") as temporary:
            temporary.write_text("x")
        monkeypatch.undo()
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


LIMITED = """
import resource, signal, sys
import numpy as np
from brainstorm.data_iterators import Minibatches, save_data
from brainstorm.tools import extract_and_save
from tests.networks import trainable

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
net, path = trainable(), sys.argv[1]
arrays = {"default": np.ones((1, 4000, 4)), "targets": np.zeros((1, 4000, 1))}
data = Minibatches(100, shuffle=False, **arrays)
unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
for size in (0, 100, 3000, 20_000, 10**9):
    for write in (
        lambda: save_data(path, {"x": np.ones((5, 20_000, 4))}),
        lambda: extract_and_save(net, data, "Projection.outputs.default", path),
        lambda: net.save_as_hdf5(path),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            write()
            said = "written"
        except OSError as error:
            said = error.strerror
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        print(size, said)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on the size of files")
def test_files_that_find_no_room_leave_the_process_whole(tmp_path):
    """HDF5 would end it with a segmentation fault."""
    code = [sys.executable, "-c", LIMITED, str(tmp_path / "a.h5")]
    done = subprocess.run(code, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    full = [f"{size} File too large" for size in (0, 100, 3000, 20_000) for _ in range(3)]
    full[-1] = "20000 written"  # the network is small
    assert done.stdout.splitlines() == [*full, *["1000000000 written"] * 3]
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
