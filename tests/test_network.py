"""The network: passes, gradients over every kind of wiring, inspection, files."""

import re
import threading

import h5py
import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import (
    BrainstormError,
    DescriptionError,
    FileFormatError,
    HandlerValidationError,
    InitializationError,
    LayerValidationError,
    MissingDataError,
    NetworkValidationError,
    NullBufferError,
    OutOfMemoryError,
    UnknownPathError,
    ValidationError,
    shown,
)
from brainstorm.files import write_network_file
from brainstorm.handlers import NativeHandler, NumpyHandler, compiler
from brainstorm.initializers import Gaussian, Orthogonal
from brainstorm.layers import (
    BatchNorm,
    Elementwise,
    Embedding,
    FullyConnected,
    Input,
    Layer,
    Loss,
    Mask,
    SoftmaxCE,
)
from brainstorm.network import Network
from brainstorm.network.parameters import put_values, take_values
from brainstorm.randomness import RandomState
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.view_tree import _Plan
from brainstorm.testing import approx_fprime
from brainstorm.value_modifiers import ClipValues, ConstrainL2Norm, L2Decay
from tests.networks import (
    WIRINGS,
    assert_gradients,
    batch_for,
    build,
    classifier,
    data_for,
    forward,
    provide,
    run_passes,
    trainable,
)
from tests.trainings import takes_less_than

FLOAT64 = NumpyHandler(np.float64)


# -- passes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("size", [(1, 1), (3, 2)], ids=str)
def test_gradients_equal_central_differences(wiring, size):
    net = build(wiring, FLOAT64)
    assert_gradients(net, data_for(net, *size))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_passes_depend_on_what_memory_held_only_if_gradients_add_up(wiring):
    net = build(wiring)
    once, losses = run_passes(net), net.get_loss_values()
    kept = take_values(net)
    for memory in net._buffer_manager.buffers:
        net.handler.fill(memory, 3.5)
    put_values(net, kept)
    np.testing.assert_array_equal(run_passes(net), once)
    assert net.get_loss_values() == losses
    net.forward_pass(training_pass=True)
    net.backward_pass(accumulate=True)
    np.testing.assert_allclose(net.get("gradients"), 2 * once, rtol=1e-12)


@pytest.mark.parametrize("wiring", ["mlp", "cnn", "lstm", "frozen start"])
def test_input_deltas_on_request(wiring):
    net = build(wiring)
    gradients = run_passes(net)
    text = r"Input.output_deltas.default is not allocated: .*net.keep_input_deltas = True"
    with pytest.raises(NullBufferError, match=text):
        net.get("Input.output_deltas.default")
    with pytest.raises(NullBufferError, match="no parameter lies upstream"):
        np.asarray(net.buffer.Input.output_deltas.default)
    with pytest.raises(NullBufferError, match="'Out' computes no delta for this input"):
        net.get("Out.input_deltas.targets")

    parameters = net.get("parameters")
    net.keep_input_deltas = True
    data = data_for(net)
    np.testing.assert_array_equal(net.get("parameters"), parameters)
    np.testing.assert_allclose(run_passes(net, data), gradients, rtol=1e-12)
    deltas = net.get("Input.output_deltas.default")

    def total_loss(x):
        forward(net, data={**data, "default": x})
        return net.get_loss_values()["total_loss"]

    expected = approx_fprime(data["default"], total_loss, 1e-5)
    np.testing.assert_allclose(deltas, expected, rtol=1e-4, atol=1e-8)


def test_memory_report_and_largest_batch():
    net = build("mlp", NumpyHandler(np.float32))
    report = net.memory(10, 20)
    assert sum(sum(row.values()) for row in report.layers.values()) + report.padding == report.total
    row = report.layers["FullyConnected_1"]
    assert (row["parameters"], row["outputs"]) == ((4 * 5 + 5) * 4, 10 * 20 * 5 * 4)
    assert re.match("memory for T=10, B=20\n(.|\n)*FullyConnected_1(.|\n)*total", str(report))
    largest = net.largest_batch(1_000_000, T=2)
    assert net.memory(2, largest).total <= 1_000_000 < net.memory(2, largest + 1).total
    assert net.largest_batch(10) == 0
    inp = Input({"default": (3,)})
    inp >> Loss()
    for wrong, arguments, text in (
        (net, (1_000_000, 0), r"^T: expected at least 1, got 0\.$"),
        *((net, (size,), r"^bytes: expected a number .* got") for size in ("10MB", np.inf, np.nan)),
        (Network.from_layer(inp), (1_000_000,), "no buffer of this network grows with"),
    ):
        with pytest.raises(NetworkValidationError, match=text):
            wrong.largest_batch(*arguments)


