"""Training steps as CUDA graphs: the same bits as operation by operation, and nothing but them."""

import functools
import gc

import numpy as np
import pytest

from brainstorm import Trainer
from brainstorm.data_iterators import Minibatches
from brainstorm.handlers import NumpyHandler, PyCudaHandler
from brainstorm.handlers.pycuda import launches, modules
from brainstorm.hooks import Hook, StopAfterEpoch
from brainstorm.layers import BatchNorm, Convolution2D, Dropout, FullyConnected, Lstm, Pooling2D
from brainstorm.training import AdamStepper, MomentumStepper, SgdStepper
from tests.networks import trainable
from tests.trainings import run_steps

NETWORKS = {
    "mlp": lambda: (FullyConnected(7, "tanh", name="Hidden"), Dropout(0.3, name="Drop")),
    "lstm": lambda: (Lstm(5, name="Lstm"),),
    "cnn": lambda: (
        Convolution2D(4, (3, 3), padding=1, name="Conv"),
        BatchNorm(name="Norm"),
        Pooling2D((2, 2), stride=(2, 2), name="Pool"),
    ),
}
STEPPERS = {
    "sgd": lambda: SgdStepper(0.1),
    "momentum": lambda: MomentumStepper(0.1, 0.9),
    "adam": lambda: AdamStepper(0.01),
}


FEATURES = {"mlp": (4,), "lstm": (4,), "cnn": (6, 6, 2)}


def network(kind, handler):
    return trainable(*NETWORKS[kind](), handler=handler, features=FEATURES[kind])


def batches(kind, sizes):
    """Yield random data of these numbers of steps and sequences."""
    rnd = np.random.RandomState(0)
    for size in sizes:
        values = rnd.normal(size=(*size, *FEATURES[kind])).astype(np.float32)
        yield {"default": values, "targets": rnd.randint(0, 3, size=(*size, 1))}


def trained(kind, stepper, handler, sizes):
    """Return the parameters after a step with each batch."""
    net = network(kind, handler)
    stepper.start(net)
    return run_steps(net, stepper, batches(kind, sizes))


SIZES = [(3, 4), (3, 4), (3, 4), (2, 4), (3, 4), (2, 4), (2, 4)]


@pytest.mark.parametrize(
    ("kind", "stepper", "compute"),
    [
        ("cnn", "sgd", "f32"),
        ("lstm", "momentum", "f32"),
        *((kind, "adam", "f32") for kind in NETWORKS),
        *((kind, "sgd", "bf16") for kind in NETWORKS),
    ],
)
def test_replayed_steps_are_the_same_bits_and_those_of_numpy(kind, stepper, compute, monkeypatch):
    make = functools.partial(PyCudaHandler, seed=1, compute=compute)
    replayed = trained(kind, STEPPERS[stepper](), make(), SIZES)
    monkeypatch.setenv("BRAINSTORM_REPLAY", "0")
    direct = trained(kind, STEPPERS[stepper](), make(), SIZES)
    np.testing.assert_array_equal(replayed, direct)
    if kind != "mlp" and compute == "f32":  # Dropout draws other numbers on another handler
        on_numpy = trained(kind, STEPPERS[stepper](), NumpyHandler(np.float32, seed=1), SIZES)
        # Seven steps of float32 with sums in another order; Adam divides by small numbers.
        np.testing.assert_allclose(replayed, on_numpy, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("option", "values", "sizes"),
    [("multiprocessors", (1, 4, 132), [(10, 40)] * 2), ("late", (0, 1), SIZES)],
)
@pytest.mark.parametrize("kind", NETWORKS)
def test_training_is_the_same_bits_on_any_gpu_whenever_streams_work(
    kind, option, values, sizes, shim
):
    """A multiprocessor has 16 blocks at most, which go through all of an array."""
    found = []
    for value in values:
        shim.set_option(option, value)
        handler = PyCudaHandler(seed=1)
        found.append(trained(kind, AdamStepper(0.01), handler, sizes).tobytes())
    assert len(set(found)) == 1


