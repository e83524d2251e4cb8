"""Signals that wait, and what is left when they are let in or other threads come in between."""
# ruff: noqa: PT012 (what comes after a signal belongs to it)

import _signal
import contextlib
import multiprocessing
import signal
import sys
import threading
import time
import warnings

import h5py
import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.disk import UnfailingFile
from brainstorm.errors import MissingDataError, TrainingError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.hooks import AverageWeights, MonitorLoss, StopOnSigQuit, WithAverages
from brainstorm.interrupts import interruptible, uninterrupted
from brainstorm.layers import BatchNorm, FullyConnected, Input, Loss
from brainstorm.training import GradientAccumulation, NesterovStepper, SgdStepper
from brainstorm.training.signals import StopSignals
from tests import runs
from tests.trainings import Call, in_a_fork, make_trainer, needs_fork

needs_alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")
RND = np.random.RandomState(0)
DATA = {"default": RND.normal(size=(1, 40, 3)), "targets": RND.normal(size=(1, 40, 2))}


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal():
    """In a background job SIGINT is ignored, and other tests may have set handlers."""
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def make_network(handler=None, seed=1):
    inp, out = bs.tools.get_in_out_layers("regression", (3,), 2)
    inp >> FullyConnected(4, "tanh", name="H") >> BatchNorm(name="N") >> out
    net = bs.Network.from_layer(inp, seed=seed, handler=handler or NativeHandler(np.float64))
    net.initialize(bs.initializers.Gaussian(0.5), seed=seed)
    return net


def batches():
    return Minibatches(10, shuffle=False, **DATA)


def interrupt():
    signal.raise_signal(signal.SIGINT)


# -- the block ------------------------------------------------------------------------------------


def test_a_signal_waits_until_the_outermost_block_ends():
    handlers, steps = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted():
            interrupt()
            steps.append("inner")
        steps.append("outer")
    assert steps == ["inner", "outer"]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_signals_are_let_in_where_a_block_may_be_left():
    steps = []
    with pytest.raises(KeyboardInterrupt), uninterrupted(), uninterrupted():
        interrupt()
        with interruptible():
            steps.append("went on")
    with pytest.raises(KeyboardInterrupt), uninterrupted(), interruptible():
        interrupt()
        steps.append("went on")
    assert not steps
    with interruptible():
        pass
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with interruptible(), uninterrupted():
            pass
        interrupt()
        steps.append("still waits")
    assert steps


def test_another_thread_lets_no_signal_in():
    def let_in():
        with interruptible():
            time.sleep(0.05)  # in which the main thread would handle it

    steps = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        interrupt()
        thread = threading.Thread(target=let_in)
        thread.start()
        while thread.is_alive():
            pass
        with uninterrupted():
            steps.append("still waits")
    assert steps


def test_signals_of_another_interpreter_do_not_wait(monkeypatch):
    def refuse(*_):
        raise ValueError("signal only works in main thread of the main interpreter")

    with monkeypatch.context() as patch:
        patch.setattr(_signal, "signal", refuse)
        trainer = make_trainer(StopOnSigQuit(), epochs=1)
        trainer.train(make_network(), batches())
    assert trainer.current_epoch_nr == 1


class AlarmError(Exception):
    pass


@pytest.fixture
def alarm():
    """A handler of SIGALRM that raises an error."""

    def handler(*_):
        raise AlarmError

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@needs_alarm
def test_no_handler_is_lost_whenever_another_one_raises_an_error(alarm):
    numbers = iter(range(300))
    while (number := next(numbers, None)) is not None:
        with contextlib.suppress(AlarmError):  # wherever it comes, there is no other one after it
            while number is not None:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (number % 30 + 1))
                for _ in range(20):
                    with uninterrupted():
                        pass
                number = next(numbers, None)
            signal.setitimer(signal.ITIMER_REAL, 0)
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with pytest.raises(AlarmError):
        signal.raise_signal(signal.SIGALRM)


@needs_alarm
def test_all_signals_are_handled_even_if_the_first_handler_raises_an_error(alarm):
    with pytest.raises(KeyboardInterrupt) as error, uninterrupted():
        signal.raise_signal(signal.SIGALRM)
        interrupt()
    assert isinstance(error.value.__context__, AlarmError)


@needs_alarm
def test_a_handler_that_is_set_within_the_block_stays(alarm):
    received = []
    with uninterrupted():
        signal.signal(signal.SIGALRM, lambda *_: received.append(1))
    signal.raise_signal(signal.SIGALRM)
    assert received == [1]


