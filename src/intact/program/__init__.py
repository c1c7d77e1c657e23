"""Plans as steps between integers: what the integer engine runs and integer formats write."""

from intact.program.program import Array, Encoding, Program, Shape, Step, Tensor

__all__ = ["Array", "Encoding", "Program", "Shape", "Step", "Tensor"]