@pytest.mark.parametrize("wiring", ["cnn", "recurrent fan-out", "mlp"])
def test_the_memory_between_calls_is_announced(wiring):
    net = build(wiring, NativeHandler(np.float32, threads=1))
    announced = net.memory(3, 50)
    net.provide_external_data(data_for(net, 3, 50))
    found = []
    for look in (lambda: None, lambda: net.memory(7, 3), lambda: net.memory(1000, 50_000_000)):
        net.forward_pass(training_pass=True)
        look()  # does nothing to the network, even at memory that nobody has
        net.backward_pass()
        found.append(net.get("gradients"))
    np.testing.assert_array_equal(found[1:], found[:-1])
    assert net.memory(1000, 50_000_000).total > 2**42
    if compiler.is_available():
        assert net._buffer_manager.lane.nbytes == announced.scratch > 0
    else:
        assert announced.scratch == 0
    assert announced.total == 4 * net._buffer_manager.size + announced.scratch
    assert ("scratch" in str(announced)) == compiler.is_available()
    limit = announced.total
    largest = net.largest_batch(limit, T=3)
    assert net.memory(3, largest).total <= limit < net.memory(3, largest + 1).total


# -- context --------------------------------------------------------------------------------------


def test_an_input_shared_with_a_recurrent_layer_keeps_its_last_step():
    net = build("recurrent fan-out")
    data = forward(net)
    np.testing.assert_array_equal(net.get_input("default"), data["default"])
    sources = net._buffer_manager.layout["joint"]["inputs"]["default"]["@sources"]
    expected = np.concatenate([net.get(path)[:3] for path in sources], axis=2)
    assert len(sources) == 3
    np.testing.assert_array_equal(net.get("joint.inputs.default"), expected)


def test_gradients_with_a_context():
    net = build("lstm", FLOAT64)
    forward(net, seed=5)
    assert_gradients(net, context=net.get_context())


# -- data -----------------------------------------------------------------------------------------


@pytest.fixture
def net():
    return build("mlp", FLOAT64)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda d: {}, MissingDataError, "'default', 'targets' is missing.*got nothing"),
        (lambda d: {**d, "targets": d["targets"][:2]}, NetworkValidationError,
         r"data 'targets': expected T=3 as in data 'default', got T=2"),
        (lambda d: {**d, "targets": d["targets"] + 5}, LayerValidationError,
         r"layer 'Out' \(SoftmaxCE\), input 'targets'"),
        (lambda d: {**d, "default": np.full_like(d["default"], np.nan)}, HandlerValidationError,
         "NaN"),
    ],
)  # fmt: skip
def test_bad_data_is_refused_and_changes_nothing(spoil, error, message):
    net = build("mlp")
    data = provide(net)
    before = {path: net.get(path) for path in ("Input.outputs.default", "Input.outputs.targets")}
    with pytest.raises(error, match=message):
        net.provide_external_data(spoil(data))
    for path, values in before.items():
        np.testing.assert_array_equal(net.get(path), values)


def test_other_arrays_go_through_numpy_and_are_checked(net):
    class Foreign:  # as of PyTorch, or in a file
        def __init__(self, array):
            self.array, self.shape = array, array.shape

        def __array__(self, *args, **kwargs):
            return self.array

    data = data_for(net)
    net.provide_external_data({name: Foreign(array) for name, array in data.items()})
    for name, array in data.items():
        np.testing.assert_array_equal(net.get_input(name), array)
    with pytest.raises(LayerValidationError, match=r"layer 'Out' \(SoftmaxCE\), input 'targets'"):
        net.provide_external_data({**data, "targets": Foreign(data["targets"] + 5)})


def test_extra_names_are_ignored_and_missing_inputs_on_request_stay_as_they_are():
    inp = Input({"default": ("T", "B", 2), "per_sequence": ("B", 3), "fixed": (2, 2)})
    inp >> FullyConnected(2)
    net = Network.from_layer(inp, handler=FLOAT64)
    data = {"default": np.ones((4, 5, 2)), "per_sequence": np.ones((5, 3)), "fixed": np.eye(2)}
    net.provide_external_data({**data, "other": np.zeros(3)})
    for name in ("per_sequence", "default"):
        data[name] = np.zeros(data[name].shape)
        net.provide_external_data({name: data[name]}, all_inputs=False)
        for given, values in data.items():
            np.testing.assert_array_equal(net.get_input(given), values)
    net.predict({"per_sequence": np.zeros((3, 3))}, "Input.outputs.per_sequence")
    assert (net.time_size, net.batch_size) == (1, 3)  # a prediction depends on its data alone


