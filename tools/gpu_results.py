"""Results on a GPU: lines of JSON, each written to disk immediately.

The machine may become unavailable at any time. So a program appends each result, and later
continues after the results in the file.
"""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Results"]


class Results:
    """The lines of a file, by what they are about.

    Args:
        path: The file; made with its folder where it does not exist. A line that was cut off in
            the middle is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        self.lines: dict[str, dict[str, Any]] = {line["what"]: line for line in lines}
        self._write()

    def __contains__(self, what: str) -> bool:
        return what in self.lines

    def add(self, what: str, **values: Any) -> None:
        """Put a result on disk."""
        self.lines[what] = {"what": what, **values}
        with self.path.open("a") as file:
            file.write(json.dumps(self.lines[what]) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def forget_failures(self) -> None:
        """Drop what has an error, for it to be tried again."""
        self.lines = {what: line for what, line in self.lines.items() if not line.get("error")}
        self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(json.dumps(line) + "\n" for line in self.lines.values()))
        new.replace(self.path)
