"""Batches from iterables and from data sets with items."""

from itertools import chain, repeat

import numpy as np
import pytest

from brainstorm.data_iterators import Chunk, DatasetMinibatches, Flip, IterableBatches
from tests.data_iterators.iterating import refused

X = np.arange(24.0).reshape(1, 6, 4)


def batches():
    for start in (0, 2, 4):
        yield {"default": X[:, start : start + 2], "n": [[[start]] * 2]}


class Repeatable:
    def __iter__(self):
        return batches()


@pytest.mark.parametrize(
    ("source", "length"),
    [(list(batches()), 3), (tuple(batches()), 3), (batches, None), (Repeatable(), None)],
    ids=["list", "tuple", "function", "object"],
)
def test_batches_of_an_iterable(source, length):
    iterator = IterableBatches(source)
    assert iterator.length == length
    assert iterator.data_shapes == {"default": (4,), "n": (1,)}
    for _ in range(2):
        found = list(iterator())
        assert all(type(array) is np.ndarray for batch in found for array in batch.values())
        assert np.array_equal(np.concatenate([b["default"] for b in found], axis=1), X)


def test_chunks_stay_chunks():
    chunks = [Chunk({"default": X}, continues) for continues in (False, True, True)]
    found = Flip(IterableBatches(chunks), {})()
    assert [chunk.continues for chunk in found] == [False, True, True]


def test_batches_of_a_loader_of_pytorch():
    torch = pytest.importorskip("torch")
    images = torch.arange(6 * 12.0).reshape(6, 3, 2, 2)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, torch.arange(6)), batch_size=4
    )

    def load():
        for x, y in loader:
            yield {"default": x.permute(0, 2, 3, 1)[None], "targets": y[None, :, None]}

    found = list(Flip(IterableBatches(load), {"default": 0})())
    assert [batch["default"].shape for batch in found] == [(1, 4, 2, 2, 3), (1, 2, 2, 2, 3)]
    assert found[0]["targets"].ravel().tolist() == [0, 1, 2, 3]
    assert found[1]["default"][0, 0, 1, 0, 2] == images[4, 2, 1, 0]


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (3, "expected an iterable that restarts in every epoch, got a int. Give a list, or a f"),
        (batches(), "in every epoch, got a generator"),
        (repeat(batches()).__next__, "in every epoch, got a generator"),
        (lambda: None, "in every epoch, got a NoneType"),
        ([], "IterableBatches: expected at least one batch, got none"),
        ([X], "IterableBatches: expected dictionaries of arrays by data name, got a ndarray"),
        ([{}], "expected at least one named array"),
        ([{"default": X[0]}], r"data 'default': expected a numeric .*got shape \(6, 4\). Add an a"),
        ([{"default": X, "n": X[:, :2]}], r"data 'n': expected \(T, B\) = \(1, 6\)"),
    ],
)
def test_unfit_iterables(source, match):
    with refused(match):
        IterableBatches(source)


@pytest.mark.parametrize("second", [{"default": X[..., :3]}, {"x": X}, {"default": X, "x": X}])
def test_batches_that_differ(second):
    epoch = IterableBatches([{"default": X}, second])()
    next(epoch)
    text = r"expected batches with the features {'default': \(4,\)} as in the first one, got {"
    with refused(text):
        next(epoch)


class Items:
    def __init__(self, make, count=11):
        self.make, self.count, self.asked = make, count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        assert type(index) is int
        self.asked.append(index)
        return self.make(index)


def test_batches_of_items():
    items = Items(lambda i: (np.full((2, 3), i, np.float32), i))
    iterator = DatasetMinibatches(items, 4)
    assert iterator.data_shapes == {"default": (2, 3), "targets": (1,)}
    assert iterator.length == 3
    for _ in range(2):
        found = list(iterator())
        assert [batch["default"].shape for batch in found] == [(1, 4, 2, 3)] * 2 + [(1, 3, 2, 3)]
        assert found[0]["default"].dtype == np.float32
        numbers = [batch["targets"][0, :, 0].tolist() for batch in found]
        assert sorted(chain(*numbers)) == list(range(11))
        for batch in found:
            assert (batch["default"] == batch["targets"][..., None]).all()
    assert items.asked[0] == 0  # for the shapes
    assert items.asked[1:12] != items.asked[12:]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda i: {"a": i, "b": [i, i]}, {}),
        (lambda i: [i, np.array([i, i])], {"names": ("a", "b")}),
    ],
)
def test_parts_have_names(make, options):
    (batch,) = DatasetMinibatches(Items(make), 11, shuffle=False, **options)()
    assert batch["a"].tolist() == [[[i] for i in range(11)]]
    assert batch["b"].tolist() == [[[i, i] for i in range(11)]]


def test_batches_of_a_data_set_of_pytorch():
    torch = pytest.importorskip("torch")

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return torch.full((2, 2, 1), float(index)), torch.tensor(index**2)

    for data in (
        Squares(),
        torch.utils.data.TensorDataset(
            torch.arange(5.0).reshape(5, 1, 1, 1).expand(5, 2, 2, 1), torch.arange(5) ** 2
        ),
    ):
        (batch,) = DatasetMinibatches(data, 5)()
        assert type(batch["default"]) is np.ndarray
        assert batch["default"].dtype == np.float32
        assert batch["default"].shape == (1, 5, 2, 2, 1)
        assert (batch["default"][0, :, 0, 0] ** 2 == batch["targets"][0]).all()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        *((data, f"expected a data set with __len__ and __getitem__, got a {kind}")
          for data, kind in ((batches(), "generator"), ({"a": 1}, "dict"))),
        ([], "DatasetMinibatches: expected a data set with items, got none"),
        ([X], "item 0: expected a dictionary or a tuple of default, targets, got ndarray. Name"),
        ([(X,)], r"of default, targets, got 1 parts. Name its parts: names=\(...\)"),
        ([(X, "a")], "data 'targets': expected a numeric array .*, got dtype <U1"),
        ([(X, [])], "data 'targets': expected a numeric array .* that is not empty"),
    ],
)  # fmt: skip
def test_unfit_data_sets(data, match):
    with refused(match):
        DatasetMinibatches(data)


def test_items_that_differ():
    iterator = DatasetMinibatches([(X, 1), (X, 1), (X[0], 1)], 3, shuffle=False)
    text = r"item 2: expected the shapes {'default': \(1, 6, 4\), 'targets': \(1,\)} as in the firs"
    with refused(text):
        next(iterator())
    for part, dtype in ((None, "object"), ("a", "<U1")):
        text = f"^DatasetMinibatches, data 'targets': item 1: expected numbers, got {dtype}$"
        with refused(text):
            list(DatasetMinibatches([(X, 1), (X, part)], 2)())
