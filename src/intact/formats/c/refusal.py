"""Why a step cannot be written, before all of them are told together."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - it never leaves the exporter
    """One step that C cannot hold.

    Args:
        reason: Why.
        remedy: What to do instead.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
