"""What several tests of data iterators use."""

from __future__ import annotations

import os

import numpy as np
import pytest

from brainstorm.data_iterators import Wrapper
from brainstorm.errors import IteratorValidationError


def refused(text):
    """Expect an error of an iterator whose message matches a regular expression."""
    return pytest.raises(IteratorValidationError, match=text)


def numbered(samples, steps=1):
    """Return data (T, B, 2) in which sequence b holds the number b."""
    numbers = np.arange(samples, dtype=np.float32)[None, :, None]
    return np.broadcast_to(numbers, (steps, samples, 2))


def order_of(batches):
    """Return the numbers of the sequences of each batch."""
    return [batch["default"][0, :, 0].astype(int).tolist() for batch in batches]


def only(iterator, name="default"):
    """Return some data of the only batch."""
    (batch,) = list(iterator())
    return batch[name]


class Replacing(Wrapper):
    """Gives other data than the iterator that it wraps, which would refuse them."""

    def transform(self, name, array):
        return self.settings[name]


def change_file(path, how):
    """Remove, truncate or write to a file."""
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, 1000)
    else:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        os.utime(path, ns=(1, 1))
