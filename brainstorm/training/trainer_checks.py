"""Checks of what a trainer is given."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from brainstorm.constraints import argument_names, one_of
from brainstorm.data_iterators import DataIterator
from brainstorm.errors import TrainingError, ValidationError, kind_of, shown
from brainstorm.hooks.base import ROLES, Hook
from brainstorm.hooks.criteria import scorers_of
from brainstorm.network.topology import warn_of_one_sequence, warn_of_single_steps
from brainstorm.tools.evaluation import check_iterator
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.utils import is_number, warn_once


def check_is_stepper(value: Any) -> None:
    """Raise an error unless something is a stepper."""
    if not isinstance(value, TrainingStepper):
        raise TrainingError(
            f"Trainer: expected a stepper such as SgdStepper(0.1), got {shown(value)}. The network "
            f"and the data are given to train."
        )


def check_is_idle(method: str, progress: Any, got: str) -> None:
    """Raise an error if a trainer makes progress: a training is running."""
    if progress is not None:
        raise TrainingError(f"Trainer.{method}: expected no training to be running, got {got}")


def check_hook(hook: Any, hooks: Mapping[str, Hook], reserved: Collection[str]) -> None:
    """Raise an error unless something is a hook, with a role and a name that is not taken."""
    if not (isinstance(hook, Hook) and hasattr(hook, "__name__")):
        raise TrainingError(
            f"Trainer.add_hook: expected a hook, got {shown(hook)}. A schedule is used by "
            f"ModifyStepperAttribute, a scorer by MonitorScores; a hook of your own derives "
            f"from brainstorm.hooks.Hook and calls super().__init__()."
        )
    name = hook.__name__
    if name in (*hooks, *reserved):
        remedy = ""
        if name in hooks:
            here, options = f"trainer.hooks[{name!r}]", argument_names(type(hook).__init__)
            option = next((option for option in options if option in vars(hook)), "interval")
            change = f"{here}.{option} = {shown(getattr(hook, option))}"
            remedy = f" Or change the present one, as by {change}, or delete it: del {here}."
        raise TrainingError(
            f"Trainer.add_hook: the name {name!r} is taken. Give the hook another one: name='...'."
            f"{remedy}"
        )
    if hook.role not in (roles := one_of(*ROLES)):
        raise hook.fail("role", roles.expected, hook.role)


def added_hooks(trainer: Any) -> Iterable[Hook]:
    """Return the hooks; raise an error if one was not added, or was added to another trainer."""
    for name, hook in trainer.hooks.items():
        if getattr(hook, "trainer", None) is not trainer:
            raise TrainingError(
                f"trainer.hooks[{name!r}]: expected a hook that trainer.add_hook has added, and no "
                f"other trainer since, got {shown(hook)}. Add one: del trainer.hooks[{name!r}]; "
                f"trainer.add_hook(...)."
            )
    return trainer.hooks.values()


def check_data_names(net: Any, training_data_iter: Any, trainer: Any) -> None:
    """Raise an error unless an iterator yields data for exactly the network's inputs.

    Data that lead into no layer, and that no scorer or hook of the trainer names, are warned of.
    """
    where = f"Trainer.train, training_data_iter ({kind_of(training_data_iter)})"
    needed = ["data_shapes", *["length", "rnd"] * isinstance(training_data_iter, DataIterator)]
    if isinstance(training_data_iter, type) or not all(
        hasattr(training_data_iter, name) for name in needed
    ):
        raise TrainingError(
            f"{where}: expected a data iterator, such as Minibatches(50, default=x, targets=y); "
            f"one of your own derives from DataIterator and calls super().__init__(shapes, length)."
        )
    given, wanted = set(training_data_iter.data_shapes), set(net.input_names)
    if given == wanted:
        _warn_of_unread_data(net, trainer)
        return
    text = f"{where}: expected data for {_names(wanted)}, got {_names(given)}."
    if wanted - given:
        text += f" Add {_names(wanted - given)} to the iterator."
    if given - wanted:
        extra = _names(given - wanted)
        text += f" Leave out {extra}, or add it to the out_shapes of the Input layer."
    raise TrainingError(text)


def _warn_of_unread_data(net: Any, trainer: Any) -> None:
    read = {c.output_name for c in net.layers["Input"].outgoing} | {"targets"}  # of scorers
    scorers = itertools.chain.from_iterable(scorers_of(trainer).values())
    for user in (*scorers, *trainer.hooks.values()):
        read.update(value for value in vars(user).values() if isinstance(value, str))
    for name in sorted(set(net.input_names) - read):
        warn_once(
            net,
            f"layer 'Input', output {name!r}: nothing reads these data. Connect them: "
            f"inp - {name!r} >> layer, or inp - {name!r} >> 'mask' - layer; or name them in a "
            f"scorer. If a hook of your own reads them, this may be ignored.",
        )


def check_named_data(method: str, iters: Mapping[str, Any]) -> None:
    """Raise an error unless all further data of a training or evaluation are data iterators."""
    for name, value in iters.items():
        try:
            check_iterator(f"Trainer.{method}, {name}", value)
        except ValidationError as error:
            hook = f"trainer.add_hook(StopAfterEpoch({value}))"
            is_number_of_epochs = is_number(value) and "epoch" in name
            hint = f" A hook sets the number of epochs: {hook}." * is_number_of_epochs
            raise TrainingError(f"{error}{hint}") from None


def check_evaluation(hooks: Iterable[Hook], iters: Mapping[str, Any]) -> list[Hook]:
    """Return the hooks that write logs; raise an error if none does, or data are no iterators."""
    check_named_data("evaluate", iters)
    writers = [hook for hook in hooks if hook.role == "writer"]
    if iters and not writers:
        raise TrainingError(
            f"Trainer.evaluate: expected a hook that writes logs, such as "
            f"MonitorLoss({next(iter(iters))!r}), got none. Without hooks: bs.tools.evaluate(net, "
            f"data)."
        )
    return writers


def check_epoch(trainer: Any, progress: Any, longest: int) -> None:
    """Raise an error if an epoch had no batch; warn of data whose form is probably wrong.

    `longest`: the largest number of time steps of its batches.
    """
    net, iterator = progress.net, progress.iters["training_data_iter"]
    if progress.given == 0:
        raise TrainingError(
            f"Trainer.train, epoch {trainer.current_epoch_nr}: the training_data_iter "
            f"({type(iterator).__name__}) gave no batch."
        )
    if not getattr(iterator, "gives_sequences", False):
        warn_of_single_steps(net.layers, longest)
        if progress.given == 1 and trainer.team.size == 1:
            warn_of_one_sequence(net.layers, net.time_size, net.batch_size)


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "nothing"


def keep_stepper_on(net: Any, stepper: Any, team: Any) -> None:
    """Start a stepper that a hook has set for the network in training.

    Raises:
        TrainingError: Meanwhile it was started with another network.
    """
    if stepper.net not in (None, net):
        raise TrainingError(
            "Trainer.train: expected the stepper to go on with this network, but meanwhile it was "
            "started with another one. Give the other training copy.deepcopy(stepper)."
        )
    team.adopt(stepper)
    if stepper.net is None:
        stepper.start(net)
