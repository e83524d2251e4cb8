"""Optional libraries: imported when first used, with an error that names the pip extra.

For scripts of 2015 there are ``has_pycuda``, ``has_bokeh``, ``pycuda_mock`` and ``bokeh_mock``.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any

from brainstorm.errors import MissingDependencyError

__all__ = ["MissingDependencyMock", "has", "require"]


def has(module: str) -> bool:
    """Return whether `module` can be imported, without importing it."""
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def require(module: str, extra: str) -> ModuleType:
    """Import and return an optional module.

    Args:
        module: Dotted module name, e.g. ``'matplotlib.pyplot'``.
        extra: The extra of this package that installs it, e.g. ``'plot'``.

    Raises:
        MissingDependencyError: The library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this needs {module.partition('.')[0]}, which cannot be imported ({error}). "
            f"Install it with: pip install 'brainstorm[{extra}]'"
        ) from error


class MissingDependencyMock:
    """Stands for an object of a missing library: every use raises an error.

    Args:
        depends_on: The name of the library.
    """

    def __init__(self, depends_on: str) -> None:
        self._depends_on = depends_on

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise the error.

        Raises:
            MissingDependencyError: Always.
        """
        raise MissingDependencyError(
            f"this needs {self._depends_on}. Install it with: pip install {self._depends_on}"
        )


def __getattr__(name: str) -> Any:
    library, _, kind = name.rpartition("_")
    if name in ("has_pycuda", "has_bokeh"):
        return has(name.removeprefix("has_"))
    if library in ("pycuda", "bokeh") and kind == "mock":
        return MissingDependencyMock(library)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
