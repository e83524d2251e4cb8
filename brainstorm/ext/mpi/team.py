"""Teams of ranks: the operations of a trainer on which all ranks have to agree."""

from __future__ import annotations

import contextlib
import signal as signals
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from brainstorm.describable import get_description
from brainstorm.errors import DescriptionError, TrainingError
from brainstorm.ext.mpi.reducer import Reducer, describe_diverging
from brainstorm.ext.mpi.shards import Divided, digest_of_data, divide, is_new
from brainstorm.ext.mpi.synchronized import synchronized
from brainstorm.ext.mpi.world import World, agreed, find_world
from brainstorm.network.generators import get_generator_states, set_generator_states
from brainstorm.network.parameters import put_values
from brainstorm.tools.evaluation import merge_statistics
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.training.parts import take_part
from brainstorm.training.team import Team
from brainstorm.training.trainer import Trainer

T = TypeVar("T")


class MpiTeam(Team):
    """The ranks of an MPI job; see `distribute`.

    Args:
        reducer: Sums the gradients.
        synchronize_batch_norm: Whether batch normalization uses the statistics of whole batches.
    """

    def __init__(self, reducer: Reducer, synchronize_batch_norm: bool) -> None:
        self.reducer = reducer
        self.world = reducer.world
        self.rank, self.size = self.world.rank, self.world.size
        self.synchronize_batch_norm = synchronize_batch_norm
        self._divided: Divided = {}

    def working(self) -> contextlib.AbstractContextManager[Any]:
        return self.world.working()

    def divide(self, iters: Mapping[str, Any], hooks: Sequence[Any]) -> dict[str, Any]:
        """Return iterators over this rank's part of each batch, always the same objects.

        Raises:
            TrainingError: Data or hooks of the ranks differ; the message names them and the ranks.
        """
        self._refuse_others(iters, hooks)
        return {name: divide(it, self.world, self._divided) for name, it in iters.items()}

    def _refuse_others(self, iters: Mapping[str, Any], hooks: Sequence[Any]) -> None:
        new = {name: it for name, it in iters.items() if is_new(it, self._divided)}
        digests: dict[str, Any] = {f"the data {n!r}": digest_of_data(it) for n, it in new.items()}
        digests.update((f"the hook {hook.__name__!r}", digest_of_hook(hook)) for hook in hooks)
        digests["the order of the hooks"] = tuple(hook.__name__ for hook in hooks)
        everyone = self.gather(digests)
        columns = {
            name: [own.get(name, "none") for own in everyone] for own in everyone for name in own
        }
        if found := describe_diverging(columns):
            raise agreed(
                f"Trainer: expected the same on all ranks, but {found} differ from the others. "
                f"Every rank runs the same script: it adds the same hooks in the same order, "
                f"and gives the whole data, of which each rank takes its part."
            )

    def own_part(self, pending: dict[str, Any], stepper: Any) -> dict[str, Any]:
        """Return the part that this rank has written, or else a part of what others have written.

        Accumulated gradients of other ranks go to rank 0.
        """
        is_own = len(pending["parts"]) == self.size
        part = pending["parts"][self.rank] if is_own else {}
        if (accumulation := stepper.accumulation) is not None:
            if is_own:
                accumulation.set_state(part["accumulation"])
            elif self.rank:
                given = accumulation.get_state()["given"]
                accumulation.set_state({"given": given, "sequences": 0})
        return part or {"data": take_part(pending["data"], self.rank, self.size)}

    def adopt(self, stepper: Any) -> None:
        if stepper.reducer is not self.reducer:
            stepper.reducer = self.reducer

    @contextlib.contextmanager
    def start(self, net: Any, part: Mapping[str, Any] | None) -> Iterator[None]:
        """Give every rank random numbers of its own, and synchronize batch normalization."""
        self._start_numbers(net, part)
        with contextlib.ExitStack() as stack:
            if self.synchronize_batch_norm:
                stack.enter_context(synchronized(net, self.reducer))
            yield

    def _start_numbers(self, net: Any, part: Mapping[str, Any] | None) -> None:
        if part is not None and "persistent" in part:
            set_generator_states(net, part["generators"], f"the part of rank {self.rank}")
            put_values(net, part["persistent"])
            return
        set_generator_states(net, self.share(get_generator_states(net)), "rank 0")
        if self.rank:
            draw_otherwise(net, f"rank/{self.rank}/{self.reducer.stepper.steps}")
            for path in net.statistics_paths:
                net.handler.fill(net.buffer[path], 0.0)

    def step(self, stepper: Any, is_idle: bool, signal: str | None) -> None:
        """Do a step; with an empty part it does not change the statistics of this rank."""
        if self.reducer.stepper is not stepper:  # a hook has set one that had started before
            self.reducer.start(stepper)
        stepper.is_idle = is_idle
        self.reducer.signal = 0 if signal is None else int(signals.Signals[signal])
        if not is_idle:
            stepper.run()
            return
        net = stepper.net
        kept = {path: net.get(path) for path in net.persistent_paths if self._is_local(net, path)}
        stepper.run()
        put_values(net, kept)

    def _is_local(self, net: Any, path: str) -> bool:
        """Return whether a buffer may differ between ranks."""
        return not getattr(net.layers[path.partition(".")[0]], "synchronizer", None)

    def agreed_signal(self, signal: str | None) -> str | None:
        """Return the first signal that any rank received before the last update."""
        received = self.reducer.signals[self.reducer.signals > 0]
        return signals.Signals(int(received[0])).name if received.size else None

    def merge_statistics(self, net: Any) -> None:
        """Sum statistics layers over the ranks, and average running statistics."""
        merge_statistics(net, self.gather)
        for path in net.persistent_paths:
            if path not in net.statistics_paths and self._is_local(net, path):
                array = net.buffer[path]
                self.reducer.transport.sum(array)
                mean = net.handler.get_numpy_copy(array) / self.size
                net.handler.set_from_numpy(array, mean)

    def gather(self, value: T) -> list[T]:
        return self.world.gather(value)

    def share(self, value: T) -> T:
        return self.world.share(value)


