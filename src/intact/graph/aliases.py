"""Stores second names of inputs and outputs: what the file of another format calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import onnx_ir as ir

from intact.errors import DataError
from intact.graph.metadata import metadata_of, set_metadata

METADATA_KEY = "intact.aliases"

_Item = TypeVar("_Item")


def set_aliases(model: ir.Model, aliases: Mapping[str, str]) -> None:
    """Store second names.

    Args:
        model: Changed in place.
        aliases: Names of inputs and outputs, by second name.
    """
    set_metadata(model, METADATA_KEY, dict(aliases))


def aliases_of(model: ir.Model) -> dict[str, str]:
    """Return the names of inputs and outputs by second name.

    Raises:
        ModelError: The metadata does not hold what `set_aliases` writes.
    """
    ports = {str(value.name) for value in (*model.graph.inputs, *model.graph.outputs)}

    def read(stored: Mapping[str, str]) -> dict[str, str]:
        if not ports.issuperset(stored.values()):
            raise ValueError(stored)
        # A second name that is another tensor's own would make that one ambiguous.
        return {alias: name for alias, name in stored.items() if alias not in ports}

    return metadata_of(model, METADATA_KEY, read, {})


def by_own_name(
    source: str, aliases: Mapping[str, str], items: Mapping[str, _Item]
) -> dict[str, _Item]:
    """Return items by the names of the model, for which second ones may stand.

    Args:
        source: What to call the items in messages.
        aliases: From `aliases_of`.
        items: By any of the names.

    Raises:
        DataError: Both names of one input or output are given.
    """
    found: dict[str, _Item] = {}
    for key, item in items.items():
        name = aliases.get(key, key)
        if name in found:
            other = next(each for each in items if aliases.get(each, each) == name)
            raise DataError(
                f"{source}: {other!r} and {key!r} are one tensor", remedy="give one of them"
            )
        found[name] = item
    return found
