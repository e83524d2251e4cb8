"""Links to the glossary, from where a page first uses a word that not everybody knows.

They are added when the site is built; the pages themselves stay plain.
"""

from __future__ import annotations

import re

#: Words that get links, as they are written on pages -> heading in glossary.md.
LINKED = {
    **{word: word for word in ("buffer", "delta", "handler", "hook", "hub", "stepper", "trace")},
    **{word: word for word in ("context", "data iterator", "initializer", "internal", "op-tree")},
    **{word: word for word in ("checkpoint", "null buffer", "schedule", "scorer", "seed tree")},
    **{word: word for word in ("early stopping", "overfitting", "temperature", "underfitting")},
    "`rel`": "rel",
    "`rolling_training`": "rolling_training",
    "`compact`": "compact memory",
}

#: Code in blocks, of which nothing is changed.
BLOCKS = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)

#: A word, or what no link belongs into: links, code, headings, tables and indented lines.
PARTS = re.compile(
    r"\[[^\]]*\]\([^)]*\)|^(?:#|    |\|).*$|(?P<word>"
    + "|".join(rf"{re.escape(word)}s?" if word[-1] != "`" else word for word in LINKED)
    + r")(?![\w`-])|`[^`]*`|[\w-]+",
    re.MULTILINE,
)


def link_terms(text: str, prefix: str = "") -> str:
    """Return a page in Markdown whose first uses of words in `LINKED` are links.

    Args:
        text: The page.
        prefix: Leads from the folder of the page to that of the glossary: ``'../'`` or nothing.
    """
    seen: set[str] = set()

    def linked(part: re.Match[str]) -> str:
        word = part["word"]
        if word is None:
            return part.group()
        term = LINKED.get(word) or LINKED[word.removesuffix("s")]
        if term in seen:
            return word
        seen.add(term)
        return f"[{word}]({prefix}glossary.md#{term.replace(' ', '-')})"

    parts = BLOCKS.split(text)
    return "".join(part if n % 2 else PARTS.sub(linked, part) for n, part in enumerate(parts))
