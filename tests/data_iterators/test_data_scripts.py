"""The scripts in examples/data, on small files of the same formats."""

from __future__ import annotations

import gzip
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from brainstorm.data_iterators import Hdf5Minibatches, Minibatches, Normalize, OneHot, load_data
from brainstorm.errors import FileFormatError

FOLDER = Path(__file__).parents[2] / "examples" / "data"
SCRIPTS = ("create_cifar", "create_mnist", "create_text")
RND = np.random.RandomState(0)


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a script, in which a few images are for validation."""
    monkeypatch.syspath_prepend(FOLDER)

    def load_script(name):
        sys.modules.pop(name, None)
        module = __import__(name)
        if name != "create_text":
            monkeypatch.setattr(sys.modules["image_splits"], "VALIDATION", 3)
        return module

    yield load_script
    for name in (*SCRIPTS, "image_splits"):
        sys.modules.pop(name, None)


def test_the_scripts_say_how_they_run_and_are_all_here():
    assert {path.stem for path in FOLDER.glob("create_*.py")} == set(SCRIPTS)
    for name in SCRIPTS:
        text = (FOLDER / f"{name}.py").read_text()
        assert f"    python examples/data/{name}.py " in text.split('"""')[1]
    for path in FOLDER.glob("*.py"):
        assert not re.search(r"^\s*(import|from) (pickle|torch)", path.read_text(), re.MULTILINE)


