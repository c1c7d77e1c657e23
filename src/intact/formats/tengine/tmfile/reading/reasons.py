"""Why something cannot be read."""

from __future__ import annotations


class Unreadable(Exception):  # noqa: N818 - a reason that is collected with others
    """Why a node cannot be read."""


class FixesBatch(Exception):  # noqa: N818 - an answer
    """A node mixes the samples of a batch: the model runs with the batch of the file."""