@needs_alarm
def test_a_handler_that_is_set_within_a_block_waits_for_the_end_of_inner_ones(alarm):
    with StopSignals() as signals:
        before = signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGALRM, before)
        steps = []
        with pytest.raises(AlarmError), uninterrupted(), uninterrupted():
            signal.raise_signal(signal.SIGALRM)
            steps.append("waits")
        with pytest.raises(AlarmError):
            signal.raise_signal(signal.SIGALRM)
    assert (steps, signals.received) == (["waits"], None)
    assert signal.getsignal(signal.SIGALRM) is before


@needs_fork
@pytest.mark.parametrize("block", [uninterrupted, StopSignals])
def test_a_forked_process_is_interrupted_as_ever(block):
    def work():
        try:
            interrupt()
        except KeyboardInterrupt:
            return b"interrupted"

    with block():
        assert in_a_fork(work) == b"interrupted"


@needs_fork
def test_a_process_that_is_started_in_a_training_can_be_terminated():
    context = multiprocessing.get_context("fork")
    with StopSignals(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _ in range(20):
            process = context.Process(target=time.sleep, args=(60,), daemon=True)
            process.start()
            process.terminate()  # at once: Python's children lose a signal that comes while forking
            process.join(60)
            assert process.exitcode == -signal.SIGTERM


def test_a_third_interrupt_waits_neither_for_the_end_of_a_trace_nor_for_the_step():
    handler, times, signals = NumpyHandler(), [], StopSignals()

    def hang():
        for _ in range(9):
            interrupt()
            times.append(None)

    with pytest.raises(KeyboardInterrupt):
        handler.trace(hang)
    assert len(times) == 2
    assert handler.running.trace is None
    with pytest.raises(KeyboardInterrupt), signals, uninterrupted(most=2):
        hang()
    assert len(times) == 4


def test_an_error_ends_the_block_and_the_signal_comes_too():
    with pytest.raises(KeyboardInterrupt) as error, uninterrupted():
        interrupt()
        raise ValueError("first")
    assert str(error.value.__context__) == "first"


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(1, 6))
def test_a_file_is_complete_or_the_old_one_when_a_signal_comes(tmp_path, monkeypatch, number):
    """HDF5 calls the method from C, where an error of a signal's handler would be lost."""
    write, calls = UnfailingFile.write, []

    def interrupted(self, data):
        calls.append(None)
        if len(calls) == number:
            interrupt()
        return write(self, data)

    net, path = make_network(), tmp_path / "net.hdf5"
    net.save_as_hdf5(path)
    before = path.read_bytes()
    monkeypatch.setattr(UnfailingFile, "write", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        net.save_as_hdf5(path)
        assert len(calls) < number
    assert path.read_bytes() == before or len(calls) < number
    bs.Network.from_hdf5(path)


def test_an_extraction_may_be_interrupted_between_batches(tmp_path):
    net, path, given = make_network(), tmp_path / "found.hdf5", []
    net.set_handler(NumpyHandler(np.float64))

    def interrupting(handler):
        for batch in batches()(handler):
            given.append(len(given))
            if len(given) == 2:
                interrupt()
            yield batch

    with pytest.raises(KeyboardInterrupt):
        bs.tools.extract_and_save(net, interrupting, ["H.outputs.default"], path)
    assert len(given) == 2
    assert not path.exists()
    bs.tools.extract_and_save(net, interrupting, ["H.outputs.default"], path)
    with h5py.File(path) as file:
        assert file["H.outputs.default"].shape == (1, 40, 4)


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["error", "signal"])
@pytest.mark.parametrize("name", ["H", "Output_projection"])
def test_a_network_has_one_handler_whatever_happens_in_set_handler(monkeypatch, kind, name):
    net, data = make_network(), DATA["default"]
    expected, handler = [net.predict(data[:, :b]) for b in (5, 7)], NumpyHandler(np.float64)
    layer = type(net.layers[name])
    set_handler = layer.set_handler

    def failing(self, given):
        if self.name == name and given is handler and self.handler is not handler:
            if kind == "error":
                raise ValueError("broken")
            interrupt()
        set_handler(self, given)

    monkeypatch.setattr(layer, "set_handler", failing)
    with pytest.raises((ValueError, KeyboardInterrupt)):
        net.set_handler(handler)
    assert {layer.handler for layer in net.layers.values()} == {net.handler}
    assert (net.handler is handler) == (kind == "signal")
    for values, b in zip(expected, (5, 7), strict=True):
        for _ in range(2):
            np.testing.assert_allclose(net.predict(data[:, :b]), values, rtol=1e-12)


