"""Writing step by step gives what passes over whole sequences give."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import brainstorm as bs
from brainstorm import layers as bl
from brainstorm.errors import (
    LayerValidationError,
    MissingDataError,
    NetworkValidationError,
    ValidationError,
)
from brainstorm.handlers import DebugHandler, Handler, NativeHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network.prediction import Prediction
from brainstorm.network.steps import StepByStep
from brainstorm.structure import ConstructionWrapper
from brainstorm.tools import generate, generation
from tests.networks import chain, wire_loss

CLASSES = 6
START = [3, 1, 5, 5]


def block(attention: ConstructionWrapper) -> ConstructionWrapper:
    """Wire positions >> total, and attention beside."""
    first, total = bl.PositionalEncoding(), bl.Add()
    first >> "inputs_1" - total
    first >> attention >> bl.LayerNorm() >> "inputs_2" - total
    return ConstructionWrapper(total.layer, entries={"default": [first]})


def repeated(pooling: ConstructionWrapper) -> ConstructionWrapper:
    """Wire pooling >> repetition."""
    repetition = pooling >> bl.RepeatOverTime()
    return ConstructionWrapper(repetition.layer, entries={"default": [pooling]})


def make_network(
    *middle: ConstructionWrapper,
    handler: Handler | None = None,
    features: int = 1,
    per_sequence: bool = False,
    **options: Any,
) -> bs.Network:
    shape = ("B", 1) if per_sequence else ("T", "B", 1)
    inp = bl.Input({"default": ("T", "B", features), "targets": shape})
    first = bl.Embedding(CLASSES, 4) if features == 1 else bl.FullyConnected(4, "linear")
    wire_loss(inp, chain(inp, first, *middle, bl.FullyConnected(CLASSES, "linear")))
    net = bs.Network.from_layer(inp, seed=1, handler=handler, **options)
    net.output_name = "Out.outputs.predictions"
    clocks = {n: {"timing": [1, 2, 3, 4]} for n in net.layers if n.startswith("Clock")}
    net.initialize({"default": Gaussian(1.0), **clocks}, seed=2)
    return net


def probabilities_of_steps(net: bs.Network, codes: np.ndarray, first: int) -> np.ndarray:
    """Return what follows after so many steps (T, B, 1) and after each of the others."""
    with net.alone():
        prediction = Prediction.of(net.layers, (net.output_name,), ("default",))
        steps = StepByStep(net, prediction, len(codes))
        rows = [steps.begin({"default": codes[:first]})]
        rows += [steps.go_on({"default": codes[t : t + 1]}) for t in range(first, len(codes))]
    return np.array(rows)


MIDDLES: dict[str, Callable[[], list[ConstructionWrapper]]] = {
    "nothing": lambda: [bl.FullyConnected(4, "tanh")],
    "recurrent": lambda: [bl.Recurrent(4)],
    "gru twice": lambda: [bl.Gru(3), bl.Dropout(0.5), bl.Gru(4)],
    "clockwork": lambda: [bl.Clockwork(4)],
    "clockwork lstm": lambda: [bl.ClockworkLstm(4)],
    "attention": lambda: [block(bl.MultiHeadSelfAttention(2, causal=True))],
    "learned positions": lambda: [
        bl.LearnedPositionalEncoding(20),
        bl.MultiHeadSelfAttention(2, 6, causal=True),
    ],
    "rotary": lambda: [bl.MultiHeadSelfAttention(1, causal=True, rotary=True)],
    "both": lambda: [block(bl.MultiHeadSelfAttention(1, causal=True)), bl.Lstm(3)],
}
HANDLERS = {
    "native": lambda: NativeHandler(np.float32),
    "numpy": lambda: NumpyHandler(float),
    "debug": lambda: DebugHandler(NumpyHandler(float)),
}
CODES = np.random.RandomState(0).randint(0, CLASSES, (12, 3, 1))


@pytest.mark.parametrize("name", MIDDLES)
@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("native", "inspectable"),
        ("native", "compact"),
        ("numpy", "compact"),
        ("debug", "inspectable"),
    ],
)
def test_steps_are_those_of_whole_passes(name: str, kind: str, memory: str) -> None:
    net = make_network(*MIDDLES[name](), handler=HANDLERS[kind](), memory=memory)
    whole = net.predict(CODES.astype(float))
    for first in (1, 5, 12):
        found = probabilities_of_steps(net, CODES.astype(float), first)
        np.testing.assert_allclose(found, whole[first - 1 :], 1e-4, 1e-5)


def test_what_is_written_is_read(replay: None) -> None:
    """Each class that was written is the most probable one after all before it."""
    net = make_network(*MIDDLES["both"]())
    start = np.array([START, [0, 1, 2, 3]]).T
    together = generate(net, start, 20, temperature=0)
    assert together.shape == (20, 2)
    assert len(set(together.ravel().tolist())) > 1
    codes = np.concatenate([start, together])[:-1, :, None]
    np.testing.assert_array_equal(net.predict(codes)[3:].argmax(axis=2), together)
    for b in range(2):  # several sequences are written as each alone
        np.testing.assert_array_equal(together[:, b], generate(net, start[:, b], 20, 0))
    np.testing.assert_array_equal(generate(net, start[..., None], 20, 0), together[..., None])
    assert generate(net, START, 0).shape == (0,)
    assert generate(net, start, 0).shape == (0, 2)


def test_classes_may_be_read_as_vectors_and_predicted_once_per_sequence() -> None:
    for kind in ("last", "avg", "max", "sum"):
        net = make_network(bl.Lstm(4), bl.TimePooling(kind), features=CLASSES, per_sequence=True)
        codes = [*START, *generate(net, START, 8, temperature=0)]
        for end in range(4, 12):
            vectors = np.eye(CLASSES)[codes[:end]][:, None]
            assert net.predict(vectors)[0].argmax() == codes[end]


def test_classes_are_drawn_with_their_probabilities() -> None:
    net = make_network(bl.FullyConnected(4, "tanh"), handler=NumpyHandler(float))
    start = np.zeros((1, 20_000))
    p = net.predict(start[:, :1, None])[0, 0]
    for temperature in (0.5, 1.0, 2.0):
        drawn = np.bincount(generate(net, start, 1, temperature, seed=3)[0], minlength=CLASSES)
        expected = p ** (1 / temperature)
        np.testing.assert_allclose(drawn / 20_000, expected / expected.sum(), atol=0.02)


@pytest.mark.parametrize("temperature", [1e-300, 1e-320, Fraction(1, 10**9), np.float32(1e-45)])
def test_the_coldest_writing_takes_the_most_probable_class(temperature: Any) -> None:
    net = make_network(bl.FullyConnected(4, "tanh"))
    coldest = generate(net, START, 10, temperature=0)
    assert coldest.any()
    np.testing.assert_array_equal(generate(net, START, 10, temperature), coldest)


def test_impossible_classes_are_not_drawn() -> None:
    class Always(float):
        def random_sample(self, shape: tuple[int, ...]) -> np.ndarray:
            return np.full(shape, self)

    p = np.array([[0.0, 0.3, 0.7, 0.0], [1.0, 0.0, 0.0, 0.0]])
    for rnd in (Always(0), Always(np.nextafter(1, 0)), bs.randomness.RandomState(0)):
        for temperature in (1e-9, 1.0, 1e9):
            first, second = generation._draw(p, temperature, rnd)  # type: ignore[arg-type]
            assert first in (1, 2)
            assert second == 0


def test_a_seed_repeats_what_is_written() -> None:
    net = make_network(bl.Lstm(4))
    first, again, other = (generate(net, START, 30, seed=seed).tolist() for seed in (1, 1, 2))
    assert first == again != other
    bs.global_rnd.set_seed(5)
    unseeded = generate(net, START, 30).tolist()
    bs.global_rnd.set_seed(5)
    assert generate(net, START, 30).tolist() == unseeded


def masked_network() -> bs.Network:
    inp = bl.Input(dict.fromkeys(("default", "targets", "mask"), ("T", "B", 1)))
    attention, lstm = bl.MultiHeadSelfAttention(2, causal=True), bl.Lstm(4)
    layers = bl.Embedding(CLASSES, 4), attention, lstm, bl.FullyConnected(CLASSES, "linear")
    wire_loss(inp, chain(inp, *layers))
    for layer in (attention, lstm):
        inp - "mask" >> "mask" - layer
    net = bs.Network.from_layer(inp, handler=NumpyHandler(float))
    net.initialize(Gaussian(2.0), seed=4)
    return net


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_inputs_are_given_for_all_steps_that_are_read(seed: int) -> None:
    net, mask = masked_network(), np.random.RandomState(seed).randint(0, 2, (10, 1, 1))
    mask[0] = 1
    written = generate(net, {"default": START, "mask": mask}, 7, temperature=0)
    codes = np.concatenate([START, written])[:-1].reshape(-1, 1, 1)
    whole = net.predict({"default": codes, "mask": mask})
    np.testing.assert_array_equal(whole[3:, 0].argmax(axis=1), written)
    other = net.predict({"default": codes, "mask": np.ones((10, 1, 1))})
    assert not np.allclose(other[4:], whole[4:], rtol=0.01)


def described_network(handler: Handler) -> bs.Network:
    """Return a network that writes about a vector, which it reads at every step."""
    inp = bl.Input({"default": ("T", "B", 1), "targets": ("T", "B", 1), "image": ("B", 3)})
    both = bl.Merge()
    inp >> bl.Embedding(CLASSES, 4) >> "inputs_1" - both
    inp - "image" >> bl.FullyConnected(4, "tanh") >> bl.RepeatOverTime() >> "inputs_2" - both
    wire_loss(inp, chain(both, bl.Lstm(4), bl.FullyConnected(CLASSES, "linear")))
    net = bs.Network.from_layer(inp, handler=handler)
    net.initialize(Gaussian(2.0), seed=4)
    return net


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_vector_is_read_at_every_step(kind: str, replay: None) -> None:
    net, image = described_network(HANDLERS[kind]()), np.random.RandomState(0).normal(size=(2, 3))
    start = np.array([START, [0, 1, 2, 3]]).T
    written = generate(net, {"default": start, "image": image}, 9, temperature=0)
    codes = np.concatenate([start, written])[:-1, :, None]
    whole = net.predict({"default": codes, "image": image})
    np.testing.assert_array_equal(whole[3:].argmax(axis=2), written)
    other = net.predict({"default": codes, "image": -image})
    assert not np.allclose(other[-1], whole[-1], rtol=0.01)


def test_writing_leaves_no_traces_in_the_network() -> None:
    """Neither in parameters, nor in predictions and trainings that follow."""
    net = make_network(*MIDDLES["both"]())
    before, parameters = net.predict(CODES), net.get("parameters")
    generate(net, START, 5)
    np.testing.assert_array_equal(net.predict(CODES), before)
    np.testing.assert_array_equal(net.get("parameters"), parameters)
    net.set_handler(NumpyHandler(float))
    np.testing.assert_allclose(net.predict(CODES), before, 1e-4, 1e-6)
    generate(net, START, 5)


def test_a_batch_is_lost_by_writing() -> None:
    net = make_network(*MIDDLES["both"]())
    codes = np.array(START[:1])[:, None, None]
    net.provide_external_data({"default": codes, "targets": codes})
    generate(net, START[:1], 1)
    with pytest.raises(MissingDataError, match="data for 'targets' is missing"):
        net.check_complete()


# -- what is refused ----------------------------------------------------------------------------

STEP_BY_STEP = "expected a layer that computes step by step"
TEMPERATURE = "temperature: expected a finite number >= 0"
EARLIER = "Recurrent layers in one direction and causal attention look at earlier steps alone"


@pytest.mark.parametrize(
    ("middle", "match"),
    [
        (lambda: bl.BidirectionalWrapper(bl.Lstm, 4, name="Both"),
         rf"layer 'Both_reversed' \(Reverse\): {STEP_BY_STEP}\. Its outputs depend on more than "
         rf"the steps before\. {EARLIER}\.$"),
        (lambda: bl.Reverse(), rf"layer 'Reverse' \(Reverse\): {STEP_BY_STEP}\."),
        (lambda: bl.MultiHeadSelfAttention(2),
         rf"layer 'MultiHeadSelfAttention' \(MultiHeadSelfAttention\): {STEP_BY_STEP}\. Without "
         rf"causal=True every step looks at all others\. {EARLIER}\.$"),
        (lambda: repeated(bl.TimePooling()),
         rf"layer 'RepeatOverTime' \(RepeatOverTime\): {STEP_BY_STEP}\. It repeats what depends on "
         rf"all steps\. {EARLIER}\.$"),
        (lambda: bl.LearnedPositionalEncoding(9),
         r"expected at most max_length=9 time steps, got T=10\. Make max_length larger"),
    ],
)  # fmt: skip
def test_what_looks_ahead_is_refused_before_anything_is_computed(
    middle: Callable[[], ConstructionWrapper], match: str
) -> None:
    net = make_network(middle())
    net.provide_external_data({"default": CODES, "targets": CODES})
    with pytest.raises(LayerValidationError, match=match):
        generate(net, START, 7)
    assert net.time_size == 12


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"steps": -1}, ValidationError, r"generate, steps: expected an int >= 0, got -1"),
        ({"steps": 2.0}, ValidationError, r"steps: expected an int >= 0, got 2\.0"),
        ({"steps": True}, ValidationError, r"steps: expected an int >= 0, got True"),
        *(({"temperature": wrong}, ValidationError, f"{TEMPERATURE}, got {str(wrong)[:4]}")
          for wrong in (-0.5, np.nan, 10**400, True)),
        ({"temperature": "warm"}, ValidationError, f"{TEMPERATURE}, got 'warm'"),
        ({"seed": -1}, ValidationError, r"seed"),
        ({"start": []}, ValidationError, r"at least one, got \(0,\)"),
        ({"start": np.zeros((1, 1, 1, 1))}, ValidationError,
         r"start: expected class numbers \(T,\), \(T, B\) or \(T, B, 1\)"),
        ({"start": np.zeros((2, 1, 3))}, ValidationError, r"at least one, got \(2, 1, 3\)"),
        ({"start": "abc"}, NetworkValidationError,
         r"data .default.: expected numbers, got dtype <U3"),
        ({"start": [0, 6]}, LayerValidationError, r"whole numbers in \[0, 6\), got 6 at index"),
        ({"start": {"mask": START}}, MissingDataError,
         r"start: expected classes for input 'default' of \['default', 'targets'\], got data "
         r"for \['mask'\]"),
        ({"start": {"default": START, "targets": np.zeros((4, 1, 1))}}, ValidationError,
         r"'targets': expected data for all 6 steps that are read \(those of 'default', and all "
         r"written but the last\), got the shape \(4, 1, 1\)"),
        ({"start": {"default": START, "targets": np.zeros((6, 2, 1))}}, NetworkValidationError,
         r"data 'targets': expected B=1 as in data 'default', got B=2"),
    ],
)  # fmt: skip
def test_arguments_that_are_not_in_order(options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        generate(make_network(bl.Lstm(4)), **{"start": START, "steps": 3, **options})


@pytest.mark.parametrize("wrong", [6, -1, 0.5, np.nan])
def test_classes_that_are_read_as_vectors_are_in_range(wrong: float) -> None:
    net = make_network(bl.Lstm(4), features=CLASSES)
    match = (
        rf"^generate, start: expected whole numbers in \[0, 6\), because 'default' takes them as "
        rf"vectors, got \[1(\.0)?, {wrong}\]\.$"
    )
    with pytest.raises(ValidationError, match=match):
        generate(net, [1, wrong], 3)


def test_a_mask_is_not_forgotten() -> None:
    with pytest.raises(MissingDataError, match="data for 'mask' is missing: it is input 'mask' of"):
        generate(masked_network(), START, 3)


def test_predictions_are_probabilities_of_the_classes_that_are_read() -> None:
    net = make_network(bl.Lstm(4))
    net.output_name = "Lstm.outputs.default"
    match = (
        r"^generate: expected probabilities that add up to 1 as the prediction, got \[.*\], the "
        r"sum of all being .*\. Set net\.output_name to the output 'predictions' of a SoftmaxCE\.$"
    )
    with pytest.raises(ValidationError, match=match):
        generate(net, START, 3)
    net = make_network(bl.Lstm(4), features=5)
    match = (
        r"^generate: expected an input 'default' \(T, B, 1\), or with as many features as "
        r"there are classes, got \(T, B, 5\) and for the prediction 'Out\.outputs\.predictions' "
        r"\(T, B, 6\)\.$"
    )
    with pytest.raises(ValidationError, match=match):
        generate(net, START, 3)
