"""Steppers, trainers, hooks that call a function, threads, forks and memory, for several tests."""

import contextlib
import functools
import math
import os
import re
import signal
import threading
import tracemalloc
import warnings

import numpy as np
import pytest

from brainstorm import training
from brainstorm.errors import TrainingError
from brainstorm.hooks import Hook, StopAfterEpoch
from brainstorm.training import SgdStepper, Trainer

#: Name of each public stepper to a function that makes one whose state matters.
STEPPERS = {
    name: getattr(training, name)
    for name in training.__all__
    if name.endswith("Stepper") and name != "TrainingStepper"
}
STEPPERS |= {
    name: functools.partial(STEPPERS[name], momentum=0.9)
    for name in ("MomentumStepper", "NesterovStepper")
}
#: Those that learn.
LEARNING = {name: make for name, make in STEPPERS.items() if name != "ForwardStepper"}


class Call(Hook):
    """Logs what a function of epoch, update and network returns; in a resumed run it is gone."""

    __undescribed__ = {"function": None}

    def __init__(self, function, name="call", timescale="update", role="writer"):
        super().__init__(name, timescale)
        self.function, self.role = function, role

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        return self.function and self.function(epoch_nr, update_nr, net)


class Spy(Hook):
    """Writes down when it is called; can fail or stop at a given moment."""

    __undescribed__ = {"calls": [], "fail_at": None, "error": None}

    def __init__(self, calls, name=None, role="writer", fail_at=None, error=None, **kwargs):
        super().__init__(name, **kwargs)
        self.calls, self.role, self.fail_at, self.error = calls, role, fail_at, error

    def note(self, what):
        self.calls.append(f"{self.__name__} {what}")
        if what == self.fail_at:
            raise self.error

    def start(self, net, stepper, verbose, named_data_iters):
        super().start(net, stepper, verbose, named_data_iters)
        self.note("start")

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        self.note(f"{epoch_nr}/{update_nr}")

    def on_error(self, net, stepper, logs, error):
        self.note(f"error {type(error).__name__}")

    def finalize(self, net, stepper, logs):
        self.note("end")


def fail_after(update, name="fail"):
    """Return a hook that ends a training with an error after an update."""

    def fail(epoch_nr, update_nr, net):
        if update_nr == update:
            raise RuntimeError("lost")

    return Call(fail, name)


def spoil(*updates):
    """Return a hook that makes one parameter NaN after some updates."""

    def change(epoch_nr, update_nr, net):
        if update_nr in updates:
            values = net.get("parameters")
            values[1] = np.nan
            net.handler.set_from_numpy(net.buffer.parameters, values)

    return Call(change, "spoil")


def make_trainer(*hooks, stepper=None, verbose=False, epochs=None):
    """Return a trainer with hooks, which stops after so many epochs if they are given."""
    trainer = Trainer(stepper or SgdStepper(0.5), verbose=verbose)
    for hook in hooks:
        trainer.add_hook(hook)
    if epochs is not None:
        trainer.add_hook(StopAfterEpoch(epochs))
    return trainer


def given(stepper, **parts):
    """Return a stepper with parts of its step, such as `loss_scaling`."""
    for name, part in parts.items():
        setattr(stepper, name, part)
    return stepper


def run_steps(net, stepper, batches):
    """Do a step on each batch with a started stepper; return the parameters."""
    for batch in batches:
        net.provide_external_data(batch)
        stepper.run()
    return net.get("parameters")


def refused(text, error=TrainingError, is_whole=False):
    """Expect an error whose message contains a text, or is that text."""
    return pytest.raises(error, match=f"^{re.escape(text)}$" if is_whole else re.escape(text))


def run_threads(work, count):
    """Call a function with the numbers from 0 on, each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_fork(work):
    """Return what a function of a forked process returns: bytes."""
    end, begin = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads of BLAS
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the one of the tests
            signal.alarm(60)
            os.close(end)
            with open(begin, "wb") as pipe:
                pipe.write(work())
        finally:
            os._exit(0)
    os.close(begin)
    with open(end, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


@contextlib.contextmanager
def takes_less_than(size, left=math.inf):
    """Check how many bytes a block takes at most beside what there was, and how many it leaves."""
    tracemalloc.start()
    try:
        yield
        held, peak = tracemalloc.get_traced_memory()
        assert peak < size
        assert held < left
    finally:
        tracemalloc.stop()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
