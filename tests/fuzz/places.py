"""Kinds of inputs that are about places: paths in run files, what is no file, caches of others."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path

import h5py
import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import Hdf5Minibatches, Minibatches, load_data
from brainstorm.errors import ValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.kernel_cache import _seal, find_files
from brainstorm.hooks import SaveCheckpoint, SaveLogs, SaveNetwork
from brainstorm.tools import create_net_from_spec
from brainstorm.training import Logs
from tests.trainings import make_trainer

LETTER = "dear aunt"


@contextlib.contextmanager
def playground():
    """Be in a new folder ``here``, beside which there is ``mine`` with a letter in it."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        for folder in ("here", "mine"):
            Path(name, folder).mkdir()
        Path(name, "mine/letter").write_text(LETTER)
        os.chdir(Path(name, "here"))
        try:
            yield
        finally:
            os.chdir(before)


def _data():
    return Minibatches(2, default=np.ones((1, 4, 3)), targets=np.zeros((1, 4, 1)))


# -- paths in run files ---------------------------------------------------------------------------

PATHS = [
    "../mine/letter", "../here/../mine/letter", "ROOT/mine/letter", "link", "folder", "fifo", ".",
    "..", "", "/", ".hidden", "a\0b", "a\nb", "\ud800", "x" * 300, "x/" * 200, "run.hdf5", "a.hdf5",
    "./a.hdf5", "ROOT/here/a.hdf5", "~/a.hdf5", "link/../../mine/letter", None, 5, ["a"],
    "train.py", "./train.py", "mine.hdf5", "net.hdf5", "logs.hdf5", "run-1.hdf5", "new.py",
]  # fmt: skip
HOOKS = ("SaveCheckpoint", "SaveLogs", "SaveNetwork")


def make_paths(rnd):
    """Return what is put into a run file: hooks to paths, and what is said to be kept."""
    paths = {name: rnd.choice(PATHS) for name in rnd.sample(HOOKS, rnd.choice([0, 1, 1, 2]))}
    kept = (
        [1, 2]
        if rnd.random() < 0.7
        else rnd.choice([PATHS[:3], [[1]], None, [-1], [7, 1], [7] * 9])
    )
    return paths, kept


def go_on(value):
    """Continue a run whose file names these paths; nothing may happen elsewhere."""
    paths, kept = value
    with playground():
        os.symlink("../mine/letter", "link")
        os.mkdir("folder")
        os.mkfifo("fifo")
        save = SaveCheckpoint("run.hdf5", timescale="update", keep=2)
        trainer = make_trainer(save, SaveLogs("logs.hdf5"), SaveNetwork("net.hdf5"), epochs=2)
        net = create_net_from_spec("classification", 3, 2, "F2")
        net.set_handler(NumpyHandler(np.float32))
        trainer.train(net, _data())
        _change_file(paths, kept)
        own = ("train.py", "mine.hdf5", *(["run-7.hdf5"] if kept and 7 in kept else []))
        for name in own:
            Path(name).write_text(LETTER)
        try:
            again = bs.Trainer.resume("run.hdf5")
            again.hooks["StopAfterEpoch"].max_epochs = 3
            again.train(again.net, _data())
        finally:
            _check_that_nothing_is_lost(own)


def _change_file(paths, kept):
    with h5py.File("run.hdf5", "r+") as file:
        content = {name: json.loads(file[name][()]) for name in ("trainer", "state")}
        root = os.path.dirname(os.getcwd())
        for name, path in paths.items():
            path = path.replace("ROOT", root) if isinstance(path, str) else path
            content["trainer"]["hooks"][name]["filename"] = path
        content["state"]["trainer"]["hooks"]["SaveCheckpoint"]["kept"] = kept
        for name, value in content.items():
            del file[name]
            file[name] = json.dumps(value).encode()


def _check_that_nothing_is_lost(own):
    if any(Path(name).read_text() != LETTER for name in own) or Path("new.py").exists():
        raise AssertionError("a run file has written over what lies beside it")
    if Path("../mine/letter").read_text() != LETTER or os.listdir("../mine") != ["letter"]:
        raise AssertionError("a run file has led to what is not its own")
    if sorted(os.listdir("..")) != ["here", "mine"] or not Path("run.hdf5").exists():
        raise AssertionError("files have come or gone")


# -- what is no file ------------------------------------------------------------------------------

SPECIAL = ("a file", "a FIFO", "a folder", "a device", "a socket", "a link to a FIFO")
READERS = {
    "network": bs.Network.from_hdf5,
    "run": bs.Trainer.resume,
    "logs": Logs.load_hdf5,
    "data": load_data,
    "batches": lambda path: Hdf5Minibatches(path, default="x"),
}


def make_special(rnd):
    """Return what stands under a name, and who reads it or writes there."""
    return rnd.choice(SPECIAL), rnd.choice([*READERS, "write"])


def use_special(value):
    """Read or write what is no file: it must be refused, and at once."""
    kind, use = value
    with playground():
        put_special(kind, "it")
        if use == "write":
            Logs({"a": [1.0]}).save_as_hdf5("it")
        elif kind == "a file":
            Logs({"a": [1.0]}).save_as_hdf5("it")
            Logs.load_hdf5("it")
        else:
            READERS[use]("it")


def put_special(kind, path):
    """Put what is no file at a path."""
    if kind == "a folder":
        os.mkdir(path)
    elif kind == "a device":
        os.symlink("/dev/zero", path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path)
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a link to a FIFO":
        os.mkfifo("fifo")
        os.symlink("fifo", path)


# -- caches of others -----------------------------------------------------------------------------

MODES = (0o700, 0o700, 0o750, 0o770, 0o702, 0o777, 0o1777, 0o755)


def make_cache(rnd):
    """Return the modes of a cache, of what it lies in and of a file in it, and what it is."""
    return [rnd.choice(MODES) for _ in range(3)], rnd.choice(["a folder", "a folder", "a link"])


def read_cache(value):
    """Read a file from the cache; only what nobody else could have written may be given."""
    (folder, above, file), kind = value
    with playground():
        os.makedirs("above/cache")
        Path("above/cache/code").write_bytes(b"code" + _seal("code", b"code"))
        for path, mode in (("above/cache/code", file), ("above/cache", folder), ("above", above)):
            os.chmod(path, mode)
        name = os.path.abspath("above/cache")
        if kind == "a link":
            os.symlink(name, "link")
            name = os.path.abspath("link")
        os.environ["BRAINSTORM_CACHE_DIR"] = name
        found = list(find_files("code"))
    is_safe = not (folder | file) & 0o022 and (not above & 0o022 or bool(above & 0o1000))
    if bool(found) != is_safe:
        raise AssertionError(f"safe: {is_safe}, given: {found!r}")
    if not found:
        raise ValidationError("this cache is not used")


KINDS = {
    "paths": (0.005, make_paths, go_on),
    "special": (0.01, make_special, use_special),
    "cache": (0.02, make_cache, read_cache),
}
