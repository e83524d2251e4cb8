"""Runs that are killed again and again, and what is looked at after every kill."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import brainstorm as bs
from brainstorm.training import Logs, Trainer
from tests.crash import trainee

Case = tuple[str, str, str]

#: Hidden layers, iterator and handler of `tests.runs`.
CASES: list[Case] = [
    ("dense", "minibatches", "float32"),
    ("conv", "images", "native"),
    ("dropout", "nested noise", "native"),
    ("compact", "hdf5", "float32"),
    ("lstm", "noisy window", "native"),
    ("modified", "user's changed", "native float64"),
    ("lstm", "noisy chunks", "float64"),
]
SHORTAGES = (None, None, "size", "disk", "folder")
NOBODY = 65534


@dataclasses.dataclass
class Counts:
    """What has happened."""

    runs: int = 0
    kills: int = 0
    while_writing: int = 0
    signals: int = 0
    resumes: int = 0
    files: int = 0
    short: int = 0
    told: int = 0
    losses: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills ({self.while_writing} of them inside of a call that writes), "
            f"{self.signals} runs ended by SIGTERM or SIGINT, {self.short} runs with a full disk, "
            f"a limit or a read-only folder; {self.told} second runs were told of the first; "
            f"{self.files} files read, {self.resumes} resumes, "
            f"{self.runs} runs compared at their ends; losses: {len(self.losses)}"
        )


@dataclasses.dataclass
class Ended:
    """How a process has ended: the signal that killed it, or what it says."""

    killed_by: int
    says: tuple | None


#: What a process says that an error has ended, before the text of that.
FAILED = "failed"


class Process:
    """A forked process that calls a function and tells what it returns.

    It is forked because that takes no time: most of the kills are to come while it trains.
    """

    def __init__(self, work: Callable[[], tuple]) -> None:
        self.end, begin = os.pipe()
        with warnings.catch_warnings():
            # BLAS has threads, which know of forks
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            try:
                logging.disable()
                os.write(begin, repr(work()).encode())
            except KeyboardInterrupt:
                os.kill(os.getpid(), signal.SIGKILL)  # as if it had never begun
            except BaseException:
                os.write(begin, repr((FAILED, traceback.format_exc())).encode())
            finally:
                os._exit(0)
        os.close(begin)

    def wait(self) -> Ended:
        """Wait for the end."""
        with open(self.end, "rb") as pipe:
            text = pipe.read().decode()
        _, status = os.waitpid(self.pid, 0)
        says = eval(text) if text else None  # a tuple of texts and numbers
        return Ended(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, says)


class Victim:
    """One run, that is killed until it has been killed often enough, and then ends.

    Args:
        case: What is trained.
        shortage: See `trainee.Shortage`.
        dice: Draws the moments.
        counts: Where everything is counted.
    """

    def __init__(
        self, case: Case, shortage: str | None, dice: random.Random, counts: Counts, folder: Path
    ) -> None:
        self.case, self.shortage, self.dice = case, shortage, dice
        self.counts, self.folder = counts, folder
        self.file = folder / "run.hdf5"
        self.known = 0  # up to here nothing may be lost

    def work(self, deadly_moment: int = 0) -> tuple:
        """What the process does."""
        if self.shortage == "folder" and os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        if deadly_moment:
            trainee.kill_while_writing(deadly_moment)
        return trainee.run(self.folder, self.case, self.shortage)

    def live(self, kills: int) -> None:
        """Be killed so many times, and end; compare with a run that nobody disturbs."""
        if self.shortage == "folder" and os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        begin = time.monotonic()
        expected = Process(lambda: trainee.run(None, self.case)).wait().says
        if expected[0] == FAILED:
            raise AssertionError(expected[1])
        span = 2.5 * (time.monotonic() - begin)  # saving takes time, too
        trainee.SAVED[:8] = bytes(8)
        for _ in range(kills):
            ended = self._disturb(span)
            self._look_at_files(ended)
            if ended.says is not None and ended.says[0] == trainee.DONE:
                break
        ended = None
        while ended is None or ended.says[0] == trainee.NOT_SAVED:
            ended = self._begin().wait()
            self._look_at_files(ended)
            self._compare(ended, expected)
        self.counts.runs += 1
        self.counts.short += self.shortage is not None
        left = {p.name for p in self.folder.iterdir() if p.suffix == ".tmp"}
        if left:
            self._lost(f"temporary files were left: {left}")

    def _begin(self, deadly_moment: int = 0) -> Process:
        self.counts.resumes += self.file.exists()
        return Process(lambda: self.work(deadly_moment))

    def _disturb(self, span: float) -> Ended:
        kind = self.dice.choice(["time", "time", "time", "write", "write", "signal", "two"])
        if kind == "two" and self.shortage is None:
            ended = self._begin_two(span)
        elif kind == "write":
            moment = self.dice.randrange(1, 120)
            ended = self._begin(moment).wait()
            self.counts.while_writing += ended.killed_by == signal.SIGKILL
        else:
            process = self._begin()
            time.sleep(self.dice.uniform(0, span))
            number = self.dice.choice([signal.SIGTERM, signal.SIGINT])
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number if kind == "signal" else signal.SIGKILL)
            ended = process.wait()
        self.counts.kills += ended.killed_by == signal.SIGKILL
        return ended

    def _begin_two(self, span: float) -> Ended:
        """Begin a second run with the same path while the first one trains, and kill that."""
        first = self._begin()
        time.sleep(self.dice.uniform(0, span))
        second = self._begin().wait()
        with contextlib.suppress(ProcessLookupError):
            os.kill(first.pid, signal.SIGKILL)
        ended = first.wait()
        if second.says is None or second.says[0] != trainee.TOLD:  # it was the only one
            self.known, trainee.SAVED[:8] = 0, bytes(8)
            return second
        self.counts.told += 1
        if f"process {first.pid} on" not in second.says[2]:
            self._lost(f"a run was told of another one than {first.pid}: {second.says[2]}")
        return ended

    def _compare(self, ended: Ended, expected: tuple) -> None:
        if ended.says[1:] != expected[1:]:
            self._lost(f"another outcome: {ended.says} instead of {expected}")

    def _lost(self, what: str) -> None:
        self.counts.losses.append(f"{self.case}, {self.shortage}: {what}")

    # -- files ------------------------------------------------------------------------------------

    def _look_at_files(self, ended: Ended) -> None:
        if ended.says is not None and ended.says[0] == FAILED:
            self._lost(f"a process could not do its work: {ended.says[1]}")
        os.chmod(self.folder, 0o755)
        (self.folder / "filler").unlink(missing_ok=True)
        for path in sorted(self.folder.glob("[!.]*")):
            self.counts.files += 1
            try:
                self._read(path)
            except Exception:
                self._lost(f"{path.name} cannot be read: {traceback.format_exc()}")
        saved, found = max(self.known, trainee.last_saved()), 0
        if self.file.exists() and not self.counts.losses:
            found = self._look_at_run(Trainer.resume(self.file))
        if found < saved:
            self._lost(f"update {saved} was saved, and is not there: {found}")
        self.known = found
        if ended.says is not None and ended.says[0] == trainee.INTERRUPTED:
            self.counts.signals += 1
            if ended.says[1] != found:
                self._lost(f"interrupted after update {ended.says[1]}, but saved was {found}")

    def _read(self, path: Path) -> None:
        if path.name.startswith("run"):
            update = Trainer.resume(path).current_update_nr
            number = path.stem.partition("-")[2]
            if number.isdigit() and int(number) != update:
                self._lost(f"{path.name} holds update {update}")
        elif path.name.startswith("logs"):
            Logs.load_hdf5(path)
        else:
            bs.Network.from_hdf5(path)

    def _look_at_run(self, trainer: Trainer) -> int:
        hook = trainer.hooks["checkpoint"]
        copies = [Path(name) for name in hook.kept[-hook.keep :]]
        if hook.best_so_far is not None:
            copies.append(self.folder / "run-best.hdf5")
        for path in copies:
            if not path.exists():
                self._lost(f"{path.name} is not there, after {trainer.current_update_nr} updates")
        return trainer.current_update_nr


@contextlib.contextmanager
def playground(shortage: str | None) -> Iterator[Path | None]:
    """Yield a new folder; None where such a shortage cannot be made here."""
    folder = Path(tempfile.mkdtemp(prefix="brainstorm-crash-"))
    is_mounted = False
    try:
        folder.chmod(0o755)
        if shortage == "disk":  # a small one
            command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
            is_mounted = _succeeds(command)
        yield folder if shortage != "disk" or is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(folder)


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def torment(kills: int, seed: int = 0, per_run: int = 8) -> Counts:
    """Kill runs of all cases, and in all kinds of shortages, so often in all."""
    counts, dice, number = Counts(), random.Random(seed), 0
    while counts.kills < kills and not counts.losses:
        case, shortage = CASES[number % len(CASES)], SHORTAGES[number % len(SHORTAGES)]
        if shortage == "folder":  # nobody's processes share no compiled kernels
            case = (*case[:2], "float32")
        number += 1
        with playground(shortage) as folder:
            if folder is not None:
                victim = Victim(case, shortage, dice, counts, folder)
                victim.live(min(per_run, kills - counts.kills))
    return counts
