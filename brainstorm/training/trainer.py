"""The trainer: the loop over epochs and batches, and nothing else.

What a step does is the stepper's business; everything that happens beside it is a hook's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from brainstorm.describable import Describable
from brainstorm.errors import TrainingError
from brainstorm.hooks.base import ROLES, Hook, write_line
from brainstorm.scorers import aggregate_losses_and_scores, gather_losses_and_scores
from brainstorm.tools import run_network
from brainstorm.training.logs import Logs
from brainstorm.training.steppers import TrainingStepper

__all__ = ["Trainer"]

#: The name in the logs of the averages over the training batches of each epoch.
ROLLING = "rolling_training"

#: The name in the logs of what statistics layers accumulated over each epoch.
STATISTICS = "statistics"

VALUE_COLUMN = 40


class Trainer(Describable):
    """Train a network step by step until a hook stops it.

    Args:
        stepper: What one step does; see `brainstorm.training.steppers`.
        verbose: Whether to print what is logged. Hooks that do not say otherwise follow.

    Attributes:
        hooks: The hooks by name, in the order in which they were added.
        train_scorers: Scorers for the training batches; results in ``logs['rolling_training']``.
        current_epoch_nr: Epochs so far, over all calls of `train`; the current one counts.
        current_update_nr: Updates (batches) so far.
        logs: What was recorded: averages over the batches of each epoch under
            ``'rolling_training'``, statistics layers under ``'statistics'``, and what the hooks
            return under their names.
        results: What the last `evaluate` recorded.
    """

    __undescribed__ = {
        "current_epoch_nr": 0,
        "current_update_nr": 0,
        "logs": Logs(),
        "results": Logs(),
    }
    __default_values__ = {"verbose": True}

    def __init__(self, stepper: TrainingStepper, verbose: bool = True) -> None:
        self.stepper = stepper
        self.verbose = verbose
        self.hooks: dict[str, Hook] = OrderedDict()
        self.train_scorers: list[Any] = []
        self.current_epoch_nr = 0
        self.current_update_nr = 0
        self.logs = Logs()
        self.results = Logs()

    def add_hook(self, hook: Hook) -> None:
        """Add a hook.

        Raises:
            TrainingError: It is no hook, or its name is taken.
        """
        if not isinstance(hook, Hook):
            raise TrainingError(
                f"Trainer.add_hook: expected a Hook, got {hook!r}. Derive it from "
                f"brainstorm.hooks.Hook."
            )
        if hook.__name__ in (*self.hooks, ROLLING, STATISTICS):
            raise TrainingError(
                f"Trainer.add_hook: the name {hook.__name__!r} is taken. Give the hook another "
                f"one: name='...'."
            )
        hook.check_choice("role", hook.role, ROLES)
        hook.priority = max((h.priority for h in self.hooks.values()), default=0) + 1
        self.hooks[hook.__name__] = hook

    def ordered_hooks(self) -> list[Hook]:
        """Return the hooks in the order in which they run: by role, then as they were added."""
        return sorted(self.hooks.values(), key=lambda h: (ROLES.index(h.role), h.priority))

    # -- training ---------------------------------------------------------------------------------

    def train(self, net: Any, training_data_iter: Any, **named_data_iters: Any) -> None:
        """Train until a hook stops; without a stopping hook that is never.

        All hooks run once before the first update. A later call continues: the counts go on,
        and only those hooks run before its first update that log nothing.

        Args:
            net: The network.
            training_data_iter: Yields the batches of an epoch.
            **named_data_iters: Further data, for the hooks that name it.

        Raises:
            TrainingError: The data does not fit the network's inputs, or there is none.
        """
        check_data_names(net, training_data_iter)
        self.stepper.start(net)
        hooks = self.ordered_hooks()
        with ExitStack() as stack:
            iters = {"training_data_iter": training_data_iter, **named_data_iters}
            self._start_hooks(stack, hooks, net, self.logs, iters)
            first = hooks if self.current_update_nr == 0 else [h for h in hooks if h.idempotent]
            stop = self._emit(first, "update", net) or self._emit(first, "epoch", net)
            while not stop:
                stop = self._run_epoch(net, training_data_iter, hooks)

    def _run_epoch(self, net: Any, training_data_iter: Any, hooks: Iterable[Hook]) -> bool:
        self.current_epoch_nr += 1
        if self.verbose:
            write_line(f"\n{'- ' * 12}Epoch {self.current_epoch_nr}{' -' * 12}")
        scores: dict[str, Any] = OrderedDict()
        net.reset_statistics()
        first_update, stop = self.current_update_nr, False
        for _ in run_network(net, training_data_iter(handler=net.handler)):
            self.current_update_nr += 1
            self.stepper.run()
            gather_losses_and_scores(net, self.train_scorers, scores)
            net.apply_weight_modifiers()
            stop = self._emit(hooks, "update", net)
            if stop:
                break
        if self.current_update_nr == first_update:
            raise TrainingError(
                f"Trainer.train, epoch {self.current_epoch_nr}: the training_data_iter "
                f"({type(training_data_iter).__name__}) gave no batch."
            )
        averages = aggregate_losses_and_scores(scores, net, self.train_scorers)
        self._record(ROLLING, averages, self.logs, self.verbose)
        if statistics := net.dump_statistics():
            self._record(STATISTICS, statistics, self.logs, self.verbose)
        return self._emit(hooks, "epoch", net) or stop

    def evaluate(self, net: Any, **named_data_iters: Any) -> Logs:
        """Let the hooks that write logs run once, whatever their intervals.

        Args:
            net: The network.
            **named_data_iters: The data for the hooks that name it.

        Returns:
            What they logged; also kept in ``results``.
        """
        self.results = Logs()
        writers = [hook for hook in self.ordered_hooks() if hook.role == "writer"]
        with ExitStack() as stack:
            self._start_hooks(stack, writers, net, self.results, named_data_iters)
            for timescale in ("epoch", "update"):
                for hook in writers:
                    if hook.timescale == timescale:
                        self._fire(hook, net, self.results)
        return self.results

    # -- hooks ------------------------------------------------------------------------------------

    def _start_hooks(
        self, stack: ExitStack, hooks: Iterable[Hook], net: Any, logs: Logs, iters: dict[str, Any]
    ) -> None:
        for hook in hooks:
            stack.push(self._farewell(hook, net, logs))
            _call(hook, hook.start, net, self.stepper, self.verbose, iters)

    def _farewell(self, hook: Hook, net: Any, logs: Logs) -> Callable[..., None]:
        """Return the exit function by which a hook always learns how the training ended."""

        def leave(
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            try:
                if error is not None:
                    _call(hook, hook.on_error, net, self.stepper, logs, error)
            finally:
                _call(hook, hook.finalize, net, self.stepper, logs)

        return leave

    def _emit(self, hooks: Iterable[Hook], timescale: str, net: Any) -> bool:
        """Fire the hooks whose turn it is; return whether one of them stopped the training."""
        count = self.current_epoch_nr if timescale == "epoch" else self.current_update_nr
        due = [h for h in hooks if h.timescale == timescale and count % h.interval == 0]
        stops = [self._fire(hook, net, self.logs) for hook in due]
        return any(stops)

    def _fire(self, hook: Hook, net: Any, logs: Logs) -> bool:
        counts = self.current_epoch_nr, self.current_update_nr
        try:
            entry, stop = _call(hook, hook, *counts, net, self.stepper, logs), False
        except StopIteration as reason:
            entry, stop = reason.value, True
        self._record(hook.__name__, entry, logs, hook.run_verbosity)
        return stop

    def _record(self, name: str, entry: Any, logs: Logs, verbose: bool) -> None:
        logs.append(name, entry)
        if verbose:
            _print_entry(name, entry)

    # -- state ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return what a continuation needs beside the network and the data.

        Returns:
            Nested dicts of numbers, texts, lists, NumPy arrays and `None`.
        """
        return {
            "current_epoch_nr": self.current_epoch_nr,
            "current_update_nr": self.current_update_nr,
            "logs": dict(self.logs.sliced()),
            "stepper": self.stepper.get_state(),
            "hooks": {name: hook.get_state() for name, hook in self.hooks.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned; hooks that are unknown here are passed over."""
        self.current_epoch_nr = int(state["current_epoch_nr"])
        self.current_update_nr = int(state["current_update_nr"])
        self.logs = Logs(state["logs"]).sliced()
        self.stepper.set_state(state["stepper"])
        for name, hook_state in state["hooks"].items():
            if name in self.hooks:
                self.hooks[name].set_state(hook_state)


def check_data_names(net: Any, training_data_iter: Any) -> None:
    """Check that an iterator yields exactly what the network's inputs are called.

    Raises:
        TrainingError: Names are missing or too many.
    """
    where = f"Trainer.train, training_data_iter ({type(training_data_iter).__name__})"
    if not hasattr(training_data_iter, "data_shapes"):
        raise TrainingError(f"{where}: expected a data iterator; see brainstorm.data_iterators.")
    given, wanted = set(training_data_iter.data_shapes), set(net.input_names)
    if given == wanted:
        return
    text = f"{where}: expected data for {_names(wanted)}, got {_names(given)}."
    if wanted - given:
        text += f" Add {_names(wanted - given)} to the iterator."
    if given - wanted:
        extra = _names(given - wanted)
        text += f" Leave out {extra}, or add it to the out_shapes of the Input layer."
    raise TrainingError(text)


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "nothing"


def _call(hook: Hook, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of a hook; an error gets a note that names the hook."""
    try:
        return function(*args)
    except StopIteration:
        raise
    except Exception as error:
        note = f"Raised by the hook {hook.__name__!r} ({type(hook).__name__})."
        error.__notes__ = [*getattr(error, "__notes__", ()), note]
        raise


def _print_entry(name: str, entry: Any, depth: int = 0) -> None:
    label = "  " * depth + name
    if isinstance(entry, Mapping):
        if entry:
            write_line(label)
        for key, value in entry.items():
            _print_entry(str(key), value, depth + 1)
    elif entry is not None:
        write_line(f"{label:<{VALUE_COLUMN - 2}}: {entry}")