def check_splits(file, images, targets, test_images, test_targets):
    for name, part in (("training", slice(0, -3)), ("validation", slice(-3, None))):
        data = load_data(file, name)
        assert np.array_equal(data["default"][0], images[part])
        assert data["targets"].ravel().tolist() == targets[part].tolist()
    data = load_data(file, "test")
    assert np.array_equal(data["default"][0], test_images)
    assert data["targets"].ravel().tolist() == test_targets.tolist()
    training = Minibatches(100, **load_data(file, "training"))
    (batch,) = Normalize(training, load_data(file, "statistics"))()
    np.testing.assert_allclose(batch["default"].mean(axis=(0, 1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(batch["default"].std(axis=(0, 1, 2, 3)), 1, rtol=1e-5)


# -- MNIST ----------------------------------------------------------------------------------------


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_mnist(folder, compressed):
    arrays = []
    for name, count in (("train", 10), ("t10k", 4)):
        images = RND.randint(0, 256, (count, 28, 28)).astype("u1")
        labels = RND.randint(0, 10, count).astype("u1")
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = gzip.compress(idx(array)) if compressed else idx(array)
            path = folder / f"{name}-{kind}-ubyte{'.gz' * compressed}"
            path.write_bytes(content)
        arrays += [images[..., None], labels]
    return arrays


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist(load, tmp_path, capsys, compressed):
    arrays = write_mnist(tmp_path, compressed)
    load("create_mnist").main(tmp_path, tmp_path / "mnist.hdf5")
    check_splits(tmp_path / "mnist.hdf5", *arrays)
    assert "mnist.hdf5: training, 7 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        idx(np.zeros((10, 28, 28), "u1"))[:-1],
        b"\0\0\x0d\x01\0\0\0\x01\0",
        b"12345",
    ],
)
def test_damaged_idx_files(load, tmp_path, content):
    write_mnist(tmp_path, False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(FileFormatError, match="train-images-idx3-ubyte: expected an IDX file of"):
        load("create_mnist").main(tmp_path, tmp_path / "mnist.hdf5")
    assert not (tmp_path / "mnist.hdf5").exists()


def test_images_without_labels(load, tmp_path):
    write_mnist(tmp_path, False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(9, "u1")))
    with pytest.raises(FileFormatError, match="10 images of train, but 9 labels"):
        load("create_mnist").main(tmp_path, tmp_path / "mnist.hdf5")


# -- CIFAR ----------------------------------------------------------------------------------------


def write_cifar(path, files):
    """Write an archive of random records; return images and labels for training and test."""
    parts = {}
    with tarfile.open(path, "w:gz") as archive:
        for name, (count, labels) in files.items():
            images = RND.randint(0, 256, (count, 32, 32, 3)).astype("u1")
            classes = RND.randint(0, 10, (count, labels)).astype("u1")
            planes = images.transpose(0, 3, 1, 2).reshape(count, -1)
            content = np.concatenate([classes, planes], axis=1).tobytes()
            info = tarfile.TarInfo(f"cifar-binary/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
            parts.setdefault(name.startswith("test"), []).append((images, classes[:, -1]))
    return [
        np.concatenate(arrays)
        for kind in (False, True)
        for arrays in zip(*parts[kind], strict=True)
    ]


@pytest.mark.parametrize(
    "files",
    [
        {**{f"data_batch_{i}.bin": (2, 1) for i in (1, 2, 3, 4, 5)}, "test_batch.bin": (4, 1)},
        {"test.bin": (3, 2), "train.bin": (8, 2)},
    ],
    ids=["CIFAR-10", "CIFAR-100"],
)
def test_cifar(load, tmp_path, files):
    arrays = write_cifar(tmp_path / "cifar.tar.gz", files)
    load("create_cifar").main(tmp_path / "cifar.tar.gz", tmp_path / "cifar.hdf5")
    check_splits(tmp_path / "cifar.hdf5", *arrays)


@pytest.mark.parametrize(
    ("files", "match"),
    [
        (
            {"train": (2, 2), "test": (2, 2)},
            "CIFAR-100, with .bin files for training and test, got n",
        ),
        ({"train.bin": (2, 2), "test": (2, 2)}, "for training and test, got train"),
        ({"train.bin": (2, 1), "test.bin": (2, 2)}, "train.bin: expected records of 3074 bytes"),
        ({"other.bin": (2, 1), "test.bin": (2, 2)}, "for training and test, got test"),
    ],
)
def test_other_archives(load, tmp_path, files, match):
    write_cifar(tmp_path / "x.tar.gz", {"test": (1, 1), **files})
    with pytest.raises(FileFormatError, match=match):
        load("create_cifar").main(tmp_path / "x.tar.gz", tmp_path / "x.hdf5")


# -- text -----------------------------------------------------------------------------------------


def test_text(tmp_path, load, capsys):
    text = "Übung macht den Meister. " * 400
    (tmp_path / "text").write_text(text, encoding="utf-8")
    file = tmp_path / "text.hdf5"
    load("create_text").main(tmp_path / "text", file)
    alphabet = load_data(file)["alphabet"]
    assert f"10,000 characters, {alphabet.size} different ones" in capsys.readouterr().out
    codes = {name: load_data(file, name) for name in ("training", "validation", "test")}
    for name, start, count in (("training", 0, 89), ("validation", 9000, 4), ("test", 9500, 4)):
        for key, shift in (("default", 0), ("targets", 1)):
            array = codes[name][key]
            assert array.shape == (100, count, 1)
            written = "".join(map(chr, alphabet[array[..., 0].T.ravel()]))
            assert written == text[start + shift : start + shift + count * 100]
    paths = {name: f"training/{name}" for name in ("default", "targets")}
    iterator = OneHot(Hdf5Minibatches(file, 10, **paths), {"default": alphabet.size})
    assert sum(batch["default"].shape[1] for batch in iterator()) == 89


def test_many_characters_and_short_texts(tmp_path, load):
    script = load("create_text")
    (tmp_path / "text").write_text("".join(map(chr, range(1000, 4000))), encoding="utf-8")
    script.main(tmp_path / "text", tmp_path / "x.hdf5")
    assert load_data(tmp_path / "x.hdf5", "training")["targets"].max() == 2600
    (tmp_path / "text").write_text("short", encoding="utf-8")
    with pytest.raises(FileFormatError, match="expected parts of more than 100 characters, got 4"):
        script.main(tmp_path / "text", tmp_path / "x.hdf5")


def test_from_the_command_line(tmp_path):
    (tmp_path / "text").write_text("abc" * 1000, encoding="utf-8")
    command = [sys.executable, str(FOLDER / "create_text.py"), "text", "text.hdf5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "text.hdf5: 3,000 characters, 3 different ones\n"
