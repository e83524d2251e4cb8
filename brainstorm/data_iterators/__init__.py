"""Data iterators: batches of named arrays, and wrappers that transform them."""

from brainstorm.data_iterators.augmentation import (
    AddGaussianNoise,
    AddSaltNPepper,
    Cutout,
    Flip,
    MixUp,
    Pad,
    RandomCrop,
    Rotate90,
)
from brainstorm.data_iterators.base_iterator import DataIterator, Wrapper
from brainstorm.data_iterators.batches import Minibatches, Online, Undivided
from brainstorm.data_iterators.buckets import BucketedMinibatches
from brainstorm.data_iterators.data_files import load_data, save_data
from brainstorm.data_iterators.encoding import MultiHot, OneHot
from brainstorm.data_iterators.hdf5_batches import Hdf5Minibatches
from brainstorm.data_iterators.normalization import Normalize, channel_statistics
from brainstorm.data_iterators.prefetch import Prefetch
from brainstorm.data_iterators.sequences import Chunk, SequenceChunks
from brainstorm.data_iterators.sources import DatasetMinibatches, IterableBatches

__all__ = [
    "AddGaussianNoise",
    "AddSaltNPepper",
    "BucketedMinibatches",
    "Chunk",
    "Cutout",
    "DataIterator",
    "DatasetMinibatches",
    "Flip",
    "Hdf5Minibatches",
    "IterableBatches",
    "Minibatches",
    "MixUp",
    "MultiHot",
    "Normalize",
    "OneHot",
    "Online",
    "Pad",
    "Prefetch",
    "RandomCrop",
    "Rotate90",
    "SequenceChunks",
    "Undivided",
    "Wrapper",
    "channel_statistics",
    "load_data",
    "save_data",
]
