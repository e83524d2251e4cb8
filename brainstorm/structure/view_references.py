"""References, for imports by code of 2015; see `brainstorm.references`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brainstorm.references import (
    copy_modifier_for,
    matches,
    order_and_copy_modifiers,
    resolve_references,
)


def get_regex_for_reference(reference: str) -> re.Pattern[str]:
    """Return a name or a pattern with ``*`` as a regular expression."""
    return re.compile("[A-Za-z0-9_]*".join(map(re.escape, reference.split("*"))) + r"\Z")


def get_key_to_references_mapping(
    keys: Iterable[str], references: Iterable[str]
) -> dict[str, set[str]]:
    """Return for each name the references that match it; ``default`` if there is no other."""
    named = [name for name in references if name not in ("default", "fallback")]
    return {key: {n for n in named if matches(n, key)} or {"default"} for key in keys}


def prune_view_references(
    view_references: Mapping[str, Mapping[str, Sequence[Any]]],
) -> dict[str, dict[str, Sequence[Any]]]:
    """Return references without those for missing parameters, and for layers without any."""
    pruned = {
        layer: {name: values for name, values in parameters.items() if values}
        for layer, parameters in view_references.items()
    }
    return {layer: parameters for layer, parameters in pruned.items() if parameters}
