"""The trainer: the loop over epochs and batches, and nothing else.

The stepper defines a step; everything else is done by hooks. How hooks are run is in
`running_hooks`, the content of a saved run in `checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from brainstorm.constraints import Constraint
from brainstorm.describable import Describable
from brainstorm.display import ShownAsTree, Tree, safe_repr
from brainstorm.errors import TrainingError
from brainstorm.files import PathLike
from brainstorm.handlers import Handler
from brainstorm.hooks.base import ROLES, Hook, check_counts, write_line
from brainstorm.hooks.criteria import ROLLING
from brainstorm.interrupts import uninterrupted
from brainstorm.network.network import check_network
from brainstorm.randomness import global_rnd
from brainstorm.scorers import aggregate_losses_and_scores, check_scorers, merge_scores
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.training.checkpoint import DataProgress, capture_part, load_run, save_run
from brainstorm.training.logs import Logs
from brainstorm.training.running_hooks import INTERRUPTED, STATISTICS, STOPPED, RunningHooks
from brainstorm.training.signals import StopSignals
from brainstorm.training.team import Team
from brainstorm.training.trainer_checks import (
    added_hooks,
    check_data_names,
    check_epoch,
    check_evaluation,
    check_hook,
    check_is_idle,
    check_is_stepper,
    check_named_data,
    keep_stepper_on,
)
from brainstorm.training.trainer_tree import trainer_tree
from brainstorm.utils import Named


class Trainer(ShownAsTree, Describable):
    """Train a network step by step until a hook stops it.

    Args:
        stepper: Does the steps; see `brainstorm.training.steppers`.
        verbose: Whether to print what is logged; the default for hooks. The logger
            ``logging.getLogger("brainstorm")`` gets all of it in any case, at level INFO.

    Raises:
        TrainingError: `stepper` is not a stepper.

    Attributes:
        hooks: The hooks by name, in the order in which they were added.
        train_scorers: Scorers for the training batches; results in ``logs['rolling_training']``.
        current_epoch_nr: Epochs so far, over all calls of `train`, including the current one.
        current_update_nr: Updates so far: batches, unless the stepper accumulates several for one.
        logs: The recorded values: averages over the batches of each epoch under
            ``'rolling_training'``, statistics layers under ``'statistics'``, and the values that
            hooks return under the names of the hooks.
        results: What the last `evaluate` recorded.
        net: The network of the last `train`, or of the run that `resume` read.
        team: The processes that train together; see `brainstorm.ext.mpi`.
    """

    __undescribed__ = {
        "current_epoch_nr", "current_update_nr", "logs", "results", "net", "team", "_progress",
        "_parts", "_pending", "_unfinished", "_signals",
    }  # fmt: skip
    __argument_error__ = TrainingError
    __default_values__ = {"verbose": True}
    __constraints__ = {"train_scorers": Constraint("a list", lambda v: True, convert=check_scorers)}

    hooks: dict[str, Hook]
    train_scorers: list[Any]
    current_epoch_nr = 0
    current_update_nr = 0
    net: Any = None
    _progress: DataProgress | None = None  # while training
    _parts: list[dict[str, Any]] | None = None  # while saving, of all processes
    _pending: dict[str, Any] | None = None  # the state for `train` to restore
    _unfinished: DataProgress | None = None  # in an epoch that was interrupted

    def __init__(self, stepper: TrainingStepper, verbose: bool = True) -> None:
        check_is_stepper(stepper)
        self.stepper = stepper
        self.verbose = verbose
        self.hooks = Named()
        self.train_scorers = []
        self._begin()

    def _begin(self) -> None:
        self.logs, self.results, self.team, self._signals = Logs(), Logs(), Team(), StopSignals()

    @safe_repr
    def __repr__(self) -> str:
        hooks = ", ".join(self.hooks) or "no hooks"
        return f"Trainer({self.stepper!r}): {self.current_epoch_nr} epochs trained; {hooks}"

    def tree(self, values: bool = False) -> Tree:
        """Return stepper, hooks, logs and network as a tree, which a notebook shows."""
        return trainer_tree(self, values)

    def __init_from_description__(self, description: Mapping[str, Any]) -> None:
        self._begin()
        self.hooks = Named(self.hooks)
        for hook in self.hooks.values():
            hook.trainer = self

    def add_hook(self, hook: Hook) -> None:
        """Add a hook.

        Raises:
            TrainingError: It is not a hook, or its name is taken, or a training is running.
        """
        check_hook(hook, self.hooks, (ROLLING, STATISTICS, INTERRUPTED, STOPPED))
        late = f"the hook {hook.__name__!r} during one. Add it before, so that it runs."
        check_is_idle("add_hook", self._progress, late)
        if hook.trainer not in (None, self):
            hook.begin_anew(self.logs)
        hook.priority = max((h.priority for h in self.hooks.values()), default=0) + 1
        hook.trainer = self
        self.hooks[hook.__name__] = hook

    def ordered_hooks(self) -> list[Hook]:
        """Return the hooks in the order in which they run: by role, then in the order added."""
        return sorted(added_hooks(self), key=lambda h: (ROLES.index(h.role), h.priority))

    # -- training ---------------------------------------------------------------------------------

    def train(self, net: Any, training_data_iter: Any, **named_data_iters: Any) -> None:
        """Train until a hook stops; without such a hook the training never ends.

        All hooks run once before the first update. A later call with the same network continues:
        counts, logs, the stepper's state and a pending accumulation go on, and only hooks that log
        nothing run before its first update. An epoch that was interrupted by an error or a signal
        is finished first, or started again if the data iterator is another one. A run read by
        `resume` continues exactly where it was saved. With another network, the stepper and all
        hooks start without state, and only counts and logs go on. A new stepper starts without
        state, too.

        The first SIGINT (Ctrl-C) or SIGTERM ends the training after the current update and skips
        the rest of the epoch; `SaveCheckpoint` hooks save the run, and ``logs['interrupted']``
        gives the reason. Another SIGINT raises KeyboardInterrupt, in a step at its end.

        Meanwhile other threads may predict with the network: they wait while it computes a batch,
        including the hooks after the update, and are served before the next batch.

        Args:
            net: The network.
            training_data_iter: Yields the batches of an epoch.
            **named_data_iters: Further data, for the hooks that refer to it by name.

        Raises:
            NetworkValidationError: `net` is no network.
            TrainingError: The trainer trains already; the data do not fit the network's inputs, or
                there are none, or further data are no data iterator; or, after `resume`, it is
                another network, or data are missing.
            IteratorValidationError: After `resume`, an iterator is of another kind or other data.
        """
        check_is_idle("train", self._progress, "another one. Use a second trainer for it.")
        self.train_scorers = check_scorers(self.train_scorers)
        with self.team.working():
            check_is_stepper(self.stepper)
            check_network("Trainer.train", net)
            check_data_names(net, training_data_iter, self)
            check_named_data("train", named_data_iters)
            iters = {"training_data_iter": training_data_iter, **named_data_iters}
            self._train(net, self.team.divide(iters, self.ordered_hooks()))

    def _train(self, net: Any, iters: dict[str, Any]) -> None:
        if self._pending is not None and net is not self.net:
            raise TrainingError(
                f"Trainer.train: expected the network that was read with the run (trainer.net), "
                f"got another one of {len(net.layers)} layers."
            )
        progress, part = self._begin_progress(net, iters), None
        hooks = RunningHooks(self, self.ordered_hooks(), net, self.logs)
        try:
            if self._pending is not None:
                part = self.team.own_part(self._pending, self.stepper)
                progress.set_state(part["data"])
            elif self.stepper.net is net:
                self.stepper.set_state(self.stepper.get_state())
            self.team.adopt(self.stepper)
            self.stepper.start(net)
            net.start_weight_modifiers()
            if self.net not in (None, net):
                for hook in self.hooks.values():
                    hook.begin_anew(self.logs)
                    hook.ran_on = None
            self.net, self._progress = net, progress
            with self.team.start(net, part), StopSignals() as self._signals:
                with hooks.started(iters):
                    if self._pending is not None:
                        global_rnd.__setstate__(self._pending["global_rnd"])
                        self._pending = None
                    stop = not progress.in_epoch and hooks.emit_first(part is not None)
                    while not stop:
                        stop = self._run_epoch(progress, hooks)
                hooks.record_signal(self._signals.received)
        finally:
            self._unfinished = progress if progress.in_epoch else None
            self._progress = self._parts = None
            if self._pending is not None:  # nothing was done yet: restore it in the next call
                self.stepper.set_state(self.stepper.get_state())

    def _begin_progress(self, net: Any, iters: dict[str, Any]) -> DataProgress:
        """Return the position in the data at which a training starts or continues."""
        old, self._unfinished = self._unfinished, None
        if old is None or old.net is not net or self._pending is not None:
            return DataProgress(net, iters)
        if old.can_go_on_with(iters["training_data_iter"]):
            old.iters = iters
            return old
        self.current_epoch_nr -= 1  # it starts again
        return DataProgress(net, iters)

    def _run_epoch(self, progress: DataProgress, hooks: RunningHooks) -> bool:
        """Run an epoch or the rest of it; return whether the training ends."""
        net, stop, longest = progress.net, False, 0
        if not progress.in_epoch:
            net.reset_statistics()
            with uninterrupted(most=2, numbers=()):  # an epoch that is counted begins
                self.current_epoch_nr += 1
                progress.begin_epoch()
        if self.verbose:
            write_line(f"\n{'- ' * 12}Epoch {self.current_epoch_nr}{' -' * 12}")
        for _ in progress.batches():
            keep_stepper_on(net, self.stepper, self.team)
            net.start_new_weight_modifiers()
            with uninterrupted(most=2, numbers=()):  # a step that was done counts
                progress.begin_step()
                self.team.step(self.stepper, progress.is_idle, self._signals.received)
                if not self.stepper.is_within_update:
                    self.current_update_nr += 1
                    net.apply_weight_modifiers()
                if not progress.is_idle:
                    progress.score(self.train_scorers)
            longest = max(longest, net.time_size)
            stop = not self.stepper.is_within_update and bool(hooks.emit("update"))
            if stop:
                break
            if self._save_due(hooks, progress):
                return True
        check_epoch(self, progress, longest)
        progress.in_epoch = False
        self.team.merge_statistics(net)
        scores = merge_scores(self.team.gather(progress.scores))
        averages = aggregate_losses_and_scores(scores, net, self.train_scorers)
        hooks.record(ROLLING, averages, self.verbose)
        if statistics := net.dump_statistics():
            hooks.record(STATISTICS, statistics, self.verbose)
        stop = bool(hooks.emit("epoch")) or stop
        return self._save_due(hooks, progress) or stop

    def evaluate(self, net: Any, **named_data_iters: Any) -> Logs:
        """Run the hooks that write logs once, whatever their intervals.

        Args:
            net: The network.
            **named_data_iters: The data for the hooks that refer to it by name.

        Returns:
            The values that they logged; also kept in ``results``.

        Raises:
            ValidationError: A training runs; there is no network, no data iterator, or no hook.
        """
        check_is_idle("evaluate", self._progress, "an evaluation during one. Use tools.evaluate.")
        check_network("Trainer.evaluate", net)
        writers = check_evaluation(self.ordered_hooks(), named_data_iters)
        self.results = Logs()
        hooks = RunningHooks(self, writers, net, self.results)
        with self.team.working(), hooks.started(self.team.divide(named_data_iters, writers)):
            for hook in sorted(writers, key=lambda hook: hook.timescale):  # epoch before update
                hooks.fire(hook)
        return self.results

    def _save_due(self, hooks: RunningHooks, progress: DataProgress) -> bool:
        """Save the run if it is due; return whether a signal ends the training."""
        signal = self.team.agreed_signal(self._signals.received)
        ended = {"epoch": not progress.in_epoch, "update": not self.stepper.is_within_update}
        counts = {"epoch": self.current_epoch_nr, "update": self.current_update_nr}
        counts = {timescale: count for timescale, count in counts.items() if ended[timescale]}
        due = [h for h in hooks.checkpoints if signal or self.team.share(h.is_due(counts))]
        if due and progress.in_epoch and not progress.goes_on():
            return False  # the end of the epoch comes first
        if due:
            self._parts = self.team.gather(capture_part(progress, self.stepper))
        for hook in due:
            hooks.fire(hook)
        self._parts = None
        return hooks.record_signal(signal)

    @property
    def batch_losses(self) -> list[float]:
        """The total loss of each batch of the current epoch, or of the one that just ended."""
        return [] if self._progress is None else self._progress.losses

    @property
    def batches_given(self) -> int:
        """For how many batches of the current epoch, or the one that just ended, a step began."""
        return 0 if self._progress is None else self._progress.given

    def restart_sequences(self) -> None:
        """Reset the state of recurrent layers where the next batch continues long sequences."""
        if self._progress is not None:
            self._progress.restart_sequences()

    # -- state ------------------------------------------------------------------------------------

    def save_run(self, filename: PathLike, copies: Iterable[PathLike] = ()) -> None:
        """Write a run file for `resume`; a `SaveCheckpoint` does so when the state is exact.

        Args:
            filename: The file.
            copies: Other files in its folder that get the same content first.

        Raises:
            TrainingError: No training is running; several processes train, and the caller is not a
                `SaveCheckpoint`; or the state of a hook or the logs cannot be stored in a file.
            DescriptionError: A hook, the stepper, a scorer or the network cannot be described.
        """
        if self._progress is None:
            raise TrainingError(
                "Trainer.save_run: expected to be called by a hook while training. Use "
                "net.save_as_hdf5 for a network."
            )
        if self._parts is None and self.team.size > 1:
            raise TrainingError(
                f"Trainer.save_run: expected to be called by a SaveCheckpoint, because "
                f"{self.team.size} processes train together, each with a part of the run."
            )
        parts = self._parts or [capture_part(self._progress, self.stepper)]
        save_run(filename, self, self._progress.net, parts, copies)

    @classmethod
    def resume(cls, filename: PathLike, handler: Handler | None = None) -> Trainer:
        """Return the trainer of a run file, with its hooks, and the network as ``trainer.net``.

            trainer = Trainer.resume("run.hdf5")
            trainer.train(trainer.net, make_training_data(), validation=make_validation_data())

        continues exactly where the file was written, if the iterators are created as in the run.

        Hooks that write files continue with those in the folder of the run file. If a hook wrote
        elsewhere, `train` raises an error unless the script sets the path:
        ``trainer.hooks["SaveNetwork"].filename = "/elsewhere/net.hdf5"``.

        Args:
            filename: The file of a `SaveCheckpoint`.
            handler: Use this handler, of the same kind, instead of the one named in the file.

        Raises:
            FileNotFoundError: There is no such file.
            FileFormatError: The file is truncated, not a run file, or of a newer version.
            UnknownTypeError: It needs a class that has not been imported.
        """
        trainer, net, pending = load_run(filename, cls, handler)
        trainer.net, trainer._pending = net, pending
        return trainer

    def __getstate__(self) -> dict[str, Any]:
        """Copies start an epoch that has not ended again: the rest of an iterator has no copy."""
        again = any(p is not None and p.in_epoch for p in (self._progress, self._unfinished))
        kept = {**vars(self), "current_epoch_nr": self.current_epoch_nr - again}
        return {**kept, "_progress": None, "_parts": None, "_unfinished": None}

    def get_state(self) -> dict[str, Any]:
        """Return everything that a continuation needs besides the network and the data.

        Returns:
            Nested dicts of numbers, texts, lists, NumPy arrays and `None`.
        """
        return {
            "current_epoch_nr": self.current_epoch_nr,
            "current_update_nr": self.current_update_nr,
            "logs": self.logs.get_state(),
            "moments": self.logs.get_moments(),
            "stepper": self.stepper.get_state(),
            "hooks": {name: hook.get_state() for name, hook in self.hooks.items()},
            "ran": [name for name, hook in self.hooks.items() if hook.ran_on == hook.occasion],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state`; hooks that do not exist here are ignored."""
        counts = {name: state[name] for name in ("current_epoch_nr", "current_update_nr")}
        check_counts("Trainer.set_state", **counts)
        self.current_epoch_nr, self.current_update_nr = counts.values()
        self.logs = Logs.from_state(state["logs"], state.get("moments"))  # not in older files
        self.net = None  # `train` will set it
        self.stepper.set_state(state["stepper"])
        for name, hook_state in state["hooks"].items():
            if hook := self.hooks.get(name):
                hook.set_state(hook_state)
                hook.ran_on = hook.occasion if name in state.get("ran", ()) else None
