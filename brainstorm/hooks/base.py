"""The base of hooks: life cycle, roles, and how hooks read logs and write messages."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np

from brainstorm.attributes import merged_names
from brainstorm.constraints import one_of, whole
from brainstorm.describable import Describable
from brainstorm.errors import TrainingError, UnknownPathError, escaped, shown, unknown
from brainstorm.utils import flatten_items, flatten_keys, is_number, warn_once

#: Gets warnings, and everything that a training records, printed or not (at level INFO).
LOG = logging.getLogger("brainstorm")

#: Hooks that are due together run in this order: those that write logs, those that change the
#: training, those that read logs.
ROLES = ("writer", "editor", "reader")

#: The data iterators of a training by name, including ``'training_data_iter'``.
Iterators: TypeAlias = Mapping[str, Any]


class StoredPath(str):
    """A path from a run file, not from the script: it may only overwrite a hook's own files."""

    __slots__ = ()


class ForeignPath(StoredPath):
    """A path outside the folder of the run file: nothing is written there."""

    __slots__ = ()


class Hook(Describable):
    """Base class of everything that a trainer calls at regular intervals.

    A hook runs when the number of epochs or updates is a multiple of its interval, and once before
    the training, at counts 0. Its return value is logged under its name. It stops the training by
    ``raise StopIteration(reason)``; the reason is logged too: under ``stopped`` if the log of the
    hook holds values.

    Args:
        name: The name in the logs, without dots, which separate the parts of paths; `None`: the
            name of the class.
        timescale: ``'epoch'`` or ``'update'``.
        interval: Run every so many epochs or updates.
        verbose: Whether the hook prints; `None`: like the trainer.

    Attributes:
        writes: The name of the attribute with the path to which the hook writes, if it does; set by
            the class.
        endings: File name endings allowed for new files whose paths come from a run file.
        state_names: The attributes that are saved with a run but not described, and reset for
            another network, with those of the base classes; their first values are copies of those
            of the class.
        role: One of `ROLES`; set by the class. Hooks of one role run in the order in which they
            were added.
        idempotent: Whether running twice at the same counts changes nothing. A continued training
            starts with these hooks only, so that nothing is logged twice.
        priority: The place in the order of adding; set by the trainer.
        trainer: The trainer that the hook was added to.
        run_verbosity: Whether the hook prints in the current training; set by `start`.
        ran_on: The last `occasion` on which the hook ran and did not stop the training.
    """

    __undescribed__: Any = {"run_verbosity", "trainer", "ran_on"}
    __default_values__ = {"timescale": "epoch", "interval": 1, "verbose": None}

    __argument_error__ = TrainingError
    __constraints__: Any = {"timescale": one_of("epoch", "update"), "interval": whole()}
    role = "writer"
    idempotent = False
    trainer: Any = None
    run_verbosity = False
    ran_on: tuple[Any, ...] | None = None
    writes: ClassVar[str | None] = None
    endings: ClassVar[tuple[str, ...]] = ()
    state_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        cls.state_names = merged_names(cls, "state_names")
        for name in cls.state_names:
            if not hasattr(cls, name):
                raise TrainingError(
                    f"{cls.__name__}.state_names: expected names of attributes with a first value "
                    f"in the class, got {name!r}. Write one there, e.g. {name} = 0."
                )
        for one, other in itertools.combinations(cls.state_names, 2):
            if one.lstrip("_") == other.lstrip("_"):
                raise TrainingError(
                    f"{cls.__name__}.state_names: expected names that differ not only in a leading "
                    f"underscore, got {one!r} and {other!r}. Rename one."
                )
        super().__init_subclass__(**kwargs)

    @classmethod
    def _merged(cls, attribute: str) -> dict[str, Any]:
        merged = super()._merged(attribute)
        if attribute == "__undescribed__":
            merged |= {name: getattr(cls, name) for name in cls.state_names}
        return merged

    def __init_from_description__(self, description: Mapping[str, Any]) -> None:
        Hook.begin_anew(self, {})
        if self.writes and description.get(self.writes, "") is None:
            setattr(self, self.writes, None)  # not a path that a constructor makes of a name

    def __init__(
        self,
        name: str | None = None,
        timescale: str = "epoch",
        interval: int = 1,
        verbose: bool | None = None,
    ) -> None:
        self.__name__ = type(self).__name__ if name is None else name
        if not isinstance(self.__name__, str) or not self.__name__ or "." in self.__name__:
            raise self.fail("name", "a non-empty string without dots", name)
        self.timescale = timescale
        self.interval = interval
        self.verbose = verbose
        self.priority = 0
        Hook.begin_anew(self, {})

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        """Prepare for a training; called before the first pass.

        Args:
            net: The network.
            stepper: The stepper.
            verbose: Whether the trainer prints.
            named_data_iters: The data iterators by name.

        Raises:
            TrainingError: The hook would write to a path that comes from a run file.
        """
        self.run_verbosity = verbose if self.verbose is None else self.verbose
        if self.writes is not None:
            self._check_path(self.writes)

    def _check_path(self, attribute: str) -> None:
        path = getattr(self, attribute, None)
        if isinstance(path, StoredPath):
            named = f"or one that this script names (trainer.hooks[{self.__name__!r}].{attribute}"
            if isinstance(path, ForeignPath):
                expected = f"a file in the folder of the run file, {named} = ...)"
                raise self.fail(attribute, expected, str(path))
            if not (self.owns(path) if os.path.lexists(path) else path.endswith(self.endings)):
                new = " or ".join(self.endings) and f", or a new {' or '.join(self.endings)} file"
                expected = f"a file of a {type(self).__name__}{new}, {named} = ...)"
                raise self.fail(attribute, expected, str(path))
        if not isinstance(path, (str, os.PathLike, type(None))):
            raise self.fail(attribute, "a path", path)

    def owns(self, path: str) -> bool:
        """Return whether the file or folder at a path was written by such a hook."""
        return False

    def begin_anew(self, logs: Mapping[str, Any]) -> None:
        """Discard state that belongs to another network or trainer; called before `start`.

        Args:
            logs: The trainer's logs so far, of another network.
        """
        for name in self.state_names:
            setattr(self, name, copy.deepcopy(getattr(type(self), name)))

    def is_turn(self, timescale: str, count: int) -> bool:
        """Return whether the hook runs after so many epochs or updates (by `timescale`)."""
        return self.timescale == timescale and count % self.interval == 0

    @property
    def occasion(self) -> tuple[Any, ...]:
        """The update and the stepper: on the same occasion another call changes nothing."""
        return self.trainer.current_update_nr, self.trainer.stepper

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> Any:
        """Run the hook; return the value to log, or `None`.

        Args:
            epoch_nr: Epochs so far, including the current one: it is 1 from the first update on.
            update_nr: Updates so far.
            net: The network.
            stepper: The stepper.
            logs: All logs so far, see `Logs`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def on_error(self, net: Any, stepper: Any, logs: Any, error: BaseException) -> None:
        """Handle an error (or Ctrl-C) that ends the training; `finalize` follows."""

    def finalize(self, net: Any, stepper: Any, logs: Any) -> None:
        """Clean up; called at the end of every training for which `start` was called.

        Also if the training ends by an error, even one in this hook's `start`.
        """

    def get_state(self) -> dict[str, Any]:
        """Return the state for exact continuation: NumPy arrays, numbers, strings, `None`."""
        return copy.deepcopy({name.lstrip("_"): getattr(self, name) for name in self.state_names})

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state`."""
        for name in self.state_names:
            setattr(self, name, copy.deepcopy(state[name.lstrip("_")]))

    def go_back(
        self, state: Mapping[str, Any] | None, factor: float, net: Any, stepper: Any
    ) -> None:
        """Handle that the training has returned to a checkpoint; override if that matters.

        `ReturnToCheckpoint` calls it, in all processes, once network and stepper have gone back.

        Args:
            state: What `get_state` returned then; `None` if the hook did not exist.
            factor: The learning rate was multiplied by it.
            net: The network.
            stepper: The stepper.
        """

    def message(self, msg: str) -> None:
        """Log a line with the name of the hook, and print it if the hook is verbose."""
        line = f"{self.__name__} >> {msg}"
        LOG.info(escaped(line))
        if self.run_verbosity:
            write_line(line)

    # -- errors -----------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """The hook, for messages."""
        return f"hook {getattr(self, '__name__', None)!r} ({type(self).__name__})"

    def fail(self, option: str, expected: str, got: Any) -> TrainingError:
        """Return an error about the value of an option."""
        return TrainingError(f"{self.place}, {option}: expected {expected}, got {shown(got)}.")

    def check_name(self, kind: str, name: str, choices: Iterable[str], remedy: str = "") -> None:
        """Raise an error that lists the choices unless `name` is one of them."""
        known = list(choices)
        if name not in known:
            raise UnknownPathError(f"{self.place}: {unknown(kind, name, known)} {remedy}".rstrip())