@pytest.mark.parametrize("size", [10**10, 2**62, 10**19])
def test_features_of_which_no_batch_has_room_are_out_of_memory_at_once(size: int) -> None:
    with pytest.raises(OutOfMemoryError, match=r"for T=1, B=1. The largest(.|\n)*Input.outputs"):
        Network.from_layer(Input({"default": ("T", "B", size, 10**9)}))


# -- looking inside -------------------------------------------------------------------------------


def test_get(net):
    provide(net)
    copied = net.get("Projection.parameters.W")
    copied[...] = 9
    assert not (net.get("Projection.parameters.W") == 9).any()
    for path, message in (
        ("Projction.outputs", "unknown name 'Projction'.*Did you mean 'Projection'"),
        ("Projection.outputs.x", "unknown name 'x'. Choices are: default.$"),
        ("Input.gradients.default", "none. Others of this name are in outputs, output_deltas.$"),
        ("Projection.outputs", "is a group of buffers. Choose one of: default"),
        ("Input.gradients", "'Input.gradients' is a group of buffers. It is empty.$"),
        *((wrong, "expected a dotted path such as .*, got ") for wrong in (None, 3, ["Out"])),
        (b"Out", "expected a dotted path such as .*, got b'Out'"),
        ("parameters.W", "'parameters' is an array, not a group"),
    ):
        with pytest.raises(UnknownPathError, match=message):
            net.get(path)


def test_losses(net):
    forward(net)
    assert list(net.get_loss_values()) == ["total_loss"]
    net = build("one output twice")
    forward(net)
    losses = net.get_loss_values()
    assert list(losses) == ["difference_loss", "merged_loss", "total_loss"]
    assert losses["total_loss"] == losses["difference_loss"] + losses["merged_loss"]
    last = Input({"default": ("T", "B", 2)}) >> FullyConnected(2)
    assert Network.from_layer(last).get_loss_values() == {"total_loss": 0.0}


def test_there_are_no_losses_and_no_deltas_without_a_forward_pass(net):
    def refused():
        for use in (net.get_loss_values, net.backward_pass):
            text = f"^{use.__name__}: expected a forward pass|call provide_external_data first"
            with pytest.raises(NetworkValidationError, match=text):
                use()

    refused()
    with pytest.raises(NetworkValidationError, match="call provide_external_data first"):
        net.forward_pass()
    for size in ((1, 2), (3, 4)):
        net.provide_external_data(data_for(net, *size))
        refused()
        net.forward_pass(training_pass=True)
        assert net.get_loss_values()["total_loss"] > 0
        for _ in range(2):
            net.backward_pass()
    net.set_handler(NumpyHandler(np.float64))
    refused()


def test_summary_shows_layers_and_shapes(capsys):
    net = build("cnn")
    net.summary()
    text = capsys.readouterr().out.removesuffix("\n")
    assert text.startswith("Network of 7 layers\nlayer ")
    (row,) = (line for line in text.splitlines() if line.startswith("BatchNorm"))
    assert "(T, B, 2, 2, 3)" in row
    assert "depends_on_mode" in row
    assert row.endswith("internals")
    assert text.splitlines()[-1].split() == ["total", f"{net.parameters_size:,}"]


def test_repr_is_the_tree_of_layers():
    net = build("lstm")
    lines = repr(net).split("\n")
    assert lines[0] == f"Network of {len(net.layers)} layers, {net.parameters_size:,} parameters"
    (number,) = (i for i, line in enumerate(lines) if line.startswith("  Lstm  Lstm(size="))
    assert lines[number].endswith("  from Input")
    assert lines[number + 1] == "    outputs"
    assert lines[number + 2].split("  ")[3] == "default"
    assert "(T+1, B, " in lines[number + 2]
    assert not any(line.strip() in ("gradients", "inputs") for line in lines)
    assert net._repr_html_() == net.tree(values=True)._repr_html_()
    assert str(net.__rich__().label) == lines[0]
    net.close()
    assert repr(net).startswith(f"Network of {len(net.layers)} layers\n  Input  Input(")


