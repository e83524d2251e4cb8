"""Run the Python blocks of pages, and write what they print into the blocks that follow them.

python docs/fill_in_outputs.py docs/optrees.md
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def with_outputs(text: str, name: str = "page") -> str:
    """Return a page with its outputs: after each block in Python the next one in text or C."""
    namespace = {"__name__": name}
    printed = ""

    def replaced(block: re.Match[str]) -> str:
        nonlocal printed
        language, content = block.groups()
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                exec(compile(content, name, "exec"), namespace)
            printed = stream.getvalue()
        elif language in ("text", "c"):
            content, printed = printed, ""
        return f"```{language}\n{content}```"

    return BLOCK.sub(replaced, text)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        page = Path(argument)
        page.write_text(with_outputs(page.read_text(encoding="utf-8")), encoding="utf-8")
