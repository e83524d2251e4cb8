"""Whole training runs of every kind, made anew from names: to interrupt, resume and compare."""

import atexit
import io
import os
import shutil
import tempfile
import zlib

import h5py
import numpy as np

import brainstorm as bs
from brainstorm import data_iterators as di
from brainstorm import hooks, layers, value_modifiers
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.scorers import Accuracy as AccuracyScorer
from brainstorm.scorers import AreaUnderCurve, FScore
from brainstorm.training import Exponential, MomentumStepper
from tests.networks import chain, wire_input, wire_loss

RND = np.random.RandomState(0)
T, N = 5, 11
SEQUENCES = {
    "default": RND.normal(size=(T, N, 3)).astype(np.float32),
    "targets": RND.randint(0, 2, (T, N, 1)),
}
LENGTHS = [1, 5, 3, 4, 2, 2, 5, 1, 4, 3, 2]
CLASSES = {**SEQUENCES, "default": RND.randint(0, 3, (T, N, 1))}
LISTS = {**SEQUENCES, "default": RND.randint(0, 3, (T, N, 2))}
IMAGES = {"default": RND.random_sample((1, N, 4, 4, 2)), "targets": RND.randint(0, 2, (1, N, 1))}


ON_DISK = h5py.File(io.BytesIO(), "w")
atexit.register(ON_DISK.close)  # libhdf5 would close it when there is no Python any more
for _name, _array in SEQUENCES.items():
    ON_DISK[_name] = _array

FOLDER = tempfile.mkdtemp()
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.chmod(FOLDER, 0o755)  # runs of other users read it too
LARGE = f"{FOLDER}/large.hdf5"  # as it were
with h5py.File(LARGE, "w") as _file:
    for _name, _array in SEQUENCES.items():
        _file.create_dataset(_name, data=_array, chunks=(T, 4, _array.shape[2]))

ITEMS = [(SEQUENCES["default"][0, i], int(SEQUENCES["targets"][0, i, 0])) for i in range(N)]
UNEQUAL = {
    name: [array[:steps, i] for i, steps in enumerate(LENGTHS)] for name, array in SEQUENCES.items()
}


def large_batches(**options):
    """Return batches of a file."""
    return di.Hdf5Minibatches(LARGE, 2, window=2, default="default", targets="targets", **options)


def six_batches():
    """Yield batches that are the same in every epoch."""
    yield from di.Minibatches(2, shuffle=False, **SEQUENCES)()


class WithoutMask(di.Wrapper):
    """A user's wrapper that takes data away."""

    def __init__(self, iter):
        super().__init__(iter, {})
        del self.data_shapes["mask"]

    def __call__(self, handler=None):
        for batch in self.iter(handler):
            yield {name: batch[name] for name in self.data_shapes}


class RandomRows(di.DataIterator):
    """A user's iterator: every batch is drawn, and nothing is known of resuming."""

    def __init__(self):
        super().__init__({"default": (3,), "targets": (1,)}, 4)

    def __call__(self, handler=None):
        for _ in range(self.length):
            rows = self.rnd.randint(0, N, 3)
            yield {name: array[:, rows] for name, array in SEQUENCES.items()}


class Replay(RandomRows):
    """A user's iterator whose state is the list that it appends to."""

    def __init__(self):
        super().__init__()
        self.memory = []

    def __call__(self, handler=None):
        for _ in range(self.length):
            self.memory.append(int(self.rnd.randint(0, N)))
            rows = self.rnd.choice(self.memory, 3)
            yield {name: array[:, rows] for name, array in SEQUENCES.items()}

    def get_state(self):
        return {**super().get_state(), "memory": self.memory}

    def set_state(self, state):
        super().set_state(state)
        self.memory = [int(number) for number in state["memory"]]


class EveryOther(di.Minibatches):
    """A user's iterator that changes how another one iterates."""

    def __call__(self, handler=None):
        for number, batch in enumerate(super().__call__(handler)):
            if number % 2 == 0:
                yield batch