def test_a_notebook_shows_values_where_there_is_memory():
    net = build("lstm")
    assert ">NaN<" in net.buffer.Lstm._repr_html_()
    net.buffer.Lstm.parameters.bz.array[...] = np.nan  # behind the DebugHandler
    rows = [re.sub("<[^>]*>", " ", row).split() for row in net._repr_html_().split("<tr")]
    (bz,), (gate,) = ([cells for cells in rows if name in cells] for name in ("bz", "Za"))
    assert bz[-5:] == ["nan", "nan", "nan", "3", "0"]
    assert gate[-2:] == ["0", "B"]  # no batch, no values


def test_the_report_of_a_plan_is_a_table_in_a_notebook():
    net = build("mlp")
    provide(net)
    report = net.plan().report(repeats=1)
    html, count = report._repr_html_(), len(report.rows) - 1
    assert str(report).splitlines()[-1].endswith(f"{count} calls")
    assert html.count("<tr>") == count + 2  # the headings, and the sums
    assert "Projection, backward" in html
    report.rows = [("1 us", "1 %", "<Layer>, forward", "a & b")]
    assert re.search("&lt;Layer&gt;, forward</td>.*a &amp; b</td>", report._repr_html_(), re.S)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.predict(np.zeros((3, 90, 4))),
        lambda net: provide(net, 3, 1),
        lambda net: net.carry_context([], continues=False),
        lambda net: net.set_gradient_modifiers(ClipValues(-0.01, 0.01)),
        lambda net: setattr(net, "loss_scale", net.handler.ones((1,))),
        lambda net: setattr(net.layers["Projection"], "forward_pass", lambda *_: None),
    ],
)
def test_a_plan_is_not_replayed_on_another_memory_or_network(change):
    net = build("mlp", FLOAT64)
    provide(net)
    plan = net.plan()
    for needs_a_pass in (net.backward_pass, net.get_loss_values):
        with pytest.raises(NetworkValidationError, match="a forward pass before it"):
            needs_a_pass()
    plan.replay()
    gradients = net.get("gradients")
    run_passes(net)
    np.testing.assert_array_equal(net.get("gradients"), gradients)
    change(net)
    for repeat in (plan.replay, plan.profile, plan.report):
        with pytest.raises(NetworkValidationError, match="Make another plan"):
            repeat()


def test_a_plan_is_repeated_in_turns_and_only_on_a_whole_batch():
    net = build("mlp")
    data = provide(net)
    plan, forward_plan = net.plan(), net.plan(training_pass=False)
    for repeat in (plan.replay, plan.profile, plan.report):
        thread = threading.Thread(target=repeat)
        with net.alone():
            thread.start()
            thread.join(0.1)
            assert thread.is_alive()
        thread.join()
    net.predict(data["default"])
    forward_plan.replay()
    with pytest.raises(MissingDataError, match="data for 'targets' is missing"):
        plan.replay()


def test_a_layer_cannot_be_replaced(net):
    with pytest.raises(NetworkValidationError, match="layer 'Hidden' cannot be .* Build another"):
        net.layers["Hidden"] = FullyConnected(3)


def test_the_architecture_is_a_copy(net):
    described = net.__describe__()
    for layer in net.architecture.values():
        layer.clear()
    assert net.__describe__() == described


def test_repr_of_large_networks_is_short():
    net = Network.from_layer(classifier(*(FullyConnected(2, "tanh") for _ in range(200))))
    assert len(repr(net).split("\n")) < len(repr(net.tree()).split("\n")) / 10
    names = ["default", *(f"a_long_name_{i}" for i in range(9))]
    last = Input(dict.fromkeys(names, ("T", "B", 4))) >> FullyConnected(2)
    assert all(len(line) < 120 for line in repr(Network.from_layer(last)).split("\n"))


def test_closing():
    net = build("lstm")
    calls = []
    net.layers["Lstm"].shutdown = lambda: calls.append(1)
    with net as entered:
        assert entered is net
        provide(net)
        view = net.buffer.Lstm
    assert calls == [1]
    net.close()
    for use in (
        lambda: net.get("parameters"),
        net.forward_pass,
        lambda: net.buffer,
        lambda: net.provide_external_data(data_for(net)),
        *(lambda: view.inputs.default, lambda: list(view.outputs), view.paths, view.tree),
    ):
        with pytest.raises(NetworkValidationError, match="the network is closed, its memory was"):
            use()


# -- parameters -----------------------------------------------------------------------------------


