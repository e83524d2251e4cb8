"""Convert the four IDX files of MNIST (or Fashion-MNIST) to an HDF5 file.

    python examples/data/create_mnist.py FOLDER MNIST.hdf5

FOLDER contains train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
t10k-labels-idx1-ubyte, possibly compressed by gzip (.gz). To train with the file:

    training = Minibatches(100, **load_data("MNIST.hdf5", "training"))
    training = Normalize(training, load_data("MNIST.hdf5", "statistics"))

For scripts of 2015 it also has the groups ``normalized_split`` and ``normalized_full``.
"""

import gzip
import math
from pathlib import Path

import numpy as np
from splits import run, save_splits

from brainstorm.errors import FileFormatError

BYTES = 8  # the type of the numbers in an IDX file


def read_idx(folder, name):
    """Return the array in an IDX file: two zeros, type, rank, sizes (big-endian), the bytes."""
    path = Path(folder, name)
    if path.exists():
        content = path.read_bytes()
    else:
        content = gzip.decompress(Path(folder, f"{name}.gz").read_bytes())
    rank = content[3] if len(content) > 4 and content[:3] == bytes([0, 0, BYTES]) else 0
    sizes = content[4 : 4 + 4 * rank]
    shape = [int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4)]
    if not rank or len(content) != 4 + 4 * rank + math.prod(shape):
        raise FileFormatError(f"{path}: expected an IDX file of bytes, whole")
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def read_part(folder, name):
    """Return images (1, N, rows, columns, 1) and classes (1, N, 1)."""
    images = read_idx(folder, f"{name}-images-idx3-ubyte")
    labels = read_idx(folder, f"{name}-labels-idx1-ubyte")
    if len(images) != len(labels):
        raise FileFormatError(f"{folder}: {len(images)} images of {name}, but {len(labels)} labels")
    return images[None, ..., None], labels[None, :, None]


def main(folder, filename):
    save_splits(filename, *read_part(folder, "train"), *read_part(folder, "t10k"))


if __name__ == "__main__":
    run(main, __doc__)
