"""Networks in several threads and processes, and signals in the middle of compiled kernels."""

import contextlib
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.forks import cached_property
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.hooks import MonitorLoss, SaveCheckpoint, StopAfterEpoch
from brainstorm.layers import BatchNorm, Dropout, FullyConnected, Lstm
from brainstorm.training import MomentumStepper, SgdStepper, Trainer
from tests.networks import trainable
from tests.trainings import in_a_fork, make_trainer, needs_fork

HANDLERS = {
    "numpy": lambda: NumpyHandler(np.float32, seed=5),
    "native": lambda: NativeHandler(np.float32, threads=1, seed=5),
    "native float64": lambda: NativeHandler(np.float64, threads=1, seed=5),
}
THREADED = {**HANDLERS, "native with threads": lambda: NativeHandler(np.float32, threads=2, seed=5)}
RND = np.random.RandomState(0)
DATA = {
    "default": RND.normal(size=(4, 18, 4)).astype(np.float32),
    "targets": RND.randint(0, 2, (4, 18, 1)),
}


def make_network(handler):
    hidden = FullyConnected(8, "tanh"), BatchNorm(), Dropout(0.2), Lstm(5)
    return trainable(*hidden, handler=handler)


def make_batches(seed=1):
    batches = Minibatches(4, **DATA)
    batches.rnd.set_seed(seed)
    return batches


def train(net, epochs=2, seed=1, hooks=()):
    """Train by traces; return the bits of all that is kept."""
    monitor = MonitorLoss("valid", timescale="update", interval=4)
    hooks = monitor, StopAfterEpoch(epochs), *hooks
    trainer = make_trainer(*hooks, stepper=MomentumStepper(0.1, 0.9))
    trainer.train(net, make_batches(seed), valid=make_batches(seed + 1))
    content = net.get_file_content()
    arrays = [content.parameters, *content.persistent.values()]
    return b"".join(array.tobytes() for array in arrays) + repr(trainer.logs).encode()


# -- threads --------------------------------------------------------------------------------------


# -- processes ------------------------------------------------------------------------------------


def steps(net):
    """Return a function that does some steps by the traces of one stepper."""
    stepper = SgdStepper(0.1)
    net.provide_external_data({name: array[:, :6] for name, array in DATA.items()})
    stepper.start(net)

    def run():
        for _ in range(5):
            stepper.run()
        return net.get("parameters").tobytes()

    return run


@needs_fork
@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.parametrize("begin", [lambda net: lambda: train(net), steps], ids=["train", "steps"])
def test_a_forked_process_trains_and_the_parent_goes_on(kind, begin):
    """With the same bits, by traces that were made before."""
    expected, run = (begin(make_network(HANDLERS[kind]())) for _ in range(2))
    bits = [expected(), expected()]
    assert run() == bits[0]
    assert in_a_fork(run) == bits[1]
    assert run() == bits[1]


@needs_fork
def test_a_child_of_a_threaded_parent_uses_one_thread():
    net = make_network(THREADED["native with threads"]())
    train(net)
    values = net.get("parameters")

    def work():
        threads = [net.handler.threads, NativeHandler(threads=4).threads]
        train(net, epochs=1)
        return repr([*threads, bool(np.isfinite(net.get("parameters")).all())]).encode()

    assert in_a_fork(work) == b"[1, 1, True]"
    assert net.handler.threads == 2
    np.testing.assert_array_equal(net.get("parameters"), values)
    train(net, epochs=1)


@needs_fork
@pytest.mark.parametrize("kind", HANDLERS)
def test_a_forked_process_finds_no_lock_held(kind):
    net, slow = make_network(HANDLERS[kind]()), Slow()
    expected = train(net)
    generators = net.rnd._bit_generator, net.layers["Dropout"].stream.generator.bit_generator
    with contextlib.ExitStack() as held:

        def hold():
            manager = net._buffer_manager
            held.enter_context(manager.turn)
            held.enter_context(net.rnd.lock)
            for generator in generators:  # NumPy holds it while it draws numbers
                held.enter_context(generator.lock)
            if manager.lane is not None:
                held.enter_context(manager.lane.memo._lock)
            return slow.value

        thread = threading.Thread(target=hold)
        thread.start()
        slow.begins.wait()

        def work():
            assert Slow(is_over=True).value == 1
            with net.rnd.lock:
                net.rnd.generate_seed()
            return train(net)

        found = in_a_fork(work)
        slow.is_over.set()
        thread.join()
        held.pop_all()  # the thread has ended with the locks
    net = make_network(HANDLERS[kind]())
    assert [train(net), train(net)] == [expected, found]


