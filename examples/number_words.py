"""Numbers to words
================

A network reads numbers, digit by digit, and translates them into words: 4072, four thousand
seventy two.

Shows two lengths in one network: a bidirectional encoder reads the digits over S, and a decoder
generates the words over T, with attention to the digits. Training data are pairs of sequences,
batched by both lengths. After training, the network translates held-out numbers, taking the most
probable word in each step; at least 95 % should be completely correct. Takes a minute on two cores.

To run it::

    python examples/number_words.py
"""

import numpy as np

import brainstorm as bs
from brainstorm.data_iterators import BucketedMinibatches
from brainstorm.hooks import ModifyStepperAttribute, ProgressBar, StopAfterEpoch
from brainstorm.initializers import DenseSqrtFanIn, Gaussian
from brainstorm.layers import (
    Add,
    BidirectionalWrapper,
    Embedding,
    FullyConnected,
    Gru,
    Input,
    Loss,
    Mask,
    MultiHeadAttention,
    SoftmaxCE,
)
from brainstorm.training import AdamStepper, Cosine

ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
WORDS = ["", *ONES, *TENS, "hundred", "thousand"]  # the first marks the beginning and the end

LARGEST, MOST_WORDS = 999_999, 9
TRAINING = 10_000  # numbers
HELD_OUT = 500
SIZE = 64
EPOCHS = 12
BATCH = 50
LEARNING_RATE = 0.01


def in_words(number):
    """Return the words of a number below a million."""
    if number < 20:
        return [ONES[number]]
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if number >= unit:
            rest = in_words(number % unit) if number % unit else []
            return [*in_words(number // unit), name, *rest]
    return [TENS[number // 10 - 2], *([ONES[number % 10]] if number % 10 else [])]


def draw_numbers():
    """Return numbers for training and held-out numbers, of all lengths."""
    rnd = np.random.RandomState(0)
    drawn = rnd.uniform(0, np.log(LARGEST + 1), 4 * (TRAINING + HELD_OUT))
    numbers = list(dict.fromkeys(np.exp(drawn).astype(int).tolist()))
    return numbers[HELD_OUT:][:TRAINING], numbers[:HELD_OUT]


def make_pairs(numbers):
    """Return lists of sequences: digits, words as input, and words as targets."""
    digits = [np.array([[int(digit)] for digit in str(number)]) for number in numbers]
    words = [np.array([[WORDS.index(word)] for word in in_words(n)]) for n in numbers]
    border = np.zeros((1, 1), int)
    return {
        "source": digits,
        "default": [np.concatenate([border, row]) for row in words],
        "targets": [np.concatenate([row, border]) for row in words],
    }


def make_network():
    """Connect encoder, attention and decoder, and initialize the network."""
    times = {"default": "T", "targets": "T", "mask": "T", "source": "S", "mask_s": "S"}
    inp = Input({name: (time, "B", 1) for name, time in times.items()})
    encoder = BidirectionalWrapper(Gru, SIZE // 2, name="Encoder")
    decoder, attention = Gru(SIZE, name="Decoder"), MultiHeadAttention(4, name="Attention")
    both, out, counted = Add(), SoftmaxCE(name="Output"), Mask()
    inp - "source" >> Embedding(10, SIZE) >> encoder >> "memory" - attention
    inp - "mask_s" >> "mask" - encoder
    inp - "mask_s" >> "mask" - attention
    inp >> Embedding(len(WORDS), SIZE) >> decoder >> "inputs_1" - both
    decoder >> attention >> "inputs_2" - both
    both >> FullyConnected(SIZE, "rel") >> FullyConnected(len(WORDS), "linear") >> out
    inp - "targets" >> "targets" - out - "loss" >> counted >> Loss()
    inp - "mask" >> "mask" - counted
    net = bs.Network.from_layer(inp)
    net.output_name = "Output.outputs.predictions"
    net.initialize({"*": {"b*": 0}, "Embedding*": Gaussian(1.0)}, default=DenseSqrtFanIn("linear"))
    return net


def train(net, numbers):
    """Train, and return the losses per word."""
    pairs = BucketedMinibatches(BATCH, over_s=["source"], **make_pairs(numbers))
    stepper = AdamStepper(LEARNING_RATE)
    stepper.max_gradient_norm = 1.0
    trainer = bs.Trainer(stepper)
    trainer.add_hook(ProgressBar())
    schedule = Cosine(LEARNING_RATE, 0.0, EPOCHS * pairs.length)
    trainer.add_hook(ModifyStepperAttribute(schedule, timescale="update"))
    trainer.add_hook(StopAfterEpoch(EPOCHS))
    trainer.train(net, pairs)


def translate(net, numbers):
    """Return the words that the network generates for numbers."""
    digits = make_pairs(numbers)["source"]
    batch = next(BucketedMinibatches(len(digits), shuffle=False, default=digits)())
    given = {
        "default": np.zeros((1, len(digits))),
        "source": batch["default"],
        "mask_s": batch["mask"],
    }
    written = bs.tools.generate(net, given, MOST_WORDS + 1, temperature=0)
    rows = [[*column, 0] for column in written.T.tolist()]
    return [" ".join(WORDS[word] for word in row[: row.index(0)]) for row in rows]


def main():
    """Return the fraction of held-out numbers that were translated without a mistake."""
    bs.global_rnd.set_seed(42)
    training, held_out = draw_numbers()
    net = make_network()
    print(net)
    train(net, training)
    written = translate(net, held_out)
    expected = [" ".join(in_words(number)) for number in held_out]
    right = np.mean([found == text for found, text in zip(written, expected, strict=True)])
    for number, text in list(zip(held_out, written, strict=True))[:8]:
        print(f"{number:>8,}  {text}")
    print(f"{right:.1%} of {len(held_out)} held-out numbers are completely correct")
    return right


if __name__ == "__main__":
    main()