def find_log(logs: Mapping[str, Any], path: str) -> Any:
    """Return the list (or dict) under a dotted path.

    Raises:
        UnknownPathError: There is none; the message lists all paths.
    """
    found: Any = logs
    rest = path
    while rest:
        head, rest = _split(found, rest)
        if head is None:
            raise UnknownPathError(unknown("log", path, flatten_keys(logs)))
        found = found[head]
    return found


def is_to_come(logs: Mapping[str, Any], path: str) -> bool:
    """Return whether the trainer has a hook that may write a log, but has logged nothing so far."""
    name = path.partition(".")[0]
    return name in getattr(logs, "expected", ()) and not logs.get(name)


def find_values(where: str, logs: Mapping[str, Any], path: str, may_lack: bool) -> Any:
    """Return the list under a dotted path; an empty one if it `may_lack` or is still to come.

    Raises:
        UnknownPathError: There is none, or only further logs; the message has `where`, what reads
            it, and lists all paths.
        TrainingError: The last value is no number.
    """
    known = dict(flatten_items(logs))
    if path not in known:
        if may_lack or is_to_come(logs, path):
            return ()
        raise UnknownPathError(
            f"{where}: {unknown('log', path, known)} Add the hook that writes it, such as "
            f"MonitorScores(..., name='validation')."
        )
    values = known[path]
    last = values[-1] if len(values) else 0.0
    if not (is_number(last) or isinstance(last, (bool, np.bool_)) or _is_scalar(last)):
        raise TrainingError(f"{where}: expected numbers in the log {path!r}, got {shown(last)}.")
    return values


