"""The process that is killed: a run that saves all the time, on a disk that is not always there."""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import resource
import signal
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import brainstorm as bs
from brainstorm.errors import TrainingError
from brainstorm.hooks import Hook, SaveBestNetwork, SaveCheckpoint, SaveLogs, SaveNetwork
from tests.runs import ITERATORS, make_network, make_trainer, outcome, train

#: What a process tells by its exit status.
DONE, INTERRUPTED, NOT_SAVED, TOLD = 0, 10, 11, 12

#: Of the file that two processes share: the last update whose state is saved.
SAVED = mmap.mmap(-1, 8)


def last_saved() -> int:
    """Return the number of the last update that was reported as saved."""
    return int(struct.unpack("q", SAVED[:8])[0])


class Reported(SaveCheckpoint):
    """Reports when a state is saved."""

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        super().__call__(epoch_nr, update_nr, net, stepper, logs)
        if self._failure is None:
            SAVED[:8] = struct.pack("q", update_nr)


class Shortage(Hook):
    """Takes away what is needed for writing, in some updates.

    Args:
        kind: ``'size'``: files cannot grow beyond some size; ``'disk'``: the disk is full;
            ``'folder'``: the folder can only be read.
        folder: The folder.
    """

    def __init__(self, kind: str, folder: str) -> None:
        super().__init__(f"shortage of {kind}", timescale="update")
        self.kind, self.folder = kind, folder

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        dice = random.Random(os.getpid() * 1000 + update_nr)
        left = dice.choice([None, None, 0, dice.randrange(60_000)])
        {"size": self.limit_size, "disk": self.fill_disk, "folder": self.lock}[self.kind](left)

    def finalize(self, net, stepper, logs):
        """Give back what was taken."""
        {"size": self.limit_size, "disk": self.fill_disk, "folder": self.lock}[self.kind](None)

    def limit_size(self, left: int | None) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most if left is None else left, most))

    def fill_disk(self, left: int | None) -> None:
        filler = Path(self.folder, "filler")
        filler.unlink(missing_ok=True)
        if left is not None:
            disk = os.statvfs(self.folder)
            with open(filler, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, disk.f_bavail * disk.f_frsize - left))

    def lock(self, left: int | None) -> None:
        os.chmod(self.folder, 0o755 if left is None else 0o555)


class Forks(Hook):
    """Forks the process in some updates: the copy trains on, and must not write."""

    def __init__(self) -> None:
        super().__init__(timescale="update")

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        if random.Random(os.getpid() * 1000 + update_nr).random() < 0.1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # as in `Process`
                os.fork()


def kill_while_writing(moment: int) -> None:
    """Let this process die inside of a call that it writes files with.

    Args:
        moment: At which of those calls.
    """
    left = moment

    def deadly(function: Callable, halfway: Callable | None = None) -> Callable:
        def call(*args, **kwargs):
            nonlocal left
            left -= 1
            if left == 0:
                if halfway is not None:
                    halfway(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    def write_half(path, content):
        with open(path, "wb") as file:
            file.write(content[: len(content) // 2])

    Path.write_bytes = deadly(Path.write_bytes, write_half)
    Path.replace = deadly(Path.replace)
    Path.unlink = deadly(Path.unlink)
    os.fsync = deadly(os.fsync)
    os.link = deadly(os.link)


def hooks(folder: Path, shortage: str | None) -> list[Hook]:
    """Return the hooks that write files."""
    savers = [
        SaveLogs(folder / "logs.hdf5", timescale="update"),
        SaveNetwork(folder / "net.hdf5", timescale="update", interval=2),
        SaveBestNetwork("validation.total_loss", folder / "best.hdf5", "min", name="best"),
        Reported(
            folder / "run.hdf5",
            timescale="update",
            keep=3,
            best="often.total_loss",
            name="checkpoint",
        ),
    ]
    return [Shortage(shortage, str(folder)) if shortage else Forks(), *savers]


def run(folder: Path | None, case: tuple[str, str, str], shortage: str | None = None) -> tuple:
    """Train, from the beginning or from where the run file is.

    Returns:
        Exit status, number of updates, and outcome as a hash.
    """
    (hidden, iterator, handler), process = case, os.getpid()
    file = None if folder is None else folder / "run.hdf5"
    if file is not None and file.exists():
        trainer = bs.Trainer.resume(file)
        net = trainer.net
    else:
        bs.global_rnd.set_seed(3)
        net = make_network(hidden, handler, (4, 4, 2) if iterator == "images" else (3,))
        trainer = make_trainer()
        for hook in [] if folder is None else hooks(folder, shortage):
            trainer.add_hook(hook)
    status = DONE
    try:
        train(trainer, net, ITERATORS[iterator]())
    except TrainingError as error:
        if os.getpid() != process and "which was forked from it" in str(error):
            os._exit(0)
        if "a file that no other training writes" in str(error):
            return TOLD, 0, str(error)
        if not isinstance(error.__cause__, OSError):
            raise
        status = NOT_SAVED
    if os.getpid() != process:
        Path(folder, "a forked copy has trained to its end").touch()
        os._exit(1)
    if "interrupted" in trainer.logs:
        status = status or INTERRUPTED
    # It ends once more if it had ended when it was saved.
    trainer.logs["end"] = trainer.logs.get("end", [])[:1]
    digest = hashlib.sha256(repr(sorted(outcome(trainer, net).items())).encode()).hexdigest()
    return status, trainer.current_update_nr, digest
