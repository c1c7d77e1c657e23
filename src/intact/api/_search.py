"""Search for a strategy, and realize one that a search wrote down."""

from __future__ import annotations

from intact.flow.search import replay_strategy, search_strategy

__all__ = ["replay_strategy", "search_strategy"]
