"""Running hooks: which hook runs when, where its entries go, and how it is told of the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from brainstorm.errors import escaped
from brainstorm.hooks.base import LOG, Hook, write_line
from brainstorm.hooks.checkpoints import SaveCheckpoint
from brainstorm.hooks.criteria import ROLLING, scorers_of
from brainstorm.training.logs import Logs, Moment
from brainstorm.utils import flatten_items

VALUE_COLUMN = 40

#: The name in the logs of the values that statistics layers accumulated over each epoch.
STATISTICS = "statistics"

#: The name in the logs of the reason why a training ended without being stopped by a hook.
INTERRUPTED = "interrupted"

#: The name in the logs of the reasons of hooks whose own logs hold values, which cannot take texts.
STOPPED = "stopped"


class RunningHooks:
    """The hooks of one training or evaluation, from the start of each to its end.

    They run in the order given, but `checkpoints`, which save the whole run, after all others.
    """

    def __init__(self, trainer: Any, hooks: Sequence[Hook], net: Any, logs: Logs) -> None:
        self.checkpoints = [hook for hook in hooks if isinstance(hook, SaveCheckpoint)]
        self._others = [hook for hook in hooks if not isinstance(hook, SaveCheckpoint)]
        self._all = hooks
        self._trainer = trainer
        self._net = net
        self._logs = logs
        self._has_signal = False
        writers = (hook.__name__ for hook in hooks if hook.role != "reader")
        logs.expected = {*writers, ROLLING, *[STATISTICS] * bool(net.statistics_paths)}
        logs.scorers = scorers_of(trainer)

    @contextmanager
    def started(self, iters: Mapping[str, Any]) -> Iterator[None]:
        """Start all hooks, and tell them of the end of the context."""
        trainer = self._trainer
        with ExitStack() as stack:
            for hook in filter(self._runs_here, self._all):
                stack.enter_context(self._told_of_the_end(hook))
                _call(hook, hook.start, self._net, trainer.stepper, trainer.verbose, iters)
                # Its own start may forget that of its base.
                verbose = trainer.verbose if hook.verbose is None else hook.verbose
                hook.run_verbosity = verbose and trainer.team.rank == 0
            yield

    def _runs_here(self, hook: Hook) -> bool:
        """Return whether a hook runs in this process of the team, and was not deleted."""
        is_there = hook in self._trainer.hooks.values()
        return is_there and (self._trainer.team.rank == 0 or hook.role != "reader")

    @contextmanager
    def _told_of_the_end(self, hook: Hook) -> Iterator[None]:
        """Tell a hook how the training ends, when the context does."""
        trainer = self._trainer
        try:
            yield
        except BaseException as error:
            _call(hook, hook.on_error, self._net, trainer.stepper, self._logs, error)
            raise
        finally:
            _call(hook, hook.finalize, self._net, trainer.stepper, self._logs)

    def emit_first(self, is_resumed: bool) -> bool:
        """Run the hooks before the first update; return whether one stopped the training.

        If updates were to be continued, that is logged: as a warning, unless the run was read from
        a file, which a script does that is started again.
        """
        stopped = self.emit("update", is_first=True) or self.emit("epoch", is_first=True)
        if stopped and self._trainer.current_update_nr:
            causes = " and ".join(f"trainer.hooks[{n!r}] ({why})" for n, why in stopped.items())
            text = f"Trainer.train made no update, because of {causes}. Change or delete the hook."
            LOG.log(logging.INFO if is_resumed else logging.WARNING, escaped(text))
        return bool(stopped)

    def emit(self, timescale: str, is_first: bool = False) -> dict[str, Any]:
        """Run the hooks that are due; return the reasons of those that stopped the training.

        When a continued training begins (`is_first`), hooks that have already run at the same
        counts and would do something twice are skipped; after updates also those that would now
        see what was logged at the end of the epoch.
        """
        trainer = self._trainer
        count = trainer.current_epoch_nr if timescale == "epoch" else trainer.current_update_nr
        goes_on = is_first and trainer.current_epoch_nr + trainer.current_update_nr > 0
        due = [
            hook
            for hook in self._others
            if hook.is_turn(timescale, count) and not (goes_on and self._is_done(hook, timescale))
        ]
        fired = {hook.__name__: self.fire(hook) for hook in due}
        return {name: reason for name, (stop, reason) in fired.items() if stop}

    def _is_done(self, hook: Hook, timescale: str) -> bool:
        return not hook.idempotent or (timescale == "update" and hook.ran_on == hook.occasion)

    def fire(self, hook: Hook) -> tuple[bool, Any]:
        """Call a hook and record what it returns; return whether it stopped, and the record."""
        trainer, team = self._trainer, self._trainer.team
        counts = trainer.current_epoch_nr, trainer.current_update_nr
        entry, stop = None, False
        try:
            if self._runs_here(hook):
                entry = _call(hook, hook, *counts, self._net, trainer.stepper, self._logs)
        except StopIteration as reason:
            # A `next` in the hook may have raised it, by mistake: no training ends without a word.
            entry, stop = "no reason given" if reason.value is None else reason.value, True
        entry, stop = team.share((entry, stop))
        hook.ran_on = None if stop else hook.occasion
        name, logged = hook.__name__, entry
        if stop and isinstance(entry, str) and self._has_values(name):
            name, logged = STOPPED, f"{name}: {entry}"
        self.record(name, logged, hook.run_verbosity, hook.timescale, hook.interval)
        return stop, entry

    def _has_values(self, name: str) -> bool:
        """Return whether the log of a hook holds something else than texts."""
        known = self._logs.get(name)
        return known is not None and (isinstance(known, Mapping) or not isinstance(known[-1], str))

    def record(
        self, name: str, entry: Any, verbose: bool, timescale: str = "epoch", interval: int = 1
    ) -> None:
        """Append an entry to the logs, send it to the logger, and print it if that is wanted."""
        trainer = self._trainer
        counts = trainer.current_epoch_nr, trainer.current_update_nr
        self._logs.append(name, entry, Moment(*counts, timescale, interval))
        if LOG.isEnabledFor(logging.INFO):
            place = f"epoch {trainer.current_epoch_nr}, update {trainer.current_update_nr}"
            for path, value in flatten_items({name: entry}):
                if value is not None:
                    LOG.info("%s, %s: %s", place, path, _shown(value))
        if verbose:
            _print_entry(name, entry)

    def record_signal(self, signal: str | None) -> bool:
        """Record the signal that ends the training, or came after its end; return if there is one.

        It is recorded once.
        """
        if signal and not self._has_signal:
            self._has_signal = True
            self.record(INTERRUPTED, f"received {signal}", self._trainer.verbose)
        return bool(signal)


def _call(hook: Hook, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a hook; an error gets a note that names the hook."""
    try:
        return function(*args)
    except StopIteration:
        raise
    except Exception as error:
        error.add_note(f"Raised by the hook {hook.__name__!r} ({type(hook).__name__}).")
        raise


def _print_entry(name: str, entry: Any, depth: int = 0) -> None:
    label = "  " * depth + name
    if isinstance(entry, Mapping):
        if entry:
            write_line(label)
        for key, value in entry.items():
            _print_entry(str(key), value, depth + 1)
    elif entry is not None:
        write_line(f"{label:<{VALUE_COLUMN - 2}}: {_shown(entry)}")


def _shown(value: Any) -> str:
    """Return a value as printed text; the logs keep all digits."""
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