ITERATORS = {
    "undivided": lambda: di.Undivided(**SEQUENCES),
    "minibatches": lambda: di.Minibatches(3, **SEQUENCES),
    "in order": lambda: di.Minibatches(3, shuffle=False, **SEQUENCES),
    "neighbours": lambda: di.Minibatches(2, shuffle="batches", **SEQUENCES),
    "hdf5": lambda: di.Minibatches(3, **ON_DISK),
    "hdf5 neighbours": lambda: di.Minibatches(2, shuffle="batches", **ON_DISK),
    "cut": lambda: di.Minibatches(3, cut_according_to=LENGTHS, **SEQUENCES),
    "online": lambda: di.Online(**SEQUENCES),
    "chunks": lambda: di.SequenceChunks(2, 3, cut_according_to=LENGTHS, **SEQUENCES),
    "noisy chunks": lambda: di.AddGaussianNoise(
        di.SequenceChunks(2, 4, **SEQUENCES), {"default": 0.1}
    ),
    "one hot": lambda: di.AddSaltNPepper(
        di.OneHot(di.Minibatches(3, **CLASSES), {"default": 3}), {"default": 0.2}
    ),
    "multi hot": lambda: di.MultiHot(di.Online(**LISTS), {"default": 3}),
    "nested noise": lambda: di.AddSaltNPepper(
        di.AddGaussianNoise(di.AddGaussianNoise(RandomRows(), {"default": 0.1}), {"default": 0.2}),
        {"default": 0.1},
    ),
    "window": lambda: large_batches(),
    "window neighbours": lambda: large_batches(shuffle="batches"),
    "window in order": lambda: large_batches(shuffle=False),
    "noisy window": lambda: di.AddGaussianNoise(large_batches(), {"default": 0.1}),
    "items": lambda: di.DatasetMinibatches(ITEMS, 3),
    "iterable": lambda: di.AddSaltNPepper(di.IterableBatches(six_batches), {"default": 0.1}),
    "prefetched": lambda: di.Prefetch(
        di.AddGaussianNoise(di.Minibatches(3, **SEQUENCES), {"default": 0.1})
    ),
    "mixed": lambda: di.MixUp(di.Minibatches(3, **SEQUENCES), ["default"]),
    "mixed chunks": lambda: di.MixUp(di.SequenceChunks(2, 4, **SEQUENCES), ["default"]),
    "normalized": lambda: di.Normalize(di.Minibatches(3, **SEQUENCES), {"default": ([0, 1, 2], 3)}),
    "user's": RandomRows,
    "replayed": Replay,
    "prefetched replay": lambda: di.Prefetch(Replay()),
    "user's changed": lambda: di.AddGaussianNoise(EveryOther(2, **SEQUENCES), {"default": 0.1}),
    "buckets": lambda: WithoutMask(di.BucketedMinibatches(3, pool=2, **UNEQUAL)),
    "images": lambda: di.Cutout(
        di.Rotate90(
            di.Flip(
                di.RandomCrop(
                    di.Pad(di.Minibatches(3, **IMAGES), {"default": 1}), {"default": (4, 4)}
                )
            ),
            {"default": 0.7},
        ),
        {"default": 2},
    ),
}  # fmt: skip

HIDDEN = {
    "dense": lambda: [layers.FullyConnected(6, "tanh", name="Hidden"),
                      layers.BatchNorm(name="Norm")],
    "lstm": lambda: [layers.Lstm(4, name="Hidden"), layers.Gru(3)],
    "dropout": lambda: [layers.Dropout(0.2, name="First"), layers.FullyConnected(5, name="Hidden")],
    "conv": lambda: [layers.Convolution2D(3, (3, 3), name="Hidden"), layers.BatchNorm(),
                     layers.Dropout(0.1, name="First")],
    "compact": lambda: [layers.Lstm(4), layers.FullyConnected(6, name="Hidden"),
                        layers.BatchNorm(), layers.Gru(3)],
    "modified": lambda: [layers.FullyConnected(3, "tanh", name="Hidden"),
                         layers.Dropout(0.1, name="First")],
}  # fmt: skip

MODIFIERS = {  # of the hidden layer called so: of values, of gradients
    "modified": (
        {"W": value_modifiers.MaskValues(np.eye(3)), "bias": value_modifiers.FreezeValues()},
        {
            "W": [value_modifiers.L1Decay(0.02), value_modifiers.L2Decay(0.01)],
            "bias": value_modifiers.ClipValues(-0.1, 0.1),
        },
    )
}

HANDLERS = {
    "float32": lambda: NumpyHandler(np.float32, seed=5),
    "float64": lambda: NumpyHandler(np.float64, seed=5),
    "debug": lambda: DebugHandler(NumpyHandler(np.float64, seed=5)),
    "native": lambda: NativeHandler(np.float32, seed=5),
    "native float64": lambda: NativeHandler(np.float64, threads=2, seed=5),
}


def make_network(hidden="dense", handler="float32", features=(3,)):
    """Return a network with dropout, a statistics layer and modifiers."""
    inp, count = wire_input(features), layers.Accuracy(name="Count")
    projection = layers.FullyConnected(2, "linear", name="Projection")
    wire_loss(inp, chain(inp, *HIDDEN[hidden](), layers.Dropout(0.3, name="Dropout"), projection))
    projection >> count
    inp - "targets" >> "targets" - count
    memory = "compact" if hidden == "compact" else "inspectable"
    net = bs.Network.from_layer(inp, seed=1, handler=HANDLERS[handler](), memory=memory)
    net.output_name = "Out.outputs.predictions"
    net.initialize(bs.initializers.Gaussian(0.5), seed=2)
    values, gradients = MODIFIERS.get(hidden, (value_modifiers.ConstrainL2Norm(2.0), {}))
    net.set_weight_modifiers({"Hidden": values, "Projection": {"W": Jitter()}})
    net.set_gradient_modifiers(
        {
            "Projection": [value_modifiers.L2Decay(0.01), value_modifiers.ClipValues(-1, 1)],
            "Hidden": gradients,
        }
    )
    return net


