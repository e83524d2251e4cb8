"""A million updates: ``python -m tests.long [UPDATES]``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.long.run import train

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), int((sys.argv[1:] or ["1000000"])[0]), shown=True)