def test_after_an_interrupted_plan_operations_are_executed_and_data_are_still_missing(monkeypatch):
    net = make_network()
    net.predict(DATA["default"])
    plan = type(net._passes).backward

    def interrupted(self, accumulate):
        plan(self, accumulate)
        interrupt()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(net._passes), "backward", interrupted)
        net.plan()
    assert net.handler.running.trace is None
    net.forward_pass()
    with pytest.raises(MissingDataError):
        net.backward_pass()


def test_data_in_the_memory_of_the_network_are_read_before_it_is_written():
    net = make_network()
    data = {name: RND.normal(size=(3, 40, *values.shape[2:])) for name, values in DATA.items()}
    expected = net.predict(data["default"], batch_size=7)
    net.provide_external_data(data)
    found = net.predict(net.buffer.Input.outputs.default, batch_size=7)
    np.testing.assert_array_equal(found, expected)


# -- trainings ------------------------------------------------------------------------------------


def parameters_after(stepper, interrupted_at=None):
    """Train, interrupted by a second SIGINT in a step, and continue; return the parameters."""
    net, data, count = make_network(), batches(), 0
    trainer = make_trainer(stepper=stepper, epochs=3)
    run = stepper.run

    def stop_in_step():
        nonlocal count
        count += 1
        if count == interrupted_at:
            interrupt()
            interrupt()
        run()

    stepper.run = stop_in_step
    for _ in range(1 if interrupted_at is None else 2):
        with contextlib.suppress(KeyboardInterrupt):
            trainer.train(net, data)
    return net.get("parameters"), trainer.current_update_nr, count


@pytest.mark.parametrize("make", [lambda: SgdStepper(0.1), lambda: NesterovStepper(0.1, 0.9)])
@pytest.mark.parametrize("accumulation", [None, 2])
def test_a_step_that_a_second_signal_meets_is_done_and_counted(make, accumulation):
    found = []
    for at in (None, 3):
        stepper = make()
        stepper.accumulation = accumulation and GradientAccumulation(accumulation)
        found.append(parameters_after(stepper, at))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("make", [lambda: SgdStepper(0.1), lambda: NesterovStepper(0.1, 0.9)])
@pytest.mark.parametrize("accumulation", [None, 2])
def test_a_step_of_a_loop_by_hand_that_a_signal_meets_is_done_and_counted(make, accumulation):
    def learn(interrupted):
        net, stepper, count = make_network(), make(), 0
        stepper.accumulation = accumulation and GradientAccumulation(accumulation)
        stepper.start(net)
        net.provide_external_data(DATA)

        def follow():
            nonlocal count
            count += 1
            if count in interrupted:
                interrupt()

        net.follow_backward_pass({"H": follow})
        for number in range(1, 9):
            with contextlib.suppress(KeyboardInterrupt):
                stepper.run()
                assert number not in interrupted
        return {**stepper.get_state(), "parameters": net.get("parameters")}

    # Of the first steps calls are recorded, the others are replayed.
    np.testing.assert_equal(learn((1, 2, 7, 8)), learn(()))


def beside(work, train):
    """Call a function again and again in another thread while a training runs."""
    is_over, errors = threading.Event(), []

    def go_on():
        while not is_over.is_set():
            try:
                work()
            except BaseException as error:  # pragma: no cover
                errors.append(error)
                return

    thread, interval = threading.Thread(target=go_on), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        train()
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
    assert not errors


def test_nobody_predicts_or_copies_while_averages_are_applied():
    net, found = make_network(), []
    averages = AverageWeights(0.9)
    trainer = make_trainer(averages, stepper=SgdStepper(0.2), epochs=2)
    trainer.train(net, batches())
    trainer.stepper.learning_rate = 0.0
    kept = net.get("parameters")
    assert not np.array_equal(averages.get_state()["average"], kept)
    trainer.add_hook(WithAverages(MonitorLoss("valid")))
    trainer.hooks["StopAfterEpoch"].max_epochs = 12
    beside(
        lambda: found.append(np.array_equal(net.copy().get("parameters"), kept)),
        lambda: trainer.train(net, batches(), valid=Minibatches(2, shuffle=False, **DATA)),
    )
    assert found
    assert all(found)


def undisturbed(make):
    """Whether a training has the same result beside other work; `make` returns all three."""
    found = []
    for is_alone in (True, False):
        bs.global_rnd.set_seed(0)
        train, work, result = make()
        beside((lambda: time.sleep(1e-3)) if is_alone else work, train)
        found.append(result())
    return np.array_equal(*found)