def test_initialize_is_repeatable_and_independent_of_other_layers():
    names = ("FullyConnected_1", "between", "FullyConnected_2")
    deeper = classifier(*(FullyConnected(5, "tanh", name=name) for name in names))
    wirings = WIRINGS["mlp"](), WIRINGS["mlp"](), deeper
    nets = [Network.from_layer(wired, seed=7) for wired in wirings]
    for net in nets:
        net.initialize(Gaussian())
    one, two, three = nets
    np.testing.assert_array_equal(one.get("parameters"), two.get("parameters"))
    path = "FullyConnected_1.parameters.W"
    np.testing.assert_array_equal(one.get(path), three.get(path))
    one.initialize(Gaussian(), seed=1)
    assert (one.get("parameters") != two.get("parameters")).any()


def test_initializers_are_resolved_by_layer_with_a_fallback(net):
    net.initialize({"FullyConnected_1": {"b*": [3.0] * 5}, "default": 1}, FullyConnected_2=2)
    for name, expected in (("FullyConnected_1", 3), ("FullyConnected_2", 2), ("Projection", 1)):
        assert (net.get(f"{name}.parameters.bias") == expected).all()
    net.initialize(Orthogonal(), fallback=0.5)
    assert (net.get("Projection.parameters.bias") == 0.5).all()


