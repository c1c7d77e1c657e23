"""Versions of ``plan.json``, and how an older one becomes the newest.

Each version has one function that turns it into the next; reading applies them in order, so a
function is never changed once its version was released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from intact.errors import PlanError

PLAN_VERSION = 2
"""The version that is written."""

Document: TypeAlias = dict[str, Any]
"""A plan as decoded JSON."""


def migrate(document: Document, version: int) -> Document:
    """Return a document of the newest version.

    Args:
        document: As it was read; it is changed.
        version: Its version.

    Raises:
        PlanError: The version is unknown: of a newer intact, or of none.
    """
    if version > PLAN_VERSION:
        raise PlanError(
            f"plan version {version} is newer than this intact, which reads up to {PLAN_VERSION}",
            remedy="update intact",
        )
    if version < 1:
        raise PlanError(f"there is no plan version {version}", remedy="quantize again")
    for older in range(version, PLAN_VERSION):
        document = _TO_THE_NEXT[older](document)
        document["version"] = older + 1
    return document


def _without_weights(document: Document) -> Document:
    """Version 1 had no integers beside the plan."""
    return {**document, "weights": ""}


_TO_THE_NEXT: Mapping[int, Callable[[Document], Document]] = MappingProxyType({1: _without_weights})
