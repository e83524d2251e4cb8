"""Exact save and resume of a whole run: the content of a run file besides the network's own file.

The state of a run is that of its trainer (counters, logs, stepper, hooks), of every random number
generator, and of its `DataProgress`: the positions of the iterators, and the scores of the present
epoch so far. If several processes train together, each has a part of it (`capture_part`).
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.data_iterators.base_iterator import begin_epoch
from brainstorm.describable import create_from_description, find_class, get_description
from brainstorm.errors import (
    FileFormatError,
    TrainingError,
    UnknownTypeError,
    kind_of,
    located,
)
from brainstorm.files import PathLike, RunFile, intact, read_run_file, write_run_file
from brainstorm.hooks.base import ForeignPath, StoredPath
from brainstorm.network import Network
from brainstorm.network.generators import get_generator_states, set_generator_states
from brainstorm.randomness import RandomState, global_rnd
from brainstorm.scorers.base import add_losses, gather_losses_and_scores
from brainstorm.tools import run_network
from brainstorm.training.late_losses import LateLosses
from brainstorm.training.parts import combine_parts
from brainstorm.utils import Array

TRAINING = "training_data_iter"

RUN = "run that can be continued"

State = dict[str, Any]


class DataProgress:
    """The position of a training in its data, batch by batch.

    Attributes:
        in_epoch: Whether an epoch has begun and not ended.
        given: For how many batches of this epoch a step has begun.
        is_idle: Whether the last batch only stands for an empty part of a batch.
    """

    def __init__(self, net: Any, iters: Mapping[str, Any]) -> None:
        self.net = net
        self.iters = iters
        self.in_epoch = False
        self.given = 0
        self.is_idle = False
        self._handler = net.handler
        self._has_failed = False  # the iterator, in this epoch
        self._scores: dict[str, Any] = OrderedDict()
        self._late = LateLosses(net)
        self._carried: list[Array | None] = []
        self._begin: State | None = None  # the training iterator's state before the epoch
        self._batches: Iterator[Any] = iter(())
        self._ahead: list[Any] = []  # the next batch, until its step begins
        self._iter_states: State = {}

    def begin_epoch(self) -> None:
        """Begin with the first batch of an epoch."""
        iterator = self.iters[TRAINING]
        self._begin = _get_iter_states({TRAINING: iterator}).get(TRAINING)
        self._batches = begin_epoch(iterator, self.net.handler)
        self._carried, self._ahead = [], []
        self.given, self._scores = 0, OrderedDict()
        self.in_epoch, self._has_failed = True, False

    def can_go_on_with(self, iterator: Any) -> bool:
        """Return whether the rest of an epoch can come from an iterator: it is the same one."""
        is_same = iterator is self.iters[TRAINING] and self.net.handler is self._handler
        return is_same and bool(self.given or self._ahead) and not self._has_failed

    def batches(self) -> Iterator[int]:
        """Load the remaining batches of the epoch into the network, one after the other.

        Until `begin_step` is called, the same batch is the next one.
        """
        place = f"Trainer.train, {TRAINING} ({kind_of(self.iters[TRAINING])})"
        return run_network(self.net, self._look_ahead(), state=self._carried, place=place)

    def _look_ahead(self) -> Iterator[Any]:
        while self._has_more():
            self.is_idle = getattr(self._ahead[0], "is_idle", False)
            yield self._ahead[0]

    def begin_step(self) -> None:
        """Count the batch that is in the network: it is not loaded again."""
        self._ahead, self.given = [], self.given + 1

    def _has_more(self) -> bool:
        if not self._ahead:
            self._has_failed = True  # unless the next line succeeds
            self._ahead.extend(itertools.islice(self._batches, 1))
            self._has_failed = False
        return bool(self._ahead)

    def score(self, scorers: Sequence[Any]) -> None:
        """Record the losses and scores of the batch that the network has just processed."""
        if scorers:
            gather_losses_and_scores(self.net, scorers, self.scores)
        elif self._late.note():
            self._read_losses()

    def _read_losses(self) -> None:
        for losses, steps, sequences in self._late.read():
            add_losses(self._scores, losses, steps, sequences)

    @property
    def scores(self) -> dict[str, Any]:
        """The losses and scores of this epoch, as `gather_losses_and_scores` collects them."""
        self._read_losses()
        return self._scores

    @property
    def losses(self) -> list[float]:
        """The total loss of each batch of this epoch."""
        return [value / max(weight, 1) for weight, value in self.scores.get("total_loss", ())]

    def restart_sequences(self) -> None:
        """Set the state that recurrent layers carry to the next batch to zero."""
        self.net.leave_batch()
        for array in self._carried:
            if array is not None:
                self.net.handler.fill(array, 0.0)

    def goes_on(self) -> bool:
        """Return whether the epoch has another batch; `get_state` stays at the present one."""
        self._iter_states = _get_iter_states(self.iters)
        return self._has_more()

    # -- state ------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """Return the position: between two epochs, or after the batches given so far."""
        if not self.in_epoch:
            return {"iterators": _get_iter_states(self.iters), "epoch": None}
        self.net.leave_batch()
        handler = self.net.handler
        epoch = {
            "begin": self._begin,
            "given": self.given,
            "scores": {name: np.array(pairs, float) for name, pairs in self.scores.items()},
            "carried": [a if a is None else handler.get_numpy_copy(a) for a in self._carried],
            "is_idle": self.is_idle,
        }
        states = self._iter_states if self._ahead else _get_iter_states(self.iters)
        return {"iterators": states, "epoch": epoch}

    @intact("the run file", RUN)
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a position, with iterators created in the same way.

        Raises:
            TrainingError: An iterator is missing.
            IteratorValidationError: An iterator is of another kind or for other data.
            FileFormatError: It is not a valid position.
        """
        expected = state["iterators"].keys()
        if missing := {n for n in expected if not hasattr(self.iters.get(n), "set_state")}:
            raise TrainingError(
                f"Trainer.train: expected the data iterators {', '.join(sorted(expected))} as in "
                f"the run that is continued, got no {', '.join(sorted(missing))}."
            )
        epoch = state["epoch"]
        if epoch is not None:
            iterator, handler = self.iters[TRAINING], self.net.handler
            with located(f"Trainer.train, data iterator {TRAINING!r}"):
                iterator.set_state(epoch["begin"])
                self._batches = iterator.resume_epoch(epoch["given"], handler=handler)
            self._begin, self.given, self.in_epoch = epoch["begin"], epoch["given"], True
            self.is_idle = epoch.get("is_idle", False)
            self._scores = {
                name: [tuple(pair) for pair in pairs.tolist()]
                for name, pairs in epoch["scores"].items()
            }
            self._carried = [
                a if a is None else handler.create_from_numpy(a) for a in epoch["carried"]
            ]
        for name, iter_state in state["iterators"].items():
            with located(f"Trainer.train, data iterator {name!r}"):
                self.iters[name].set_state(iter_state)


