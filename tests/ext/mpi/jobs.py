"""What ranks do in tests: ``python -m tests.ext.mpi.jobs NAME FOLDER ARGUMENTS``, by `run_job`."""

import contextlib
import importlib.util
import io
import itertools
import json
import os
import signal
import sys
import time
import zlib
from pathlib import Path

import numpy as np
from mpi4py import MPI

import brainstorm as bs
from brainstorm.data_iterators import AddGaussianNoise, Minibatches, SequenceChunks
from brainstorm.errors import TrainingError
from brainstorm.ext import mpi
from brainstorm.ext.mpi import world
from brainstorm.hooks import (
    AverageWeights,
    EarlyStopper,
    MonitorScores,
    SaveBestNetwork,
    SaveCheckpoint,
    SaveNetwork,
    StopAfterEpoch,
    WithAverages,
)
from brainstorm.initializers import Gaussian
from brainstorm.layers import Accuracy, BatchNorm, Dropout, FullyConnected, Input
from brainstorm.network.generators import get_generator_states
from brainstorm.scorers import Accuracy as AccuracyScorer
from brainstorm.training import AdamStepper, GradientAccumulation, MomentumStepper, SgdStepper
from brainstorm.value_modifiers import ClipValues
from tests.networks import chain, wire_loss
from tests.trainings import Call

RANK = MPI.COMM_WORLD.rank
EXAMPLES = Path(__file__).parents[3] / "examples"


# -- what jobs are made of ------------------------------------------------------------------------


def make_data(count=26, batch_size=10, noise=0.0, masked=False):
    """Two batches of ten, and one of six, which three ranks can normalize by themselves."""
    rnd = np.random.RandomState(1)
    x = rnd.rand(1, count, 6).astype(np.float32)
    data = {"default": x, "targets": rnd.randint(0, 3, (1, count, 1))}
    if masked:
        data["mask"] = (rnd.rand(1, count, 1) < 0.8).astype(np.float32)
    batches = Minibatches(batch_size, **data)
    return AddGaussianNoise(batches, {"default": noise}) if noise else batches


def make_net(dropout=0.0, masked=False, size=8):
    shapes = {"default": ("T", "B", 6), "targets": ("T", "B", 1)}
    inp = Input({**shapes, "mask": ("T", "B", 1)} if masked else shapes)
    norm, projection = BatchNorm(name="Norm"), FullyConnected(3, "linear", name="Projection")
    wire_loss(inp, chain(inp, FullyConnected(size, "tanh"), norm, Dropout(dropout), projection))
    if masked:
        inp - "mask" >> "mask" - norm
    hits = projection >> Accuracy(name="Hits")
    inp - "targets" >> "targets" - hits
    net = bs.Network.from_layer(projection)
    net.output_name = "Out.outputs.predictions"
    net.initialize(Gaussian(0.5))
    return net


def at(update, function, name, role="writer"):
    """Return a hook that calls a function of the network in one update."""
    return Call(lambda _, number, net: function(net) if number == update else None, name, role=role)


def make_trainer(epochs, *hooks, stepper=None, **options):
    trainer = bs.Trainer(stepper or AdamStepper(0.05))
    team = mpi.distribute(trainer, **options)
    trainer.train_scorers = [AccuracyScorer()]
    for hook in (*hooks, StopAfterEpoch(epochs)):
        trainer.add_hook(hook)
    return trainer, team


def summary(trainer, net):
    """What must be equal on all ranks, and what ended the training."""
    return {
        "parameters": zlib.crc32(net.get("parameters").tobytes()),
        "logs": json.loads(trainer.logs.to_json()),
        "updates": trainer.current_update_nr,
    }


# -- the jobs -------------------------------------------------------------------------------------


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def search(trials):
    """What the search has found, and the sizes that this rank has tried."""
    module, tried = load_example("optuna_search"), []
    module.TRIALS = trials
    module.train = lambda data, size, **rest: tried.append(size) or float(size)
    return {"best": module.main(), "tried": tried}


def example(*kinds):
    """The losses of the example, and what this rank has printed."""
    module = load_example("mpi_digits")
    module.EPOCHS = 1
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        logs = {kind: json.loads(module.main(kind).to_json()) for kind in kinds}
    return {"logs": logs, "printed": printed.getvalue()}


def train(options, batches_per_update=1, clip=None, masked=False, count=23):
    """Train the small network; 23 sequences in batches of 10, 10 and 3."""
    bs.global_rnd.set_seed(5)
    net, stepper = make_net(masked=masked), MomentumStepper(0.2, 0.9)
    if batches_per_update > 1:
        stepper.accumulation = GradientAccumulation(batches_per_update)
    if clip is not None:
        net.set_gradient_modifiers(ClipValues(-clip, clip))
    validation = MonitorScores("validation", [AccuracyScorer()], name="validation")
    trainer, _ = make_trainer(4, validation, stepper=stepper, **options)
    data, valid, test = (
        make_data(*sizes, masked=masked) for sizes in ((count, 10), (7, 4), (9, 4))
    )
    trainer.train(net, data, validation=valid)
    evaluated = json.loads(trainer.evaluate(net, validation=test).to_json())
    W = net.get("Projection.parameters.W").tolist()
    return {**summary(trainer, net), "evaluated": evaluated, "W": W}


