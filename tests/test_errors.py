"""The exception classes: what they are kinds of, and how they read."""

import pickle

import numpy as np
import pytest

from brainstorm import errors
from brainstorm.errors import BrainstormError, unknown

CLASSES = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]

#: What a caller who knows only Python's exceptions may catch.
KINDS = {
    "ValidationError": ValueError,
    "NetworkValidationError": errors.ValidationError,
    "LayerValidationError": errors.ValidationError,
    "IteratorValidationError": errors.ValidationError,
    "StructureValidationError": errors.ValidationError,
    "HandlerValidationError": errors.ValidationError,
    "TrainingError": errors.ValidationError,
    "UnknownTypeError": (TypeError, errors.ValidationError),
    "DescriptionError": TypeError,
    "UnknownPathError": KeyError,
    "MissingDataError": (KeyError, errors.NetworkValidationError),
    "FileFormatError": OSError,
    "UnsupportedFileError": errors.FileFormatError,
    "OutOfMemoryError": MemoryError,
    "MissingDependencyError": ImportError,
    "DeviceError": RuntimeError,
    "KernelError": errors.DeviceError,
}


@pytest.mark.parametrize(("name", "kinds"), KINDS.items())
def test_each_is_also_what_python_calls_it(name, kinds):
    assert not issubclass(errors.InitializationError, errors.ValidationError)
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        assert issubclass(getattr(errors, name), kind)


@pytest.mark.parametrize("cls", CLASSES)
def test_all_are_brainstorm_errors_that_read_as_written(cls):
    error = cls("layer 'x': expected 1, got 2.")
    assert isinstance(error, BrainstormError)
    assert str(error) == "layer 'x': expected 1, got 2."
    assert str(cls()) == ""
    assert str(cls("\t\x1b[2J\x07\x7f\x9d é\n")) == "\t\\x1b[2J\\x07\\x7f\\x9d é\n"  # no commands
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)


@pytest.mark.parametrize(
    ("name", "choices", "text"),
    [
        ("x", [], "'x'. There are none."),
        ("Abc", ["Xyz", "Uvw"], "'Abc'. Choices are: Xyz, Uvw."),
        ("tahn", ("tanh", "rel"), "'tahn'. Choices are: tanh, rel. Did you mean 'tanh'?"),
        ("Conv", iter(["Conv1", "Conv2", "Conv3", "Pool"]),
         "'Conv'. Choices are: Conv1, Conv2, Conv3, Pool. Did you mean 'Conv3' or 'Conv2'?"),
        (5, [15, 20], "5. Choices are: 15, 20. Did you mean '15'?"),
        ("a" * 300, ["a" * 301], f"{'a' * 300!r}. Choices are: {'a' * 301}."),  # at once
    ],
)  # fmt: skip
def test_unknown_lists_choices_and_near_misses(name, choices, text):
    assert unknown("layer", name, choices) == f"unknown layer {text}"


def test_values_are_shown_whatever_they_are():
    class Broken:
        def __repr__(self):
            raise RuntimeError

    assert errors.shown("a\n") == "'a\\n'"
    assert errors.shown(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    assert errors.shown(dict) == "the class dict instead of an object, dict(...)"
    assert errors.shown(lambda: 0).endswith("<lambda>>")
    assert errors.shown(10**300) == "1" + "0" * 199 + "..."
    assert errors.shown(10**5000) == "a int that cannot be written"
    assert errors.shown(Broken()) == "a Broken that cannot be written"
