"""Inspect and convert files: ``python -m brainstorm info|draw|check|convert FILE``.

The exit code is 0 if all is well, 1 if the file is damaged or holds NaN or infinity, and 2 if
the command cannot be executed: there is no such file, it is a folder, or a dependency is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import numpy as np

from brainstorm import tools
from brainstorm._version import __version__
from brainstorm.describable import get_description
from brainstorm.display import Node, Statistics, Tree
from brainstorm.errors import (
    BrainstormError,
    DeviceError,
    FileFormatError,
    MissingDependencyError,
    UnsupportedFileError,
    ValidationError,
    escaped,
    unknown,
)
from brainstorm.ext.onnx_exchange import load_onnx, save_onnx
from brainstorm.ext.safetensors_files import load_safetensors, save_safetensors
from brainstorm.files import RunFile, read_file, read_network_file, read_run_file
from brainstorm.handlers import NumpyHandler
from brainstorm.network import Network
from brainstorm.network.summary import network_tree, summarize
from brainstorm.training import Logs, Trainer

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute a command line.

    Args:
        arguments: Without the name of the program; `None`: those of the process.

    Returns:
        The exit code.
    """
    parsed = _make_parser().parse_args(arguments)
    if parsed.modules:
        sys.path.insert(0, os.getcwd())
    try:
        for module in parsed.modules:
            _import(module)
        return parsed.command(parsed)
    except (BrainstormError, OSError, ImportError, MemoryError) as error:
        _complain(str(error))
        is_damaged = isinstance(error, FileFormatError)
        return 1 if is_damaged and not isinstance(error, UnsupportedFileError) else 2


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise
    except Exception as error:  # the module may raise anything
        raise ImportError(f"--import {module}: {type(error).__name__}: {error}") from error


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m brainstorm", description=__doc__)
    parser.add_argument("--version", action="version", version=f"brainstorm {__version__}")
    commands = parser.add_subparsers(required=True, metavar="info|draw|check|convert")
    texts = {
        _info: "print the layers, and the progress of a run",
        _draw: "draw the layers and connections",
        _check: "load everything, and look for NaN and infinity",
        _convert: "write a network in another format; endings choose: .hdf5, .onnx, .safetensors",
    }
    for command, text in texts.items():
        sub = commands.add_parser(command.__name__.lstrip("_"), help=text, description=text)
        sub.set_defaults(command=command)
        sub.add_argument(
            "file", help="a network file or a run file; for convert, any of its formats"
        )
        if command is _draw:
            sub.add_argument(
                "output",
                nargs="?",
                help="the picture; its ending chooses the format (default: FILE.svg)",
            )
        if command is _convert:
            sub.add_argument("output", help="the file to be written")
            sub.add_argument(
                "--axes",
                action="append",
                default=[],
                metavar="NAME=LETTERS",
                help="the axes of an input or output of an ONNX model, e.g. x=BHWC",
            )
        sub.add_argument(
            "--import",
            action="append",
            default=[],
            dest="modules",
            metavar="MODULE",
            help="first import a module with your own classes, e.g. from the current folder",
        )
    return parser


def _load_for_this_machine(filename: str) -> Network:
    """Return the network in a file, with another handler if there is no GPU for its own."""
    try:
        return Network.from_hdf5(filename)
    except (DeviceError, MissingDependencyError):
        return Network.from_hdf5(filename, NumpyHandler(np.float32))


def _load(filename: str) -> Network:
    """Return the network in a file, on any machine and without loss of precision."""
    return Network.from_hdf5(filename, NumpyHandler(np.float64))


def _read_format(filename: str) -> str:
    """Return ``'Run file v1.0'`` or the like."""
    kinds = ("Network file", "Run file")
    return read_file(filename, kinds, lambda file: str(file.attrs["format"]))


