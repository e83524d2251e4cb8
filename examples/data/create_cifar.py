"""Convert an archive of CIFAR-10 or CIFAR-100 to an HDF5 file.

    python examples/data/create_cifar.py cifar-10-binary.tar.gz CIFAR-10.hdf5
    python examples/data/create_cifar.py cifar-100-binary.tar.gz CIFAR-100.hdf5

Use the binary versions. Those "for Python" are pickles, which can run arbitrary code when they are
read. Nothing is unpacked to the disk. For CIFAR-100 the 100 fine classes are used. For training
with the file, see create_mnist.py.
"""

import tarfile

import numpy as np
from splits import run, save_splits

from brainstorm.errors import FileFormatError

PIXELS = 3 * 32 * 32  # channel by channel, row by row
LABELS = {"data_batch": 1, "test_batch": 1, "train": 2, "test": 2}  # bytes; the last one is used


def kind_of(name):
    """Return the name of a file without its number."""
    return name.rstrip("_12345")


def read_records(content, name):
    """Return images (1, N, 32, 32, 3) and classes (1, N, 1) of a file of the archive."""
    labels = LABELS[kind_of(name)]
    if not content or len(content) % (labels + PIXELS):
        raise FileFormatError(f"{name}.bin: expected records of {labels + PIXELS} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, labels + PIXELS)
    images = records[:, labels:].reshape(1, -1, 3, 32, 32).transpose(0, 1, 3, 4, 2)
    return images, records[None, :, labels - 1 : labels]


def read_archive(filename):
    """Return images and classes for training, and those for the test."""
    parts = {}
    with tarfile.open(filename) as archive:
        for member in archive:
            name, _, ending = member.name.rpartition("/")[2].partition(".")
            if member.isfile() and ending == "bin" and kind_of(name) in LABELS:
                parts[name] = read_records(archive.extractfile(member).read(), name)
    training = [parts[name] for name in sorted(parts) if not name.startswith("test")]
    test = [parts[name] for name in parts if name.startswith("test")]
    if not training or len(test) != 1:
        found = ", ".join(sorted(parts)) or "none"
        raise FileFormatError(
            f"{filename}: expected the binary version of CIFAR-10 or CIFAR-100, with .bin files "
            f"for training and test, got {found}"
        )
    images, targets = (np.concatenate(arrays, axis=1) for arrays in zip(*training, strict=True))
    return images, targets, *test[0]


def main(archive, filename):
    save_splits(filename, *read_archive(archive))


if __name__ == "__main__":
    run(main, __doc__)
