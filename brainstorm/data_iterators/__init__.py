"""Data iterators: batches of named arrays, and wrappers that change them on the way."""

from brainstorm.data_iterators.augmentation import (
    AddGaussianNoise,
    AddSaltNPepper,
    Flip,
    Pad,
    RandomCrop,
)
from brainstorm.data_iterators.base_iterator import DataIterator, Wrapper
from brainstorm.data_iterators.batches import Minibatches, Online, Undivided
from brainstorm.data_iterators.data_files import load_data
from brainstorm.data_iterators.encoding import MultiHot, OneHot
from brainstorm.data_iterators.sequences import Chunk, SequenceChunks

__all__ = [
    "AddGaussianNoise",
    "AddSaltNPepper",
    "Chunk",
    "DataIterator",
    "Flip",
    "Minibatches",
    "MultiHot",
    "OneHot",
    "Online",
    "Pad",
    "RandomCrop",
    "SequenceChunks",
    "Undivided",
    "Wrapper",
    "load_data",
]