def test_averages_that_are_applied_in_another_thread_do_not_disturb_a_training():
    def make():
        net, averages = make_network(), AverageWeights(0.9)
        trainer = make_trainer(averages, stepper=SgdStepper(0.05), epochs=20)

        def evaluate():
            if averages.average is not None:
                with averages.applied(net):
                    net.predict(DATA["default"], batch_size=5)

        return lambda: trainer.train(net, batches()), evaluate, lambda: net.get("parameters")

    assert undisturbed(make)


@pytest.mark.parametrize("how", ["safetensors", "state dict", "onnx"])
def test_an_export_beside_a_training_is_of_one_update(how, tmp_path):
    pytest.importorskip({"onnx": "onnx", "safetensors": "safetensors"}.get(how, "numpy"))
    net, found = make_network(), []
    zeros = np.zeros(net.parameters_size)

    def mark(number):
        """Give all parameters the value of the number, one layer after the other."""
        with net.alone():
            net.handler.set_from_numpy(net.buffer.parameters, zeros + number)

    def export():
        if how == "safetensors":
            from brainstorm.ext.safetensors_files import load_safetensors, save_safetensors

            save_safetensors(net, tmp_path / "net.safetensors")
            values = load_safetensors(tmp_path / "net.safetensors").get("parameters")
        elif how == "onnx":
            from brainstorm.ext.onnx_exchange import from_onnx, to_onnx

            loaded = from_onnx(to_onnx(net, "Output.outputs.predictions"))
            values = loaded.get("parameters")
        else:
            from brainstorm.ext.state_dicts import to_state_dict

            tensors = to_state_dict(net, {name: name for name in ("H", "Output_projection")})
            values = np.concatenate([t.ravel() for t in tensors.values()])
        found.append(len(np.unique(values.round(6))))

    marks = iter(range(1, 10**6))
    over = make_trainer(Call(lambda *_: mark(next(marks))), stepper=SgdStepper(0.0), epochs=100)
    mark(1)
    beside(export, lambda: over.train(net, batches()))
    assert set(found) == {1}


@pytest.mark.parametrize(
    ("name", "make"),
    [("accumulation", lambda: GradientAccumulation(2)), ("loss_scaling", bs.training.LossScaling)],
)
def test_what_has_arrays_belongs_to_one_stepper(name, make):
    shared = make()
    steppers = [SgdStepper(0.1), SgdStepper(0.1)]
    for stepper in steppers:
        setattr(stepper, name, shared)
        net = make_network()
        net.provide_external_data(DATA)
        stepper.start(net)
    steppers[1].run()
    with pytest.raises(TrainingError, match=f"{name}: expected one of its own, got"):
        steppers[0].run()


@pytest.mark.parametrize("name", ["max_gradient_norm", "loss_scaling"])
def test_a_stepper_may_be_changed_by_another_thread(name):
    net, stepper = make_network(), SgdStepper(0.01)
    net.provide_external_data(DATA)
    stepper.start(net)
    values = {"max_gradient_norm": [None, 1e30], "loss_scaling": [None, bs.training.LossScaling()]}

    def toggle():
        for value in values[name]:
            setattr(stepper, name, value)

    beside(toggle, lambda: [stepper.run() for _ in range(300)])
    assert np.isfinite(net.get("parameters")).all()


def test_an_evaluation_in_another_thread_does_not_mix_with_the_statistics_of_a_training():
    def make():
        net, data = runs.make_network(), runs.SEQUENCES
        trainer = make_trainer(stepper=SgdStepper(0.1), epochs=10)
        return (
            lambda: trainer.train(net, Minibatches(3, shuffle=False, **data)),
            lambda: bs.tools.evaluate(net, Minibatches(4, shuffle=False, **data)),
            lambda: trainer.logs["statistics"]["Count"],
        )

    assert undisturbed(make)


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (lambda net: net.get_loss_values()["total_loss"], {0.0, 6.0}),
        (lambda net: len(net.get_rows("Input.outputs.default")), {3 * 2, 9 * 5}),
    ],
    ids=["losses", "rows"],
)
def test_what_is_read_beside_passes_is_of_one_pass(read, values):
    inp = Input(out_shapes={"default": ("T", "B", 1)})
    for name in ("A", "B"):
        inp >> Loss(name=name)
    net = bs.Network.from_layer(inp, handler=NumpyHandler(np.float64))
    x, found = [np.zeros((9, 5, 1)), np.ones((3, 2, 1))], []

    def run():
        for number in range(500):
            with net.alone():
                net.provide_external_data({"default": x[number % 2]})
                net.forward_pass()

    run()
    beside(lambda: found.append(read(net)), run)
    assert set(found) == values