def _info(parsed: argparse.Namespace) -> int:
    kind, content = _read_format(parsed.file), read_network_file(parsed.file)
    net = _load(parsed.file)
    facts = {
        "file": parsed.file,
        "format": kind,
        "comment": content.comment,
        "handler": content.description["handler"]["@type"],
    }
    if kind.startswith("Run file"):
        facts.update(_describe_run(read_run_file(parsed.file)))
    width = max(map(len, facts))
    lines = [f"{name:<{width}}  {value}" for name, value in facts.items() if value != ""]
    _write(*lines, "", summarize(net.layers), "", network_tree(net.layers, None))
    return 0


def _describe_run(run: RunFile) -> dict[str, Any]:
    """Return the progress of a training, and the last entry of each log."""
    state = run.state["trainer"]
    stepper = get_description(run.trainer["stepper"])
    facts = {
        "epochs": state["current_epoch_nr"],
        "updates": state["current_update_nr"],
        "stepper": ", ".join(str(v) if k == "@type" else f"{k}={v}" for k, v in stepper.items()),
        "hooks": ", ".join(run.trainer.get("hooks", ())),
    }
    logs = Logs.from_state(state["logs"])
    return {**facts, **{f"log {path}": logs[path][-1] for path in logs.paths()}}


def _draw(parsed: argparse.Namespace) -> int:
    output = parsed.output or f"{parsed.file}.svg"
    tools.draw_network(_load(parsed.file), output)
    _write(f"wrote {output}")
    return 0


def _check(parsed: argparse.Namespace) -> int:
    if _read_format(parsed.file).startswith("Run file"):
        Trainer.resume(parsed.file)
    net = _load(parsed.file)
    persistent = read_network_file(parsed.file).persistent
    found = {
        path: Statistics.of(net.get(path))
        for path in (*net.buffer.paths("*.parameters.*"), *persistent)
    }
    _write(Tree(Node(path, path, values.as_cells()) for path, values in found.items()))
    bad = {path: values for path, values in found.items() if values.nans + values.infinities}
    for path, values in bad.items():
        _complain(
            f"{parsed.file!r}, {path}: expected finite values, got {values.nans} NaN and "
            f"{values.infinities} infinite ones."
        )
    if not bad:
        _write(f"{parsed.file}: all values are finite")
    return 1 if bad else 0


def _convert(parsed: argparse.Namespace) -> int:
    formats: dict[str, tuple[Callable[..., Network], Callable[..., None]]] = {
        ".hdf5": (_load_for_this_machine, Network.save_as_hdf5),
        ".onnx": (load_onnx, save_onnx),
        ".safetensors": (load_safetensors, save_safetensors),
    }
    ends = [os.path.splitext(name)[1].lower() for name in (parsed.file, parsed.output)]
    for end in ends:
        if end not in formats:
            raise ValidationError(unknown("ending of a file", end, formats))
    axes = dict(_split_axes(text) for text in parsed.axes)
    if axes and ends[0] != ".onnx":
        raise ValidationError(f"--axes: expected a model in ONNX, got {parsed.file!r}.")
    read, write = formats[ends[0]][0], formats[ends[1]][1]
    net = read(parsed.file, axes=axes) if axes else read(parsed.file)
    write(net, parsed.output)
    _write(summarize(net.layers), f"wrote {parsed.output}")
    return 0


def _split_axes(text: str) -> tuple[str, str]:
    name, _, letters = text.rpartition("=")
    if not (name and letters):
        raise ValidationError(f"--axes: expected NAME=LETTERS, such as x=BHWC, got {text!r}.")
    return name, letters


def _write(*lines: object) -> None:
    """Write to the standard output, which may be closed, full, or support few characters."""
    if sys.stdout is None:
        raise OSError("there is no standard output to write to")
    text = "".join(f"{line}\n" for line in lines)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    _put(sys.stdout, text.encode(encoding, "backslashreplace").decode(encoding))


def _complain(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # it is full; there is an exit code
            _put(sys.stderr, f"brainstorm: {text}\n")


def _put(stream: TextIO, text: str) -> None:
    try:
        stream.write(escaped(text))
        stream.flush()
    except OSError:  # Python would try again at its end, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


if __name__ == "__main__":
    sys.exit(main())
