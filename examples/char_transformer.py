"""A transformer that writes docstrings
====================================

A transformer learns to write docstrings, character by character.

Shows how its blocks are built from layers: causal self-attention and a feed-forward part, each with
normalization and a residual connection; and a custom data iterator, which draws random windows of
the text. On held-out text, the network needs fewer bits per character than a model of the
frequencies of three consecutive characters. Takes two minutes on two cores.

To run it::

    python examples/char_transformer.py
"""

import numpy as np
from char_text import CHARACTERS, BitsPerCharacter, baseline_bits, decode, encode, load_text

import brainstorm as bs
from brainstorm.data_iterators import DataIterator, Minibatches
from brainstorm.hooks import (
    ModifyStepperAttribute,
    MonitorScores,
    ProgressBar,
    StopAfterEpoch,
    StopOnNan,
)
from brainstorm.initializers import DenseSqrtFanIn, Gaussian
from brainstorm.layers import (
    Add,
    Embedding,
    FullyConnected,
    LayerNorm,
    MultiHeadSelfAttention,
    PositionalEncoding,
)
from brainstorm.training import AdamStepper, Cosine, Warmup
from brainstorm.value_modifiers import ClipValues

TEXT_SIZE = 600_000
SIZE = 128  # of the vector for a character
HEADS = 4
BLOCKS = 2
WINDOWS = 32  # in a batch
STEPS = 64  # of a window
EPOCHS = 8
EPOCH_LENGTH = 100  # batches
LEARNING_RATE = 0.003
WARMUP = 100  # batches
PROMPT = "\n\nReturn the "
SAMPLE_SIZE = 300
TEMPERATURE = 0.6


class RandomWindows(DataIterator):
    """Batches of windows (T=STEPS, B=WINDOWS, 1) at random positions of a text."""

    def __init__(self, codes):
        super().__init__({"default": (1,), "targets": (1,)}, EPOCH_LENGTH)
        self.windows = make_windows(codes)

    def __call__(self, handler=None):
        """Yield the batches of one epoch."""
        for _ in range(self.length):
            yield as_batch(self.windows[self.rnd.randint(0, len(self.windows), WINDOWS)])


def make_windows(codes):
    """Return a view of all windows (N, STEPS + 1) of a text."""
    return np.lib.stride_tricks.sliding_window_view(codes, STEPS + 1)


def as_batch(windows):
    """Return windows as data (T, B, 1); the target is the next character."""
    return {"default": windows[:, :-1].T[..., None], "targets": windows[:, 1:].T[..., None]}


def residual(last, *layers):
    """Connect last + layers(LayerNorm(last)), and return the sum."""
    total = Add()
    last >> "inputs_1" - total
    last >>= LayerNorm()
    for layer in layers:
        last >>= layer
    last >> "inputs_2" - total
    return total


def make_network():
    """Connect the blocks, and initialize the network."""
    inp, projection = bs.tools.get_in_out_layers("classification", 1, len(CHARACTERS))
    last = inp >> Embedding(len(CHARACTERS), SIZE) >> PositionalEncoding()
    for _ in range(BLOCKS):
        last = residual(last, MultiHeadSelfAttention(HEADS, causal=True))
        last = residual(last, FullyConnected(4 * SIZE, "rel"), FullyConnected(SIZE, "linear"))
    last >> LayerNorm() >> projection
    net = bs.Network.from_layer(projection)
    net.output_name = "Output.outputs.predictions"
    net.initialize(
        {"*": {"b*": 0, "gamma": 1}, "Embedding": {"W": Gaussian(1.0)}},
        default=DenseSqrtFanIn("linear"),
    )
    net.set_gradient_modifiers(ClipValues(-5.0, 5.0))
    return net


def train(net, training, held_out):
    """Train, and return the bits per held-out character before and after each epoch."""
    trainer = bs.Trainer(AdamStepper(LEARNING_RATE))
    trainer.train_scorers = [BitsPerCharacter()]
    trainer.add_hook(ProgressBar())
    schedule = Warmup(WARMUP, Cosine(LEARNING_RATE, 0.0, EPOCHS * EPOCH_LENGTH - WARMUP))
    trainer.add_hook(ModifyStepperAttribute(schedule, timescale="update"))
    trainer.add_hook(MonitorScores("held_out", [BitsPerCharacter()], name="held_out_text"))
    trainer.add_hook(StopOnNan())
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, training, held_out=held_out)
    return trainer.logs["held_out_text.BitsPerCharacter"]


def write(net, prompt, size):
    """Return `size` characters that the network writes after a prompt.

    It was trained with windows of STEPS characters, and reads no more of them at a time.
    """
    codes, half = list(encode(prompt)), STEPS // 2
    for seed in range(-(-size // half)):
        codes += bs.tools.generate(net, codes[-half:], half, TEMPERATURE, seed).tolist()
    return decode(codes[len(prompt) :][:size])


def main():
    """Return the bits per held-out character during training, and a sample."""
    bs.global_rnd.set_seed(42)
    training, held_out = load_text(TEXT_SIZE)
    net = make_network()
    print(net)
    windows = as_batch(make_windows(held_out)[::STEPS])  # every character once
    bits = train(net, RandomWindows(training), Minibatches(WINDOWS, shuffle=False, **windows))
    sample = write(net, PROMPT, SAMPLE_SIZE)
    print(f"\nbits per character, on {held_out.size:,} characters held out:")
    print(f"  {baseline_bits(training, held_out):.3f} by the frequencies of three characters")
    print(f"  {bits[-1]:.3f} by the network, also at the start of windows")
    print(f"\na sample:{PROMPT}{sample}")
    return bits, sample


if __name__ == "__main__":
    main()
