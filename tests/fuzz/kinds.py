"""The kinds of inputs: how each is made from a random generator, and what reads it."""

from __future__ import annotations

import functools
import io
import json
import os
import random
import tempfile

import h5py
import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import Minibatches, load_data
from brainstorm.handlers import NumpyHandler
from brainstorm.hooks import MonitorScores, SaveBestNetwork, SaveCheckpoint
from brainstorm.layers import (
    BatchNorm,
    Convolution2D,
    Dropout,
    FullyConnected,
    Input,
    Loss,
    Lstm,
    Pooling2D,
    SquaredError,
)
from brainstorm.scorers import Accuracy
from brainstorm.tools import create_net_from_spec
from brainstorm.training import AdamStepper, Exponential, Logs
from brainstorm.value_modifiers import ClipValues, L2Decay, MaskValues
from tests.fuzz import places
from tests.fuzz.mutations import changed_bytes, changed_text, changed_tree
from tests.hdf5.hostile import HOSTILE
from tests.networks import classifier
from tests.trainings import make_trainer

SPECS = ["D0.2 C8:5p2 Pm2s2 F10 D", "F10", "Lt5 B Rs4", "C4:3s2/Pa2|Fs3 B D.5", "R3"]


# -- what is changed ------------------------------------------------------------------------------


def _networks():
    for wiring in (
        classifier(FullyConnected(4, "tanh"), BatchNorm(), Dropout(0.1), features=(3,), classes=2),
        classifier(Lstm(3), features=(3,), classes=2),
        classifier(Convolution2D(2, (3, 3)), Pooling2D((2, 2)), features=(6, 6, 1), classes=2),
    ):
        net = bs.Network.from_layer(wiring, seed=1, handler=NumpyHandler(np.float32, seed=1))
        net.initialize(bs.initializers.Gaussian(0.1), seed=2)
        net.set_gradient_modifiers({"Projection": {"W": [L2Decay(0.1), ClipValues(-1, 1)]}})
        net.set_weight_modifiers({"Projection": {"bias": MaskValues([1, 0])}})
        net.output_name = "Out.outputs.predictions"
        yield net


@functools.cache
def architectures():
    """Return some architectures."""
    inp, first = Input({"default": ("T", "B", 4)}), FullyConnected(4, name="A")
    inp >> first >> FullyConnected(4, name="B").share_parameters_with(first)
    shared = bs.generate_architecture(inp)
    pair = SquaredError()
    both = Input({"default": ("T", "B", 3), "targets": ("T", "B", 3)})
    both >> FullyConnected(3) >> "default" - pair - "loss" >> Loss(0.5)
    both - "targets" >> "targets" - pair
    found = [json.loads(json.dumps(net.architecture)) for net in _networks()]
    return [*found, *(json.loads(json.dumps(a)) for a in (shared, bs.generate_architecture(both)))]


