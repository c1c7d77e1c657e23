"""The passes of normalization, one a file.

Contract: a pass changes the model it is given, in place, and returns how much it changed (a count,
or whether at all). It keeps the opset, the graph inputs and outputs in name and order, and what
the model computes. A value name that was in the model before and is there after stands for the
same numbers.
"""