def digest_of_hook(hook: Any) -> int:
    """Return a digest of a hook, equal for hooks that work together."""
    facts = [type(hook).__name__, hook.role, hook.timescale, hook.interval]
    if hook.role != "reader":  # readers run on one rank
        with contextlib.suppress(DescriptionError):
            facts.append(get_description(hook))
    return zlib.crc32(repr(facts).encode())


def draw_otherwise(net: Any, name: str) -> None:
    """Give layers other random numbers, by a name in the network's tree of seeds.

    Random numbers that change parameters stay the same, because these must stay equal on all ranks.
    """
    states = get_generator_states(net)
    for place, state in states.items():
        if place.startswith("layers."):
            branch = net.rnd.child(f"{place}/{name}")
            if "seed" in state:
                states[place] = branch.__getstate__()
            else:
                stream = net.handler.create_random_stream(branch.generate_seed())
                states[place] = stream.get_state()
    set_generator_states(net, states, name)


def distribute(
    trainer: Trainer | TrainingStepper,
    synchronize_batch_norm: bool = False,
    slice_bytes: int | None = None,
    check_every: int = 100,
    timeout: float = 600.0,
    world: World | None = None,
) -> Team:
    """Let all ranks of this MPI job train together; call it before the training, on all ranks.

    A process that runs alone needs no MPI, and nothing changes in it.

    Args:
        trainer: A trainer: its iterators give the same batches on all ranks, and each rank takes
            its part of them. Or a stepper, for your own loop: then every rank has its own data, and
            an update uses the data of all ranks.
        synchronize_batch_norm: Whether batch normalization uses the statistics of whole batches
            and not of each rank's part; only for a trainer.
        slice_bytes: If given, gradients are summed in slices of about that size during the backward
            pass; else all at once.
        check_every: Check every so many updates that the parameters on all ranks are equal; 0:
            never.
        timeout: Seconds to wait for a rank before the job fails. It must exceed the time that one
            rank works alone, e.g. to write a checkpoint.
        world: The ranks; `None`: those of this job.

    Returns:
        The ranks: ``rank`` and ``size``, `Team.share` and `Team.gather`.

    Raises:
        MissingDependencyError: There are several processes, but mpi4py or its MPI library is not
            installed.
        TrainingError: It is neither a trainer nor a stepper.
    """
    is_trainer = isinstance(trainer, Trainer)
    if not is_trainer and not isinstance(trainer, TrainingStepper):
        raise TrainingError(f"distribute: expected a Trainer or a stepper, got {trainer!r}.")
    world = world or find_world(timeout)
    if world is None:
        return Team()
    reducer = Reducer(world, check_every, slice_bytes)
    team = MpiTeam(reducer, synchronize_batch_norm)
    if isinstance(trainer, Trainer):
        trainer.team = team
        trainer.verbose = trainer.verbose and team.rank == 0
    else:
        trainer.reducer = reducer
    return team
