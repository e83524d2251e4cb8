"""Figures of logs and buffers: what is drawn, with which numbers."""

import subprocess
import sys

import numpy as np
import pytest

import brainstorm as bs
from brainstorm import layers as bl
from brainstorm.data_iterators import Minibatches, Undivided
from brainstorm.errors import UnknownPathError, ValidationError
from brainstorm.hooks import MonitorLayerParameters, MonitorLoss
from brainstorm.initializers import Gaussian
from brainstorm.tools import plot_activations, plot_bands, plot_filters, plot_logs, plot_weights
from brainstorm.training import Logs
from brainstorm.training.logs import Moment
from tests.networks import forward, run_passes
from tests.trainings import make_trainer

LOGS = Logs(
    training={"loss": [3.0, 2.0, 1.0], "a.b": [0.5]},
    Monitor_A={"W": {"min": [-1.0, -2.0], "avg": [0.0, 1.0], "max": [2.0, 3.0]}},
    Monitor_B={"W": {"min": [-1.0], "avg": [0.0], "max": [2.0]}},
    stopped=["reached max_epochs=3"],
)


def initialized(*spec):
    net = bs.tools.create_net_from_spec("classification", *spec)
    net.initialize(Gaussian(0.5), seed=1)
    return net


@pytest.fixture
def images():
    return initialized((6, 6, 1), 3, "C5:3 C2:2 F4")


@pytest.fixture
def sequences():
    return initialized(3, 3, "L4")


def image_of(figure):
    """Return the values that are shown as colors, and the axes; the colors end at the largest."""
    (shown,) = figure.axes[0].images
    values = shown.get_array()
    limit = np.abs(values).max() or 1.0
    assert shown.get_clim() == (-limit, limit)
    return values, figure.axes[0]


def test_logs_as_curves(tmp_path):
    figure = plot_logs(LOGS, ["training.*", "Monitor_B.W.avg"])
    (axes,) = figure.axes
    found = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert found == {"training.loss": [3, 2, 1], "training.a.b": [0.5], "Monitor_B.W.avg": [0]}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(found)
    assert axes.get_yscale() == "linear"
    figure.savefig(tmp_path / "logs.png")
    assert plot_logs(LOGS, "training.loss", log_scale=True).axes[0].get_yscale() == "log"


def lines_of(figure):
    axes = figure.axes[-1]
    return {line.get_label(): line.get_xdata().tolist() for line in axes.lines}, axes.get_xlabel()


@pytest.fixture
def trained(sequences):
    """A training of 5 epochs of 4 updates with monitors of other intervals."""
    rnd = np.random.RandomState(0)
    data = {"default": rnd.randn(3, 8, 3), "targets": rnd.randint(0, 2, (3, 8, 1))}
    trainer = make_trainer(
        MonitorLoss("valid", name="validation"),
        MonitorLoss("valid", name="rarely", interval=2),
        MonitorLoss("valid", name="often", timescale="update", interval=3),
        MonitorLayerParameters("Lstm", name="late", interval=2),
        epochs=5,
    )
    trainer.train(sequences, Minibatches(2, **data), valid=Undivided(**data))
    return trainer


PLACES = {
    "rolling_training": [1, 2, 3, 4, 5],
    "validation": [0, 1, 2, 3, 4, 5],
    "rarely": [0, 2, 4],
    "often": [0, 0.75, 1.5, 2.25, 3, 3.75, 4.5],
}


def test_epochs_of_all_curves_lie_below_one_another(trained):
    places, unit = lines_of(plot_logs(trained.logs, "*.total_loss"))
    assert places == {f"{name}.total_loss": values for name, values in PLACES.items()}
    assert unit == "epoch"
    figure = plot_bands(trained.logs, "late")
    assert {tuple(line.get_xdata()) for axes in figure.axes for line in axes.lines} == {(0, 2, 4)}
    assert figure.axes[-1].get_xlabel() == "epoch"