class Jitter(value_modifiers.FreezeValues):
    """A user's modifier that draws: keeps one value from before, at random."""

    def __call__(self, handler, view):
        values = handler.get_numpy_copy(view)
        values.flat[self.rnd.randint(values.size)] *= 0.9
        handler.set_from_numpy(view, values)


class WatchBits(hooks.Hook):
    """Log sums over the bits of parameters and masks after every update, and global numbers."""

    def __init__(self):
        super().__init__("watch", timescale="update")

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        paths = ["parameters", "Dropout.internals.mask", "Input.outputs.default"]
        if update_nr == 0:
            return None
        if net._buffer_manager.strategy == "compact":
            paths = paths[:1]  # the memory of the others is used again
        sums = {path.replace(".", "_"): zlib.crc32(net.get(path).tobytes()) for path in paths}
        handler = net.handler  # of which the handler's own stream is asked for numbers, too
        noise = handler.zeros((3,))
        handler.fill_gaussian(0.0, 1.0, noise)
        sums["noise"] = float(handler.get_numpy_copy(noise).sum())
        sums["global"] = bs.global_rnd.random_sample()
        return sums


def make_trainer(stepper=None, epochs=3):
    """Return a trainer with hooks that write, change and read."""
    stepper = stepper or MomentumStepper(0.05, 0.9)
    trainer = bs.Trainer(stepper, verbose=False)
    trainer.train_scorers = [AccuracyScorer(), AreaUnderCurve(), FScore()]
    trainer.add_hook(WatchBits())  # first: what an evaluation leaves in the buffers is undefined
    trainer.add_hook(hooks.SaveBestNetwork("validation.total_loss", criterion="min"))
    trainer.add_hook(hooks.MonitorScores("valid", [AccuracyScorer()], name="validation"))
    trainer.add_hook(hooks.MonitorScores("valid", [], name="often", timescale="update", interval=5))
    trainer.add_hook(hooks.MonitorLayerGradients("Hidden"))
    if "learning_rate" in stepper.hyperparameters:
        trainer.add_hook(hooks.ModifyStepperAttribute(Exponential(0.05, 0.99), timescale="update"))
    trainer.add_hook(hooks.EarlyStopper("validation.total_loss", patience=100))
    trainer.add_hook(hooks.StopOnNan(timescale="update"))
    trainer.add_hook(hooks.StopAfterEpoch(epochs, name="end"))
    return trainer


def make_validation(images=False):
    """Return data whose order is drawn anew at every evaluation."""
    features = IMAGES if images else SEQUENCES
    return di.AddGaussianNoise(di.Minibatches(4, **features), {"default": 0.05})


def train(trainer, net, iterator):
    """Train with validation data that fit the network."""
    images = len(net.layers["Input"].out_shapes["default"].feature_shape) == 3
    trainer.train(net, iterator, valid=make_validation(images))


def whole_run(hidden, iterator, handler, stepper=None, hooks=()):
    """Run from the beginning to the end; return trainer and network."""
    bs.global_rnd.set_seed(3)
    net = make_network(hidden, handler, (4, 4, 2) if iterator == "images" else (3,))
    trainer = make_trainer(stepper)
    for hook in hooks:
        trainer.add_hook(hook)
    train(trainer, net, ITERATORS[iterator]())
    return trainer, net


def resumed_run(file, iterator, saves=False):
    """Continue a run file to the end, saving it again or not; return trainer and network."""
    trainer = bs.Trainer.resume(file)
    for hook in trainer.hooks.values():
        if isinstance(hook, hooks.SaveCheckpoint) and not saves:
            hook.interval = 10**6
    train(trainer, trainer.net, ITERATORS[iterator]())
    return trainer, trainer.net


def outcome(trainer, net):
    """Return what must be equal, bit for bit: name to bytes or text."""
    best = trainer.hooks["SaveBestNetwork"].get_state()
    arrays = {
        "parameters": net.get("parameters"),
        **net.get_file_content().persistent,
        **{f"stepper {name}": value for name, value in trainer.stepper.get_state().items()},
        **{f"best {name}": value for name, value in {**best, **best.pop("persistent")}.items()},
    }
    result = {
        name: value.tobytes() if isinstance(value, np.ndarray) else repr(value)
        for name, value in arrays.items()
    }
    logs = dict(trainer.logs)
    logs.pop("interrupted", None)
    return {**result, "logs": repr(logs), "updates": str(trainer.current_update_nr)}
