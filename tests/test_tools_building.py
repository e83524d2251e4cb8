"""Networks from a task and from a short text, and how networks are shown."""

import cProfile
import re

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.errors import (
    LayerValidationError,
    NetworkValidationError,
    UnknownPathError,
    ValidationError,
)
from brainstorm.scorers.base import find_loss_mask
from brainstorm.tools import create_layer, create_net_from_spec, get_in_out_layers


def net_from(spec, task="classification", in_shape=(8, 8, 1), out_shape=10, **kwargs):
    return create_net_from_spec(task, in_shape, out_shape, spec, **kwargs)


def hidden(net):
    """Return (type, options) of the layers between Input and projection, in order."""
    layers = [la for name, la in net.layers.items() if not name.startswith(("Input", "Output"))]
    return [(la.type_name, la.kwargs) for la in layers if la.type_name not in ("Loss", "Mask")]


# -- the ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "in_shape", "output", "targets"),
    [
        ("classification", 5, "SoftmaxCE", ("T", "B", 1)),
        ("multi-label", ("T", 5), "SigmoidCE", ("T", "B", 3)),
        ("regression", ("T", "B", 5), "SquaredError", ("T", "B", 3)),
    ],
)
def test_each_task_has_its_output_layer_and_targets(task, in_shape, output, targets):
    net = between_ends(task, in_shape, 3)
    assert list(net.layers) == ["Input", "Output_projection", "Output", "Loss"]
    assert net.layers["Output"].type_name == output
    assert net.layers["Output_projection"].kwargs == {"size": (3,), "activation": "linear"}
    shapes = {name: shape.shape for name, shape in net.layers["Input"].out_shapes.items()}
    assert shapes == {"default": ("T", "B", 5), "targets": targets}


def between_ends(*arguments, **options):
    inp, projection = get_in_out_layers(*arguments, **options)
    return bs.Network.from_layer(inp >> projection)


def test_names_can_be_chosen():
    names = {"data_name": "x", "targets_name": "y", "outlayer_name": "Out"}
    net = between_ends("regression", (4,), (2,), **names)
    assert set(net.input_names) == {"x", "y"}
    assert {"Out", "Out_projection"} <= set(net.layers)
    assert "Proj" in between_ends("regression", 4, 2, projection_name="Proj").layers


@pytest.mark.parametrize(
    ("use_conv", "projection"), [(None, "Convolution2D"), (True, "Convolution2D"), (False, "Fully")]
)
def test_images_as_outputs_are_projected_by_a_convolution(use_conv, projection):
    net = between_ends("classification", (4, 4, 2), (4, 4, 5), use_conv=use_conv)
    assert net.layers["Output_projection"].type_name.startswith(projection)
    assert net.layers["Output"].out_shapes["predictions"].shape == ("T", "B", 4, 4, 5)
    assert net.layers["Input"].out_shapes["targets"].shape == ("T", "B", 4, 4, 1)


@pytest.mark.parametrize(
    ("spec", "lead", "argument"),
    [("F3", (2, 4), "weights_name"), ("R3 T", (4,), "weights_name"), ("R4", (2, 4), "mask_name")],
)
def test_masks_and_weights_are_multiplied_with_the_loss(spec, lead, argument):
    net = net_from(spec, "regression", 2, 1, **{argument: "factors"})
    rnd = np.random.RandomState(0)
    factors = rnd.uniform(size=(*lead, 1)).round(0 if argument == "mask_name" else 9)
    net.provide_external_data(
        {"default": rnd.normal(size=(2, 4, 2)), "targets": np.ones((*lead, 1)), "factors": factors}
    )
    net.forward_pass()
    losses = net.get("Output.outputs.loss")
    assert net.get_loss_values()["total_loss"] == pytest.approx((losses * factors).sum() / 4)


