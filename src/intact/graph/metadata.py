"""Keeps JSON in the metadata of a model: it holds in a result's folder too."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import onnx_ir as ir

from intact.errors import ModelError

_T = TypeVar("_T")

PART_KEY = "intact.part_of"
"""Metadata of a node: the type of the operator that it is a part of, expanded."""

GUARD_KEY = "intact.guarded_by"
"""Metadata of a node that may fail: what it ran in under a condition, and no longer does."""

FLOAT_KEY = "intact.stays_float"
"""Metadata of a node that an improvement added: why it computes in float."""

STEPS_KEY = "intact.caches_in_steps"
"""Metadata of a node: what its caches hold in steps (see `intact.graph.key_basis`)."""

WHOLE_KEY = "intact.not_expanded"
"""Metadata of a node: why it was not expanded though the target asks for it."""


def set_metadata(model: ir.Model, key: str, value: Any) -> None:
    """Store a value that JSON has, if there is anything in it; the model is changed."""
    if value:
        model.metadata_props[key] = json.dumps(value)


def metadata_of(model: ir.Model, key: str, read: Callable[[Any], _T], default: _T) -> _T:
    """Read what `set_metadata` wrote.

    Args:
        model: A model.
        key: The name of the entry.
        read: Makes something of the value; raises any of the usual errors where it does not fit.
        default: What there is without such an entry.

    Raises:
        ModelError: The entry holds something else.
    """
    text = model.metadata_props.get(key)
    if text is None:
        return default
    try:
        return read(json.loads(text))
    # The entry may hold anything, because models come from anyone.
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise ModelError(
            f"the model's metadata {key!r} cannot be read",
            remedy="remove that entry, or read the original model again",
        ) from None