def alone_after(options):
    """The parameters after rank 0 trains on alone, and those of a network that no team trained."""
    bs.global_rnd.set_seed(5)
    net, found = make_net(), []
    trainer, _ = make_trainer(1, timeout=5, **options)
    trainer.train(net, make_data())
    for each in (net, net.copy()) if RANK == 0 else ():
        alone, data = bs.Trainer(SgdStepper(0.1)), make_data()
        alone.add_hook(StopAfterEpoch(1))
        data.rnd.set_seed(3)
        alone.train(each, data)
        found.append(each.get("parameters").tolist())
    return found


def other_steppers():
    """Train with steppers that are set before a training, and by a hook in it."""
    bs.global_rnd.set_seed(5)
    net, found = make_net(), []
    trainer, _ = make_trainer(1, synchronize_batch_norm=True, check_every=1)
    started = SgdStepper(0.2)
    started.start(net)  # alone
    steppers = itertools.cycle([MomentumStepper(0.2, 0.9), started])
    set_next = Call(
        lambda *_: setattr(trainer, "stepper", next(steppers)), "set", "epoch", "editor"
    )
    for epochs, change in ((1, None), (2, None), (6, set_next)):
        trainer.stepper = MomentumStepper(0.1, 0.9)
        if change:
            trainer.add_hook(change)
        trainer.hooks["StopAfterEpoch"].max_epochs = epochs
        trainer.train(net, make_data(22))  # the last batch has nothing for rank 2
        found.append(summary(trainer, net))
    return found


def random_numbers():
    """Where all generators of a network with dropout are, after a training with noise."""
    bs.global_rnd.set_seed(5 + RANK)  # rank 0 knows the seed
    net, data = make_net(dropout=0.5), make_data(noise=0.1)
    net.set_weight_modifiers({"Projection": {"W": ClipValues(-1, 1)}})
    trainer, _ = make_trainer(2)
    trainer.train(net, data)
    found = {name: repr(state) for name, state in get_generator_states(net).items()}
    return {**found, "parameters": summary(trainer, net)["parameters"]}


def trainings():
    """All that must not depend on the number of ranks."""
    synchronized = {"synchronize_batch_norm": True}
    return {
        "whole": train(synchronized),
        "slices": train({**synchronized, "slice_bytes": 64, "check_every": 2}),
        "accumulated": train(synchronized, batches_per_update=2),
        "clipped": train(synchronized, clip=0.02),
        "masked": train(synchronized, masked=True, count=24),
        "local": train({}, count=20),
        "own loop": own_loop([3, 1, 4, 2]),
    }


def resume(file, epochs, stop_at=None):
    """Train with dropout and noise, from the file where there is one."""
    return _resume(file, lambda: (make_net(dropout=0.5), make_data(noise=0.1)), epochs, stop_at)


def carry(file, stop_at=None):
    """The same without random numbers but those of the order, with states that are carried on."""

    def make():
        net = bs.tools.create_net_from_spec("classification", 3, 2, "L4", use_conv=False)
        net.initialize(Gaussian(0.5))
        rnd = np.random.RandomState(1)
        x, targets = rnd.rand(6, 7, 3), rnd.randint(0, 2, (6, 7, 1))
        return net, SequenceChunks(2, 4, default=x, targets=targets)

    return _resume(file, make, 3, stop_at)


def accumulate(file):
    """Train with checkpoints between the batches of an update, or go on from one."""
    bs.global_rnd.set_seed(5)
    net, data, options = make_net(), make_data(), {"synchronize_batch_norm": True}
    if os.path.exists(file):
        return go_on(file, data, **options)
    stepper = MomentumStepper(0.2, 0.9)
    stepper.accumulation = GradientAccumulation(2)
    trainer, _ = make_trainer(4, SaveCheckpoint(file, keep=9), stepper=stepper, **options)
    trainer.train(net, data)
    return summary(trainer, net)


def go_on(file, data=None, **options):
    """Continue the training of a file."""
    trainer = bs.Trainer.resume(file)
    mpi.distribute(trainer, **options)
    trainer.train(trainer.net, data or make_data())
    return summary(trainer, trainer.net)


def _resume(file, make, epochs, stop_at):
    """Train to the end, or until the last rank gets a signal in an update."""

    def stop(net):
        if MPI.COMM_WORLD.size - 1 == RANK:
            os.kill(os.getpid(), signal.SIGTERM)

    bs.global_rnd.set_seed(5)
    net, data = make()
    if os.path.exists(file):
        return go_on(file, data)
    saver = SaveCheckpoint(file, timescale="update", interval=1000)
    trainer, _ = make_trainer(epochs, saver, at(stop_at, stop, "stop"))
    trainer.train(net, data)
    return summary(trainer, net)


