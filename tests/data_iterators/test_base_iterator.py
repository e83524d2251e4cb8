"""Data iterators in notebooks: their data with shapes and values, escaped."""

import numpy as np
import pytest

from brainstorm import data_iterators as di
from brainstorm.errors import IteratorValidationError
from brainstorm.tools import evaluate, extract
from brainstorm.training import ForwardStepper, Trainer
from tests.trainings import refused

X = np.array([[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]])


class Own(di.DataIterator):
    """An iterator of a user, whose attributes hold what they like."""

    data, iter = "anything", "anything"

    def __init__(self):
        super().__init__({"default": (2,)}, None)
        self.data, self.iter = X, [X]


@pytest.mark.parametrize(
    ("iterator", "text"),
    [
        (di.Minibatches(2, default=X, words=np.array([[1], [2], [3]]), per_sequence=["words"]),
         "Minibatches: 2 batches\n"
         "                                        min  mean  max  NaN  Inf\n"
         "  default  (T, B, 2)  float64[1, 3, 2]    0   2.5    5    0    0\n"
         "  words    (B, 1)     int64[3, 1]         1     2    3    0    0"),
        (di.AddGaussianNoise(di.Minibatches(2, default=X), {"default": 0.1}),
         "AddGaussianNoise: 2 batches\n"
         "                                          min  mean  max  NaN  Inf\n"
         "  default    (T, B, 2)\n"
         "  iter  Minibatches: 2 batches\n"
         "    default  (T, B, 2)  float64[1, 3, 2]    0   2.5    5    0    0"),
        (di.BucketedMinibatches(1, default=[X[0], X[0, :1]]),
         "BucketedMinibatches: 2 batches\n  default  (T, B, 2)\n  mask     (T, B, 1)"),
        (Own(), "Own: batches\n  default  (T, B, 2)"),
    ],
)  # fmt: skip
def test_the_tree_has_shapes_and_values(iterator, text):
    assert repr(iterator.tree(values=True)) == text
    assert iterator._repr_html_() == iterator.tree(values=True)._repr_html_()


def test_values_are_read_when_asked_for_and_never_from_files(tmp_path):
    iterator = di.Minibatches(2, default=X)
    assert "mean" not in repr(iterator.tree())
    np.save(tmp_path / "x.npy", X)
    mapped = di.Minibatches(2, default=np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert repr(mapped.tree(values=True)) == (
        "Minibatches: 2 batches\n  default  (T, B, 2)  float64[1, 3, 2]"
    )


class Giving(di.DataIterator):
    """An iterator that gives anything."""

    def __init__(self, given):
        super().__init__({"default": (3,), "targets": (1,)}, None)
        self.given = given

    def __call__(self, handler=None):
        return self.given


@pytest.mark.parametrize(
    "use",
    [
        lambda net, data: Trainer(ForwardStepper(), verbose=False).train(net, data),
        lambda net, data: evaluate(net, di.AddGaussianNoise(data, {"default": 0.1})),
        evaluate,
        lambda net, data: extract(net, data, "Output.outputs.predictions"),
    ],
)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "batches, got None. Is a yield missing?"),
        ([(X, X)], "dictionaries of arrays by data name, got a tuple."),
        ({"default": X}, "dictionaries of arrays by data name, got a str."),
    ],
)
def test_what_is_no_batch_names_the_iterator(net, use, given, text):
    text = f"Giving.__call__: expected it to yield {text}"
    with refused(text, IteratorValidationError, is_whole=True):
        use(net, Giving(given))


class WithoutHandler(di.DataIterator):
    """An iterator whose method lacks an argument."""

    def __call__(self):
        yield {"default": X, "targets": X[..., :1]}


def test_an_iterator_takes_a_handler(net):
    text = (
        "WithoutHandler.__call__: expected the signature __call__(self, handler=None): got an "
        "unexpected keyword argument 'handler'."
    )
    data = WithoutHandler({"default": (3,), "targets": (1,)}, None)
    for each in (data, di.AddGaussianNoise(data, {"default": 0.1})):
        with refused(text, IteratorValidationError, is_whole=True):
            evaluate(net, each)


class Copied(di.Wrapper):
    """A wrapper that gives dictionaries, or chunks."""

    def __init__(self, chunks, kind):
        super().__init__(chunks, {})
        self.kind = kind

    def __call__(self, handler=None):
        for batch in self.iter(handler):
            yield self.kind(batch)


def test_chunks_stay_chunks(net):
    x = np.linspace(-1, 1, 60).reshape(5, 4, 3)
    chunks = di.SequenceChunks(2, shuffle=False, default=x, targets=x[:, :, :1] > 0)
    wrapped = Copied(chunks, lambda batch: di.Chunk(batch, batch.continues))
    assert evaluate(net, wrapped) == evaluate(net, chunks)
    text = (
        "Copied.__call__: expected it to yield chunks, because it gives_sequences, got a dict. "
        "Yield Chunk(data, continues=...), for a chunk that was changed chunk.continues."
    )
    with refused(text, IteratorValidationError, is_whole=True):
        evaluate(net, Copied(chunks, dict))