def test_of_weights_and_a_mask_the_mask_says_which_steps_count():
    net = net_from("R4", "regression", 2, 1, mask_name="mask", weights_name="weights")
    assert find_loss_mask(net) == "mask"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clasification", 4, 2), "unknown task_type 'clasification'. Choices are: classification, "
         "multi-label, regression. Did you mean 'classification'?"),
        ((["regression"], 4, 2), "unknown task_type ['regression']. Choices are: classification, "
         "multi-label, regression. Did you mean 'regression'?"),
        (("regression", 4, 2, "x", "x", None, None, None, True), "out_shape: expected (H, W, "
         "channels) for a convolutional projection, got (2,). Use use_conv=False."),
        (("regression", 4, 2, "x", "y", None, None, None, "no"),
         "use_conv: expected True, False or None, got 'no'."),
        (("regression", 4, 2, "x", "y", None, None, "x"), "mask_name: expected a name that no "
         "other data have, got 'x', which are (T, B, 4) and not (T, B, 1)."),
        (("regression", 4, 2, "x", "x"), "targets_name: expected a name that no other data have, "
         "got 'x', which are (T, B, 4) and not (T, B, 2)."),
        (("regression", 4, 2, "x", "y", None, None, "m", None, True, "m"), "weights_name: expected "
         "a name that no other data have, got 'm', which are (T, B, 1) and not (B, 1)."),
        (("regression", 4, 2, 3), "data_name: expected a text, got 3."),
    ],
)  # fmt: skip
def test_wrong_ends(arguments, message):
    with pytest.raises(ValidationError, match=f"^{re.escape(message)}$"):
        get_in_out_layers(*arguments)


# -- the text -------------------------------------------------------------------------------------

FULL, CONV, POOL = "FullyConnected", "Convolution2D", "Pooling2D"


def window(size, stride=1, padding=0, **options):
    return {"kernel_size": (size, size), "stride": (stride, stride), "padding": padding, **options}


LETTERS = [
    ("F5", FULL, {"size": 5, "activation": "rel"}),
    ("Fl5", FULL, {"size": 5, "activation": "linear"}),
    ("Fr5", FULL, {"size": 5, "activation": "rel"}),
    ("Fs5", FULL, {"size": 5, "activation": "sigmoid"}),
    ("Ft5", FULL, {"size": 5, "activation": "tanh"}),
    ("R5", "Recurrent", {"size": 5, "activation": "tanh"}),
    ("L5", "Lstm", {"size": 5, "activation": "tanh"}),
    ("D", "Dropout", {"drop_prob": 0.5}),
    ("D.2", "Dropout", {"drop_prob": 0.2}),
    ("D0.25", "Dropout", {"drop_prob": 0.25}),
    ("T", "TimePooling", {"type": "last"}),
    ("Tl", "TimePooling", {"type": "last"}),
    ("Ta", "TimePooling", {"type": "avg"}),
    ("Tm", "TimePooling", {"type": "max"}),
    ("Ts", "TimePooling", {"type": "sum"}),
    ("B", "BatchNorm", {}),
    ("C4:3", CONV, window(3, num_filters=4, activation="rel")),
    ("Ct4:3p1s2", CONV, window(3, 2, 1, num_filters=4, activation="tanh")),
    ("C4:3s2", CONV, window(3, 2, num_filters=4, activation="rel")),
    ("P2", POOL, window(2, type="max")),
    ("Pa3p1s2", POOL, window(3, 2, 1, type="avg")),
    ("U2", "Upsampling2D", {"scale": 2, "type": "nearest"}),
    ("Ub3", "Upsampling2D", {"scale": 3, "type": "bilinear"}),
]


@pytest.mark.parametrize(("spec", "kind", "options"), LETTERS, ids=[row[0] for row in LETTERS])
def test_every_letter(spec, kind, options):
    ((found_kind, found),) = hidden(net_from(spec))
    assert found_kind == kind
    assert {name: found[name] for name in options} == options


@pytest.mark.parametrize("spec", ["F5F6", "F5 F6", "F5|F6", "F5/F6", "F 5\n\tF 6", " F:5 | F:6 "])
def test_separators(spec):
    assert [options["size"] for _, options in hidden(net_from(spec))] == [5, 6]
    assert hidden(net_from("")) == []


def test_pooling_over_time_leads_to_one_target_per_sequence():
    net = create_net_from_spec("classification", 3, 2, "L4 F5 Tm F3", mask_name="mask")
    shapes = {name: shape.shape for name, shape in net.layers["Input"].out_shapes.items()}
    assert shapes == {"default": ("T", "B", 3), "targets": ("B", 1), "mask": ("T", "B", 1)}
    masked = [la.name for la in net.layers.values() if "mask" in la.in_shapes]
    assert masked == ["Lstm", "TimePooling"]
    assert "Mask" not in net.layers
    x, mask = np.ones((5, 4, 3)), np.ones((5, 4, 1))
    assert net.predict({"default": x, "mask": mask}).shape == (4, 2)


