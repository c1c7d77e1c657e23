"""Samples in shards on the workers of a cluster, and ``collect`` by them."""

from __future__ import annotations

from intact.calibrate.shards.collector import collect_on
from intact.calibrate.shards.sample_map import SampleMap

__all__ = ["SampleMap", "collect_on"]
