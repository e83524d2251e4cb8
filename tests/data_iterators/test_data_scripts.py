"""The scripts in examples/data, on small files of the same formats."""

import gzip
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from brainstorm.data_iterators import Hdf5Minibatches, Minibatches, Normalize, OneHot, load_data
from brainstorm.errors import FileFormatError

FOLDER = Path(__file__).parents[2] / "examples" / "data"
SCRIPTS = ("create_cifar", "create_images", "create_mnist", "create_table", "create_text")
RND = np.random.RandomState(0)


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a script, in which a few images are for validation."""
    monkeypatch.syspath_prepend(FOLDER)

    def load_script(name):
        sys.modules.pop(name, None)
        module = __import__(name)
        if name in ("create_cifar", "create_mnist"):
            monkeypatch.setattr(sys.modules["splits"], "VALIDATION", 3)
        return module

    yield load_script
    for name in (*SCRIPTS, "splits"):
        sys.modules.pop(name, None)


def test_the_scripts_say_how_they_run_and_are_all_here():
    assert {path.stem for path in FOLDER.glob("create_*.py")} == set(SCRIPTS)
    for name in SCRIPTS:
        text = (FOLDER / f"{name}.py").read_text()
        assert f"    python examples/data/{name}.py " in text.split('"""')[1]
    for path in FOLDER.glob("*.py"):
        assert not re.search(r"^\s*(import|from) (pickle|torch)", path.read_text(), re.MULTILINE)


def assert_standard(array):
    """Check that all channels have mean 0 and standard deviation 1."""
    axes = tuple(range(array.ndim - 1))
    np.testing.assert_allclose(array.mean(axis=axes), 0, atol=1e-5)
    np.testing.assert_allclose(array.std(axis=axes), 1, rtol=1e-5)


def check_splits(file, images, targets, test_images, test_targets):
    for name, part in (("training", slice(0, -3)), ("validation", slice(-3, None))):
        data = load_data(file, name)
        assert np.array_equal(data["default"][0], images[part])
        assert data["targets"].ravel().tolist() == targets[part].tolist()
    data = load_data(file, "test")
    assert np.array_equal(data["default"][0], test_images)
    assert data["targets"].ravel().tolist() == test_targets.tolist()
    check_normalized(file, data["targets"].shape[1], targets)
    training = Minibatches(100, **load_data(file, "training"))
    (batch,) = Normalize(training, load_data(file, "statistics"))()
    assert_standard(batch["default"])


def check_normalized(file, tests, targets):
    """Check what scripts of 2015 read, as they do."""
    with h5py.File(file, "r") as content:
        split, full = content["normalized_split"], content["normalized_full"]
        x = split["training"]["default"][:]
        assert x.dtype == np.float32
        assert_standard(x)
        assert np.array_equal(split["validation"]["default"], full["training"]["default"][:, -3:])
        assert full["training"]["targets"][:].ravel().tolist() == targets.tolist()
        for group in (split, full):
            assert group["test"]["default"].shape[:2] == (1, tests)


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


SHORT = idx(np.zeros((10, 28, 28), "u1"))[:-1]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        *(("images-idx3", content, "train-images-idx3-ubyte: expected an IDX file of")
          for content in (b"", b"\0\0\x08", SHORT, b"\0\0\x0d\x01\0\0\0\x01\0", b"12345")),
        ("labels-idx1", idx(np.zeros(9, "u1")), "10 images of train, but 9 labels"),
    ],
)  # fmt: skip
def test_damaged_idx_files(load, tmp_path, name, content, match):
    write_mnist(tmp_path, False)
    (tmp_path / f"train-{name}-ubyte").write_bytes(content)
    with pytest.raises(FileFormatError, match=match):
        load("create_mnist").main(tmp_path, tmp_path / "mnist.hdf5")
    assert not (tmp_path / "mnist.hdf5").exists()


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
        ({"train": (2, 2)}, "CIFAR-100, with .bin files for training and test, got no"),
        ({"train.bin": (2, 2)}, "for training and test, got train"),
        ({"train.bin": (2, 1), "test.bin": (2, 2)}, "train.bin: expected records of 3074 bytes"),
        ({"other.bin": (2, 1), "test.bin": (2, 2)}, "for training and test, got test"),
    ],
)
def test_other_archives(load, tmp_path, files, match):
    write_cifar(tmp_path / "x.tar.gz", {"test": (1, 1), **files})
    with pytest.raises(FileFormatError, match=match):
        load("create_cifar").main(tmp_path / "x.tar.gz", tmp_path / "x.hdf5")


