"""Networks with a second time S: two sequences of different lengths in one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import DataIterator
from brainstorm.errors import LayerValidationError, NetworkValidationError, OutOfMemoryError
from brainstorm.handlers import Handler, NativeHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import (
    Add,
    BidirectionalWrapper,
    Embedding,
    FullyConnected,
    Gru,
    Input,
    Lstm,
    MultiHeadAttention,
    PositionalEncoding,
    Reverse,
    SoftmaxCE,
    SquaredError,
    TimePooling,
)
from brainstorm.tools import evaluate, extract, generate
from tests.networks import build, checked, data_for, forward, run_passes, wire_loss


def translator(
    handler: Handler | None = None, masked: bool = False, rotary: bool = True, **options: Any
) -> bs.Network:
    """Wire an encoder over S, and a decoder over T that looks at it."""
    shapes: dict[str, Any] = {
        "default": ("T", "B", 1),
        "source": ("S", "B", 1),
        "targets": ("T", "B", 1),
    }
    if masked:
        shapes["mask_s"] = ("S", "B", 1)
    inp = Input(shapes)
    encoder = BidirectionalWrapper(Gru, 4, name="Encoder")
    attention = MultiHeadAttention(2, rotary=rotary, name="Attention")
    decoder, both = Lstm(4, name="Decoder"), Add()
    inp - "source" >> Embedding(5, 4) >> PositionalEncoding() >> encoder >> "memory" - attention
    inp >> Embedding(6, 4) >> decoder >> attention >> "inputs_1" - both
    decoder >> "inputs_2" - both
    wire_loss(inp, both >> FullyConnected(6, "linear"))
    if masked:
        for layer in (encoder, attention):
            inp - "mask_s" >> "mask" - layer
    net = bs.Network.from_layer(inp, seed=1, handler=handler, **options)
    net.initialize(Gaussian(1.0), seed=2)
    return net


def pairs(T: int, B: int, S: int, seed: int = 0) -> dict[str, np.ndarray]:
    rnd = np.random.RandomState(seed)
    return {
        "default": rnd.randint(0, 6, (T, B, 1)),
        "source": rnd.randint(0, 5, (S, B, 1)),
        "targets": rnd.randint(0, 6, (T, B, 1)),
    }


def test_t_and_s_may_be_exchanged() -> None:
    """The same network with the roles of both computes the same."""
    found = []
    for one, other in ("TS", "ST"):
        shapes = {"default": (one, "B", 4), "source": (other, "B", 3)}
        inp, attention = Input(shapes), MultiHeadAttention(2, name="A")
        inp >> Lstm(4) >> attention
        inp - "source" >> Gru(2) >> "memory" - attention >> TimePooling() >> FullyConnected(2)
        net = checked(inp)
        rnd = np.random.RandomState(0)
        data = {"default": rnd.normal(size=(3, 2, 4)), "source": rnd.normal(size=(5, 2, 3))}
        found.append((net.predict(data), net.predict(data, "A.outputs.default")))
    assert found[0][1].shape == (3, 2, 4)
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("handler", [NativeHandler(np.float32), NumpyHandler(float)])
@pytest.mark.parametrize("memory", ["inspectable", "compact"])
def test_changing_sizes_give_what_fresh_networks_give(handler: Handler, memory: str) -> None:
    net = translator(handler, memory=memory)
    stepper = bs.training.SgdStepper(0.1)
    stepper.start(net)
    for T, B, S in [(3, 2, 5), (3, 2, 4), (5, 2, 3), (3, 2, 5), (1, 1, 1), (2, 3, 9)]:
        fresh = translator(handler, memory=memory)
        fresh.handler.set_from_numpy(fresh.buffer.parameters, net.get("parameters"))
        data = pairs(T, B, S, seed=T + S)
        expected = net.get("parameters") - 0.1 * run_passes(fresh, data)
        net.provide_external_data(data)
        stepper.run()
        np.testing.assert_allclose(net.get("parameters"), expected, 1e-5, 1e-6)
        fresh.handler.set_from_numpy(fresh.buffer.parameters, net.get("parameters"))
        np.testing.assert_array_equal(net.predict(data), fresh.predict(data))


def test_all_memory_is_known_before() -> None:
    net = translator(NativeHandler(np.float32))
    report = net.memory(7, 5, S=9)
    assert str(report).startswith("memory for T=7, B=5, S=9\n")
    assert report.layers["Attention"]["internals"] == 4 * (
        2 * 5 * (2 * 7 * 4 + 2 * 9 * 4 + 7 * 2 * 9) + 5 * (7 + 9) * 2
    )
    net.provide_external_data(pairs(7, 5, 9))
    manager = net._buffer_manager
    assert manager.size * manager.item_size == report.total - report.scratch
    assert net.largest_batch(report.total, T=7, S=9) == 5
    planned = [r.total - r.scratch for r in (net.memory(6, 5, S=9), report, net.memory(7, 5, S=10))]
    assert planned == sorted(set(planned))


def test_s_is_given_where_there_is_one() -> None:
    net, text = translator(), r"^S: expected an int >= 0, the second length of this network, got {}"
    for look in (lambda: net.memory(3, 2), lambda: net.largest_batch(10**6)):
        with pytest.raises(NetworkValidationError, match=text.format(r"None\.$")):
            look()
    for wrong in (-1, 2.5, "3", True):
        with pytest.raises(NetworkValidationError, match=text.format(rf"{wrong!r}\.$")):
            net.memory(3, 2, S=wrong)
        with pytest.raises(NetworkValidationError, match=rf"^B: .* >= 0, got {wrong!r}\.$"):
            net.memory(3, wrong, S=4)
    match = r"^S: expected None, because this network has one length, got 4\.$"
    with pytest.raises(NetworkValidationError, match=match):
        build("mlp").memory(3, 2, S=4)


def test_too_much_memory() -> None:
    net = build("two lengths", NumpyHandler(float))
    shapes = {"default": (10, 4), "source": (10**7, 3), "targets": (10, 1)}
    zero = np.zeros(1)
    huge = {name: np.broadcast_to(zero, (n, 10**6, m)) for name, (n, m) in shapes.items()}
    with pytest.raises(OutOfMemoryError, match=r"for T=10, B=1000000, S=10000000\."):
        net.provide_external_data(huge)


# -- what cannot be mixed -----------------------------------------------------------------------


REMEDY = (
    r" T and S are different lengths\. MultiHeadAttention attends from one sequence to the other, "
    r"and TimePooling makes one vector of each\.$"
)


@pytest.mark.parametrize(
    ("layer", "wires", "match"),
    [
        (Lstm(3, name="L"), "source mask-mask",
         r"^layer 'L' \(Lstm\), input 'mask': expected \(S, B, 1\), got \(T, B, 1\) from "
         r"'Input\.outputs\.mask'\." + REMEDY),
        (Lstm(3), "default mask_s-mask",
         r"expected \(T, B, 1\), got \(S, B, 1\) from 'Input\.outputs\.mask_s'\."),
        (FullyConnected(2, name="F"), "default source",
         r"layer 'F', input 'default', .*: cannot join \([TS], B, .\) and \([TS], B, .\)"),
        (Add(name="Sum"), "source-inputs_1 other-inputs_2",
         r"'Sum' \(Add\), input 'inputs_2': expected \(S, B, \.\.\.\), got \(T, B, 3\) from "
         r"'Input\.outputs\.other'\." + REMEDY),
        (SquaredError(name="E"), "other source-targets",
         r"'E' \(SquaredError\), input 'targets': expected \(T, B, \.\.\.\), got \(S, B, 3\)"),
        (MultiHeadAttention(2, causal=True, name="A"), "default source-memory",
         r"^layer 'A' \(MultiHeadAttention\), option 'causal': expected False, because the "
         r"memory has a length of its own \(S\): no step of it is earlier or later than one of "
         r"the other \(T\)\.$"),
        (MultiHeadAttention(2, name="A"), "default source-memory mask-mask",
         r"'A' \(MultiHeadAttention\), input 'mask': expected \(S, B, 1\), got \(T, B, 1\) from "
         r"'Input\.outputs\.mask'\. It is that of the memory\.$"),
    ],
)  # fmt: skip
def test_mixing_both_is_an_error_that_names_both(layer: Any, wires: str, match: str) -> None:
    """In a wire the name of an output of the Input stands before that of an input."""
    shapes = {"default": ("T", "B", 4), "other": ("T", "B", 3), "source": ("S", "B", 3)}
    inp = Input({**shapes, "mask": ("T", "B", 1), "mask_s": ("S", "B", 1)})
    for wire in wires.split():
        output, _, port = wire.partition("-")
        inp - output >> (port or "default") - layer
    with pytest.raises((LayerValidationError, NetworkValidationError), match=match):
        bs.Network.from_layer(inp)


def test_data_of_a_length_agree_and_are_told_apart() -> None:
    net = build("two lengths")
    data = data_for(net)
    net.provide_external_data(data)
    assert (net.time_size, net.source_size) == (3, 5)
    masked = translator(masked=True)
    match = r"data 'mask_s': expected S=5 as in data 'source', got S=4 .* of a batch share S\.$"
    with pytest.raises(NetworkValidationError, match=match):
        masked.provide_external_data({**pairs(3, 2, 5), "mask_s": np.ones((4, 2, 1))})
    match = r"data 'source': expected \(S, B, 3\), got \(5, 2, 1, 3\)\. The same values fit as "
    with pytest.raises(NetworkValidationError, match=match + r"array\.reshape\(S, B, 3\)"):
        net.provide_external_data({**data, "source": data["source"][:, :, None]})


# -- using it -----------------------------------------------------------------------------------


class Pairs(DataIterator):
    """Batches in which both lengths change."""

    def __init__(self) -> None:
        super().__init__({"default": (1,), "source": (1,), "targets": (1,)}, 6)

    def __call__(self, handler: Any = None) -> Any:
        for seed in range(6):
            yield pairs(2 + seed % 2, 3, 2 + seed % 3, seed)


def test_losses_of_batches_with_changing_lengths_are_averaged() -> None:
    net, losses = translator(), []
    for batch in Pairs()():
        forward(net, data=batch, training_pass=False)
        losses.append(net.get_loss_values()["total_loss"])
    assert evaluate(net, Pairs())["total_loss"] == pytest.approx(np.mean(losses))


def test_what_is_over_s_can_be_predicted_and_extracted() -> None:
    net = translator(NumpyHandler(float))
    data = pairs(2, 7, 4)
    whole = net.predict({"source": data["source"]}, "Encoder.outputs.default")
    parts = net.predict({"source": data["source"]}, "Encoder.outputs.default", batch_size=3)
    assert whole.shape == (4, 7, 8)
    np.testing.assert_allclose(parts, whole, 1e-12)
    rows = net.get_rows("Encoder_forward.outputs.default")
    assert rows.shape == (4 * 1, 4)
    with pytest.raises(NetworkValidationError, match="expected sequences of length 2 as before, "):
        extract(net, Pairs(), "Encoder.outputs.default")


def test_the_state_that_is_carried_on_is_that_of_t() -> None:
    """What is over S is whole in every part, and starts from zeros."""
    net, data = translator(NumpyHandler(float), rotary=False), pairs(6, 2, 4)
    whole = net.predict(data)
    state: list[Any] = []
    parts = []
    for start in (0, 2, 4):
        part = {n: a if n == "source" else a[start : start + 2] for n, a in data.items()}
        net.provide_external_data(part)
        net.carry_context(state, continues=start > 0)
        net.forward_pass()
        parts.append(net.get("Out.outputs.predictions"))
    np.testing.assert_allclose(np.concatenate(parts), whole, 1e-10)


@pytest.mark.parametrize("memory", ["inspectable", "compact"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_decoder_writes_what_whole_passes_predict(memory: str, masked: bool) -> None:
    net, data = translator(NumpyHandler(float), masked, memory=memory), pairs(1, 2, 5)
    given = {"default": data["default"][..., 0], "source": data["source"]}
    if masked:
        given["mask_s"] = (np.arange(5) < np.array([[3], [5]])).T[..., None]
    written = generate(net, given, 12, temperature=0)
    assert len(set(written.ravel().tolist())) > 1
    codes = np.concatenate([given["default"], written])[:-1]
    whole = net.predict({**given, "default": codes[..., None]})
    np.testing.assert_array_equal(whole.argmax(axis=2), written)


def test_an_encoder_is_run_once_per_text(monkeypatch: pytest.MonkeyPatch) -> None:
    net, calls = translator(), []
    layer = net.layers["Encoder_forward"]
    run = layer.forward_pass
    monkeypatch.setattr(layer, "forward_pass", lambda *args: calls.append(1) or run(*args))
    generate(net, {"default": [1], "source": np.ones((4, 1, 1))}, 9)
    assert len(calls) == 1


def test_what_looks_from_s_at_t_cannot_be_written_with() -> None:
    inp, out = Input({"default": ("T", "B", 1), "source": ("S", "B", 2)}), SoftmaxCE(name="Out")
    attention = MultiHeadAttention(1, name="A")
    inp - "source" >> attention
    inp >> Embedding(4, 2) >> Lstm(2) >> "memory" - attention >> Reverse()
    attention >> TimePooling() >> FullyConnected(4, "linear") >> out
    inp >> TimePooling(name="Any") >> "targets" - out
    net = bs.Network.from_layer(inp)
    net.initialize(Gaussian(1.0))
    match = r"layer 'A' .*step by step\. Steps over S depend on all those over T\."
    with pytest.raises(LayerValidationError, match=match):
        generate(net, {"default": [1, 2], "source": np.ones((3, 1, 2))}, 3)
