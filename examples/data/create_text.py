"""Convert a text in UTF-8 to an HDF5 file, to predict the next character.

    python examples/data/create_text.py enwik8 enwik8.hdf5

The groups training, validation and test are the first 90 %, 5 % and 5 % of the text. Each has
`default`, the characters as numbers, and `targets`, the next characters, as consecutive sequences
of LENGTH steps. `alphabet` contains the code points of the numbers. To train with the file:

    paths = {name: f"training/{name}" for name in ("default", "targets")}
    classes = load_data("enwik8.hdf5")["alphabet"].size
    training = OneHot(Hdf5Minibatches("enwik8.hdf5", 100, **paths), {"default": classes})
"""

from pathlib import Path

import numpy as np
from splits import run

from brainstorm.data_iterators import save_data
from brainstorm.errors import FileFormatError

LENGTH = 100
PARTS = {"training": (0, 90), "validation": (90, 95), "test": (95, 100)}  # percent


def cut(codes):
    """Return a text (N,) as sequences and their successors, (LENGTH, B, 1) each."""
    count = (len(codes) - 1) // LENGTH
    if count < 1:
        raise FileFormatError(f"expected parts of more than {LENGTH} characters, got {len(codes)}")
    sequences, successors = (
        codes[start : start + count * LENGTH].reshape(count, LENGTH).T[:, :, None]
        for start in (0, 1)
    )
    return {"default": sequences, "targets": successors}


def main(text_file, filename):
    text = Path(text_file).read_text(encoding="utf-8")
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    alphabet, codes = np.unique(points, return_inverse=True)
    codes = codes.astype(np.uint8 if alphabet.size <= 256 else np.uint32)
    data = {
        name: cut(codes[codes.size * start // 100 : codes.size * end // 100])
        for name, (start, end) in PARTS.items()
    }
    save_data(filename, {**data, "alphabet": alphabet})
    print(f"{filename}: {codes.size:,} characters, {alphabet.size} different ones")


if __name__ == "__main__":
    run(main, __doc__)
