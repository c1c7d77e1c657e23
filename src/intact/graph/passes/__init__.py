"""The passes of normalization.

Contract: a pass changes the model in place and returns how much it changed (a count or a bool). It
keeps the opset, the names and order of graph inputs and outputs, and the results of the model. A
value name that remains in the model has the same values as before.
"""
