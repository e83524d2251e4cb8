"""All exceptions of the library, and functions for their messages.

A message says where (layer, port, path), what was expected, what was got, and what to do.
All classes derive from `BrainstormError`. Classes for a kind of failure that Python has a class
for derive from that class too, so `except KeyError` and the like keep working.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator

__all__ = [
    "BrainstormError",
    "DescriptionError",
    "DeviceError",
    "FileFormatError",
    "HandlerValidationError",
    "InitializationError",
    "IteratorValidationError",
    "KernelError",
    "LayerValidationError",
    "MissingDataError",
    "MissingDependencyError",
    "NetworkValidationError",
    "NullBufferError",
    "OutOfMemoryError",
    "ReusedBufferError",
    "StructureValidationError",
    "TrainingError",
    "UnknownPathError",
    "UnknownTypeError",
    "UnsupportedFileError",
    "ValidationError",
    "did_you_mean",
    "escaped",
    "kind_of",
    "located",
    "see",
    "shown",
    "unknown",
]


class BrainstormError(Exception):
    """Base class of all errors that the library raises deliberately."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument instead of the message.
        return escaped(str(self.args[0])) if self.args else ""


class ValidationError(BrainstormError, ValueError):
    """An argument or value is not valid; base class of the more specific errors below."""


class NetworkValidationError(ValidationError):
    """An architecture, a wiring or a reference to parts of a network is invalid."""


class LayerValidationError(ValidationError):
    """An option, an input or an amount of data is not valid for a layer."""


class IteratorValidationError(ValidationError):
    """Data or arguments of a data iterator are not valid or do not fit together."""


class StructureValidationError(ValidationError):
    """A shape template or buffer structure is malformed."""


class HandlerValidationError(ValidationError):
    """The arguments or the result of a handler operation violate its contract.

    Attributes:
        array: The array concerned, if any, so that networks can name the buffer.
    """

    array: object = None


class TrainingError(ValidationError):
    """Arguments of a trainer, stepper, schedule or hook are not valid."""


class UnknownTypeError(ValidationError, TypeError):
    """A type name (layer, class in a description) is not registered."""


class InitializationError(BrainstormError):
    """An initializer cannot produce finite values of the requested shape."""


class DescriptionError(BrainstormError, TypeError):
    """An object has no description, or a description is not valid."""


class UnknownPathError(BrainstormError, KeyError):
    """A dotted path or name does not exist."""


class MissingDataError(NetworkValidationError, KeyError):
    """Data that the network's Input layer needs was not provided."""


class FileFormatError(BrainstormError, OSError):
    """A file is truncated, of another kind, or of an unsupported version."""


class UnsupportedFileError(FileFormatError):
    """A file is not damaged, but is a folder or device, or of a version that is too new."""


class OutOfMemoryError(BrainstormError, MemoryError):
    """The memory that a network needs cannot be allocated."""


class NullBufferError(BrainstormError):
    """A delta buffer was read that is not needed, and so not allocated."""


class ReusedBufferError(BrainstormError):
    """A buffer was read whose memory has been reused (memory strategy `compact`)."""


class MissingDependencyError(BrainstormError, ImportError):
    """An optional library is not installed; the message names the extra that installs it."""


class DeviceError(BrainstormError, RuntimeError):
    """There is no usable GPU, or it failed."""


class KernelError(DeviceError):
    """A kernel does not compile; the message has its source and the compiler's output."""


#: Errors raised by code that does not check its data, if these are malformed.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_NEW_LINE = re.compile(r"\n\s*")

#: Control characters other than tabs and newlines: terminals obey them.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

#: Longer texts of values are cut in messages, and not compared with others.
MOST_SHOWN = 200


def escaped(text: str) -> str:
    """Return a text that is safe to print, whoever wrote the names in it."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def shown(value: object) -> str:
    """Return any value as a line for a message, without addresses; long texts are shortened.

    Args:
        value: The value. For a class, which is often given instead of an object, the text says so.
    """
    if isinstance(value, type):
        return f"the class {value.__name__} instead of an object, {value.__name__}(...)"
    try:
        text = _NEW_LINE.sub(" ", _ADDRESS.sub("", repr(value)))
    except Exception:  # a number with a million digits, a failing repr
        return f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


@contextlib.contextmanager
def located(place: str) -> Iterator[None]:
    """Begin the messages of the library's errors with a place, unless it is empty."""
    try:
        yield
    except BrainstormError as error:
        if place:
            error.args = (f"{place}: {error}",)
        raise


def kind_of(value: object) -> str:
    """Return the type of a value as text, if the value itself is too long; see `shown`."""
    return shown(value) if isinstance(value, type) else type(value).__name__


def see(section: str) -> str:
    """Return a sentence that refers to a section of the page "Why does it not learn?".

    Args:
        section: The anchor of its heading, e.g. ``'overfitting'``.
    """
    return f"See docs/not_learning.md#{section}."


def unknown(kind: str, name: object, choices: Iterable[object]) -> str:
    """Return a message that `name` is not a known `kind`, with the choices and near misses.

    Args:
        kind: What was looked for, e.g. ``'layer type'``.
        name: The unknown name.
        choices: The accepted names.

    Returns:
        A sentence such as ``unknown layer type 'Foo'. Choices are: A, B. Did you mean 'B'?``
    """
    names = [str(choice) for choice in choices]
    text = f"unknown {kind} {name!r}. "
    if not names:
        return text + "There are none."
    return text + f"Choices are: {', '.join(names)}.{did_you_mean(name, names)}"


def did_you_mean(name: object, choices: Iterable[str]) -> str:
    """Return a question with the choices that are near misses; '' if there are none."""
    is_short = len(str(name)) <= MOST_SHOWN  # the time is quadratic
    near = is_short and difflib.get_close_matches(str(name), list(choices), n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