STEPS_WITHOUT_IMPORTS = """
import sys
import numpy as np
import brainstorm as bs

net = bs.tools.create_net_from_spec("classification", 4, 2, "F3")
stepper = bs.training.SgdStepper(0.1)
stepper.start(net)
data = {"default": np.ones((1, 6, 4)), "targets": np.ones((1, 6, 1))}
before = set(sys.modules)
net.provide_external_data(data)
stepper.run()
net.predict([[[1, 2, 3, 4]]])
next(bs.data_iterators.Minibatches(2, **data)())
print(sorted(set(sys.modules) - before))
"""


def test_steps_import_nothing():
    """A process forked while another thread imports a module can never import that module."""
    command = [sys.executable, "-c", STEPS_WITHOUT_IMPORTS]
    assert subprocess.check_output(command, text=True) == "[]\n"


class Slow:
    """Something whose cached property is being computed."""

    def __init__(self, is_over=False):
        self.begins, self.is_over = threading.Event(), threading.Event()
        if is_over:
            self.is_over.set()

    @cached_property
    def value(self):
        self.begins.set()
        return int(self.is_over.wait())


@pytest.mark.parametrize("kind", THREADED)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))])
def test_copies_are_networks_of_their_own(kind, duplicate):
    """With the same random numbers to come, but without the batch."""
    net = make_network(THREADED[kind]())
    train(net, epochs=1)
    net.keep_input_deltas = True
    other = duplicate(net)
    assert other.keep_input_deltas
    assert type(other.handler) is type(net.handler)
    np.testing.assert_array_equal(other.get("parameters"), net.get("parameters"))
    values = net.get("parameters")
    bits = train(other)
    np.testing.assert_array_equal(net.get("parameters"), values)
    assert train(net) == bits


# -- signals --------------------------------------------------------------------------------------


class SlowSteps(SgdStepper):
    """Has a signal sent to this process in the middle of the fifth step, which is a trace's."""

    __undescribed__ = {"number": None, "durations": []}

    def __init__(self, number):
        super().__init__(0.01)
        self.number, self.durations = number, []

    def run(self):
        sends = len(self.durations) == 4
        if sends:
            moment = 0.2 * min(self.durations)
            timer = threading.Timer(moment, os.kill, (os.getpid(), self.number))
            timer.start()
        begin = time.monotonic()
        super().run()
        self.durations = [*self.durations, time.monotonic() - begin]
        if sends:
            timer.join()  # where the machine is so busy that it comes late


@pytest.mark.parametrize(("kind", "number"), [("numpy", signal.SIGINT), ("native", signal.SIGTERM)])
def test_a_signal_in_a_long_kernel_ends_the_run_after_the_update(tmp_path, kind, number):
    inp, out = bs.tools.get_in_out_layers("classification", (256,), 2)
    inp >> FullyConnected(512, "tanh") >> FullyConnected(512, "tanh") >> out
    net = bs.Network.from_layer(inp, seed=1, handler=HANDLERS[kind]())
    net.initialize(bs.initializers.Gaussian(0.05), seed=1)
    stepper = SlowSteps(number)
    save = SaveCheckpoint(tmp_path / "run.hdf5", interval=100)
    trainer = make_trainer(save, stepper=stepper, epochs=2)
    x = RND.normal(size=(1, 16384, 256)).astype(np.float32)
    y = RND.randint(0, 2, (1, 16384, 1))
    trainer.train(net, Minibatches(2048, default=x, targets=y))
    assert trainer.logs["interrupted"] == [f"received {signal.Signals(number).name}"]
    assert trainer.current_update_nr == 5
    again = Trainer.resume(tmp_path / "run.hdf5")
    assert again.current_update_nr == 5
    np.testing.assert_array_equal(again.net.get("parameters"), net.get("parameters"))
