"""Write docs/handlers_reference.md: every operation with its signature, contract and formula.

    python docs/make_handlers_page.py

All of it comes from the declarations in `brainstorm.handlers`.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path

from brainstorm.handlers import Handler
from brainstorm.handlers.argument_kinds import KINDS
from brainstorm.handlers.base_activations import ActivationOperations
from brainstorm.handlers.base_arrays import ArrayOperations
from brainstorm.handlers.base_images import ImageOperations
from brainstorm.handlers.base_sequences import SequenceOperations

PAGE = Path(__file__).with_name("handlers_reference.md")

HEADER = """# Operations of handlers

Generated from the declarations by `python docs/make_handlers_page.py`. For an introduction, see
[handlers](handlers.md).

Every operation has a signature, a contract and a formula. The last letters of a name are the types
of the operands: `s` a scalar (a number, or an array with one element), `v` a row or column vector
(2-D with a 1), `m` a matrix, `t` an array of any shape. Operations marked *derived* work on every
handler; a new handler implements the others.

## How to read a contract

`a(M,K)^transa b(K,N)^transb -> out(M,N)+`: two arrays that share the size K, each of which may be
transposed by a flag, and an output that is added to.

| mark | meaning |
|---|---|
| `->` | the following arguments are written, and share no memory with any other argument |
| `~>` | the following arguments are written, and may be one of the inputs (in place) |
| `=>` | the return value |
| `(M,3,*S)` | an array: a symbol is one size throughout, `*S` any number of dimensions |
| `(1,N)\\|(M,1)` | one shape or the other |
| `?` | may be `None` or an array of size 0 |
| `^flag` | if the flag is true, the array is transposed; the shape is that after transposition |
| `+`, `+flag` | the result is added to the old content, always or if the flag is true |
| `v(M,1)<N` | the elements are integers from 0 to N - 1 |
| `:any`, `:unread` | an array of any dtype; an array of which only the shape is used |

Other kinds of arguments:
"""

CLASSES = (ArrayOperations, ActivationOperations, ImageOperations, SequenceOperations)
TITLES = {
    ActivationOperations: "activations",
    ImageOperations: "images",
    SequenceOperations: "sequences",
}


def section_of(name: str) -> str:
    """Return the heading that an operation stands under: a comment, or its class."""
    owner = next(each for each in CLASSES if name in vars(each))
    if owner in TITLES:
        return TITLES[owner]
    lines, start = inspect.getsourcelines(owner)
    line = inspect.getsourcelines(vars(owner)[name])[1] - start
    return re.findall(r"^    # -- (.+?) -+$", "".join(lines[:line]), re.MULTILINE)[-1]


def describe(name: str) -> list[str]:
    """Return the lines of one operation."""
    function: Callable[..., None] = getattr(Handler, name)
    contract = Handler.operations()[name]
    arguments = [
        str(p.replace(annotation=inspect.Parameter.empty))
        for p in contract.signature.parameters.values()
    ]
    derived = "" if name in Handler.__abstractmethods__ else " *(derived)*"
    lines = [f"### {name}", "", f"`{name}({', '.join(arguments)})`{derived}", ""]
    lines += ["```text", inspect.getdoc(function) or "", "```", ""]
    lines.append(f"* contract: `{contract.text}`")
    if contract.where:
        lines.append(f"* where: {'; '.join(f'`{condition}`' for condition in contract.where)}")
    return [*lines, ""]


def make_page() -> str:
    """Return the whole page."""
    lines = [HEADER, "| kind | what |", "|---|---|"]
    lines += [f"| `:{kind}` | {what} |" for kind, (what, _) in KINDS.items()]
    lines.append("")
    for section, names in itertools.groupby(Handler.operations(), section_of):
        lines += [f"## {section[0].upper()}{section[1:]}", ""]
        for name in names:
            lines += describe(name)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
