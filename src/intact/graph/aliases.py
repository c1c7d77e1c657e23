"""Second names of inputs and outputs: what the file that a model was read from calls its tensors.

They are metadata of the model, so that they hold in a result's folder too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

import onnx_ir as ir

from intact.errors import DataError, ModelError

METADATA_KEY = "intact.aliases"

_Item = TypeVar("_Item")


def set_aliases(model: ir.Model, aliases: Mapping[str, str]) -> None:
    """Store second names.

    Args:
        model: Changed in place.
        aliases: Names of inputs and outputs, by second name.
    """
    if aliases:
        model.metadata_props[METADATA_KEY] = json.dumps(dict(aliases))


def aliases_of(model: ir.Model) -> dict[str, str]:
    """Return the names of inputs and outputs by second name.

    Raises:
        ModelError: The metadata does not hold what `set_aliases` writes.
    """
    text = model.metadata_props.get(METADATA_KEY)
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    ports = {str(value.name) for value in (*model.graph.inputs, *model.graph.outputs)}
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and name in ports for name in found.values()
    ):
        raise ModelError(
            f"the model's metadata {METADATA_KEY!r} cannot be read",
            remedy="remove that entry, or read the original model again",
        )
    return {alias: name for alias, name in found.items() if alias not in ports}


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