def test_images_that_become_narrow_and_wide_again():
    spec = "C4:3p1 Pm2s2 C4:3p1 Ub2"
    net = create_net_from_spec("multi-label", (8, 6, 2), (8, 6, 1), spec)
    assert net.predict(np.ones((1, 3, 8, 6, 2))).shape == (1, 3, 8, 6, 1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("F", "spec 'F': expected a whole number (size)."),
        ("F5.5", "spec 'F5.5': expected a whole number (size)."),
        ("Fx5", "spec 'Fx5': expected a whole number (size)."),
        ("F5 6 7", "spec 'F5 6 7': expected nothing more, got '6'."),
        ("F4 B 3\nF5", "spec 'B 3': expected nothing more, got '3'."),
        ("C", "spec 'C': expected a whole number (number of filters)."),
        ("C8", "spec 'C8': expected a whole number (kernel size)."),
        ("C8:3p", "spec 'C8:3p': expected a whole number (after 'p')."),
        ("C8:3s2p1", "spec 'C8:3s2p1': expected nothing more, got 'p'."),
        ("P", "spec 'P': expected a whole number (kernel size)."),
        ("F5-F6", "spec 'F5-F6': unexpected '-' at position 2."),
        ("Dr", "spec 'Dr': expected a number."),
        ("D0.5l", "spec 'D0.5l': expected nothing more, got 'l'."),
        ("5F", "spec '5F': expected a capital letter at the start, one of F, R, L, T, B, D, C, P, "
         "U."),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_understood(spec, message):
    with pytest.raises(NetworkValidationError, match=f"^{re.escape(message)}$"):
        net_from(spec)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (50, NetworkValidationError, r"^spec: expected a text such as .*, got 50\.$"),
        ("D1.5", LayerValidationError, "option 'drop_prob': expected a number in"),
        ("F5 G6", UnknownPathError,
         r"^unknown layer letter in spec 'G'\. Choices are: F, R, L, T, B, D, C, P, U\.$"),
    ],
)  # fmt: skip
def test_what_is_no_text_or_names_no_layer(spec, error, message):
    with pytest.raises(error, match=message):
        net_from(spec)


def test_initialization():
    net = net_from("Ct4:3 B Fs50 L5", mask_name="mask")
    rnd_free = net.layers["FullyConnected"].parameter_shapes["W"].shape
    limit = 4 * np.sqrt(6 / (rnd_free[0] + rnd_free[1]))  # DenseSqrtFanInOut('sigmoid')
    weights = net.get("FullyConnected.parameters.W")
    assert 0.95 * limit < np.abs(weights).max() <= limit
    assert 0 < np.abs(net.get("FullyConnected.parameters.bias")).max() < 1  # Gaussian(0.1)
    assert (net.get("BatchNorm.parameters.gamma") == 1).all()
    assert (net.get("BatchNorm.parameters.beta") == 0).all()
    assert (net.get("Lstm.parameters.pi") != 0).all()
    assert net.output_name == "Output.outputs.predictions"


def test_a_layer_from_its_letter():
    inp, projection = get_in_out_layers("classification", (8, 8, 1), 3)
    inp >> create_layer("C4:3p1") >> create_layer(" Pm2s2 ") >> projection
    net = bs.Network.from_layer(inp)
    assert net.layers["Convolution2D"].kwargs["num_filters"] == 4
    assert net.layers["Pooling2D"].out_shapes["default"].feature_shape == (4, 4, 4)
    for spec in ("", "F4 F5"):
        with pytest.raises(NetworkValidationError, match=f"spec '{spec}': expected one layer, got"):
            create_layer(spec)


@pytest.mark.parametrize("layer", ["F4 ", "B"])
def test_large_networks_are_built_in_linear_time(layer):
    """Function calls are counted, not seconds, which depend on the machine."""

    def calls(size):
        profile = cProfile.Profile()
        profile.runcall(create_net_from_spec, "classification", 4, 2, layer * size)
        return sum(entry.callcount for entry in profile.getstats())

    calls(1)  # what is imported and cached
    assert calls(300) < 3.3 * calls(100)
