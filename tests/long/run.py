"""A long run of a tiny network, with everything that happens beside a training."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import brainstorm as bs
from brainstorm import hooks
from brainstorm.data_iterators import DataIterator
from brainstorm.handlers.native import NativeHandler
from brainstorm.layers import Dropout, FullyConnected, Lstm
from brainstorm.scorers import Accuracy
from brainstorm.training import AdamStepper, Exponential, Logs
from tests.trainings import Call, make_trainer

#: T and B of the batches.
SIZES = [(1, 8), (3, 8), (1, 5), (2, 3), (3, 1), (1, 1)]
EPOCH = 1000


class Sample(NamedTuple):
    """What the process has, after so many updates."""

    updates: int
    seconds: float
    resident: int
    files: int
    threads: int

    def __str__(self) -> str:
        return (
            f"{self.updates:>9,} updates {self.seconds:>6.0f} s {self.resident / 2**20:>8.2f} MiB "
            f"{self.files:>3} files {self.threads:>3} threads"
        )


class Samples(hooks.Hook):
    """Take samples of this process at intervals."""

    __undescribed__ = {"samples": []}
    role = "reader"

    def __init__(self, interval: int, shown: bool) -> None:
        super().__init__("samples", timescale="update", interval=interval)
        self.shown = shown
        self.samples: list[Sample] = []

    def start(self, net, stepper, verbose, named_data_iters):
        super().start(net, stepper, verbose, named_data_iters)
        self.begin = time.monotonic()

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
        seconds = time.monotonic() - self.begin
        resident = pages * os.sysconf("SC_PAGE_SIZE")
        self.samples.append(Sample(update_nr, seconds, resident, files, threads))
        if self.shown:
            print(self.samples[-1], flush=True)


def end_after(count: int) -> Call:
    """Return a hook that logs the loss of every update, and ends the training after so many."""

    def call(epoch_nr, update_nr, net):
        if update_nr == count:
            raise StopIteration(net.get_loss_values())
        return net.get_loss_values() if update_nr else None

    return Call(call, "loss")


class ChangingSizes(DataIterator):
    """Batches of sizes that change all the time: which half has the larger sum?"""

    def __init__(self) -> None:
        super().__init__({"default": (4,), "targets": (1,)}, EPOCH)
        values = np.random.RandomState(1).normal(size=(10, 3, 8, 4)).astype(np.float32)
        targets = values[..., :2].sum(-1, keepdims=True) > values[..., 2:].sum(-1, keepdims=True)
        self.data = {"default": values, "targets": targets.astype(np.float32)}

    def __call__(self, handler=None):
        for _ in range(self.length):
            T, B = SIZES[self.rnd.randint(len(SIZES))]
            number = self.rnd.randint(10)
            yield {name: array[number, :T, :B] for name, array in self.data.items()}


def make_network() -> bs.Network:
    """Return a network with a recurrent layer and random masks."""
    inp, out = bs.tools.get_in_out_layers("classification", (4,), 2, projection_name="Projection")
    inp >> FullyConnected(8, "tanh", name="Hidden") >> Dropout(0.1) >> Lstm(4) >> out
    net = bs.Network.from_layer(inp, seed=1, handler=NativeHandler(seed=2, threads=1))
    net.output_name = "Output.outputs.predictions"
    net.initialize(bs.initializers.Gaussian(0.3), seed=3)
    return net


def train(folder: Path, updates: int, parts: int = 10, shown: bool = False) -> list[Sample]:
    """Train for so many updates; return a sample of each part of them."""
    net, validation = make_network(), ChangingSizes()
    validation.length = 10
    often = updates // parts
    trainer = make_trainer(
        end_after(updates),
        hooks.ModifyStepperAttribute(Exponential(1e-3, 0.999999), timescale="update"),
        hooks.MonitorScores("validation", [Accuracy()], name="validation"),
        hooks.MonitorLayerParameters("Hidden", timescale="update", interval=100),
        hooks.StopOnNan(timescale="update", interval=10),
        hooks.EarlyStopper("validation.total_loss", patience=10**9),
        hooks.SaveBestNetwork("validation.total_loss", criterion="min"),
        hooks.SaveLogs(folder / "logs.hdf5", timescale="update", interval=often),
        hooks.SaveCheckpoint(folder / "run.hdf5", timescale="update", interval=often // 10, keep=2),
        Samples(often, shown),
        stepper=AdamStepper(1e-4),
    )
    trainer.train(net, ChangingSizes(), validation=validation)
    logs = Logs.load_hdf5(folder / "logs.hdf5")
    assert len(logs["loss.total_loss"]) == updates
    assert logs["loss.total_loss"] == trainer.logs["loss.total_loss"]
    return trainer.hooks["samples"].samples
