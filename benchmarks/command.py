"""The command line of a benchmark whose figures can go to a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

__all__ = ["deliver", "figures_parser"]


def figures_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows ``--json``, described by the first line of a module."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    return parser


def deliver(found: Any, text: str, arguments: argparse.Namespace) -> None:
    """Print the figures as text, and write them to the file that the arguments name."""
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
