"""Shards of work on the workers of a Ray cluster, on this machine or on others."""

from __future__ import annotations

from intact.cluster.connection import Connection
from intact.cluster.shard_map import ShardMap

__all__ = ["Connection", "ShardMap"]
