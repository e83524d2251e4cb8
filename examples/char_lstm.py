"""An LSTM that writes docstrings
==============================

An LSTM learns to write docstrings, character by character.

Shows truncated backpropagation with carried context: the text is read in streams, divided into
short chunks, and the state of the LSTM is carried from chunk to chunk. Samples are generated one
character per step. On held-out text, the network needs far fewer bits per character than a model of
the frequencies of three consecutive characters. Takes two minutes on two cores.

To run it::

    python examples/char_lstm.py
"""

from char_text import CHARACTERS, BitsPerCharacter, baseline_bits, decode, encode, load_text

import brainstorm as bs
from brainstorm.data_iterators import SequenceChunks
from brainstorm.hooks import (
    ModifyStepperAttribute,
    MonitorScores,
    ProgressBar,
    StopAfterEpoch,
    StopOnNan,
)
from brainstorm.initializers import DenseSqrtFanIn, Gaussian, Orthogonal
from brainstorm.layers import Embedding, Lstm
from brainstorm.training import AdamStepper, Cosine
from brainstorm.value_modifiers import ClipValues

TEXT_SIZE = 600_000
SIZE = 256  # of the LSTM
STREAMS = 32  # read in parallel
STEPS = 64  # of a chunk
EPOCHS = 4
LEARNING_RATE = 0.005
PROMPT = "\n\nReturn the "
SAMPLE_SIZE = 300
TEMPERATURE = 0.6


def make_streams(codes, count):
    """Return chunks of `count` streams (T, B=count, 1); the target is the next character."""
    steps = (codes.size - 1) // count
    characters, targets = (
        codes[start : start + steps * count].reshape(count, steps).T[..., None] for start in (0, 1)
    )
    return SequenceChunks(STEPS, count, shuffle=False, default=characters, targets=targets)


def make_network():
    """Connect Embedding >> Lstm >> projection, and initialize the network."""
    inp, projection = bs.tools.get_in_out_layers("classification", 1, len(CHARACTERS))
    inp >> Embedding(len(CHARACTERS), 64) >> Lstm(SIZE) >> projection
    net = bs.Network.from_layer(projection)
    net.output_name = "Output.outputs.predictions"
    net.initialize(
        {
            "Embedding": Gaussian(1.0),
            "Lstm": {"W*": DenseSqrtFanIn("tanh"), "R*": Orthogonal(), "bf": 1.0, "default": 0},
            "Output_projection": {"W": DenseSqrtFanIn("linear"), "bias": 0},
        }
    )
    net.set_gradient_modifiers(ClipValues(-5.0, 5.0))
    return net


def train(net, training, held_out):
    """Train, and return the bits per held-out character before and after each epoch."""
    trainer = bs.Trainer(AdamStepper(LEARNING_RATE))
    trainer.train_scorers = [BitsPerCharacter()]
    trainer.add_hook(ProgressBar())
    schedule = Cosine(LEARNING_RATE, 0.0, EPOCHS * training.length)
    trainer.add_hook(ModifyStepperAttribute(schedule, timescale="update"))
    trainer.add_hook(MonitorScores("held_out", [BitsPerCharacter()], name="held_out_text"))
    trainer.add_hook(StopOnNan())
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, training, held_out=held_out)
    return trainer.logs["held_out_text.BitsPerCharacter"]


def write(net, prompt, size):
    """Return `size` characters that the network generates after a prompt."""
    return decode(bs.tools.generate(net, encode(prompt), size, TEMPERATURE, seed=1))


def main():
    """Return the bits per held-out character during training, and a sample."""
    bs.global_rnd.set_seed(42)
    training, held_out = load_text(TEXT_SIZE)
    net = make_network()
    print(net)
    bits = train(net, make_streams(training, STREAMS), make_streams(held_out, STREAMS))
    sample = write(net, PROMPT, SAMPLE_SIZE)
    print(f"\nbits per character, on {held_out.size:,} characters held out:")
    print(f"  {baseline_bits(training, held_out):.3f} by the frequencies of three characters")
    print(f"  {bits[-1]:.3f} by the network")
    print(f"\na sample:{PROMPT}{sample}")
    return bits, sample


if __name__ == "__main__":
    main()