def test_a_failing_initialize_changes_nothing():
    net, odd = build("mlp", NumpyHandler(np.float32)), type("Odd", (Gaussian,), {})(7.0)
    before, odd.source = net.get("parameters"), object()
    huge = type("Huge", (Gaussian,), {"__call__": lambda self, shape: np.empty((2**40, *shape))})()
    for given, error, text in (
        (Orthogonal(), InitializationError, "FullyConnected_1.parameters.bias"),
        ({"FullyConnected_*": {"b*": [0.0] * 5}, "default": 1}, InitializationError,
         "parameter 'FullyConnected.*: .*shape"),
        ({"FulyConnected_1": 0, "default": 1}, NetworkValidationError,
         "FulyConnected.*FullyConnected_1"),
        (odd, DescriptionError, r"\[default\]\[Odd.source\]: a object has no"),
        *((size, InitializationError, "values that float32 can hold") for size in (1e39, -1e39)),
        (huge, OutOfMemoryError, "no memory for the values of 'FullyConnected_1.parameters.W' of"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            net.initialize(given)
        np.testing.assert_array_equal(net.get("parameters"), before)


def test_initialize_needs_memory_for_the_values_and_a_mark_for_each():
    net = Network.from_layer(Input({"default": ("T", "B", 1000)}) >> FullyConnected(1000))
    with takes_less_than(1.2e6 * np.dtype(float).itemsize):
        net.initialize(Gaussian(0.1))


def test_modifiers(net):
    net.set_weight_modifiers({"Projection": {"W": ClipValues(-0.1, 0.1)}}, default=[])
    net.set_gradient_modifiers(Projection=[L2Decay(0.5), ClipValues(-0.2, 0.2)])
    run_passes(net)
    assert np.abs(net.get("Projection.gradients.W")).max() <= 0.2
    net.apply_weight_modifiers()
    assert np.abs(net.get("Projection.parameters.W")).max() <= 0.1
    assert np.abs(net.get("FullyConnected_1.parameters.W")).max() > 0.1
    net.set_gradient_modifiers()
    assert net.gradient_modifiers == {}
    with pytest.raises(NetworkValidationError, match="L2Decay"):
        net.set_weight_modifiers(L2Decay(0.1))


# -- handlers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, NumpyHandler, "numpy"])
def test_what_is_no_handler(net, wrong, tmp_path):
    file = tmp_path / "net.hdf5"
    net.save_as_hdf5(file)
    makers = [lambda: net.set_handler(wrong)]
    if wrong is not None:
        makers.append(lambda: Network.from_layer(WIRINGS["mlp"](), handler=wrong))
        makers.append(lambda: Network.from_hdf5(file, wrong))
    text = re.escape(f"expected a handler such as NumpyHandler(), got {shown(wrong)}.")
    for make in makers:
        with pytest.raises(NetworkValidationError, match=f"^{text}$"):
            make()
    forward(net)


# -- predict --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", ["mlp", "lstm"])
def test_predict_equals_a_forward_pass(wiring):
    net = build(wiring, FLOAT64)
    data = forward(net, T=4, B=11, training_pass=False)
    expected = net.get("Out.outputs.predictions")
    for batch_size in (1, 4, 11, 500):
        given = net.predict(data["default"], batch_size=batch_size)
        np.testing.assert_allclose(given, expected, rtol=1e-12)
    given = net.predict({"default": data["default"]}, "Projection.outputs.default")
    assert given.shape == (4, 11, 3)
    if wiring == "lstm":  # without the row of the context
        assert net.predict(data["default"], "Lstm.outputs.default").shape == (4, 11, 3)


@pytest.mark.parametrize("names", [("x",), ("before", "default")])
def test_an_array_is_for_the_only_input_or_default(names):
    inp, last = Input(dict.fromkeys(names, ("T", "B", 2))), FullyConnected(3, name="Last")
    inp - names[-1] >> last
    net, x = Network.from_layer(last), np.ones((1, 4, 2))
    net.initialize(0.5)
    found = net.predict(x, "Last.outputs.default")
    np.testing.assert_array_equal(found, net.predict({names[-1]: x}, "Last.outputs.default"))


@pytest.mark.parametrize("memory", ["inspectable", "compact"])
@pytest.mark.parametrize("wiring", ["mlp", "lstm", "recurrent fan-out"])
def test_several_outputs_are_predicted_at_once(wiring, memory):
    net = build(wiring, FLOAT64, memory=memory)
    x = data_for(net, T=4, B=11)["default"]
    layers = [layer for layer in net.layers.values() if layer.name not in ("Input", "Loss")]
    paths = [f"{a.name}.outputs.{o}" for a in layers for o in a.out_shapes if o != "loss"]
    together = net.predict(x, paths, batch_size=4)
    assert list(together) == paths
    assert len(paths) > 2
    for path, values in together.items():
        np.testing.assert_array_equal(values, net.predict(x, path, batch_size=4))
    assert list(net.predict(x, tuple(paths[:1]))) == paths[:1]
    assert net.predict(x, []) == {}
    net.output_name = paths[0]
    assert list(net.predict(x, [None, ""])) == paths[:1]


def test_outputs_that_later_layers_overwrite_are_predicted_one_by_one():
    hidden = FullyConnected(3, "linear", name="A"), Elementwise("tanh", inplace=True, name="B")
    net, x = trainable(*hidden), batch_for(2, 3)["default"]
    sums, outputs = net.predict(x, ["A.outputs.default", "B.outputs.default"]).values()
    np.testing.assert_array_equal(sums, net.predict(x, "A.outputs.default"))
    np.testing.assert_array_equal(outputs, np.tanh(sums))


def test_one_value_for_a_whole_batch_cannot_be_put_together():
    net = build("mlp", FLOAT64)
    x, path = {"default": np.zeros((1, 5, 4)), "targets": np.zeros((1, 5, 1))}, "Loss.outputs.loss"
    assert net.predict(x, path).shape == (1,)
    text = (
        r"^predict: 'Loss.outputs.loss' is of constant size, one for a whole batch, got 3 batches. "
        r"Pass a larger batch_size.$"
    )
    with pytest.raises(NetworkValidationError, match=text):
        net.predict(x, path, batch_size=2)


def test_predict_says_what_it_misses():
    net, x = build("recurrent fan-out", FLOAT64), np.zeros((2, 1, 4))
    inp, targets = Input({"default": ("T", "B", 4)}), {"targets": np.zeros((2, 1, 1))}
    for name in "AB":
        inp >> FullyConnected(2, name=name)
    for asked, arguments, error, text in (
        (net, (x[:, 0],), NetworkValidationError, r"expected \(T, B, 4\), got \(2, 4\)"),
        (net, (Minibatches(default=x),), NetworkValidationError,
         "data 'default': expected an array, got Minibatches. For an iterator use tools.extract."),
        (net, (x, "Outt.outputs.predictions"), UnknownPathError,
         "unknown layer 'Outt'.*Did you mean 'Out'"),
        (net, (x, "Out"), UnknownPathError,
         "output 'Out': expected the path of an output, such as Out.outputs.predictions"),
        (net, ({"x": x},), UnknownPathError, "unknown input 'x'.* Pass a dict from names"),
        (net, (targets, "Out.outputs.predictions"), MissingDataError,
         r"'default' is missing: it is input 'default' of layer 'Rnn' \(Recurrent\)\. Pass a"),
        (Network.from_layer(inp), (x,), NetworkValidationError,
         "one of: A.outputs.default, B.outputs.default"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            asked.predict(*arguments)


class PredictHeatedTestLayerImpl(Layer):
    """A loss whose other output depends on an input without deltas."""

    expected_inputs = dict.fromkeys(
        ("default", "targets", "heat"), StructureTemplate("T", "B", "...")
    )
    computes_no_input_deltas_for = ("targets", "heat")

    def setup(self, kwargs, in_shapes):
        return {name: BufferStructure("T", "B", 1) for name in ("default", "loss")}, {}, {}


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("Out.outputs.predictions", None),
        ("Out.outputs.loss", "input 'targets' of layer 'Out' (SoftmaxCE)"),
        ("Loss.outputs.loss", "input 'targets' of layer 'Out' (SoftmaxCE)"),
        ("Word.outputs.default", "input 'default' of layer 'Word' (Embedding)"),
        ("Kept.outputs.default", "input 'mask' of layer 'Kept' (Mask)"),
        ("Out.inputs.default", None),
        ("Out.inputs.targets", "input 'targets' of layer 'Out' (SoftmaxCE)"),
        ("Input.outputs.targets", "output 'targets' of layer 'Input' (Input)"),
        ("Own.outputs.default", "input 'heat' of layer 'Own' (PredictHeatedTest)"),
    ],
)
def test_predict_makes_up_nothing_that_an_output_depends_on(path, missing):
    names = "targets", "word", "kept", "heat"
    inp = Input({"default": ("T", "B", 3), **dict.fromkeys(names, ("T", "B", 1))})
    out, kept = SoftmaxCE(name="Out"), Mask(name="Kept")
    inp >> out - "loss" >> Loss(name="Loss")
    inp - "word" >> Embedding(4, 2, name="Word") >> Loss(name="Other")
    inp >> kept
    inp - "kept" >> "mask" - kept
    own = ConstructionWrapper.create(PredictHeatedTestLayerImpl, name="Own")
    inp >> own
    inp - "targets" >> "targets" - own
    inp - "heat" >> "heat" - own
    inp - "targets" >> "targets" - out
    net = Network.from_layer(inp)
    net.initialize(1.0)
    if missing is None:
        assert net.predict(np.zeros((1, 2, 3)), path).shape == (1, 2, 3)
        return
    with pytest.raises(MissingDataError, match=re.escape(f"is missing: it is {missing}. Pass a")):
        net.predict(np.zeros((1, 2, 3)), path)


@pytest.mark.parametrize("wanted", [5, 0, 1.5, True, b"Out", {"Out": 1}])
def test_the_name_of_an_output_is_a_text(wanted):
    net, text = build("lstm", FLOAT64), "expected a path such as 'Output.outputs.predictions' or"
    text = re.escape(f"output_name: {text} None, got {wanted!r}.")
    for given in (wanted, ["Out.outputs.predictions", wanted]):
        with pytest.raises(NetworkValidationError, match=text):
            net.predict(data_for(net)["default"], output_name=given)
    with pytest.raises(NetworkValidationError, match=text):
        net.output_name = wanted
    assert net.output_name is None


def test_a_name_of_no_output_is_refused_when_it_is_set():
    net = build("lstm", FLOAT64)
    description = get_description(net)
    with pytest.raises(UnknownPathError, match="such as Out.outputs.predictions, Out.outputs.loss"):
        net.output_name = "Out"
    again = create_from_description({**description, "output_name": "Out"})  # an old file
    assert again.output_name == "Out"
    assert net.output_name is None


class Tensor:
    """What PyTorch's tensors do where NumPy knows no such type, or there are gradients."""

    shape, dtype = (1, 1, 2), "bfloat16"

    def __init__(self, error):
        self.error = error

    def __array__(self, *args, **kwargs):
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("requires grad"), TypeError("Got unsupported")])
def test_tensors_that_are_no_arrays_are_refused_with_what_to_do(error):
    net = Network.from_layer(Input({"default": ("T", "B", 2)}) >> FullyConnected(1))
    text = (
        f"expected data for numpy.asarray, got a Tensor ({error}). Pass x.detach().cpu().float()"
        f".numpy() of a tensor x of PyTorch."
    )
    for use, given, what in (
        (net.predict, Tensor(error), "data"),
        (net.provide_external_data, {"default": Tensor(error)}, "data 'default'"),
    ):
        with pytest.raises(ValidationError, match=f"^{what}: {re.escape(text)}$"):
            use(given)


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", ["cnn", "lstm", "impossible", "two lengths"])
def test_saving_and_loading(wiring, tmp_path):
    net = build(wiring, FLOAT64)
    net.output_name = "Out.outputs.predictions"
    net.set_weight_modifiers(ConstrainL2Norm(1.0))
    forward(net)
    net.save_as_hdf5(tmp_path / "net.hdf5", comment="a test")
    loaded = Network.from_hdf5(tmp_path / "net.hdf5")
    assert loaded.output_name == net.output_name
    assert bs.get_description(loaded) == bs.get_description(net)
    data = data_for(net)
    for same in (loaded, net.copy()):
        np.testing.assert_array_equal(same.predict(data), net.predict(data))
    assert [p.name for p in tmp_path.iterdir()] == ["net.hdf5"]
    with h5py.File(tmp_path / "net.hdf5") as file:
        assert file.attrs["comment"] == "a test"