def _get_iter_states(iters: Mapping[str, Any]) -> State:
    """Return the states of all iterators that have one.

    They are copies for later: a user's `get_state` may return a list that grows meanwhile.
    """
    found = {name: it.get_state() for name, it in iters.items() if hasattr(it, "get_state")}
    return copy.deepcopy(found)


# -- files ----------------------------------------------------------------------------------------


def capture_part(progress: DataProgress, stepper: Any) -> State:
    """Return the part of a run file that each process contributes."""
    net, accumulation = progress.net, getattr(stepper, "accumulation", None)
    return {
        "accumulation": accumulation and accumulation.get_state(),
        "data": progress.get_state(),
        "generators": get_generator_states(net),
        "persistent": {path: net.get(path) for path in net.persistent_paths},
    }


def save_run(
    filename: PathLike,
    trainer: Any,
    net: Any,
    parts: list[State],
    copies: Iterable[PathLike] = (),
) -> None:
    """Write a run file, and copies (see `atomic_file`), with the parts of all processes."""
    whole = combine_parts(parts, net.statistics_paths)
    trainer_state = trainer.get_state()
    if whole["accumulation"] is not None:
        trainer_state["stepper"]["accumulation"] = whole["accumulation"]
    state = {
        "trainer": trainer_state,
        "data": whole["data"],
        "generators": whole["generators"],
        "global_rnd": global_rnd.__getstate__(),
        "keep_input_deltas": net.keep_input_deltas,
    }
    if len(parts) > 1:
        state["parts"] = parts
    content = net.get_file_content()._replace(persistent=whole["persistent"])
    described = _with_paths(get_description(trainer), lambda path: _named_beside(path, filename))
    write_run_file(filename, RunFile(content, described, state), copies)


