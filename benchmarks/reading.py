"""Images per second from HDF5 files, by ``python -m benchmarks.reading``.

60,000 images of 32 x 32 x 3 in float32 (737 MB; the page cache may hold them) in batches of 100.
"""

from __future__ import annotations

import contextlib
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from brainstorm.data_iterators import DataIterator, Hdf5Minibatches, Minibatches

IMAGES, SHAPE, BATCH = 60_000, (32, 32, 3), 100
CHUNKS = (1, 256, *SHAPE)
KINDS = {
    "in one piece": {},
    "chunks of 256": {"chunks": CHUNKS},
    "chunks of 256, gzip": {"chunks": CHUNKS, "compression": "gzip"},
}
LONGEST = 5.0  # seconds for an epoch
RUNS = 3  # of which the best counts


def write(path: Path, options: dict) -> None:
    rnd = np.random.RandomState(0)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("images", (1, IMAGES, *SHAPE), "f4", **options)
        for start in range(0, IMAGES, 5000):
            images[:, start : start + 5000] = rnd.randint(0, 9, (1, 5000, *SHAPE))


@contextlib.contextmanager
def iterators(path: Path) -> Iterator[dict[str, DataIterator]]:
    with h5py.File(path) as file:
        images = file["images"]
        yield {
            "Hdf5Minibatches": Hdf5Minibatches(path, BATCH, default="images"),
            "'batches'": Minibatches(BATCH, shuffle="batches", default=images),
            "True": Minibatches(BATCH, default=images),
        }


def speed(iterator: DataIterator) -> float:
    """Return the images per second of an epoch, or of its beginning."""
    begin, count = time.perf_counter(), 0
    for batch in iterator():
        count += batch["default"].shape[1]
        if time.perf_counter() - begin > LONGEST:
            break
    return count / (time.perf_counter() - begin)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind, options in KINDS.items():
            path = Path(folder, "images.hdf5")
            write(path, options)
            with iterators(path) as found:
                speeds = [
                    f"{name} {max(speed(it) for _ in range(RUNS)):,.0f}"
                    for name, it in found.items()
                ]
            print(f"{kind}:", "; ".join(speeds), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"most resident memory: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