def check_quiet(shim, *names):
    names = (*names, "allocations", "dtoh", "synchronisations", "modules")
    counts = shim.counters()
    assert {name: counts[name] for name in names} == dict.fromkeys(names, 0)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_step_is_one_graph_and_waits_for_nothing(kind, shim):
    net, stepper = network(kind, PyCudaHandler(seed=1)), MomentumStepper(0.1, 0.9)
    (data,) = batches(kind, [(3, 4)])
    stepper.start(net)
    for _ in range(3):
        net.provide_external_data(data)
        stepper.run()
    shim.reset()
    for _ in range(5):
        net.provide_external_data(data)
        stepper.run()
    assert shim.counters()["graph_launches"] == 5
    # Only what changes from step to step comes from the host, and nothing goes back.
    assert shim.counters()["htod"] == 5 * 3
    check_quiet(shim, "launches", "blocking_copies")


def test_all_kernels_of_a_step_are_one_module(shim, monkeypatch):
    new = functools.cache(modules.modules_of.__wrapped__)  # as in a new process
    monkeypatch.setattr(launches, "modules_of", new)
    net, stepper = network("lstm", PyCudaHandler(seed=1)), MomentumStepper(0.1, 0.9)
    (data,) = batches("lstm", [(3, 4)])
    stepper.start(net)
    net.provide_external_data(data)
    shim.reset()
    stepper.run()
    counts = shim.counters()
    assert (counts["modules"], counts["dtoh"]) == (1, 0)


def test_passes_operation_by_operation_allocate_nothing_either(shim):
    net = network("lstm", PyCudaHandler(seed=1))
    (data,) = batches("lstm", [(3, 4)])
    for again in range(3):
        if again == 2:
            shim.reset()
        net.provide_external_data(data)
        net.forward_pass(training_pass=True)
        net.backward_pass()
    check_quiet(shim, "graph_launches")


def test_what_python_does_lies_between_graphs(handler, shim):
    x, seen = handler.ones((2, 3)), []
    with handler.tracing(runs=False) as trace:
        handler.add_st(1.0, x, x)
        handler.mult_st(2.0, x, x)
        handler.call(lambda: seen.append(float(x.get()[0, 0])))
        handler.fill(x, 5.0)
    assert seen == []
    shim.reset()
    trace.replay()
    trace.replay()
    assert seen == [4.0, 12.0]
    assert shim.counters()["graph_launches"] == 4
    np.testing.assert_array_equal(x.get(), np.full((2, 3), 5.0))


def test_random_numbers_go_on_from_replay_to_replay(handler):
    stream, same = (handler.create_random_stream(3) for _ in range(2))
    out, expected = handler.zeros((4,)), handler.zeros((4,))
    with handler.tracing(runs=False) as trace:
        handler.fill_gaussian(0.0, 1.0, out, stream)
    del stream  # only the trace has it
    handler.new_lane().clear()
    for _ in range(3):
        trace.replay()
        handler.fill_gaussian(0.0, 1.0, expected, same)
        np.testing.assert_array_equal(out.get(), expected.get())


def test_a_trace_keeps_its_memory(handler):
    """Arrays that only the trace knows of are not given to others."""
    x, out = handler.ones((50,)), handler.zeros((50,))
    temporary = handler.zeros((50,))
    with handler.tracing(runs=False) as trace:
        handler.add_st(1.0, x, temporary)
        handler.mult_st(3.0, temporary, out)
    del temporary
    others = [handler.zeros((50,)) for _ in range(20)]
    trace.replay()
    np.testing.assert_array_equal(out.get(), np.full(50, 6.0))
    assert all((other.get() == 0).all() for other in others)


def test_graphs_are_freed(shim):
    handler = PyCudaHandler(seed=1)
    x = handler.ones((3,))
    before = shim.counters()["live_bytes"]
    for _ in range(5):
        handler.trace(lambda: handler.add_st(1.0, x, x)).replay()
    assert shim.counters()["live_bytes"] - before < 1000


def test_a_training_seldom_waits_for_the_gpu(handler, shim):
    net, counted = network("mlp", handler), []

    class Count(Hook):
        def __call__(self, *args):
            counted.append(shim.counters())
            shim.reset()

    trainer = Trainer(SgdStepper(0.1), verbose=False)
    trainer.add_hook(Count(timescale="update"))
    trainer.add_hook(StopAfterEpoch(1))
    (data,) = batches("mlp", [(1, 40)])
    gc.collect()  # memory of other tests is freed now: that waits for the GPU
    trainer.train(net, Minibatches(2, **data))
    steady = counted[5:-1]
    assert len(steady) > 10
    for counts in steady:
        assert counts["graph_launches"] == 1
        assert counts["dtoh"] == counts["synchronisations"] == counts["blocking_copies"] == 0
