"""Programs: plans lowered to steps between integers, which engines run and formats write."""

from intact.program.program import Array, Encoding, Program, Shape, Step, Tensor

__all__ = ["Array", "Encoding", "Program", "Shape", "Step", "Tensor"]
