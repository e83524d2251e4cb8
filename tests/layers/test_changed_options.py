"""Options that are set after a layer was created: they take effect, or are refused."""

from __future__ import annotations

import gc
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.constraints import number
from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.network import Network
from brainstorm.optree import Formula
from brainstorm.structure import ConstructionWrapper
from brainstorm.testing import build_layer
from brainstorm.training import SgdStepper
from tests.layers.cases import CASES
from tests.networks import batch_for, classifier


def network(factor: float = 0.7, prob: float = 0.0, decay: float = 0.9, epsilon: float = 1e-5):
    """Return a network with all options that may be changed, in float64."""
    hidden = (
        bl.FullyConnected(5, "tanh"),
        bl.DeltasScaling(factor),
        bl.BatchNorm(decay=decay, epsilon=epsilon),
        bl.Dropout(prob),
    )
    net = Network.from_layer(classifier(*hidden), seed=1, handler=NumpyHandler(np.float64))
    net.initialize(0.3, seed=2)
    net.output_name = "Out.outputs.predictions"
    return net


def steps(net: Network) -> dict[str, Any]:
    """Return what two steps and a prediction give."""
    stepper, batch = SgdStepper(0.1), batch_for(2, 6)
    stepper.start(net)
    for _ in range(2):
        net.provide_external_data(batch)
        stepper.run()
    found = {path: net.get(path) for path in ("parameters", *net.persistent_paths)}
    return {**found, "loss": net.get_loss_values(), "predicted": net.predict(batch["default"])}


CHANGES = {
    "Dropout": ({"drop_prob": 0.2}, {"prob": 0.2}),
    "DeltasScaling": ({"factor": -2}, {"factor": -2.0}),
    "BatchNorm": ({"decay": 0.5, "epsilon": Fraction(1, 8)}, {"decay": 0.5, "epsilon": 0.125}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_option_has_effect_and_is_copied_and_saved(name: str, tmp_path: Any) -> None:
    options, constructed = CHANGES[name]
    net, expected = network(), steps(network(**constructed))
    for option, value in options.items():
        setattr(net.layers[name], option, value)
    net.save_as_hdf5(tmp_path / "net.hdf5")
    for same in (net, net.copy(), Network.from_hdf5(tmp_path / "net.hdf5")):
        assert same.architecture[name].items() >= options.items()
        if same is net or name != "Dropout":  # a file has no random numbers
            np.testing.assert_equal(steps(same), expected)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(steps(network()), expected)


def test_the_importance_of_a_loss_is_changed_between_replayed_steps() -> None:
    net, expected = network(), network()
    steps(net)
    steps(expected)
    net.layers["Loss"].importance, before = 3.0, net.get("parameters")
    net.provide_external_data(batch_for(2, 6))
    expected.provide_external_data(batch_for(2, 6))
    for one in (net, expected):
        one.forward_pass(training_pass=True)
        one.backward_pass()
    np.testing.assert_array_equal(net.get("parameters"), before)
    np.testing.assert_allclose(net.get("gradients"), 3 * expected.get("gradients"), 1e-12)
    assert net.architecture["Loss"]["importance"] == 3.0


@pytest.mark.parametrize("name", ["Dropout", "DeltasScaling", "BatchNorm", "Loss"])
def test_numbers_that_change_at_every_step_do_not_fill_the_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 40
    monkeypatch.setattr(sys.modules["brainstorm.optree.formula"], "MOST_FORMULAS", most)
    net, batch, counts = network(), batch_for(2, 6), []
    for step in range(2 * most):
        for option in net.layers[name].changeable_kwargs:
            setattr(net.layers[name], option, (step + 1) / 1e4)
        net.provide_external_data(batch)
        net.forward_pass(training_pass=True)
        net.backward_pass()
        net.forward_pass()
        if step % most == most - 1:
            gc.collect()
            counts.append(sum(type(one) is Formula for one in gc.get_objects()))
    assert counts[1] < counts[0] + 20


ONE_OF_EACH = {case.create().layer.layer_type: case for case in CASES}


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_every_other_option_is_fixed(kind: str) -> None:
    case = ONE_OF_EACH[kind]
    layer = build_layer(case.create(), case.in_shapes)
    for option in set(layer.expected_kwargs) - set(layer.changeable_kwargs):
        before = dict(vars(layer))
        with pytest.raises(LayerValidationError, match=f"'{option}': it is fixed when the network"):
            setattr(layer, option, 1)
        assert vars(layer) == before


def test_a_changed_option_is_checked() -> None:
    net = network()
    for name, option, value in (("Dropout", "drop_prob", 1.0), ("Loss", "importance", "much")):
        before = net.architecture
        with pytest.raises(LayerValidationError, match=f"option '{option}': expected a"):
            setattr(net.layers[name], option, value)
        assert net.architecture == before


@pytest.mark.parametrize("changeable", [(), ("count",)])
@pytest.mark.parametrize("expected", [("count",), {"count": number(0)}], ids=["names", "checked"])
def test_options_of_own_layers_are_kept_if_the_class_says_so(changeable, expected):
    """Else they may be counters, for instance, as in layers for Brainstorm 2015."""

    is_checked = isinstance(expected, dict)

    class CountingLayerImpl(bl.Layer):
        expected_kwargs = {**expected, "unread": number(0)} if is_checked else (*expected, "unread")
        changeable_kwargs = changeable

        def setup(self, kwargs, in_shapes):
            self.count = kwargs.get("count", 0)
            return {"default": in_shapes["default"]}, {}, {}

    own = ConstructionWrapper.create(CountingLayerImpl)
    layer = build_layer(own, {"default": ("T", "B", 2)})
    layer.count += 1
    assert (layer.count, layer.kwargs) == (1, {"count": 1} if changeable else {})
    with pytest.raises(LayerValidationError, match="'unread': it is fixed when the network"):
        layer.unread = 2
    if changeable and is_checked:
        with pytest.raises(LayerValidationError, match="'count': expected a finite number >= 0"):
            layer.count = -1


def test_options_that_a_layer_does_not_have_are_refused() -> None:
    layer = network().layers["Dropout"]
    text = (
        r"^layer 'Dropout' \(Dropout\): unknown option that can be changed 'dropprob'\. Choices "
        r"are: drop_prob\. Did you mean 'drop_prob'\?$"
    )
    with pytest.raises(LayerValidationError, match=text):
        layer.dropprob = 0.1  # type: ignore[attr-defined]
    layer._note = layer.forward_pass = layer.backward_pass  # type: ignore[attr-defined]