@functools.cache
def files(kind):
    """Return the bytes of some good files."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "file.hdf5")
        found = []
        for write in {"network": _write_networks, "run": _write_runs, "data": _write_data,
                      "logs": _write_logs}[kind](path):  # fmt: skip
            write()
            with open(path, "rb") as file:
                found.append(file.read())
        return found


def _write_networks(path):
    for net in _networks():
        yield lambda net=net: net.save_as_hdf5(path, "comment")


def _write_runs(path):
    rnd = np.random.RandomState(0)
    for net in list(_networks())[:2]:
        data = {"default": rnd.normal(size=(2, 5, 3)), "targets": np.zeros((2, 5, 1))}
        trainer = make_trainer(
            MonitorScores("valid", [Accuracy()], name="validation"),
            SaveBestNetwork("validation.Accuracy"),
            bs.hooks.ModifyStepperAttribute(Exponential(0.01, 0.9)),
            SaveCheckpoint(path, timescale="update"),
            stepper=AdamStepper(0.01),
            epochs=2,
        )
        trainer.train_scorers = [Accuracy()]
        yield lambda n=net, t=trainer, d=data: t.train(
            n, Minibatches(2, **d), valid=Minibatches(5, **d)
        )


def _write_data(path):
    def write(**options):
        with h5py.File(path, "w") as file:
            file.attrs["description"] = "numbers"
            for part in ("training", "test"):
                group = file.create_group(part)
                group.create_dataset("default", data=np.arange(60.0).reshape(2, 10, 3), **options)
                group.create_dataset("targets", data=np.ones((2, 10, 1), "u1"))

    yield write
    yield lambda: write(chunks=(1, 4, 3), compression="gzip", shuffle=True)
    yield lambda: write(chunks=(2, 3, 2), track_order=True)


def _write_logs(path):
    logs = Logs()
    for number in range(3):
        logs.append("validation", {"Accuracy": 0.1 * number, "deep": {"a/b%": number}})
        logs.append("texts", f"text {number}")
        logs.append("rows", np.arange(3))
    yield lambda: logs.save_as_hdf5(path)
    many = Logs({f"log {number}": [number] for number in range(40)})
    yield lambda: many.save_as_hdf5(path)


# -- changed files --------------------------------------------------------------------------------


@functools.cache
def contents(data):
    """Return (attributes, path to value) of a good file."""
    found = {}
    with h5py.File(io.BytesIO(data)) as file:
        file.visititems(
            lambda path, item: found.update({path: item[()]}) if hasattr(item, "dtype") else None
        )
        return dict(file.attrs), found


def rebuilt(rnd, data):
    """Return a file whose texts, arrays and names are changed, or that has more than these."""
    attrs, items = map(dict, contents(data))
    for _ in range(rnd.choice([1, 1, 2])):
        path = rnd.choice(list(items))
        value, kind = items[path], rnd.randrange(6)
        if isinstance(value, bytes) and kind < 5:
            try:
                text = json.dumps(changed_tree(rnd, json.loads(value)))
            except (RecursionError, ValueError):
                text = rnd.choice(["[" * 100_000, '{"a":' * 500 + "0" + "}" * 500, "0", "{}"])
            items[path] = text.replace("NaN", rnd.choice(["NaN", "1e999", "1" * 5000])).encode()
        elif kind < 3:
            items[path] = rnd.choice([
                0, 1.5, b"text", b"", "é", np.zeros(0), np.zeros((2, 0)), np.ones((3, 4)),
                np.full(7, np.nan), np.array([b"a", b"bc"]), np.zeros(5, "c8"), np.array([True]),
            ])  # fmt: skip
        elif kind == 3:
            del items[path]
        elif kind == 4:
            items[rnd.choice(["x", "a/b", "arrays/x", "persistent/x"])] = items.pop(path)
        elif attrs:
            attrs[rnd.choice(list(attrs))] = rnd.choice(
                [b"Network file v9.0", b"", 5, b"Run file vx", "Logs file v1.0", np.zeros(3)]
            )
    memory = io.BytesIO()
    with h5py.File(memory, "w", track_order=rnd.random() < 0.3) as file:
        for name, value in attrs.items():
            file.attrs[name] = value
        for path, value in items.items():
            if path not in file:
                try:
                    file[path] = value
                except (ValueError, TypeError, OSError):
                    continue
        if rnd.random() < 0.4:
            add_hostile(rnd, file, rnd.choice([*items, "x"]))
    return memory.getvalue()


def add_hostile(rnd, file, path):
    """Put something in place of a data set that no file of the package has."""
    if path in file:
        del file[path]
    HOSTILE[rnd.choice(list(HOSTILE))](file, path)


def changed_file(kind):
    """Return the function that makes an input of a kind of files."""

    def make(rnd):
        data = rnd.choice(files(kind))
        return changed_bytes(rnd, data) if rnd.random() < 0.6 else rebuilt(rnd, data)

    return make


def through_file(read):
    """Return the function that reads an input as a file."""

    def run(data):
        path = os.path.join(tempfile.gettempdir(), f"fuzz-{os.getpid()}.hdf5")
        with open(path, "wb") as file:
            file.write(data)
        try:
            read(path)
        finally:
            os.unlink(path)

    return run


# -- what reads -----------------------------------------------------------------------------------


def read_network(path):
    """Read a network, and let it predict."""
    net = bs.Network.from_hdf5(path)
    net.memory(2, 3)
    bs.get_description(net)


def read_run(path):
    """Read a run, which is not continued: see `places`."""
    trainer = bs.Trainer.resume(path)
    bs.get_description(trainer)


def read_data(path):
    """Read data, and give a batch of them."""
    next(Minibatches(4, **load_data(path, "training"))())


def read_logs(path):
    """Read logs, and look at them."""
    Logs.load_hdf5(path).paths()


def build(architecture):
    """Build a network from a dictionary."""
    net = bs.Network.from_architecture(architecture)
    net.initialize(0.1)


def build_from_spec(spec):
    """Build a network from a text."""
    shape = (8, 8, 1) if "C" in spec or "P" in spec else 5
    create_net_from_spec("classification", shape, 3, spec)


#: Kind: its share of all inputs, what makes one, and what reads it.
KINDS = {
    "network": (0.2, changed_file("network"), through_file(read_network)),
    "run": (0.1, changed_file("run"), through_file(read_run)),
    "data": (0.2, changed_file("data"), through_file(read_data)),
    "logs": (0.2, changed_file("logs"), through_file(read_logs)),
    "architecture": (0.15, lambda rnd: changed_tree(rnd, rnd.choice(architectures())), build),
    "spec": (
        0.15,
        lambda rnd: changed_text(rnd, rnd.choice(SPECS), "FRLTBDCPlrstmap0123456789.: /|é\n"),
        build_from_spec,
    ),
    **places.KINDS,
}


def make_input(kind, seed, number):
    """Return an input; the same for the same arguments."""
    return KINDS[kind][1](random.Random(f"{kind}/{seed}/{number}"))