def test_logs_from_files_are_aligned_by_their_lengths(trained, tmp_path):
    trained.logs.save_as_hdf5(tmp_path / "logs.hdf5")
    logs = Logs.load_hdf5(tmp_path / "logs.hdf5")
    places, unit = lines_of(plot_logs(logs, ["rolling*.total_loss", "validation*.total_loss"]))
    assert places == {f"{x}.total_loss": PLACES[x] for x in ("rolling_training", "validation")}
    assert unit == "epoch"
    assert lines_of(plot_logs(logs, "often*"))[0]["often.total_loss"][-1] == 5


def test_before_the_end_of_the_first_epoch_entries_are_all_that_is_known():
    logs = Logs()
    for update, value in enumerate([3.0, 2.0], 1):
        logs.append("often", value, Moment(1, update, "update", 1))
    logs.append("once", 1.0, Moment(0, 0, "epoch", 1))
    assert lines_of(plot_logs(logs)) == ({"often": [0, 1], "once": [0]}, "entry")


def test_logs_that_hold_no_numbers_are_left_out():
    assert len(plot_logs(LOGS).axes[0].lines) == 8
    mixed = {"mixed": [1.0, "a text"], "arrays": [np.zeros(2)], "empty": []}
    assert len(plot_logs(mixed).axes[0].lines) == 0
    assert plot_logs({}, []).axes[0].get_legend() is None


def test_many_curves_differ_in_color_or_style():
    lines = plot_logs({f"log_{i}": [1.0] for i in range(20)}).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


def test_names_are_no_formulas(tmp_path):
    names = ["_x", "$\\foo$", "a\x1b\ud800"]
    shown = ["_x", r"\$\foo\$", r"a\x1b?"]
    band = {kind: [1.0] for kind in ("min", "avg", "max")}
    figure, bands = plot_logs({name: [1.0] for name in names}, "*"), plot_bands({"$\\foo$": band})
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == shown
    for one in (figure, bands):
        one.savefig(tmp_path / "figure.png")


def test_unknown_logs():
    with pytest.raises(UnknownPathError, match=r"unknown log 'training\.los'.* Did you mean"):
        plot_logs(LOGS, ["training.loss", "training.los"])
    text = "unknown log of a monitor 'C'.*Monitor_A, Monitor_B"
    with pytest.raises(UnknownPathError, match=text):
        plot_bands(LOGS, "C")
    with pytest.raises(UnknownPathError, match="unknown log of a monitor"):
        plot_bands({"mine": {"avg": [1.0]}})  # a log of that name without the others
    for names in (5, [5]):
        with pytest.raises(ValidationError, match=r"^plot_logs, names: expected a path or a list"):
            plot_logs(LOGS, names)


def test_bands_of_monitors():
    figure = plot_bands(LOGS, "Monitor_*")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Monitor_A.W", "Monitor_B.W"]
    (line,) = figure.axes[0].lines
    assert line.get_ydata().tolist() == [0, 1]
    corners = figure.axes[0].collections[0].get_paths()[0].vertices.tolist()
    assert {(0, -1), (0, 2), (1, -2), (1, 3)} == set(map(tuple, corners))
    assert len(plot_bands(LOGS, "Monitor_A").axes) == 1


def test_weights(images, tmp_path):
    path, parameters = "FullyConnected.parameters.W", images.buffer.FullyConnected.parameters
    values, axes = image_of(plot_weights(images, path))
    np.testing.assert_array_equal(values, images.get(path))
    assert axes.get_title(loc="left") == path
    values, _ = image_of(plot_weights(images, "FullyConnected.parameters.bias"))
    assert values.shape == (4, 1)
    parameters.W[:] = 0
    assert not image_of(plot_weights(images, path))[0].any()
    parameters.W[:] = np.nan  # has no color
    plot_weights(images, path).savefig(tmp_path / "nan.png")


def test_filters_of_one_channel_fill_a_square(images):
    values, _ = image_of(plot_filters(images, "Convolution2D_1.parameters.W"))
    assert values.shape == (3 * 4 - 1, 2 * 4 - 1)
    filters = images.get("Convolution2D_1.parameters.W")
    np.testing.assert_array_equal(values[:3, :3], filters[0, ..., 0])
    np.testing.assert_array_equal(values[4:7, 4:7], filters[3, ..., 0])
    assert values.mask[3].all()
    assert values.mask[8:, 4:].all()  # there is no sixth filter


