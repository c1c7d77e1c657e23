"""HAGO's realization: a program as a graph of plain integer operations.

Hardware arithmetic (shifts, fixed-point multipliers, roundings, zero points, wrapping) is taken
apart into sums, products and floored quotients of int32 and int64, which every runtime has. Each
value carries the range of its integers, so that types are wide enough by proof and results are the
integer engine's to the bit, whoever runs them.
"""

from intact.program.realize.graph import IntegerGraph, Node, Op, Place, Value, Window
from intact.program.realize.realize import integer_program, realize

__all__ = ["IntegerGraph", "Node", "Op", "Place", "Value", "Window", "integer_program", "realize"]
