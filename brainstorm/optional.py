"""Optional libraries: imported when first used, with an error that names the pip extra."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from brainstorm.errors import MissingDependencyError

__all__ = ["has", "require"]


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