def find_moment(logs: Mapping[str, Any], path: str) -> Any:
    """Return when the log under a dotted path got its last value, a `Moment`, if that is known."""
    return getattr(logs, "moments", {}).get(_split(logs, path)[0])


def _is_scalar(value: Any) -> bool:
    """Return whether a value is an array without axes, which can be compared like a number."""
    return isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf"


def _split(logs: Any, path: str) -> tuple[str | None, str]:
    """Split off the longest name that is known; names of hooks and scores may contain dots."""
    if isinstance(logs, Mapping):
        names = path.split(".")
        for head in (".".join(names[:count]) for count in range(len(names), 0, -1)):
            if head in logs.keys():  # noqa: SIM118  (the `in` of Logs follows paths)
                return head, path[len(head) + 1 :]
    return None, ""


def check_counts(where: str, least: int = 0, **counts: Any) -> None:
    """Check counts that were read from a file.

    Raises:
        TrainingError: One is not an integer >= `least`; the message has `where` and the name.
    """
    for name, count in counts.items():
        if type(count) is not int or not least <= count < 2**63:
            raise TrainingError(
                f"{where}, {name}: expected an integer >= {least}, got {shown(count)}. Is the file "
                f"damaged?"
            )


class StandardOutput:
    """The standard output of this moment; what it cannot take is lost, and that is said once.

    A terminal that was closed, or a full disk, must not end a training of days.
    """

    def write(self, text: str) -> None:
        """Write a text; characters that the encoding lacks are escaped."""
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._try(lambda: sys.stdout.write(text))

    def flush(self) -> None:
        """Write what was held back."""
        self._try(lambda: getattr(sys.stdout, "flush", str)())

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return bool(self._try(lambda: getattr(sys.stdout, "isatty", bool)()))

    def _try(self, action: Callable[[], Any]) -> Any:
        if sys.stdout is None:  # in programs without a console
            return None
        try:
            return action()
        except (AttributeError, OSError, ValueError) as error:
            cause = str(error).rstrip(".")
            warn_once(self, f"the standard output takes no more text ({cause}).")
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)


#: All printing of training goes here.
OUTPUT = StandardOutput()


def write_line(text: str) -> None:
    """Write a line to the standard output."""
    OUTPUT.write(escaped(text) + "\n")
    OUTPUT.flush()
