"""Every exception of the library, and the one way to say that a name is unknown.

A message says where (layer, port, path), what was expected, what was got, and what to do.
All classes derive from `BrainstormError`. Those that stand for a kind of failure which Python
has a class for derive from that class too, so `except KeyError` and the like keep working.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
    "see",
    "shown",
    "unknown",
]


class BrainstormError(Exception):
    """Base class of all errors that the library raises on purpose."""

    def __str__(self) -> str:
        # KeyError would show the repr of its argument; a message is meant to be read.
        return str(self.args[0]) if self.args else ""


class ValidationError(BrainstormError, ValueError):
    """Something that was given does not fit; base of the more specific errors below."""


class NetworkValidationError(ValidationError):
    """An architecture, a wiring or a reference to parts of a network is invalid."""


class LayerValidationError(ValidationError):
    """A layer got an option, an input or an amount of data that it cannot work with."""


class IteratorValidationError(ValidationError):
    """A data iterator got data or arguments that do not fit together."""


class StructureValidationError(ValidationError):
    """A shape template or buffer structure is malformed."""


class HandlerValidationError(ValidationError):
    """The arguments or the result of a handler operation break its contract.

    Attributes:
        array: The one that is wrong, if it is one; so networks can say which buffer it is.
    """

    array: object = None


class TrainingError(ValidationError):
    """A trainer, stepper, schedule or hook cannot work with what it was given."""


class UnknownTypeError(ValidationError, TypeError):
    """A type name (layer, class in a description) that nobody registered."""


class InitializationError(BrainstormError):
    """An initializer cannot produce values of the requested shape."""


class DescriptionError(BrainstormError, TypeError):
    """An object has no description, or a description stands for no object."""


class UnknownPathError(BrainstormError, KeyError):
    """A dotted path or name that leads nowhere."""


class MissingDataError(NetworkValidationError, KeyError):
    """Data that the network's Input layer needs was not provided."""


class FileFormatError(BrainstormError, OSError):
    """A file is truncated, foreign, or of a version that cannot be read."""


class UnsupportedFileError(FileFormatError):
    """What is there is not damaged, but a folder or device, or of a version that is too new."""


class OutOfMemoryError(BrainstormError, MemoryError):
    """The memory that a network needs cannot be allocated."""


class NullBufferError(BrainstormError):
    """A delta buffer that no parameter needs, and that therefore has no memory, was read."""


class ReusedBufferError(BrainstormError):
    """A buffer was read whose memory holds something else by now (memory strategy `compact`)."""


class MissingDependencyError(BrainstormError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""


class DeviceError(BrainstormError, RuntimeError):
    """There is no GPU that can be used, or it failed."""


class KernelError(DeviceError):
    """A kernel does not compile; the message has its source and what the compiler said."""


#: What code that trusts its data raises where these make no sense.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


#: Longer texts of values are cut in messages.
MOST_SHOWN = 200


def shown(value: object) -> str:
    """Return a value for a message, whatever it is: cut if it is long, its type if it has no text.

    Args:
        value: What was given.
    """
    try:
        text = repr(value)
    except Exception:  # a number of a million digits, a repr that fails
        return f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def see(section: str) -> str:
    """Return the sentence that leads to a section of the page "Why does it not learn?".

    Args:
        section: The anchor of its heading, e.g. ``'overfitting'``.
    """
    return f"See docs/not_learning.md#{section}."


def unknown(kind: str, name: object, choices: Iterable[object]) -> str:
    """Say that `name` is no known `kind`; list the choices and the nearest of them.

    Args:
        kind: What was looked for, e.g. ``'layer type'``.
        name: What was given.
        choices: The names that would have been accepted.

    Returns:
        A sentence such as ``unknown layer type 'Foo'. Choices are: A, B. Did you mean 'B'?``
    """
    names = [str(choice) for choice in choices]
    text = f"unknown {kind} {name!r}. "
    if not names:
        return text + "There are none."
    text += f"Choices are: {', '.join(names)}."
    near = difflib.get_close_matches(str(name), names, n=2, cutoff=0.6)
    if near:
        text += f" Did you mean {' or '.join(repr(n) for n in near)}?"
    return text
