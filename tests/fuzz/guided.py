"""Inputs that atheris finds by coverage, where it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

GUIDED = ("data", "logs", "spec")


def run(count, folder):
    """Let atheris try `count` inputs of each kind it is for; return whether one failed."""
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: no inputs found by coverage")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for kind in GUIDED:
        command = [sys.executable, "-m", "tests.fuzz.guided", kind, str(count), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        failed |= done.returncode
        print(f"atheris, {kind}: {count} inputs, {'FAILED' if done.returncode else 'no failure'}")
        if done.returncode:
            print(done.stderr[-3000:])
    return int(bool(failed))


def main():
    """Run atheris on one kind; it ends the process itself."""
    import atheris

    kind, count, folder = sys.argv[1:]
    read = ["brainstorm.hdf5", "brainstorm.files", "brainstorm.tools", "brainstorm.training"]
    with atheris.instrument_imports(include=read):
        from tests.fuzz import kinds
        from tests.fuzz.worker import SECONDS, limit_memory, outcome_of

    corpus = Path(tempfile.mkdtemp())
    seeds = [s.encode() for s in kinds.SPECS] if kind == "spec" else kinds.files(kind)
    for number, data in enumerate(seeds):
        (corpus / str(number)).write_bytes(data)

    def test_one(data):
        value = data.decode("utf-8", "ignore") if kind == "spec" else data
        outcome = outcome_of(kind, value)
        if outcome not in ("accepted", "refused"):
            raise RuntimeError(outcome)

    options = [f"-runs={count}", f"-timeout={int(4 * SECONDS)}", "-rss_limit_mb=1000",
               "-max_len=20000", f"-artifact_prefix={folder}/{kind}-"]  # fmt: skip
    if sys.platform == "linux":
        outcome_of(kind, seeds[0] if kind != "spec" else kinds.SPECS[0])  # imports and caches
        limit_memory()
    atheris.Setup([sys.argv[0], *options, str(corpus)], test_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
