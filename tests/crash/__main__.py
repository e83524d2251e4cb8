"""Kill many runs: ``python -m tests.crash [KILLS] [SEED]``."""

from __future__ import annotations

import sys
import time

from tests.crash.harness import torment

if __name__ == "__main__":
    begin = time.monotonic()
    found = torment(*map(int, sys.argv[1:] or ["250"]))
    print(f"{found} ({time.monotonic() - begin:.0f} s)")
    sys.exit("\n".join(found.losses) or 0)
