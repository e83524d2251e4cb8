"""Text for character models
=========================

The text, the baseline and the score of the two character models in this folder.

The text consists of the docstrings of Python's standard library, read from the installed files.
"""

import ast
import os
from pathlib import Path

import numpy as np

from brainstorm.scorers import Scorer

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # others become "?"
HELD_OUT = 0.1  # the end of the text, which comes from other modules

# Modules that are not in every Python from 3.11 on; without them the text is almost the same.
GONE = {
    "aifc", "asynchat", "asyncore", "binhex", "cgi", "cgitb", "chunk", "crypt", "imghdr", "imp",
    "mailcap", "nntplib", "pipes", "smtpd", "sndhdr", "sunau", "telnetlib", "uu", "xdrlib",
}  # fmt: skip


def load_text(size):
    """Return up to `size` characters as numbers (N,): for training, and held out."""
    folder = Path(os.__file__).parent
    text = ""
    for path in sorted(folder.glob("[a-z]*.py")):
        if path.stem not in GONE and len(text) < size:
            text += "".join(f"{docstring}\n\n" for docstring in docstrings(path.read_bytes()))
    codes = encode(text)[:size]
    print(f"{codes.size:,} characters of docstrings from {folder}")
    start = round(codes.size * (1 - HELD_OUT))
    return codes[:start], codes[start:]


def docstrings(source):
    """Yield the docstrings of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def encode(text):
    """Return the numbers in `CHARACTERS` of the characters of a text."""
    table = np.full(128, CHARACTERS.index("?"))
    table[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))
    return table[np.frombuffer(text.expandtabs().encode("ascii", "replace"), np.uint8)]


def decode(codes):
    """Return the text for the numbers of its characters."""
    return "".join(CHARACTERS[code] for code in codes)


def baseline_bits(training, held_out):
    """Return the bits per held-out character if its probability follows from the two before it.

    The probability is how often the three stand together in the text for training, plus k (so that
    nothing is impossible), over the sum for all characters. The k is the best for the text held
    out, in favour of the baseline.
    """
    n = len(CHARACTERS)
    counts = np.bincount(_triples(training), minlength=n**3).reshape(n * n, n)
    pairs, last = np.divmod(_triples(held_out), n)
    seen, total = counts[pairs, last], counts.sum(axis=1)[pairs]
    return min(-np.log2((seen + k) / (total + k * n)).mean() for k in (1, 0.3, 0.1, 0.03, 0.01))


def _triples(codes):
    """Return every three characters in a row as one number."""
    return (codes[:-2] * len(CHARACTERS) + codes[1:-1]) * len(CHARACTERS) + codes[2:]


class BitsPerCharacter(Scorer):
    """The mean of -log2 p, p being the predicted probability of the true character."""

    criterion = "min"

    def __call__(self, true_labels, predicted, mask=None):
        """Return the sum over the rows."""
        right = np.take_along_axis(predicted, true_labels.astype(int), axis=1)
        return float(-np.log2(right).sum(dtype=float))
