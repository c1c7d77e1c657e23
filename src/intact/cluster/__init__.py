"""Shards of work on the workers of a Ray cluster, on this machine or on others.

The connection to Ray; `actors.py`: actors that have loaded one job, for shards and for searches;
`ShardMap`: shards of work, done again where one is lost; `folders.py`: temporary folders that go
with their process.
"""

from __future__ import annotations

from intact.cluster.connection import Connection
from intact.cluster.shard_map import ShardMap

__all__ = ["Connection", "ShardMap"]