def load_run(filename: PathLike, cls: type[Any], handler: Any = None) -> tuple[Any, Any, State]:
    """Return the trainer and the network of a run file, and the state to set once data are given.

    The trainer must be a `cls`; a handler replaces the one that the file names. The errors are
    those of `Trainer.resume`.
    """
    content, where = read_run_file(filename), repr(os.fspath(filename))
    kept = global_rnd.__getstate__()
    try:
        with intact(where, RUN):
            net = Network.from_file_content(content.network, filename, handler)
            trainer = create_from_description(
                _with_paths(content.trainer, lambda path: _held(path, filename))
            )
            if not isinstance(trainer, cls):
                raise FileFormatError(
                    f"{where}: expected a {cls.__name__}, got a {type(trainer).__name__}."
                )
            state = content.state
            net.keep_input_deltas = state["keep_input_deltas"]
            set_generator_states(net, state["generators"], where)
            trainer.set_state(state["trainer"])
            RandomState(0).__setstate__(state["global_rnd"])  # raises now if it is invalid
            pending = {name: state[name] for name in ("data", "generators", "global_rnd")}
            return trainer, net, {**pending, "parts": state.get("parts", [])}
    finally:
        global_rnd.__setstate__(kept)  # new objects have drawn seeds from it


def _with_paths(description: Any, change: Callable[[str], str]) -> Any:
    """Return a description in which the paths that hooks write to are changed."""
    if isinstance(description, list):
        return [_with_paths(item, change) for item in description]
    if not isinstance(description, dict):
        return description
    changed = {key: _with_paths(item, change) for key, item in description.items()}
    attribute, kind = None, description.get("@type")
    with contextlib.suppress(UnknownTypeError):  # reported when the object is created
        attribute = getattr(find_class(kind), "writes", None) if isinstance(kind, str) else None
    path = description.get(attribute) if attribute is not None else None
    if isinstance(path, str):
        changed[attribute] = change(path)
    return changed


def _named_beside(path: str, filename: PathLike) -> str:
    """Return a path as a run file holds it: only the name, if it lies in the same folder."""
    whole = os.path.abspath(path)
    return os.path.basename(whole) if _stands_beside(whole, os.path.abspath(filename)) else whole


def _held(path: str, filename: PathLike) -> StoredPath:
    """Return a path from a run file, marked as such."""
    if os.path.basename(path) == path:
        path = os.path.join(os.path.dirname(os.fspath(filename)), path)
    return (StoredPath if _stands_beside(path, filename) else ForeignPath)(path)


def _stands_beside(path: str, filename: PathLike) -> bool:
    """Return whether a path leads to a visible file in the folder of another one, or to that."""
    name = os.path.basename(path.rstrip(os.sep))
    is_plain = name.isprintable() and not name.startswith(".") and name != "" and "\0" not in path
    if not is_plain:
        return False
    real, own = os.path.realpath(path), os.path.dirname(os.fspath(filename))
    return os.path.dirname(real) == os.path.realpath(own) or real == os.path.realpath(filename)