# -- tables ---------------------------------------------------------------------------------------

TABLE = "size, weight,kind\n" + "".join(
    f"{i},{'' if i % 5 == 0 else 2 * i},{'large' if i > 25 else 'small'}\n" for i in range(50)
)


@pytest.fixture
def create_table(load, tmp_path):
    """Return a function that writes a table and returns the file that the script makes of it."""

    def create(table, column, task):
        (tmp_path / "t.csv").write_text(table, "utf-8")
        load("create_table").main(tmp_path / "t.csv", column, task, tmp_path / "t.hdf5")
        return tmp_path / "t.hdf5"

    return create


def test_classes_in_a_table(create_table, capsys):
    file = create_table("\ufeff" + TABLE, "kind", "classification")
    printed = capsys.readouterr().out
    assert "50 rows, columns size, weight\n" in printed
    assert "classes: large, small\n" in printed
    parts = [load_data(file, name) for name in ("training", "validation", "test")]
    assert [part["default"].shape for part in parts] == [(1, n, 2) for n in (40, 5, 5)]
    sizes = np.concatenate([part["default"][0, :, 0] for part in parts])
    classes = np.concatenate([part["targets"][0, :, 0] for part in parts])
    assert sorted(sizes) == list(range(50))
    assert sizes.tolist() != sorted(sizes)
    assert np.array_equal(classes, sizes <= 25)
    statistics = load_data(file, "statistics")
    filled = [part["default"][0, part["default"][0, :, 0] % 5 == 0, 1] for part in parts]
    np.testing.assert_allclose(np.concatenate(filled), statistics["default"][0, 1])
    (batch,) = Normalize(Minibatches(100, **load_data(file, "training")), statistics)()
    assert_standard(batch["default"])


def test_numbers_in_a_table(create_table):
    rows = "".join(f"{i},7,{3 * i}\n" for i in range(20))
    file = create_table("a,constant,b\n" + rows, "b", "regression")
    training, statistics = load_data(file, "training"), load_data(file, "statistics")
    assert np.array_equal(training["targets"][..., 0], 3 * training["default"][..., 0])
    assert statistics["default"][1, 1] == 1
    (batch,) = Normalize(Minibatches(100, **training), statistics)()
    assert_standard(batch["targets"])


def test_words_in_a_table(create_table, capsys):
    rows = "".join(f"{i},{['sand', ' clay', ''][i % 3]},{i}\n" for i in range(30))
    file = create_table("a,soil,b\n" + rows, "b", "regression")
    assert "30 rows, columns a, soil=clay, soil=sand\n" in capsys.readouterr().out
    training = load_data(file, "training")["default"][0]
    assert np.array_equal(
        training[:, 1:], np.array([[0, 1], [1, 0], [0, 0]])[training[:, 0].astype(int) % 3]
    )


def changed(old, new):
    assert old in TABLE
    return TABLE.replace(old, new, 1), "kind", "classification"


