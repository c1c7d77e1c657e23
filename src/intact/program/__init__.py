"""Programs: plans lowered to steps between integers, which engines run and formats write.

Plans as integer steps: operations, `lower/`, `passes/`; `arithmetic/`: how a target computes with
codes; `realize/`: the same as plain integer operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact._lazy import lazy

if TYPE_CHECKING:
    from intact.program.program import Array as Array
    from intact.program.program import Encoding as Encoding
    from intact.program.program import Program as Program
    from intact.program.program import Shape as Shape
    from intact.program.program import Step as Step
    from intact.program.program import Tensor as Tensor
else:
    __getattr__, __all__ = lazy(__name__, {"program": "Array Encoding Program Shape Step Tensor"})
