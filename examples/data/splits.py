"""Functions of the scripts: arguments, parts of a data set, and normalization of images."""

import inspect
import sys

import numpy as np

from brainstorm.data_iterators import Undivided, channel_statistics, save_data

VALIDATION = 10_000  # the last images of the training part


def save_splits(filename, images, targets, test_images, test_targets):
    """Write images (1, N, rows, columns, channels) and classes (1, N, 1) of bytes.

    The groups are training, validation and test, and statistics: means and standard deviations of
    the channels over the images for training, for `Normalize`. Scripts of 2015 read
    ``normalized_split``, the same parts as normalized numbers, and ``normalized_full``, where those
    for validation are for training too.
    """
    training = {"default": images[:, :-VALIDATION], "targets": targets[:, :-VALIDATION]}
    statistics = channel_statistics(Undivided(**training), "default")
    data = {
        "training": training,
        "validation": {"default": images[:, -VALIDATION:], "targets": targets[:, -VALIDATION:]},
        "test": {"default": test_images, "targets": test_targets},
        "statistics": statistics,
    }
    full = {"training": {"default": images, "targets": targets}, "test": data["test"]}
    split = {name: data[name] for name in ("training", "validation", "test")}
    means, deviations = statistics["default"]
    normalized = {
        f"normalized_{name}": {part: _normalized(parts[part], means, deviations) for part in parts}
        for name, parts in (("split", split), ("full", full))
    }
    save_data(filename, {**data, **normalized})
    for name in ("training", "validation", "test"):
        print(f"{filename}: {name}, {data[name]['default'].shape[1]} images")
    print("means and standard deviations of the channels:", statistics["default"])


def _normalized(part, means, deviations):
    """Return a part with images as float32 of mean 0 and deviation 1."""
    images = np.subtract(part["default"], means, dtype=np.float32)
    images /= np.asarray(deviations, np.float32)
    return {**part, "default": images}


def name_parts(count):
    """Return which rows of shuffled data are for training (80 %), validation and test."""
    ends = {"training": (0, 80), "validation": (80, 90), "test": (90, 100)}
    return {name: slice(count * a // 100, count * b // 100) for name, (a, b) in ends.items()}


def run(main, usage):
    """Call a function with the arguments of the command line; end with the usage if wrong."""
    try:
        inspect.signature(main).bind(*sys.argv[1:])
    except TypeError as error:
        sys.exit(f"{usage}\nwrong arguments: {error}")
    main(*sys.argv[1:])