def lose(file, how, rank, timeout):
    """In update 4 a rank dies, hangs, fails, or changes its parameters."""

    def misbehave(net):
        if rank != RANK:
            return
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "hangs":
            time.sleep(60)
        elif how == "stops":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "fails":
            raise ZeroDivisionError("in a hook")
        else:
            net.handler.fill(net.buffer.parameters[3:4], 7.0)

    bs.global_rnd.set_seed(5)
    net = make_net()
    saver = SaveCheckpoint(file, timescale="update")
    trainer, _ = make_trainer(
        5, saver, at(4, misbehave, "misbehave"), timeout=timeout, check_every=2
    )
    trainer.train(net, make_data())
    return summary(trainer, net)


def repeated(name, *calls):
    """Call a function several times; what each call returns, or its error."""
    found = []
    for arguments in calls:
        try:
            found.append(globals()[name](*arguments))
        except TrainingError as error:
            found.append(f"TrainingError: {error}")
    return found


def differ(what, *ranks):
    """The script does something else on some ranks."""
    is_other = RANK in ranks
    if what == "failed":  # on all ranks, which go on
        with contextlib.suppress(KeyError), mpi.find_world().working():
            raise KeyError("on all ranks")
    trainer, _ = make_trainer(1, stepper=MomentumStepper())
    data, valid = make_data(), make_data(7, 4)
    if what == "data" and is_other:  # as long, in another order
        data.data = {name: array[:, ::-1].copy() for name, array in data.data.items()}
    if what == "wrapped data":
        valid = AddGaussianNoise(valid, {"default": 0.1})
        if is_other:
            valid.iter.data["default"] = valid.iter.data["default"] + 1
    if what == "missing hook" and not is_other:
        trainer.add_hook(MonitorScores("valid", [], name="monitor"))
    if what == "interval":
        trainer.add_hook(MonitorScores("valid", [], name="monitor", interval=1 + is_other))
    if what == "order":
        hooks = [Call(None, "first"), Call(None, "second")]
        for hook in reversed(hooks) if is_other else hooks:
            trainer.add_hook(hook)
    if what == "files":  # which only rank 0 writes
        trainer.add_hook(SaveNetwork(f"{os.devnull}-{RANK}", interval=5))
    net = make_net(size=8 + (what == "networks" and is_other))
    trainer.train(net, data, valid=valid)
    return summary(trainer, net)["updates"]


def leave_before(how):
    """Rank 1 leaves where rank 0 begins to train."""
    trainer, _ = make_trainer(1, timeout=0.5)  # however late the other one is: it does not come
    world.ANSWER_TIME = 0.1
    if RANK:
        if how == "exits":
            sys.exit(3)
        raise KeyError("before")
    trainer.train(make_net(), make_data())


def wait_for_nothing():
    """All ranks wait for messages that nobody sends."""
    ranks = mpi.World(timeout=1.0)
    ranks.wait(ranks.comm.Irecv(np.empty(1), 1 - RANK, tag=99))


def early_stopping(file):
    """Rank 0 decides when to stop, and is the only one that runs readers and prints."""
    ran = []
    bs.global_rnd.set_seed(5)
    net = make_net()
    score = at(2, lambda net: float(RANK), "score")
    reader = at(2, lambda net: ran.append("reader"), "reader", role="reader")
    stopper = EarlyStopper("rolling_training.total_loss", criterion="max", name="stopper")
    best = WithAverages(SaveBestNetwork("rolling_training.total_loss"))
    trainer, team = make_trainer(50, score, reader, AverageWeights(), best, stopper)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        trainer.train(net, make_data())
    refused = ""
    try:
        trainer._progress = object()
        trainer.save_run(file)
    except TrainingError as error:
        refused = str(error)
    shared = team.share(["of rank", RANK])
    return {
        **summary(trainer, net),
        "ran": ran,
        "printed": printed.getvalue(),
        "refused": refused,
        "shared": shared,
    }


def own_loop(sizes):
    """A stepper in a loop of the user's own; every rank brings as many sequences as it likes."""
    bs.global_rnd.set_seed(5)
    net, stepper = bs.tools.create_net_from_spec("classification", 6, 3, "Ft5"), SgdStepper(0.5)
    rnd = np.random.RandomState(2)
    x, t = rnd.rand(1, sum(sizes), 6), rnd.randint(0, 3, (1, sum(sizes), 1))
    start = sum(sizes[:RANK])
    last = MPI.COMM_WORLD.size - 1 == RANK  # it takes what is left
    own = slice(start, None if last else start + sizes[RANK])
    mpi.distribute(stepper)
    stepper.start(net)
    for _ in range(3):
        net.provide_external_data({"default": x[:, own], "targets": t[:, own]})
        stepper.run()
    return net.get("parameters").tolist()


def main(name, folder, arguments):
    result = {}
    try:
        result["value"] = globals()[name](*json.loads(arguments))
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        file = Path(folder, f"{RANK}.part")  # whole, or not there: a launcher may kill all ranks
        file.write_text(json.dumps(result))
        file.rename(Path(folder, f"{RANK}.json"))


if __name__ == "__main__":
    main(*sys.argv[1:])
