"""Why something cannot be written."""

from __future__ import annotations


class Inexpressible(Exception):  # noqa: N818 - a reason that is collected with others
    """Why a node or a tensor cannot be written."""
