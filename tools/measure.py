"""Measure the budgets of CONTRIBUTING.md: sizes of files and functions, docstrings, annotations.

python tools/measure.py            # what `make measure` prints
"""

from __future__ import annotations

import ast
import importlib
import inspect
import operator
import pkgutil
import statistics
from collections.abc import Iterable
from pathlib import Path

import brainstorm

PACKAGE = Path(__file__).parent.parent / "brainstorm"

HALF, FILE, FUNCTION = 125, 400, 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(function: Function) -> int:
    """Return the number of lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        text = function.body[0]
        lines -= (text.end_lineno or text.lineno) - text.lineno + 1
    return lines


def find_public(path: Path) -> dict[str, ast.AST]:
    """Return the names of a module without underscore, and those of its classes' members."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            found[node.name] = node
            members = node.body if isinstance(node, ast.ClassDef) else []
            for member in members:
                if isinstance(member, ast.ClassDef | Function) and not member.name.startswith("_"):
                    found[f"{node.name}.{member.name}"] = member
    return found


def is_documented(path: Path, name: str) -> bool:
    """Return whether an object has a docstring, its own or that of what it overrides."""
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    owner = importlib.import_module(module.removesuffix(".__init__"))
    return inspect.getdoc(operator.attrgetter(name)(owner)) is not None


def find_printing_as_addresses() -> list[str]:
    """Return the classes in ``__all__`` of packages whose objects print as an address."""
    packages = [brainstorm.__name__]
    packages += [m.name for m in pkgutil.walk_packages([str(PACKAGE)], "brainstorm.") if m.ispkg]
    return [
        f"{package}: {name}"
        for package in packages
        for name, found in vars(importlib.import_module(package)).items()
        if name in getattr(importlib.import_module(package), "__all__", ())
        and inspect.isclass(found)
        and found.__repr__ is object.__repr__
    ]


def is_annotated(function: Function) -> bool:
    """Return whether all arguments but ``self`` and ``cls``, and the result, have annotations."""
    given = function.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    arguments += [extra for extra in (given.vararg, given.kwarg) if extra is not None]
    named = [a for a in arguments if a.arg not in ("self", "cls")]
    return function.returns is not None and all(a.annotation is not None for a in named)


def main() -> None:
    """Measure everything."""
    files = sorted(PACKAGE.rglob("*.py"))
    lines, functions, undocumented, unannotated = {}, [], [], []
    for path in files:
        text = path.read_text(encoding="utf-8")
        where = str(path.relative_to(PACKAGE))
        lines[path] = len(text.splitlines())
        functions += [
            (lines_of(node), f"{where}: {node.name}")
            for node in ast.walk(ast.parse(text))
            if isinstance(node, Function)
        ]
        for name, node in find_public(path).items():
            if not is_documented(path, name):
                undocumented.append(f"{where}: {name}")
            if isinstance(node, Function) and not is_annotated(node):
                unannotated.append(f"{where}: {name}")
    report(lines, functions, undocumented, unannotated)


def report(
    lines: dict[Path, int],
    functions: list[tuple[int, str]],
    undocumented: list[str],
    unannotated: list[str],
) -> None:
    """Print every budget, what was found, and the worst."""
    sizes = sorted(lines.values())
    print(f"{len(sizes)} files, {sum(sizes)} lines")
    print(f"half of the files under {HALF} lines: the median is {statistics.median(sizes):g}")
    print(f"no file over {FILE} lines, except:")
    show((n, str(p.relative_to(PACKAGE))) for p, n in lines.items() if n > FILE)
    print(f"functions under {FUNCTION}, docstring not counted: {len(functions)}; the others:")
    show(item for item in functions if item[0] >= FUNCTION)
    print(f"public names without docstring: {len(undocumented)}")
    show((0, name) for name in undocumented)
    print(f"public signatures without annotations: {len(unannotated)}")
    show((0, name) for name in unannotated)
    addresses = find_printing_as_addresses()
    print(f"public names that print as an address: {len(addresses)}")
    show((0, name) for name in addresses)


def show(items: Iterable[tuple[int, str]]) -> None:
    """Print numbers and names, the largest first."""
    for size, name in sorted(items, reverse=True):
        print(f"  {size or '':>5} {name}")


if __name__ == "__main__":
    main()
