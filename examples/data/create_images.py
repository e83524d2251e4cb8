"""Convert images, in one folder per class, to an HDF5 file.

    pip install pillow
    python examples/data/create_images.py FOLDER images.hdf5 64 64

converts FOLDER/cat/1.jpg, FOLDER/dog/a.png and so on to color images of 64 rows and 64 columns.
They are shuffled with a fixed seed and divided into training, validation and test: 80 %, 10 % and
10 %. Only one image at a time is in memory. To train with the file:

    paths = {name: f"training/{name}" for name in ("default", "targets")}
    training = Hdf5Minibatches("images.hdf5", 50, **paths)
    training = Normalize(training, load_data("images.hdf5", "statistics"))

`statistics` contains means and standard deviations of the channels over the training images. The
script prints the names of the classes in the order of their numbers.
"""

from pathlib import Path

import h5py
import numpy as np
from PIL import Image
from splits import name_parts, run

from brainstorm.data_iterators import Minibatches, channel_statistics
from brainstorm.disk import atomic_file
from brainstorm.errors import FileFormatError

ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
CHUNK = 32  # images that are stored together


def find_images(folder):
    """Return the names of the classes, and (file, class number) for each image."""
    classes = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
    images = [
        (path, number)
        for number, name in enumerate(classes)
        for path in sorted(Path(folder, name).rglob("*"))
        if path.suffix.lower() in ENDINGS
    ]
    if len(images) < 10:
        raise FileFormatError(
            f"{folder}: expected at least 10 images in folders, one folder for each class, got "
            f"{len(images)} images in {len(classes)} folders"
        )
    return classes, images


def read_image(path, rows, columns):
    """Return an image (rows, columns, 3) of bytes."""
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((columns, rows)))
    except (OSError, SyntaxError) as error:
        raise FileFormatError(f"{path} cannot be read as an image: {error}") from error


def write_part(group, images, rows, columns):
    """Write the images and classes of a part, one after the other."""
    shape = (1, len(images), rows, columns, 3)
    chunks = (1, min(CHUNK, len(images)), rows, columns, 3)
    data = group.create_dataset("default", shape, np.uint8, chunks=chunks)
    for place, (path, _) in enumerate(images):
        data[0, place] = read_image(path, rows, columns)
    group["targets"] = np.array([number for _, number in images])[None, :, None]


def main(folder, filename, rows, columns):
    classes, images = find_images(folder)
    order = np.random.RandomState(0).permutation(len(images))
    with atomic_file(filename) as temporary, h5py.File(temporary, "w", locking=False) as file:
        for name, part in name_parts(len(images)).items():
            chosen = [images[i] for i in order[part]]
            write_part(file.create_group(name), chosen, int(rows), int(columns))
        training = Minibatches(CHUNK, shuffle=False, default=file["training/default"])
        file["statistics/default"] = np.array(channel_statistics(training, "default")["default"])
    print(f"{filename}: {len(images)} images of {rows} x {columns}")
    print(f"classes: {', '.join(classes)}")


if __name__ == "__main__":
    run(main, __doc__)