def test_numbers_of_a_file_must_fit_into_the_precision(tmp_path):
    net = build("mlp", FLOAT64)
    net.buffer.parameters[:2] = [1e39, np.inf]
    net.save_as_hdf5(tmp_path / "net.hdf5")
    assert Network.from_hdf5(tmp_path / "net.hdf5").get("parameters")[:2].tolist() == [1e39, np.inf]
    with pytest.raises(BrainstormError, match="parameters: expected values that float32 can hold"):
        Network.from_hdf5(tmp_path / "net.hdf5", NumpyHandler(np.float32))


def test_a_description_becomes_an_initialized_network_of_the_same_class():
    class OwnNetwork(Network):
        pass

    net = OwnNetwork.from_layer(WIRINGS["mlp"]())
    for initialized in (False, True):
        for again in (net.copy(), bs.create_from_description(bs.get_description(net))):
            assert type(again) is OwnNetwork
            assert again.architecture.keys() == net.architecture.keys()
            assert (again.get("parameters") != 0).any() == initialized
        net.initialize(Gaussian(0.5))


# -- files that do not make sense -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: d.pop("architecture"), "holds no network: KeyError('architecture')."),
        (lambda d: d.update(handler=5), "[handler]: expected a handler, got 5"),
        (lambda d: d["handler"].update(type="float64"), "unexpected keyword argument 'type'"),
        (lambda d: d.update(initialisers={}), "a network has no 'initialisers'"),
        (lambda d: d["handler"].update(dtype=-1),
         "NumpyHandler(dtype): expected float32 or float64, got -1"),
        (lambda d: d.update(weight_modifiers={"Hidden": 5}), "expected a ValueModifier, got 5"),
        (lambda d: d["architecture"]["Hidden"].update(size=10**6),
         "values for a network whose description needs memory for"),
        (lambda d: d["architecture"]["Hidden"].update(size=4),
         "parameters: expected shape (404,), got (303,)."),
    ],
)  # fmt: skip
def test_a_description_that_fits_no_network(tmp_path, change, text):
    hidden = FullyConnected(3, name="Hidden")
    Input({"default": ("T", "B", 100)}) >> hidden
    net = Network.from_layer(hidden, handler=NumpyHandler())
    content = net.get_file_content()
    change(content.description)
    write_network_file(tmp_path / "net.hdf5", content)
    with pytest.raises(BrainstormError, match=re.escape(text)):
        Network.from_hdf5(tmp_path / "net.hdf5")


