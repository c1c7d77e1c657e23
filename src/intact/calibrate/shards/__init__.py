"""Statistics from the workers of a cluster: shards of samples, counted apart and merged exactly."""

from __future__ import annotations

from intact.calibrate.shards.collector import ShardedCollector

__all__ = ["ShardedCollector"]
