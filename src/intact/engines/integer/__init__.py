"""The integer engine: what hardware computes, bit for bit."""

from intact.engines.integer.engine import IntegerEngine, IntegerRun

__all__ = ["IntegerEngine", "IntegerRun"]
