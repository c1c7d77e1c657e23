"""The integer engine: what hardware computes, bit for bit."""

from intact.run.integer.engine import IntegerEngine, IntegerRun

__all__ = ["IntegerEngine", "IntegerRun"]
