"""From a plan to a program: which operations run on which integers, in order.

The lowerings are loaded when something is lowered: which nodes form a chain (`chains.py`) is asked
by others too, and costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact._lazy import lazy

if TYPE_CHECKING:
    from intact.program.lower.to_program import lower as lower
    from intact.program.lower.to_program import lower_nodes as lower_nodes
    from intact.program.lower.to_program import translate as translate
else:
    __getattr__, __all__ = lazy(__name__, {"to_program": "lower lower_nodes translate"})