@pytest.mark.parametrize(
    ("table", "column", "task", "match"),
    [
        (*changed(",kind\n", ",kin\n"), "unknown column 'kind'. Choices are: size, weight"),
        (*changed("size, weight", "size,size"), r"own .* column, got \['size', 'size', 'kind'\]"),
        (*changed("size, weight", ",weight"), r"own .* column, got \['', 'weight', 'kind'\]"),
        (*changed("7,14,", "7,x,"), "row 8, column 'weight': expected a number or nothing, "),
        (*changed("7,14,", "7,inf,"), "got 'inf'"),
        (*changed("7,14,", "7,14,1,"), "row 8: expected 3 cells"),
        (*changed("7,14,", "714,"), "row 8: expected 3 cells"),
        (*changed("7,14,small", "7,14,"), "row 8, column 'kind': expected a value"),
        (*changed(TABLE[TABLE.index("\n") + 1 :], ""), "expected at least 10 rows, got 0"),
        (*changed(TABLE, ""), "unknown column 'kind'"),
        (TABLE, "kind", "regression", "row 1, column 'kind': expected a number or nothing, got"),
        (TABLE, "kind", "ranking", "unknown task 'ranking'. Choices are: classification, regress"),
        ("a,b\n" + ",1\n" * 10, "b", "regression", "'a': expected numbers, got empty cells"),
        ("a,b\n" + "".join(f"no {i},1\n" for i in range(51)), "b", "regression",
         "'a': expected numbers, or at most 50 .*, got 51. Le"),
    ],
    ids=lambda value: value[:40] if "\n" not in value else "",
)  # fmt: skip
def test_unfit_tables(create_table, tmp_path, table, column, task, match):
    with pytest.raises(FileFormatError, match=match):
        create_table(table, column, task)
    assert not (tmp_path / "t.hdf5").exists()


# -- images in folders ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Return a folder with ten red and ten blue images, of which each has a shade of its own."""
    image = pytest.importorskip("PIL.Image")
    for name, channel, ending in (("blue", 2, "png"), ("red", 0, "bmp")):
        (tmp_path / "images" / name / "more").mkdir(parents=True)
        for shade in range(10):
            pixels = np.zeros((6, 9, 3), np.uint8)
            pixels[..., channel], pixels[..., 1] = 100 + shade, shade
            path = tmp_path / "images" / name / ("more" if shade % 2 else "") / f"{shade}.{ending}"
            image.fromarray(pixels).save(path)
    (tmp_path / "images" / "red" / "notes.txt").write_text("not an image")
    return tmp_path / "images"


def test_images(load, tmp_path, folder, capsys):
    file = tmp_path / "images.hdf5"
    load("create_images").main(folder, file, "4", "5")
    printed = capsys.readouterr().out
    assert "20 images of 4 x 5\n" in printed
    assert "classes: blue, red\n" in printed
    parts = [load_data(file, name) for name in ("training", "validation", "test")]
    assert [part["default"].shape for part in parts] == [(1, n, 4, 5, 3) for n in (16, 2, 2)]
    images = np.concatenate([part["default"] for part in parts], axis=1)[0]
    classes = np.concatenate([part["targets"] for part in parts], axis=1).ravel()
    assert images.dtype == np.uint8
    shades = images[np.arange(20), 0, 0, np.where(classes == 1, 0, 2)]
    assert sorted(shades) == sorted(2 * list(range(100, 110)))
    assert classes.tolist() != sorted(classes)
    paths = {name: f"training/{name}" for name in ("default", "targets")}
    statistics = load_data(file, "statistics")
    (batch,) = Normalize(Hdf5Minibatches(file, 16, **paths), statistics)()
    assert_standard(batch["default"])


def test_unfit_images(load, tmp_path, folder):
    script = load("create_images")
    (folder / "red" / "broken.jpg").write_bytes(b"no image")
    text = "broken.jpg cannot be read as an image: cannot ident"
    with pytest.raises(FileFormatError, match=text):
        script.main(folder, tmp_path / "x.hdf5", 4, 4)
    assert not (tmp_path / "x.hdf5").exists()
    with pytest.raises(FileFormatError, match="one folder for each class, got 5 images in 1 fold"):
        script.main(folder / "blue", tmp_path / "x.hdf5", 4, 4)


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


@pytest.mark.parametrize("name", SCRIPTS)
def test_wrong_arguments_end_with_the_usage(load, name, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    script = load(name)
    text = rf"(?s)python examples/data/{name}\.py .*wrong arguments:"
    with pytest.raises(SystemExit, match=text):
        load("splits").run(script.main, script.__doc__)
