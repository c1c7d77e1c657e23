"""Shards of work on the workers of a Ray cluster, on this machine or on others."""

from __future__ import annotations

from intact.cluster.connection import Connection
from intact.cluster.shard_map import Hello, Savable, ShardMap

__all__ = ["Connection", "Hello", "Savable", "ShardMap"]