@pytest.mark.parametrize("path", ["parameters", "persistent/Norm.internals.running_mean"])
def test_a_single_number_in_a_file_is_no_array_of_a_network(tmp_path, path):
    norm = BatchNorm(name="Norm")
    Input({"default": ("T", "B", 3)}) >> norm
    Network.from_layer(norm).save_as_hdf5(tmp_path / "net.hdf5")
    with h5py.File(tmp_path / "net.hdf5", "r+") as file:
        del file[path]
        file[path] = 5
    name = re.escape(path.rpartition("/")[2])
    with pytest.raises(FileFormatError, match=rf"net.hdf5', {name}: expected shape .*, got \(\)"):
        Network.from_hdf5(tmp_path / "net.hdf5")


def test_what_a_network_knows_of_itself():
    net = build("one output twice")
    assert net.loss_layers == ["difference_loss", "merged_loss"]
    net.initialize({"same": {"W": bs.initializers.Uniform(0.2)}, "default": [[1.0]]}, fallback=0)
    assert net.initializers["same"]["W"]["@type"] == "Uniform"
    assert net.initializers["fallback"] == 0


# -- depth ----------------------------------------------------------------------------------------


def test_a_deep_network_makes_nothing_that_nobody_looks_for(monkeypatch):
    def count(depth):
        made = []

        def counted(name, method):
            return lambda *args: made.append(name) or method(*args)

        with monkeypatch.context() as patch:
            for cls, name in (
                (RandomState, "_first"),
                (BufferStructure, "get_shape"),
                (_Plan, "__call__"),
            ):
                patch.setattr(cls, name, counted(name, getattr(cls, name)))
            last = Input({"default": ("T", "B", 2)})
            for _ in range(depth):
                last >>= FullyConnected(2)
            Network.from_layer(last, seed=1, handler=NumpyHandler(np.float32)).initialize(0)
        return made

    assert count(40) == count(3)