def test_filters_of_several_channels_have_a_row_each(images):
    values, _ = image_of(plot_filters(images, "Convolution2D_2.parameters.W"))
    assert values.shape == (2 * 3 - 1, 5 * 3 - 1)
    filters = images.get("Convolution2D_2.parameters.W")
    np.testing.assert_array_equal(values[3:5, 6:8], filters[1, ..., 2])
    message = r"'FullyConnected.parameters.W': expected four dimensions .* got shape \(4, "
    with pytest.raises(ValidationError, match=message):
        plot_filters(images, "FullyConnected.parameters.W")


def test_activations_over_time_and_over_the_batch(sequences, images):
    forward(sequences, 5, 3)
    values, axes = image_of(plot_activations(sequences, "Lstm.outputs.default", sequence=2))
    np.testing.assert_array_equal(values, sequences.get("Lstm.outputs.default")[:5, 2].T)
    assert axes.get_xlabel() == "time step"
    assert axes.get_title(loc="left") == "Lstm.outputs.default, sequence 2"
    forward(images, 1, 4)
    values, axes = image_of(plot_activations(images, "FullyConnected.outputs.default"))
    assert (values.shape, axes.get_xlabel()) == ((4, 4), "sequence")


@pytest.mark.parametrize("path", ["Lstm.outputs.default", "Lstm.output_deltas.default"])
@pytest.mark.parametrize("sizes", [(2, 5), (5, 2), (1, 3), (3, 1)])
def test_activations_over_the_second_length(path, sizes):
    inp = bl.Input({"default": ("T", "B", 2), "source": ("S", "B", 3)})
    inp - "source" >> bl.Lstm(4, name="Lstm") >> bl.Loss()
    net = bs.Network.from_layer(inp)
    net.initialize(Gaussian(), seed=1)
    data = {
        name: np.ones((n, 6, k))
        for name, n, k in zip(("default", "source"), sizes, (2, 3), strict=True)
    }
    run_passes(net, data)
    values, axes = image_of(plot_activations(net, path, sequence=2))
    S, found = sizes[1], net.get(path)
    np.testing.assert_array_equal(values, (found[:S, 2] if S > 1 else found[0]).T)
    assert axes.get_xlabel() == ("time step" if S > 1 else "sequence")


@pytest.mark.parametrize("steps", [1, 3])
def test_activations_of_images_are_maps_of_their_channels(images, steps):
    forward(images, steps, 4)
    path = "Convolution2D_1.outputs.default"
    values, axes = image_of(plot_activations(images, path, sequence=2))
    maps = images.get(path)[:, 2]  # 5 channels of 4 rows and columns
    rows, columns = (3, 2) if steps == 1 else (steps, 5)
    assert values.shape == (rows * 5 - 1, columns * 5 - 1)
    np.testing.assert_array_equal(values[:4, 5:9], maps[0, ..., 1])
    if steps > 1:
        np.testing.assert_array_equal(values[5:9, 20:24], maps[1, ..., 4])
    assert axes.get_title(loc="left") == f"{path}, sequence 2"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("channels: 5", f"time steps: {steps}")


def test_activations_that_there_are_not(sequences):
    with pytest.raises(ValidationError, match=r"expected a buffer \(T, B, features...\) after a"):
        plot_activations(sequences, "Lstm.outputs.default")
    forward(sequences, 2, 3)
    for path in ("Lstm.parameters.Wz", "Lstm.gradients.Wz"):
        with pytest.raises(ValidationError, match=r"after a pass, got shape \(4, 3\)"):
            plot_activations(sequences, path)
    with pytest.raises(ValidationError, match=r"expected a buffer \(T, B, features...\) after a"):
        plot_activations(sequences, "parameters")
    for wrong, got in ((3, "3"), (-4, "-4"), ("a", "'a'"), (1.5, "1.5"), (None, "None")):
        with pytest.raises(ValidationError, match=f"expected a sequence below 3, got {got}"):
            plot_activations(sequences, "Lstm.outputs.default", sequence=wrong)


def test_pyplot_is_not_touched():
    code = (
        "import sys; from brainstorm.tools import plot_logs; plot_logs({'a': [1.0, 2.0]});"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
